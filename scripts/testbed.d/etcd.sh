# An etcd cluster on loopback: etcd-0, etcd-1, ... on 127.A.B.10, .11, ...; client port 2379, peer port 2380.
# shellcheck shell=bash source-path=SCRIPTDIR
source "$ROOMS/lifetime.sh"
source "$ROOMS/loopback.sh"
source "$ROOMS/certs.sh"
source "$ROOMS/programs.sh"

# A first election takes about a second; a busy machine may need several.
ETCD_READY_LIMIT=90

etcd_usage() {
  cat <<'USAGE'
usage: scripts/testbed etcd [OPTION...] [-- CMD...]

  --version 3.6     3.4, 3.5, 3.6 or 3.7; or 3.6.11, which tells its status to root alone
  --members 3       how many members the cluster starts with
  --spare 0         further members with files of their own, not started: for `member add`
  --tls             TLS with client certificates for clients and peers
  --layout          write the files, print the variables, start nothing
  --dir DIR         keep files in DIR (with --layout: needed)
  --net 127.A.B     loopback network

Files: DIR/MEMBER/run (starts that member; further flags may follow), DIR/MEMBER/log, DIR/MEMBER/pid,
DIR/MEMBER/data; with --tls DIR/ca.crt, ca.key, client.crt, client.key, DIR/MEMBER/server.crt, server.key.
Variables, for CMD or as lines: TESTBED_DIR, TESTBED_NET, ETCDCTL (its path), ETCDCTL_ENDPOINTS,
with --tls ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY. CMD also finds etcdctl on its PATH.
USAGE
}

# etcd_member_flags NAME ADDRESS SCHEME DIR TOKEN CLUSTER STATE VERSION TLS: sets FLAGS.
etcd_member_flags() {
  FLAGS=(--name="$1" --data-dir="$4/data"
    --listen-client-urls="$3://$2:2379" --advertise-client-urls="$3://$2:2379"
    --listen-peer-urls="$3://$2:2380" --initial-advertise-peer-urls="$3://$2:2380"
    --initial-cluster="$6" --initial-cluster-token="$5" --initial-cluster-state="$7" --log-level=warn
    --bcrypt-cost=4) # the least: at the default of 10 a login takes 80 ms of a whole core, on a busy machine seconds
  if [[ $8 == 3.4 ]]; then
    FLAGS+=(--logger=zap) # the default of later versions; log-level has no effect without it
  else
    FLAGS+=(--unsafe-no-fsync) # a testbed outlives no power cut; 3.4 has no such flag
  fi
  [[ -z $9 ]] || FLAGS+=(
    --cert-file="$4/server.crt" --key-file="$4/server.key" --trusted-ca-file="$9" --client-cert-auth
    --peer-cert-file="$4/server.crt" --peer-key-file="$4/server.key" --peer-trusted-ca-file="$9" --peer-client-cert-auth)
}

etcd_main() {
  local version=3.6 members=3 spare=0 tls='' layout='' dir='' net=''
  while [[ $# -gt 0 ]]; do
    case $1 in
    --version | --members | --spare | --dir | --net)
      need_value "$@"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --tls) tls=yes ;;
    --layout) layout=yes ;;
    --help) etcd_usage; return ;;
    --) break ;;
    *) die "unknown option of etcd: $1" ;;
    esac
    shift
  done
  [[ ${1-} != -- ]] || shift
  [[ $version =~ ^3\.([4567]|6\.11)$ ]] || die "--version is 3.4, 3.5, 3.6, 3.7 or 3.6.11, not $version"
  [[ $members =~ ^[1-9]$ && $spare =~ ^[0-9]$ ]] || die "--members is 1 to 9 and --spare 0 to 9"

  local ctl=etcdctl-$version
  case $version in
  3.4) ctl=etcdctl-3.5 ;; # it speaks the same API
  3.6.11) ctl=etcdctl-3.6 ;;
  esac
  (programs_ensure "etcd-$version")
  program "etcd-$version"
  local etcd=$FOUND
  program "$ctl"
  ETCDCTL=$FOUND

  net_pick "$net" 10 2379
  if [[ -n $layout ]]; then
    [[ -n $dir ]] || die '--layout needs --dir'
    mkdir -p -- "$dir"
    RUN_DIR=$(realpath -- "$dir")
  else
    life_begin "$dir" ''
  fi

  local index name scheme=http cluster='' state
  [[ -z $tls ]] || scheme=https
  export TESTBED_DIR=$RUN_DIR TESTBED_NET=$NET ETCDCTL_ENDPOINTS=''
  for ((index = 0; index < members; index++)); do
    cluster+=${cluster:+,}etcd-$index=$scheme://$NET.$((10 + index)):2380
    ETCDCTL_ENDPOINTS+=${ETCDCTL_ENDPOINTS:+,}$scheme://$NET.$((10 + index)):2379
  done
  local names=(TESTBED_DIR TESTBED_NET ETCDCTL ETCDCTL_ENDPOINTS)
  if [[ -n $tls ]]; then
    make_ca "$RUN_DIR/ca" 'etcd testbed CA'
    make_cert "$RUN_DIR/ca" "$RUN_DIR/client" '/CN=root' clientAuth
    export ETCDCTL_CACERT=$RUN_DIR/ca.crt ETCDCTL_CERT=$RUN_DIR/client.crt ETCDCTL_KEY=$RUN_DIR/client.key
    names+=(ETCDCTL_CACERT ETCDCTL_CERT ETCDCTL_KEY)
  fi
  for ((index = 0; index < members + spare; index++)); do
    name=etcd-$index state=new
    mkdir -p "$RUN_DIR/$name"
    if [[ -n $tls ]]; then
      make_cert "$RUN_DIR/ca" "$RUN_DIR/$name/server" "/CN=$name" serverAuth,clientAuth "IP:$NET.$((10 + index))" DNS:localhost
    fi
    if ((index >= members)); then
      cluster+=,$name=$scheme://$NET.$((10 + index)):2380 state=existing
    fi
    etcd_member_flags "$name" "$NET.$((10 + index))" "$scheme" "$RUN_DIR/$name" "testbed-$NET" "$cluster" "$state" "$version" "${ETCDCTL_CACERT-}"
    write_run "$RUN_DIR/$name" "$etcd" "${FLAGS[@]}"
  done
  link_program "$ctl"
  if [[ -n $layout ]]; then
    for name in "${names[@]}"; do printf '%s=%s\n' "$name" "${!name}"; done
    return
  fi

  for ((index = 0; index < members; index++)); do start "$RUN_DIR/etcd-$index"; done
  export ETCDCTL PATH="$RUN_DIR/bin:$PATH"
  wait_until "$ETCD_READY_LIMIT" "the etcd cluster is not healthy" "$RUN_DIR/etcd-0/log" \
    timeout 5 "$ETCDCTL" endpoint health --command-timeout=2s
  live "${names[@]}" -- "$@"
}
