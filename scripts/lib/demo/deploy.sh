# Deploys the guard and a three-member etcd, on the node of the demo and on a user's cluster. Only the way to load the
# image differs.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# Each takes a few seconds on an idle machine; the image of etcd may have to be pulled first.
GUARD_READY_TIMEOUT=300s
ETCD_READY_TIMEOUT=300s

# member_command POD WORD...: prints, word by word, the command that runs WORD... in the container of a member.
member_command() { printf '%s\n' kubectl -n prod exec "$1" -c etcd -- "${@:2}"; }

# deploy KUSTOMIZATION: deploys the guard of that folder into the namespace etcd-guard, which it creates, and etcd into prod,
# which exists.
deploy() {
  setup kubectl apply -k "$PROJECT/$1"
  setup kubectl label --overwrite namespace prod etcd-guard.io/guard=enabled
  setup kubectl -n prod apply -f "$PROJECT/etcd-manifests/plain.yaml"
  setup kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="$GUARD_READY_TIMEOUT"
  setup kubectl -n prod rollout status statefulset/etcd --timeout="$ETCD_READY_TIMEOUT"
}
