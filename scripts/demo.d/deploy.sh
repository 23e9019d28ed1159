# What the story is told with: the guard, and an etcd of three. The same on the demo's node and on a cluster of one's own, but
# for how the image gets there.
# shellcheck shell=bash source-path=SCRIPTDIR

# Each takes a few seconds where nothing is busy; the image of etcd may have to come over a network first.
GUARD_READY_LIMIT=300s
ETCD_READY_LIMIT=300s

# in_member POD WORD...: sets IN_MEMBER to the command that runs WORD... in the container of a member.
in_member() {
  # shellcheck disable=SC2034 # story.sh reads it
  IN_MEMBER=(kubectl -n prod exec "$1" -c etcd -- "${@:2}")
}

# deploy: into namespaces etcd-guard and prod, the second of which is there.
deploy() {
  setup kubectl apply -k "$PROJECT/deploy/overlays/minikube"
  setup kubectl label --overwrite namespace prod etcd-guard.io/guard=enabled
  setup kubectl -n prod apply -f "$PROJECT/etcd-manifests/plain.yaml"
  setup kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="$GUARD_READY_LIMIT"
  setup kubectl -n prod rollout status statefulset/etcd --timeout="$ETCD_READY_LIMIT"
}
