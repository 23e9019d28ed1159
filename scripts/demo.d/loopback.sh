# The demo without root: a control plane on loopback, and instead of a node a program that runs each etcd pod as a
# process on an address of its own (the process node). The guard runs as a process too, with its shipped permissions.
# shellcheck shell=bash source-path=SCRIPTDIR

# loopback_story PROFILE: does not return.
loopback_story() {
  grep -qs '^name = "process-node"' "$PROJECT/Cargo.toml" ||
    die 'the story on loopback needs the process node (cargo example process-node), which this tree does not have'
  guard_program "$1"
  PROCESS_NODE=$EXAMPLES/process-node
  [[ -x $PROCESS_NODE ]] || say 'building the process node (once; some minutes)'
  guard_cargo "$1" build --example process-node || die 'the process node could not be built'
  local name
  for name in etcd-3.6 etcdctl-3.6 kube-apiserver kube-controller-manager kube-scheduler kubectl; do program "$name"; done
  program etcd-3.6
  ETCD=$FOUND
  program etcdctl-3.6
  ETCDCTL=$FOUND
  DEMO_STARTED=$(date +%s)
  export GUARD PROCESS_NODE ETCD ETCDCTL DEMO_STARTED
  say 'starting a control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler'
  local command=("$SCRIPTS/testbed" control-plane --scheduler --volumes 6 --node process-node -- bash "$SCRIPTS/demo.d/loopback-inside.sh")
  [[ -z $DEMO_KEEP ]] || run_and_keep "${command[@]}"
  exec "${command[@]}"
}
