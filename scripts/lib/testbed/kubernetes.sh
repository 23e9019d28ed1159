# The programs of a Kubernetes control plane at any address: certificates, start scripts, start, readiness.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# Seconds. About 3 s on an idle machine with 2 cores; many times that beside compilers.
APISERVER_READY_TIMEOUT=180
SERVICE_ACCOUNT_READY_TIMEOUT=90

# The controllers of a cluster without kubelets: those of workloads, Services, PodDisruptionBudgets, garbage collection,
# namespaces and volumes. Node lifecycle and taint eviction are excluded, since no kubelet sends heartbeats.
# shellcheck disable=SC2034 # control-plane.sh reads it
LOOPBACK_CONTROLLERS=statefulset-controller,deployment-controller,replicaset-controller,daemonset-controller,job-controller,\
disruption-controller,garbage-collector-controller,pod-garbage-collector-controller,namespace-controller,\
serviceaccount-controller,serviceaccount-token-controller,root-ca-certificate-publisher-controller,\
clusterrole-aggregation-controller,endpoints-controller,endpointslice-controller,\
persistentvolume-binder-controller,persistentvolumeclaim-protection-controller,persistentvolume-protection-controller

SERVICE_RANGE=10.96.0.0/24

# make_identity NAME SUBJECT SERVER: a client certificate and its kubeconfig, NAME.kubeconfig.
make_identity() {
  make_cert "$RUN_DIR/ca" "$RUN_DIR/$1" "$2" clientAuth
  make_kubeconfig "$RUN_DIR/$1.kubeconfig" "$3" "$RUN_DIR/ca.crt" "$RUN_DIR/$1"
}

# make_control_plane_certificates SERVER SAN...: all certificates and keys of a control plane at SERVER.
make_control_plane_certificates() {
  local server=$1
  shift
  make_ca "$RUN_DIR/ca" 'testbed CA'
  make_cert "$RUN_DIR/ca" "$RUN_DIR/kube-apiserver" /CN=kube-apiserver serverAuth \
    IP:10.96.0.1 DNS:localhost DNS:kubernetes DNS:kubernetes.default DNS:kubernetes.default.svc "$@"
  make_identity admin /O=system:masters/CN=admin "$server"
  make_identity kube-controller-manager /CN=system:kube-controller-manager "$server"
  make_identity kube-scheduler /CN=system:kube-scheduler "$server"
  run_openssl ecparam -name prime256v1 -genkey -noout -out "$RUN_DIR/service-accounts.key"
  run_openssl ec -in "$RUN_DIR/service-accounts.key" -pubout -out "$RUN_DIR/service-accounts.pub"
}

# start_control_plane ADDRESS CONTROLLERS SCHEDULER APISERVER-FLAG...: starts the programs on ADDRESS and returns when
# the default service account exists. An empty SCHEDULER omits kube-scheduler.
start_control_plane() {
  local address=$1 controllers=$2 scheduler=$3 program pid kubectl
  shift 3

  program=$(program etcd-3.6)
  write_run "$RUN_DIR/etcd" "$program" --name=control-plane --data-dir="$RUN_DIR/etcd-data" \
    --listen-client-urls="http://$address:2379" --advertise-client-urls="http://$address:2379" \
    --listen-peer-urls="http://$address:2380" --initial-advertise-peer-urls="http://$address:2380" \
    --initial-cluster="control-plane=http://$address:2380" --unsafe-no-fsync --log-level=warn
  start_program "$RUN_DIR/etcd" >/dev/null

  # All three service-account flags are required.
  program=$(program kube-apiserver)
  write_run "$RUN_DIR/kube-apiserver" "$program" --etcd-servers="http://$address:2379" --cert-dir="$RUN_DIR" --secure-port=6443 \
    --tls-cert-file="$RUN_DIR/kube-apiserver.crt" --tls-private-key-file="$RUN_DIR/kube-apiserver.key" \
    --client-ca-file="$RUN_DIR/ca.crt" --authorization-mode=Node,RBAC --allow-privileged=true \
    --service-cluster-ip-range="$SERVICE_RANGE" --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$RUN_DIR/service-accounts.pub" \
    --service-account-signing-key-file="$RUN_DIR/service-accounts.key" "$@"
  pid=$(start_program "$RUN_DIR/kube-apiserver")
  program=$(program kubectl)
  kubectl=("$program" --kubeconfig="$RUN_DIR/admin.kubeconfig" --cache-dir="$RUN_DIR/kubectl-cache" --request-timeout=5s)
  # First without kubectl, of which each attempt takes a tenth of a second of CPU time from the starting server.
  xtask wait-until --pid "$pid" --limit "$APISERVER_READY_TIMEOUT" --message 'kube-apiserver does not listen' \
    --log "$RUN_DIR/kube-apiserver.log" --address "$address:6443"
  wait_until "$pid" "$APISERVER_READY_TIMEOUT" 'kube-apiserver is not ready' "$RUN_DIR/kube-apiserver.log" \
    "${kubectl[@]}" get --raw=/readyz

  # With the default limits (20 requests per second) a test would wait for the client instead of the cluster.
  program=$(program kube-controller-manager)
  write_run "$RUN_DIR/kube-controller-manager" "$program" --kubeconfig="$RUN_DIR/kube-controller-manager.kubeconfig" \
    --bind-address="$address" --secure-port=10257 --cert-dir="$RUN_DIR/kube-controller-manager.certs" \
    --leader-elect=false --use-service-account-credentials=true --flex-volume-plugin-dir="$RUN_DIR/volume-plugins" \
    --controllers="$controllers" --service-account-private-key-file="$RUN_DIR/service-accounts.key" \
    --root-ca-file="$RUN_DIR/ca.crt" --kube-api-qps=200 --kube-api-burst=400
  pid=$(start_program "$RUN_DIR/kube-controller-manager")

  if [[ -n $scheduler ]]; then
    program=$(program kube-scheduler)
    write_run "$RUN_DIR/kube-scheduler" "$program" --kubeconfig="$RUN_DIR/kube-scheduler.kubeconfig" --leader-elect=false \
      --bind-address="$address" --secure-port=10259 --cert-dir="$RUN_DIR/kube-scheduler.certs" \
      --kube-api-qps=200 --kube-api-burst=400
    start_program "$RUN_DIR/kube-scheduler" >/dev/null
  fi

  wait_until "$pid" "$SERVICE_ACCOUNT_READY_TIMEOUT" 'the default service account does not exist' "$RUN_DIR/kube-controller-manager.log" \
    "${kubectl[@]}" -n default wait --for=create serviceaccount/default --timeout=5s
}
