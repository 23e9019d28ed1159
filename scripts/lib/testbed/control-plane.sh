# etcd, kube-apiserver and kube-controller-manager on a loopback address. Needs no root.
# shellcheck shell=bash source-path=SCRIPTDIR/..
source "$LIB/testbed/processes.sh"
source "$LIB/testbed/loopback.sh"
source "$LIB/certificates.sh"
source "$LIB/testbed/kubernetes.sh"
source "$LIB/testbed/volumes.sh"

control_plane_usage() {
  cat <<'USAGE'
usage: scripts/testbed control-plane [OPTION...] [-- CMD...]

  --scheduler            also run kube-scheduler
  --controllers LIST     additional controllers, separated by commas (for example node-lifecycle-controller)
  --apiserver-flag FLAG  an additional flag of kube-apiserver (may be repeated)
  --node NAME            also write NAME.kubeconfig, the identity system:node:NAME (may be repeated)
  --volumes 0            number of volumes of 1Gi in the storage class `local` (the default class); 0: no class
  --dir DIR              store files in DIR
  --net 127.A.B          loopback network; the API server is 127.A.B.1:6443

Files in DIR: admin.kubeconfig, ca.crt, ca.key, and for kube-apiserver, kube-controller-manager, kube-scheduler
and etcd: NAME.run (starts it again; further flags may follow), NAME.pid, NAME.log.
Variables, for CMD or as lines: TESTBED_DIR, TESTBED_NET, KUBECONFIG, KUBECTL (path). kubectl is also on the PATH of
CMD.
USAGE
}

control_plane_main() {
  local scheduler='' dir='' net='' controllers='' volumes=0 nodes=() node flags=() arguments=("$@")
  while [[ $# -gt 0 ]]; do
    case $1 in
    --dir | --net | --volumes)
      require_value "$@"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --controllers)
      require_value "$@"
      controllers+=,$2
      shift
      ;;
    --apiserver-flag)
      require_value "$@"
      flags+=("$2")
      shift
      ;;
    --node)
      require_value "$@"
      nodes+=("$2")
      shift
      ;;
    --scheduler) scheduler=yes ;;
    --help) control_plane_usage; return ;;
    --) break ;;
    *) fail "unknown option of control-plane: $1" ;;
    esac
    shift
  done
  [[ ${1-} != -- ]] || shift
  [[ $volumes =~ ^[0-9]+$ ]] || fail "--volumes needs a number, not $volumes"
  is_supervised || supervise "$dir" -- control-plane "${arguments[@]}"

  provide etcd-3.6 kube-apiserver kube-controller-manager kubectl ${scheduler:+kube-scheduler}
  net=$(pick_network "$net" 1 6443)
  make_control_plane_certificates "https://$net.1:6443" "IP:$net.1"
  for node in "${nodes[@]}"; do
    make_identity "$node" "/O=system:nodes/CN=system:node:$node" "https://$net.1:6443"
  done
  # The `kubernetes` Service cannot have a loopback endpoint; no program of this testbed uses that Service.
  start_control_plane "$net.1" "$LOOPBACK_CONTROLLERS$controllers" "$scheduler" \
    --bind-address="$net.1" --advertise-address="$net.1" --endpoint-reconciler-type=none "${flags[@]}"

  link_program kubectl
  KUBECTL=$(program kubectl)
  [[ $volumes -eq 0 ]] || volume_manifests "$volumes" |
    timeout 30 "$KUBECTL" --kubeconfig="$RUN_DIR/admin.kubeconfig" apply -f - >/dev/null || fail 'the volumes could not be created'
  export TESTBED_DIR=$RUN_DIR TESTBED_NET=$net KUBECTL KUBECONFIG=$RUN_DIR/admin.kubeconfig PATH="$RUN_DIR/bin:$PATH"
  run_until_end TESTBED_DIR TESTBED_NET KUBECONFIG KUBECTL -- "$@"
}
