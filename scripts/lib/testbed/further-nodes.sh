# The nodes after the first one: a containerd and a kubelet each. All nodes share the network and mount namespace, so that one
# kube-proxy serves all of them, and every volume is on all of them.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# further_nodes: prints the numbers of these nodes. The name of a node is `node` and its number.
further_nodes() { seq 2 "$NODE_COUNT"; }

# node_dir NUMBER, node_state NUMBER, node_address NUMBER: print where the files, the sockets and the kubelet of a node are.
node_dir() { printf '%s/node%s' "$RUN_DIR" "$1"; }
node_state() { printf '/run/containerd-node%s' "$1"; }
node_address() { printf '%s.%s' "${NODE_ADDRESS%.*}" "$((${NODE_ADDRESS##*.} + $1 - 1))"; }

# start_further_containerds: each node has an address on the bridge and a range of pods of its own.
start_further_containerds() {
  local number dir
  FURTHER_CONTAINERDS=() FURTHER_KUBELETS=()
  for number in $(further_nodes); do
    dir=$(node_dir "$number")
    ip address add "$(node_address "$number")/24" dev node0
    write_pod_network "node$number/cni" "[{\"subnet\": \"10.244.$((number - 1)).0/24\"}]" '{"dst": "0.0.0.0/0"}'
    write_containerd_config "$dir" "$(node_state "$number")"
    FURTHER_CONTAINERDS[number]=$(run_containerd "$dir")
  done
}

make_identities_of_further_nodes() {
  local number
  for number in $(further_nodes); do
    make_identity "node$number/kubelet" "/O=system:nodes/CN=system:node:node$number" "$SERVER"
  done
}

load_images_of_further_nodes() {
  local number
  for number in $(further_nodes); do
    load_images "${FURTHER_CONTAINERDS[number]}" "$(node_dir "$number")" "$(node_state "$number")/containerd.sock"
  done
}

# make_node_cgroup NAME: creates a cgroup in every hierarchy. A kubelet removes the pods below its cgroup that it does not
# know, so each needs one of its own. The kubelet of the first node uses only `kubepods` of the parent.
make_node_cgroup() {
  local parent controller
  for parent in /sys/fs/cgroup/{,*/}"$TESTBED_CGROUP"; do
    [[ -e $parent/cgroup.procs ]] || continue
    for controller in cpu cpuset memory pids; do
      [[ ! -e $parent/cgroup.subtree_control ]] || printf '+%s' "$controller" 2>/dev/null >"$parent/cgroup.subtree_control" || true
    done
    mkdir -p "$parent/$1"
  done
}

start_further_kubelets() {
  local number
  for number in $(further_nodes); do
    make_node_cgroup "node$number"
    FURTHER_KUBELETS[number]=$(start_kubelet "node$number" "$(node_address "$number")" "$(node_dir "$number")" \
      "$(node_state "$number")/containerd.sock" "$TESTBED_CGROUP/node$number")
  done
}

wait_for_further_nodes() {
  local number
  for number in $(further_nodes); do
    wait_until "${FURTHER_KUBELETS[number]}" "$NODE_READY_TIMEOUT" "node$number is not Ready" "$(node_dir "$number")/kubelet.log" \
      kubectl wait --for=condition=Ready "node/node$number" --timeout=5s
  done
}
