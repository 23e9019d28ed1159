# The parts of a Kubernetes control plane, on any address: certificates, run scripts, start, readiness.
# shellcheck shell=bash source-path=SCRIPTDIR

# About 3 s on an idle machine with 2 cores; compilers next to it make it many times that.
APISERVER_READY_LIMIT=180
SERVICE_ACCOUNT_READY_LIMIT=90

# Without a kubelet: what makes sets, Services, budgets, garbage collection and namespaces work. Node lifecycle and
# taint eviction stay out, as nobody sends heartbeats.
# shellcheck disable=SC2034 # control-plane.sh reads it
LOOPBACK_CONTROLLERS=statefulset-controller,deployment-controller,replicaset-controller,daemonset-controller,job-controller,\
disruption-controller,garbage-collector-controller,pod-garbage-collector-controller,namespace-controller,\
serviceaccount-controller,serviceaccount-token-controller,root-ca-certificate-publisher-controller,\
clusterrole-aggregation-controller,endpoints-controller,endpointslice-controller,\
persistentvolume-binder-controller,persistentvolumeclaim-protection-controller,persistentvolume-protection-controller

SERVICE_RANGE=10.96.0.0/24

# Set by the caller before kubernetes_start.
CONTROL_PLANE_ADDRESS=''
CONTROL_PLANE_CONTROLLERS=''
APISERVER_EXTRA=()

# kubernetes_identity NAME SUBJECT SERVER: a client certificate and its kubeconfig, NAME.kubeconfig.
kubernetes_identity() {
  make_cert "$RUN_DIR/ca" "$RUN_DIR/$1" "$2" clientAuth
  make_kubeconfig "$RUN_DIR/$1.kubeconfig" "$3" "$RUN_DIR/ca.crt" "$RUN_DIR/$1"
}

# kubernetes_certs SERVER SAN...: everything that proves who is who in a control plane at SERVER.
kubernetes_certs() {
  local server=$1
  shift
  make_ca "$RUN_DIR/ca" 'testbed CA'
  make_cert "$RUN_DIR/ca" "$RUN_DIR/kube-apiserver" /CN=kube-apiserver serverAuth \
    IP:10.96.0.1 DNS:localhost DNS:kubernetes DNS:kubernetes.default DNS:kubernetes.default.svc "$@"
  kubernetes_identity admin /O=system:masters/CN=admin "$server"
  kubernetes_identity kube-controller-manager /CN=system:kube-controller-manager "$server"
  kubernetes_identity kube-scheduler /CN=system:kube-scheduler "$server"
  ssl ecparam -name prime256v1 -genkey -noout -out "$RUN_DIR/service-accounts.key"
  ssl ec -in "$RUN_DIR/service-accounts.key" -pubout -out "$RUN_DIR/service-accounts.pub"
}

# kubernetes_start SCHEDULER: starts the parts and returns when the default service account exists.
kubernetes_start() {
  local address=$CONTROL_PLANE_ADDRESS

  program etcd-3.6
  write_run "$RUN_DIR/etcd" "$FOUND" --name=control-plane --data-dir="$RUN_DIR/etcd-data" \
    --listen-client-urls="http://$address:2379" --advertise-client-urls="http://$address:2379" \
    --listen-peer-urls="http://$address:2380" --initial-advertise-peer-urls="http://$address:2380" \
    --initial-cluster="control-plane=http://$address:2380" --unsafe-no-fsync --log-level=warn
  start "$RUN_DIR/etcd"

  # All three service-account flags are needed.
  program kube-apiserver
  write_run "$RUN_DIR/kube-apiserver" "$FOUND" --etcd-servers="http://$address:2379" --cert-dir="$RUN_DIR" --secure-port=6443 \
    --tls-cert-file="$RUN_DIR/kube-apiserver.crt" --tls-private-key-file="$RUN_DIR/kube-apiserver.key" \
    --client-ca-file="$RUN_DIR/ca.crt" --authorization-mode=Node,RBAC --allow-privileged=true \
    --service-cluster-ip-range="$SERVICE_RANGE" --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$RUN_DIR/service-accounts.pub" \
    --service-account-signing-key-file="$RUN_DIR/service-accounts.key" "${APISERVER_EXTRA[@]}"
  start "$RUN_DIR/kube-apiserver"
  program kubectl
  local kubectl=("$FOUND" --kubeconfig="$RUN_DIR/admin.kubeconfig" --cache-dir="$RUN_DIR/kubectl-cache" --request-timeout=5s)
  # First by the shell alone: a kubectl that finds nobody takes a tenth of a second from what it waits for.
  wait_until "$APISERVER_READY_LIMIT" 'kube-apiserver does not listen' "$RUN_DIR/kube-apiserver.log" listens "$address" 6443
  wait_until "$APISERVER_READY_LIMIT" 'kube-apiserver is not ready' "$RUN_DIR/kube-apiserver.log" "${kubectl[@]}" get --raw=/readyz

  # The default limits (20 requests a second) make a test wait for the client, not for the cluster.
  program kube-controller-manager
  write_run "$RUN_DIR/kube-controller-manager" "$FOUND" --kubeconfig="$RUN_DIR/kube-controller-manager.kubeconfig" \
    --bind-address="$address" --secure-port=10257 --cert-dir="$RUN_DIR/kube-controller-manager.certs" \
    --leader-elect=false --use-service-account-credentials=true --flex-volume-plugin-dir="$RUN_DIR/volume-plugins" --controllers="$CONTROL_PLANE_CONTROLLERS" \
    --service-account-private-key-file="$RUN_DIR/service-accounts.key" --root-ca-file="$RUN_DIR/ca.crt" \
    --kube-api-qps=200 --kube-api-burst=400
  start "$RUN_DIR/kube-controller-manager"

  if [[ -n $1 ]]; then
    program kube-scheduler
    write_run "$RUN_DIR/kube-scheduler" "$FOUND" --kubeconfig="$RUN_DIR/kube-scheduler.kubeconfig" --leader-elect=false \
      --bind-address="$address" --secure-port=10259 --cert-dir="$RUN_DIR/kube-scheduler.certs" \
      --kube-api-qps=200 --kube-api-burst=400
    start "$RUN_DIR/kube-scheduler"
  fi

  wait_until "$SERVICE_ACCOUNT_READY_LIMIT" 'the default service account does not appear' "$RUN_DIR/kube-controller-manager.log" \
    "${kubectl[@]}" -n default wait --for=create serviceaccount/default --timeout=5s
}
