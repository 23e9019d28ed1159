# Every file of etcd-manifests/ as its head says, each in a namespace of its own, and the guard's answer about its leader.
# shellcheck shell=bash source-path=SCRIPTDIR

# example NAME: a namespace, guarded.
example() {
  say "example $1"
  kubectl create namespace "$1" >/dev/null
  kubectl label namespace "$1" etcd-guard.io/guard=enabled >/dev/null
}

# apply_example NAME
apply_example() { kubectl -n "$1" apply -f "$PROJECT/etcd-manifests/$1.yaml" >/dev/null; }

# permit NAME SECRET...: the shipped Role, with the names of these Secrets.
permit() {
  local names
  names=$(IFS=,; printf '%s' "${*:2}")
  sed "s/resourceNames: .*/resourceNames: [${names//,/, }]/" "$PROJECT/deploy/secrets-role.yaml" | kubectl -n "$1" apply -f - >/dev/null
}

# judged NAME SET COUNT [WORD...]: its members are there, and the guard knows who leads; then the namespace goes, opted out first.
judged() {
  rolled_out "$1" "statefulset/$2"
  until_true "the leader of $1 is protected" denies_leader "$@"
  tell "example-$1" "$DENIAL"
  leave "$1"
}

# leave NAME: while it empties, the next examples run.
leave() {
  kubectl label namespace "$1" etcd-guard.io/guard- >/dev/null
  kubectl delete namespace "$1" --wait=false >/dev/null
  LEFT+=("namespace/$1")
}

# How etcdctl reaches a member of mtls.yaml from within its pod.
MTLS=(--endpoints=https://127.0.0.1:2379 --cacert=/etc/etcd/tls/server/ca.crt
  --cert=/etc/etcd/tls/server/tls.crt --key=/etc/etcd/tls/server/tls.key)

begin_mtls() {
  example mtls
  "$PROJECT/etcd-manifests/mtls-certs" mtls >/dev/null
  permit mtls etcd-client-tls
  apply_example mtls
}
end_mtls() { judged mtls etcd 3 "${MTLS[@]}"; }

begin_password() {
  example password
  apply_example password
}
end_password() {
  local etcdctl=(kubectl -n password exec etcd-0 -- etcdctl)
  rolled_out password statefulset/etcd
  "${etcdctl[@]}" user add root --new-user-password=secret >/dev/null
  "${etcdctl[@]}" user grant-role root root >/dev/null
  "${etcdctl[@]}" user add etcd-guard --new-user-password=other >/dev/null
  "${etcdctl[@]}" auth enable >/dev/null
  kubectl -n password create secret generic etcd-guard-user --from-literal=username=etcd-guard --from-literal=password=other >/dev/null
  permit password etcd-guard-user
  judged password etcd 3 --user=root:secret
}

begin_bitnami_like() {
  example bitnami-like
  apply_example bitnami-like
}
end_bitnami_like() { judged bitnami-like etcd 3; }

begin_vcluster_like() {
  example vcluster-like
  "$PROJECT/etcd-manifests/vcluster-like-certs" vcluster-like >/dev/null
  permit vcluster-like my-vcluster-certs
  apply_example vcluster-like
}
end_vcluster_like() {
  judged vcluster-like my-vcluster-etcd 3 --endpoints=https://127.0.0.1:2379 --cacert=/run/config/pki/etcd-ca.crt \
    --cert=/run/config/pki/etcd-server.crt --key=/run/config/pki/etcd-server.key
}

begin_five_with_learner() {
  example five-with-learner
  apply_example five-with-learner
  rolled_out five-with-learner statefulset/etcd
  until_true 'etcd takes a learner' learner_is_added
}
end_five_with_learner() {
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

begin_single() {
  example single
  apply_example single
}
end_single() {
  rolled_out single statefulset/etcd
  tell example-single "$(answer kubectl -n single delete pod etcd-0 --dry-run=server)"
  leave single
}

examples() {
  local name before=''
  LEFT=()
  # The kubelet has seen its learner fail, and takes its time to start it again.
  begin_five_with_learner
  # Two at a time: the node is small, and most of an example is waiting for its members.
  for name in mtls mtls_cert_manager password bitnami_like vcluster_like single; do
    "begin_$name"
    [[ -z $before ]] || "end_$before"
    before=$name
  done
  "end_$before"
  end_five_with_learner
  kubectl wait --for=delete "${LEFT[@]}" --timeout="${READY_LIMIT}s" >/dev/null || die "they stay: $(kubectl get namespaces)"
}
