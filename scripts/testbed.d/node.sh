# A whole Kubernetes node in namespaces of its own: this half checks, builds and starts; node-inside.sh is the node.
# shellcheck shell=bash source-path=SCRIPTDIR
source "$ROOMS/lifetime.sh"
source "$ROOMS/programs.sh"
source "$ROOMS/image.sh"

node_usage() {
  cat <<'USAGE'
usage: scripts/testbed node [OPTION...] [-- CMD...]

A real kubelet, containerd, kube-proxy, scheduler, CoreDNS and control plane, all of them in PID, mount and network
namespaces of their own. Needs root. CMD runs inside.

  --image ARCHIVE        load an image archive before CMD (may be repeated)
  --volumes 12           how many volumes of 1Gi the storage class `local` (the default class) holds
  --lxcfs                run lxcfs on /var/lib/lxcfs
  --node-status-update-frequency 10s
                         how often the kubelet looks at its node, and writes the node's status if that differs
  --dir DIR              keep files in DIR

Variables, for CMD or as lines: TESTBED_DIR, KUBECONFIG, KUBECTL (its path), TESTBED_CONTAINERD (socket), TESTBED_ENTER
(a script: runs a command, or a shell, inside; from outside). CMD also finds kubectl on its PATH.
Files in DIR: as `control-plane`, and containerd.log, kubelet.log, kube-proxy.log.
USAGE
}

NODE_PROGRAMS=(etcd-3.6 kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl coredns
  containerd runc catatonit iptables conntrack ip)
CNI_BIN=/usr/lib/cni

node_main() {
  local dir='' volumes=12 lxcfs='' frequency=10s images=() name
  while [[ $# -gt 0 ]]; do
    case $1 in
    --dir | --volumes)
      need_value "$@"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --image)
      need_value "$@"
      images+=("$(realpath -- "$2")")
      shift
      ;;
    --node-status-update-frequency)
      need_value "$@"
      frequency=$2
      shift
      ;;
    --lxcfs) lxcfs=yes ;;
    --help) node_usage; return ;;
    --) break ;;
    *) die "unknown option of node: $1" ;;
    esac
    shift
  done
  [[ ${1-} != -- ]] || shift
  node_possible || die "a node cannot run: $REFUSAL; what runs here is: scripts/testbed control-plane"
  [[ $volumes =~ ^[0-9]+$ ]] || die "--volumes wants a number, not $volumes"
  [[ $frequency =~ ^[1-9][0-9]*s$ ]] || die "--node-status-update-frequency wants seconds, as in 10s, not $frequency"

  [[ -z $lxcfs ]] || NODE_PROGRAMS+=(lxcfs)
  (programs_ensure "${NODE_PROGRAMS[@]}")
  [[ -x $CNI_BIN/ptp ]] || (packages_install containernetworking-plugins)
  for name in "${NODE_PROGRAMS[@]}"; do program "$name"; done
  pause_archive
  images=("$ARCHIVE" "${images[@]}")
  coredns_archive
  images=("$ARCHIVE" "${images[@]}")

  # Containers get a cgroup of this testbed's own, which the reaper can tell from everybody else's.
  local cgroup=etcd-guard-$$
  life_begin "$dir" "$cgroup"

  local status
  [[ ! -t 0 ]] || [[ $# -eq 0 ]] || trap '' INT
  export ROOMS RUN_DIR LIFE CNI_BIN NODE_CGROUP=$cgroup NODE_VOLUMES=$volumes NODE_LXCFS=$lxcfs NODE_STATUS_FREQUENCY=$frequency NODE_IMAGES
  NODE_IMAGES=$(printf '%s\n' "${images[@]}")
  exec {COMMAND_STDIN}<&0
  env --default-signal=INT --default-signal=QUIT setpriv --pdeathsig KILL -- \
    unshare --fork --pid --mount --net --kill-child -- \
    bash "$ROOMS/node-inside.sh" "$@" <&"$COMMAND_STDIN" {COMMAND_STDIN}<&- &
  COMMAND_PID=$!
  wait "$COMMAND_PID" && status=0 || status=$?
  COMMAND_PID=''
  exit "$status"
}
