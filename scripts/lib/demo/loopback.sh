# The demo without root: a control plane on loopback. The process node, a test program, replaces the kubelet and runs
# each etcd pod as a process with its own address. The guard is a process as well, with the permissions of its shipped
# manifests.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# run_loopback_demo PROFILE: does not return.
run_loopback_demo() {
  local command
  GUARD=$(build_guard "$1")
  PROCESS_NODE=$(build_test_program "$1" process-node)
  provide kube-apiserver kube-controller-manager kube-scheduler kubectl
  ETCD=$(program etcd-3.6)
  ETCDCTL=$(program etcdctl-3.6)
  DEMO_STARTED=$(date +%s)
  export GUARD PROCESS_NODE ETCD ETCDCTL DEMO_STARTED
  log 'starting a control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler'
  command=("$SCRIPTS/testbed" control-plane --scheduler --volumes 6 --node process-node -- bash "$LIB/demo/loopback-inside.sh")
  [[ -z $DEMO_KEEP ]] || run_detached "${command[@]}"
  exec "${command[@]}"
}
