# etcd, kube-apiserver and kube-controller-manager on a loopback address of their own. No root needed.
# shellcheck shell=bash source-path=SCRIPTDIR
source "$ROOMS/lifetime.sh"
source "$ROOMS/loopback.sh"
source "$ROOMS/certs.sh"
source "$ROOMS/programs.sh"
source "$ROOMS/kubernetes.sh"
source "$ROOMS/volumes.sh"

control_plane_usage() {
  cat <<'USAGE'
usage: scripts/testbed control-plane [OPTION...] [-- CMD...]

  --scheduler            also run kube-scheduler
  --controllers LIST     further controllers, with commas (say node-lifecycle-controller)
  --apiserver-flag FLAG  a further flag of kube-apiserver (may be repeated)
  --node NAME            also write NAME.kubeconfig, the identity system:node:NAME (may be repeated)
  --volumes 0            how many volumes of 1Gi the storage class `local` (the default class) holds; 0: no class
  --dir DIR              keep files in DIR
  --net 127.A.B          loopback network; the apiserver is 127.A.B.1:6443

Files in DIR: admin.kubeconfig, ca.crt, ca.key, and for kube-apiserver, kube-controller-manager, kube-scheduler
and etcd: NAME.run (starts it again; further flags may follow), NAME.pid, NAME.log.
Variables, for CMD or as lines: TESTBED_DIR, TESTBED_NET, KUBECONFIG, KUBECTL (its path). CMD also finds kubectl
on its PATH.
USAGE
}

control_plane_main() {
  local scheduler='' dir='' net='' extra='' volumes=0 nodes=() node flags=()
  while [[ $# -gt 0 ]]; do
    case $1 in
    --dir | --net | --volumes)
      need_value "$@"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --controllers)
      need_value "$@"
      extra+=,$2
      shift
      ;;
    --apiserver-flag)
      need_value "$@"
      flags+=("$2")
      shift
      ;;
    --node)
      need_value "$@"
      nodes+=("$2")
      shift
      ;;
    --scheduler) scheduler=yes ;;
    --help) control_plane_usage; return ;;
    --) break ;;
    *) die "unknown option of control-plane: $1" ;;
    esac
    shift
  done
  [[ ${1-} != -- ]] || shift

  [[ $volumes =~ ^[0-9]+$ ]] || die "--volumes wants a number, not $volumes"

  local name
  for name in etcd-3.6 kube-apiserver kube-controller-manager kubectl ${scheduler:+kube-scheduler}; do program "$name"; done
  net_pick "$net" 1 6443
  life_begin "$dir" ''

  CONTROL_PLANE_ADDRESS=$NET.1
  CONTROL_PLANE_CONTROLLERS=$LOOPBACK_CONTROLLERS$extra
  # A loopback address can be no endpoint of the `kubernetes` Service; nothing here dials that Service.
  APISERVER_EXTRA=(--bind-address="$NET.1" --advertise-address="$NET.1" --endpoint-reconciler-type=none "${flags[@]}")
  kubernetes_certs "https://$NET.1:6443" "IP:$NET.1"
  for node in "${nodes[@]}"; do
    kubernetes_identity "$node" "/O=system:nodes/CN=system:node:$node" "https://$NET.1:6443"
  done
  kubernetes_start "$scheduler"

  link_program kubectl
  [[ $volumes -eq 0 ]] || volume_manifests "$volumes" | timeout 30 "$FOUND" --kubeconfig="$RUN_DIR/admin.kubeconfig" apply -f - >/dev/null ||
    die 'the volumes were not accepted'
  export TESTBED_DIR=$RUN_DIR TESTBED_NET=$NET KUBECTL=$FOUND KUBECONFIG=$RUN_DIR/admin.kubeconfig PATH="$RUN_DIR/bin:$PATH"
  live TESTBED_DIR TESTBED_NET KUBECONFIG KUBECTL -- "$@"
}
