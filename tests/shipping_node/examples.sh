# Applies every manifest of etcd-manifests/ as its header describes, each in a separate namespace, and records the denial
# for its leader.
# shellcheck shell=bash source-path=SCRIPTDIR

# example NAME: creates a guarded namespace.
example() {
  log "example $1"
  kubectl create namespace "$1" >/dev/null
  kubectl label namespace "$1" etcd-guard.io/guard=enabled >/dev/null
}

# apply_example NAME
apply_example() { kubectl -n "$1" apply -f "$PROJECT/etcd-manifests/$1.yaml" >/dev/null; }

# permit NAME SECRET...: applies the shipped Role for these Secrets.
permit() {
  local names
  names=$(IFS=,; printf '%s' "${*:2}")
  sed "s/resourceNames: .*/resourceNames: [${names//,/, }]/" "$PROJECT/deploy/secrets-role.yaml" | kubectl -n "$1" apply -f - >/dev/null
}

# assert_protected NAME SET COUNT [WORD...]: waits for the members, records the denial for the leader, and deletes the namespace.
assert_protected() {
  local denial
  rolled_out "$1" "statefulset/$2"
  denial=$(wait_until "the leader of $1 is protected" leader_denial "$@")
  report "example-$1" "$denial"
  remove "$1"
}

# remove NAME: opts the namespace out and deletes it while the next examples run.
remove() {
  kubectl label namespace "$1" etcd-guard.io/guard- >/dev/null
  kubectl delete namespace "$1" --wait=false >/dev/null
}

# Flags of etcdctl inside the pods of mtls.yaml.
MTLS=(--endpoints=https://127.0.0.1:2379 --cacert=/etc/etcd/tls/server/ca.crt
  --cert=/etc/etcd/tls/server/tls.crt --key=/etc/etcd/tls/server/tls.key)

begin_mtls() {
  example mtls
  "$PROJECT/etcd-manifests/mtls-certs" mtls >/dev/null
  permit mtls etcd-client-tls
  apply_example mtls
}
end_mtls() { assert_protected mtls etcd 3 "${MTLS[@]}"; }

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
  assert_protected password etcd 3 --user=root:secret
}

begin_bitnami_like() {
  example bitnami-like
  apply_example bitnami-like
}
end_bitnami_like() { assert_protected bitnami-like etcd 3; }

begin_vcluster_like() {
  example vcluster-like
  "$PROJECT/etcd-manifests/vcluster-like-certs" vcluster-like >/dev/null
  permit vcluster-like my-vcluster-certs
  apply_example vcluster-like
}
end_vcluster_like() {
  assert_protected vcluster-like my-vcluster-etcd 3 --endpoints=https://127.0.0.1:2379 --cacert=/run/config/pki/etcd-ca.crt \
    --cert=/run/config/pki/etcd-server.crt --key=/run/config/pki/etcd-server.key
}

begin_five_with_learner() {
  example five-with-learner
  apply_example five-with-learner
  rolled_out five-with-learner statefulset/etcd
  wait_until 'etcd accepts a learner' learner_is_added
}
end_five_with_learner() {
  wait_until 'the learner runs' learner_is_started
  # The deletion of a learner is approved.
  report example-learner "$(output_of kubectl -n five-with-learner delete pod etcd-learner-0 --dry-run=server)"
  assert_protected five-with-learner etcd 5
}
# learner_is_added: etcd rejects membership changes as unhealthy during its first seconds.
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
  report example-single "$(output_of kubectl -n single delete pod etcd-0 --dry-run=server)"
  remove single
}

examples() {
  local name before='' names=(mtls mtls_cert_manager password bitnami_like vcluster_like single) namespaces
  # The first start of the learner fails, and the kubelet delays the restart.
  begin_five_with_learner
  # Two examples at a time: the node is small, and an example mostly waits for its members.
  for name in "${names[@]}"; do
    "begin_$name"
    [[ -z $before ]] || "end_$before"
    before=$name
  done
  "end_$before"
  end_five_with_learner
  names+=(five_with_learner)
  namespaces=("${names[@]//_/-}")
  kubectl wait --for=delete "${namespaces[@]/#/namespace/}" --timeout="${READY_TIMEOUT}s" >/dev/null ||
    fail "namespaces remain: $(kubectl get namespaces)"
}
