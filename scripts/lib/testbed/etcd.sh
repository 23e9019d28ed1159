# An etcd cluster on loopback: etcd-0, etcd-1, ... on 127.A.B.10, .11, ...; client port 2379, peer port 2380.
# shellcheck shell=bash source-path=SCRIPTDIR/..
source "$LIB/testbed/processes.sh"
source "$LIB/testbed/loopback.sh"
source "$LIB/certificates.sh"

# Seconds. The first election takes about one; a busy machine may need several.
ETCD_READY_TIMEOUT=90

etcd_usage() {
  cat <<'USAGE'
usage: scripts/testbed etcd [OPTION...] [-- CMD...]

  --version 3.6     3.4, 3.5, 3.6 or 3.7; or 3.6.11, which requires root for the status request
  --members 3       number of members in the initial cluster
  --spare 0         number of further members, prepared but not started: for `member add`
  --tls             TLS with client certificates for clients and peers
  --layout          write the files, print the variables, start no process
  --dir DIR         store files in DIR (required by --layout)
  --net 127.A.B     loopback network

Files: DIR/MEMBER/run (starts that member; further flags may follow), DIR/MEMBER/log, DIR/MEMBER/pid,
DIR/MEMBER/data; with --tls DIR/ca.crt, ca.key, client.crt, client.key, DIR/MEMBER/server.crt, server.key.
Variables, for CMD or as lines: TESTBED_DIR, TESTBED_NET, ETCDCTL (path), ETCDCTL_ENDPOINTS,
with --tls ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY. etcdctl is also on the PATH of CMD.
USAGE
}

# write_member PROGRAM VERSION NAME ADDRESS SCHEME TOKEN CLUSTER STATE [CA]: writes the start script of a member.
write_member() {
  local program=$1 version=$2 name=$3 address=$4 scheme=$5 dir=$RUN_DIR/$3 flags
  flags=(--name="$name" --data-dir="$dir/data"
    --listen-client-urls="$scheme://$address:2379" --advertise-client-urls="$scheme://$address:2379"
    --listen-peer-urls="$scheme://$address:2380" --initial-advertise-peer-urls="$scheme://$address:2380"
    --initial-cluster="$7" --initial-cluster-token="$6" --initial-cluster-state="$8" --log-level=warn
    --bcrypt-cost=4) # the minimum: at the default of 10 a login takes 80 ms of a core, on a busy machine seconds
  if [[ $version == 3.4 ]]; then
    flags+=(--logger=zap) # the default of later versions; without it --log-level has no effect
  else
    flags+=(--unsafe-no-fsync) # a testbed does not survive a power failure; 3.4 lacks this flag
  fi
  [[ -z ${9-} ]] || flags+=(
    --cert-file="$dir/server.crt" --key-file="$dir/server.key" --trusted-ca-file="$9" --client-cert-auth
    --peer-cert-file="$dir/server.crt" --peer-key-file="$dir/server.key" --peer-trusted-ca-file="$9" --peer-client-cert-auth)
  write_run "$dir" "$program" "${flags[@]}"
}

etcd_main() {
  local version=3.6 members=3 spare=0 tls='' layout='' dir='' net='' arguments=("$@")
  while [[ $# -gt 0 ]]; do
    case $1 in
    --version | --members | --spare | --dir | --net)
      require_value "$@"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --tls) tls=yes ;;
    --layout) layout=yes ;;
    --help) etcd_usage; return ;;
    --) break ;;
    *) fail "unknown option of etcd: $1" ;;
    esac
    shift
  done
  [[ ${1-} != -- ]] || shift
  [[ $version =~ ^3\.([4567]|6\.11)$ ]] || fail "--version is 3.4, 3.5, 3.6, 3.7 or 3.6.11, not $version"
  [[ $members =~ ^[1-9]$ && $spare =~ ^[0-9]$ ]] || fail "--members is 1 to 9 and --spare 0 to 9"
  if [[ -n $layout ]]; then
    [[ -n $dir ]] || fail '--layout needs --dir'
    mkdir -p -- "$dir"
    RUN_DIR=$(realpath -- "$dir")
  elif ! is_supervised; then
    supervise "$dir" -- etcd "${arguments[@]}"
  fi

  local client=etcdctl-$version etcd
  case $version in
  3.4) client=etcdctl-3.5 ;; # it has the same API
  3.6.11) client=etcdctl-3.6 ;;
  esac
  etcd=$(program "etcd-$version")
  ETCDCTL=$(program "$client")
  net=$(pick_network "$net" 10 2379)

  local index name scheme=http cluster='' state names=(TESTBED_DIR TESTBED_NET ETCDCTL ETCDCTL_ENDPOINTS)
  [[ -z $tls ]] || scheme=https
  export TESTBED_DIR=$RUN_DIR TESTBED_NET=$net ETCDCTL_ENDPOINTS=''
  for ((index = 0; index < members; index++)); do
    cluster+=${cluster:+,}etcd-$index=$scheme://$net.$((10 + index)):2380
    ETCDCTL_ENDPOINTS+=${ETCDCTL_ENDPOINTS:+,}$scheme://$net.$((10 + index)):2379
  done
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
      make_cert "$RUN_DIR/ca" "$RUN_DIR/$name/server" "/CN=$name" serverAuth,clientAuth "IP:$net.$((10 + index))" DNS:localhost
    fi
    if ((index >= members)); then
      cluster+=,$name=$scheme://$net.$((10 + index)):2380 state=existing
    fi
    write_member "$etcd" "$version" "$name" "$net.$((10 + index))" "$scheme" "testbed-$net" "$cluster" "$state" "${ETCDCTL_CACERT-}"
  done
  link_program "$client"
  if [[ -n $layout ]]; then
    print_variables "${names[@]}"
    return
  fi

  local first='' pid
  for ((index = 0; index < members; index++)); do
    pid=$(start_program "$RUN_DIR/etcd-$index")
    first=${first:-$pid}
  done
  export ETCDCTL PATH="$RUN_DIR/bin:$PATH"
  wait_until "$first" "$ETCD_READY_TIMEOUT" 'the etcd cluster is not healthy' "$RUN_DIR/etcd-0/log" \
    timeout 5 "$ETCDCTL" endpoint health --command-timeout=2s
  run_until_end "${names[@]}" -- "$@"
}
