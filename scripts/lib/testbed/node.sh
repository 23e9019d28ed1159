# A whole Kubernetes node, or several, in their own namespaces: this file checks, builds and starts; node-inside.sh is the node.
# shellcheck shell=bash source-path=SCRIPTDIR/..
source "$LIB/images.sh"

node_usage() {
  cat <<'USAGE'
usage: scripts/testbed node [OPTION...] [-- CMD...]

A real kubelet, containerd, kube-proxy, scheduler, CoreDNS and control plane in separate PID, mount and network
namespaces. Needs root. CMD runs inside.

  --nodes 1              number of nodes, at most 5: node, node2, node3 and so on, each with a containerd and a kubelet
  --image ARCHIVE        load an image archive into each node before CMD (may be repeated)
  --volumes 12           number of volumes of 1Gi in the storage class `local` (the default class)
  --lxcfs                run lxcfs on /var/lib/lxcfs
  --ipv6                 pods and Services of both address families, and a RuntimeClass `ipv6`, whose pods have no
                         address of IPv4 (one node only)
  --node-status-update-frequency 10s
                         interval at which the kubelet checks its node and reports changes of the node's status
  --dir DIR              store files in DIR

Variables, for CMD or as lines: TESTBED_DIR, KUBECONFIG, KUBECTL (path), TESTBED_CONTAINERD (socket of the first node),
TESTBED_ENTER (a script that runs a command, or a shell, inside; for use outside). kubectl is also on the PATH of CMD.
Files in DIR: those of `control-plane`, and containerd.log, kubelet.log, kube-proxy.log; of further nodes NAME/containerd.log
and NAME/kubelet.log.
USAGE
}

node_main() {
  local dir='' nodes=1 volumes=12 lxcfs='' ipv6='' frequency=10s images=() reason arguments=("$@")
  while [[ $# -gt 0 ]]; do
    case $1 in
    --dir | --nodes | --volumes)
      require_value "$@"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --image)
      require_value "$@"
      images+=("$(realpath -- "$2")")
      shift
      ;;
    --node-status-update-frequency)
      require_value "$@"
      frequency=$2
      shift
      ;;
    --lxcfs) lxcfs=lxcfs ;;
    --ipv6) ipv6=yes ;;
    --help) node_usage; return ;;
    --) break ;;
    *) fail "unknown option of node: $1" ;;
    esac
    shift
  done
  [[ ${1-} != -- ]] || shift
  [[ $volumes =~ ^[0-9]+$ ]] || fail "--volumes needs a number, not $volumes"
  [[ $nodes =~ ^[1-5]$ ]] || fail "--nodes needs a number from 1 to 5, not $nodes"
  [[ $nodes -eq 1 || -z $ipv6 ]] || fail '--ipv6 needs a single node: omit --nodes'
  [[ $frequency =~ ^[1-9][0-9]*s$ ]] || fail "--node-status-update-frequency needs seconds, as in 10s, not $frequency"
  if ! is_supervised; then
    if reason=$(node_obstacle); then fail "a node cannot run: $reason; this runs here: scripts/testbed control-plane"; fi
    # Containers have a cgroup of this testbed, which the reaper can distinguish from others.
    supervise "$dir" --cgroup -- node "${arguments[@]}"
  fi

  provide "${NODE_PROGRAMS[@]}" ${lxcfs:+"$lxcfs"}
  local coredns pause
  coredns=$(coredns_archive)
  pause=$(pause_archive)
  images=("$coredns" "$pause" "${images[@]}")
  export LIB RUN_DIR NODE_COUNT=$nodes NODE_VOLUMES=$volumes NODE_LXCFS=$lxcfs NODE_IPV6=$ipv6 NODE_IMAGES
  export NODE_STATUS_FREQUENCY=$frequency
  NODE_IMAGES=$(printf '%s\n' "${images[@]}")
  exec unshare --fork --pid --mount --net --kill-child -- \
    "$XTASK" init --pid-file "$RUN_DIR/inside" -- bash "$LIB/testbed/node-inside.sh" "$@"
}
