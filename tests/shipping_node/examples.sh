# Every file of etcd-manifests/ as its head says, each in a namespace of its own, and the guard's answer about its leader.
# shellcheck shell=bash source-path=SCRIPTDIR

# example NAME: a namespace, guarded.
example() {
  say "example $1"
  kubectl create namespace "$1" >/dev/null
  kubectl label namespace "$1" etcd-guard.io/guard=enabled >/dev/null
}

# apply_example NAME SET
apply_example() {
  kubectl -n "$1" apply -f "$PROJECT/etcd-manifests/$1.yaml" >/dev/null
  rolled_out "$1" "statefulset/$2"
}

# permit NAME SECRET...: the shipped Role, with the names of these Secrets.
permit() {
  local names
  names=$(IFS=,; printf '%s' "${*:2}")
  sed "s/resourceNames: .*/resourceNames: [${names//,/, }]/" "$PROJECT/deploy/secrets-role.yaml" | kubectl -n "$1" apply -f - >/dev/null
}

# judged NAME SET COUNT [WORD...]: the guard knows who leads; then the namespace goes, opted out first.
judged() {
  until_true "the leader of $1 is protected" denies_leader "$@"
  tell "example-$1" "$DENIAL"
  leave "$1"
}

# leave NAME: while it empties, the next example starts.
leave() {
  kubectl label namespace "$1" etcd-guard.io/guard- >/dev/null
  kubectl delete namespace "$1" --wait=false >/dev/null
  LEFT+=("namespace/$1")
}

# How etcdctl reaches a member of mtls.yaml from within its pod.
MTLS=(--endpoints=https://127.0.0.1:2379 --cacert=/etc/etcd/tls/server/ca.crt
  --cert=/etc/etcd/tls/server/tls.crt --key=/etc/etcd/tls/server/tls.key)

example_mtls() {
  example mtls
  "$PROJECT/etcd-manifests/mtls-certs" mtls >/dev/null
  permit mtls etcd-client-tls
  apply_example mtls etcd
  judged mtls etcd 3 "${MTLS[@]}"
}

example_password() {
  local etcdctl=(kubectl -n password exec etcd-0 -- etcdctl)
  example password
  apply_example password etcd
  "${etcdctl[@]}" user add root --new-user-password=secret >/dev/null
  "${etcdctl[@]}" user grant-role root root >/dev/null
  "${etcdctl[@]}" user add etcd-guard --new-user-password=other >/dev/null
  "${etcdctl[@]}" auth enable >/dev/null
  kubectl -n password create secret generic etcd-guard-user --from-literal=username=etcd-guard --from-literal=password=other >/dev/null
  permit password etcd-guard-user
  judged password etcd 3 --user=root:secret
}

example_vcluster_like() {
  example vcluster-like
  "$PROJECT/etcd-manifests/vcluster-like-certs" vcluster-like >/dev/null
  permit vcluster-like my-vcluster-certs
  apply_example vcluster-like my-vcluster-etcd
  judged vcluster-like my-vcluster-etcd 3 --endpoints=https://127.0.0.1:2379 --cacert=/run/config/pki/etcd-ca.crt \
    --cert=/run/config/pki/etcd-server.crt --key=/run/config/pki/etcd-server.key
}

example_five_with_learner() {
  example five-with-learner
  apply_example five-with-learner etcd
  until_true 'etcd takes a learner' learner_is_added
  until_true 'the learner runs' learner_is_started
  # Its loss costs nothing, and the guard says so.
  tell example-learner "$(answer kubectl -n five-with-learner delete pod etcd-learner-0 --dry-run=server)"
  judged five-with-learner etcd 5
}
# learner_is_added: in its first seconds etcd calls itself unhealthy and changes no membership.
learner_is_added() {
  kubectl -n five-with-learner exec etcd-0 -- etcdctl member add etcd-learner-0 --learner \
    --peer-urls=http://etcd-learner-0.etcd.five-with-learner.svc:2380 >/dev/null 2>&1 ||
    [[ $(kubectl -n five-with-learner exec etcd-0 -- etcdctl member list 2>/dev/null) == *etcd-learner-0* ]]
}
learner_is_started() {
  [[ $(kubectl -n five-with-learner exec etcd-0 -- etcdctl member list 2>/dev/null) == *', started, etcd-learner-0,'*'true'* ]]
}

example_single() {
  example single
  apply_example single etcd
  tell example-single "$(answer kubectl -n single delete pod etcd-0 --dry-run=server)"
  leave single
}

examples() {
  # One after the other: the node is small.
  LEFT=()
  example_mtls
  example_mtls_cert_manager
  example_password
  example bitnami-like
  apply_example bitnami-like etcd
  judged bitnami-like etcd 3
  example_vcluster_like
  example_five_with_learner
  example_single
  kubectl wait --for=delete "${LEFT[@]}" --timeout="${READY_LIMIT}s" >/dev/null || die "they stay: $(kubectl get namespaces)"
}
