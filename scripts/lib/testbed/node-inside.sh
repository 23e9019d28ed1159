#!/usr/bin/env bash
# The node itself. `xtask init`, the first process of the PID namespace, runs this script; all processes end with it.
# shellcheck source-path=SCRIPTDIR/..
set -euo pipefail

source "$LIB/log.sh"
source "$LIB/images.sh"
source "$LIB/certificates.sh"
source "$LIB/testbed/processes.sh"
source "$LIB/testbed/kubernetes.sh"
source "$LIB/testbed/load.sh"
source "$LIB/testbed/cluster-dns.sh"
source "$LIB/testbed/volumes.sh"
source "$LIB/testbed/further-nodes.sh"

# These variables of node.sh are not for CMD.
export -n LIB NODE_COUNT NODE_VOLUMES NODE_LXCFS NODE_IPV6 NODE_STATUS_FREQUENCY NODE_IMAGES

CNI_PLUGINS=/usr/lib/cni
NODE_NAME=node
NODE_ADDRESS=192.168.77.2
# The pods of all nodes, and those of the first one.
POD_RANGE=10.244.0.0/16
FIRST_POD_RANGE=10.244.0.0/24
# With --ipv6: the second address of every pod, and the only one of the pods of the RuntimeClass `ipv6`.
SECOND_POD_RANGE=fd00:10:244::/64
IPV6_POD_RANGE=fd00:10:245::/64
IPV6_SERVICE_RANGE=fd00:10:96::/112
SERVER=https://$NODE_ADDRESS:6443
export TESTBED_CONTAINERD=/run/containerd/containerd.sock

# Seconds. Each of these takes 2 to 6 s on an idle machine with 2 cores.
CONTAINERD_READY_TIMEOUT=90
LXCFS_READY_TIMEOUT=30
NODE_READY_TIMEOUT=240
DNS_READY_TIMEOUT=240

# isolate: sets up mounts, network and kernel settings, which end with the namespaces.
isolate() {
  mount -t proc proc /proc

  # The kubelet needs shared mounts. The host is not affected: unshare has made the mounts of this namespace private.
  mount --make-rshared /
  mount -t tmpfs -o mode=755 tmpfs /run
  # Programs with fixed paths below /var (CNI results, container logs) write to memory; RUN_DIR stays accessible.
  mkdir -p /run/var/upper /run/var/work /run/files
  mount --bind "$RUN_DIR" /run/files
  mount -t overlay -o lowerdir=/var,upperdir=/run/var/upper,workdir=/run/var/work overlay /var
  if [[ ! -e $RUN_DIR/inside ]]; then
    mkdir -p "$RUN_DIR"
    mount --bind /run/files "$RUN_DIR"
  fi
  umount /run/files

  # The kubelet sets these for the whole machine. Mounted files already have the required values.
  local setting name
  mkdir -p /run/settings
  for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    name=${setting%%=*}
    [[ -e /proc/sys/$name ]] || continue
    printf '%s\n' "${setting#*=}" >"/run/settings/${name//\//.}"
    mount --bind "/run/settings/${name//\//.}" "/proc/sys/$name"
  done

  local hierarchies=(/sys/fs/cgroup/*/) hierarchy controller
  if [[ $(stat -f -c %T /sys/fs/cgroup) == cgroup2fs ]]; then
    # Version 2 has a single tree; the controllers that the kubelet uses must be enabled above its cgroup.
    hierarchies=(/sys/fs/cgroup/)
    for controller in cpu cpuset memory pids; do
      printf '+%s' "$controller" 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control || true
    done
  fi
  for hierarchy in "${hierarchies[@]}"; do
    if [[ -e $hierarchy/cgroup.procs ]]; then mkdir -p "$hierarchy$TESTBED_CGROUP"; fi
  done

  # The node address belongs to a bridge without ports. Programs select it because of the default route.
  ip link set lo up
  ip link add node0 type bridge
  ip address add "$NODE_ADDRESS/24" dev node0
  ip link set node0 up
  ip route add default via 192.168.77.1 dev node0
  printf '1\n' >/proc/sys/net/ipv4/ip_forward
}

# write_pod_network NAME RANGES ROUTES: writes the configuration of a pod network.
write_pod_network() {
  mkdir -p "$RUN_DIR/$1"
  # ptp routes every packet through the tables of the node, so Services work between pods without br_netfilter.
  cat >"$RUN_DIR/$1/10-testbed.conflist" <<CNI
{
  "cniVersion": "0.4.0",
  "name": "testbed-${1//\//-}",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": false,
      "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [$2], "routes": [$3]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
CNI
}

# write_containerd_config DIR STATE: writes DIR/containerd.toml. The socket is STATE/containerd.sock.
write_containerd_config() {
  # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc fails when it has to lower that value.
  cat >"$1/containerd.toml" <<CONTAINERD
version = 2
root = "$1/containerd-data"
state = "$2"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "$2/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$1/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$CNI_PLUGINS"
    conf_dir = "$1/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
CONTAINERD
}

# run_containerd DIR: starts containerd with the configuration in DIR; prints its process id.
run_containerd() {
  local program
  program=$(program containerd)
  write_run "$1/containerd" "$program" --config "$1/containerd.toml" --log-level warn
  start_program "$1/containerd"
}

# start_containerd: prints its process id.
start_containerd() {
  local ranges="[{\"subnet\": \"$FIRST_POD_RANGE\"}]" routes='{"dst": "0.0.0.0/0"}' all_ipv6='{"dst": "::/0"}'
  if [[ -n $NODE_IPV6 ]]; then
    ranges+=", [{\"subnet\": \"$SECOND_POD_RANGE\"}]" routes+=", $all_ipv6"
    write_pod_network cni-ipv6 "[{\"subnet\": \"$IPV6_POD_RANGE\"}]" "$all_ipv6"
  fi
  write_pod_network cni "$ranges" "$routes"
  write_containerd_config "$RUN_DIR" /run/containerd
  [[ -z $NODE_IPV6 ]] || cat >>"$RUN_DIR/containerd.toml" <<CONTAINERD
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.ipv6]
    runtime_type = "io.containerd.runc.v2"
    cni_conf_dir = "$RUN_DIR/cni-ipv6"
CONTAINERD
  run_containerd "$RUN_DIR"
}

# ipv6_manifests: prints the RuntimeClass of pods without an address of IPv4.
ipv6_manifests() {
  cat <<'CLASS'
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: ipv6}
handler: ipv6
CLASS
}

# load_images CONTAINERD-PID DIR SOCKET: loads the images of the node into one containerd.
load_images() {
  local images=()
  wait_until "$1" "$CONTAINERD_READY_TIMEOUT" 'containerd does not respond' "$2/containerd.log" \
    timeout 5 ctr --address "$3" version
  mapfile -t images <<<"$NODE_IMAGES"
  load_into "$3" "${images[@]}"
}

# load_images_of_all_nodes CONTAINERD-PID
load_images_of_all_nodes() {
  load_images "$1" "$RUN_DIR" "$TESTBED_CONTAINERD"
  load_images_of_further_nodes
}

# start_kubelet NAME ADDRESS DIR SOCKET CGROUP: starts the kubelet of one node, with its files in DIR; prints its process id.
start_kubelet() {
  local name=$1 address=$2 dir=$3 socket=$4 cgroup=$5 program
  printf 'nameserver %s\n' "$NODE_ADDRESS" >"$dir/resolv.conf"
  cat >"$dir/kubelet.yaml" <<KUBELET
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "$RUN_DIR/ca.crt"}}
authorization: {mode: Webhook}
address: $address
healthzBindAddress: $address
containerRuntimeEndpoint: unix://$socket
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
clusterDomain: cluster.local
clusterDNS: [$DNS_ADDRESS]
resolvConf: $dir/resolv.conf
podLogsDir: /var/log/pods${name#"$NODE_NAME"}
volumePluginDir: $RUN_DIR/volume-plugins
evictionHard: {memory.available: 1Mi, nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: $NODE_STATUS_FREQUENCY
nodeStatusReportFrequency: 5m # the default; without this line it would equal the update frequency
maxPods: 110
serializeImagePulls: false
KUBELET
  program=$(program kubelet)
  write_run "$dir/kubelet" "$program" --config="$dir/kubelet.yaml" --kubeconfig="$dir/kubelet.kubeconfig" \
    --root-dir="$dir/kubelet-root" --cert-dir="$dir/kubelet-root/pki" \
    --hostname-override="$name" --node-ip="$address"
  start_program "$dir/kubelet"
}

start_kube_proxy() {
  local program
  cat >"$RUN_DIR/kube-proxy.yaml" <<PROXY
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: "$RUN_DIR/kube-proxy.kubeconfig"}
mode: iptables
clusterCIDR: $POD_RANGE
hostnameOverride: $NODE_NAME
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 100ms}
PROXY
  program=$(program kube-proxy)
  write_run "$RUN_DIR/kube-proxy" "$program" --config="$RUN_DIR/kube-proxy.yaml"
  start_program "$RUN_DIR/kube-proxy" >/dev/null
}

start_lxcfs() {
  local program pid
  mkdir -p /var/lib/lxcfs
  program=$(program lxcfs)
  write_run "$RUN_DIR/lxcfs" "$program" -l --enable-cfs /var/lib/lxcfs
  pid=$(start_program "$RUN_DIR/lxcfs")
  wait_until "$pid" "$LXCFS_READY_TIMEOUT" 'lxcfs does not serve' "$RUN_DIR/lxcfs.log" test -e /var/lib/lxcfs/proc/meminfo
}

# write_enter_script: the entry for commands from outside the namespaces. Prints its path.
write_enter_script() {
  local script=$RUN_DIR/enter
  cat >"$script" <<ENTER
#!/bin/sh
# Runs a command, or a shell, inside the node.
[ \$# -gt 0 ] || set -- bash
exec nsenter --target $(<"$RUN_DIR/inside") --mount --net --pid -- \\
  env TESTBED_DIR=$(printf %q "$RUN_DIR") KUBECONFIG=$(printf %q "$KUBECONFIG") TESTBED_CONTAINERD=$TESTBED_CONTAINERD PATH=$(printf %q "$PATH") "\$@"
ENTER
  chmod +x "$script"
  printf '%s' "$script"
}

isolate
[[ -z $NODE_LXCFS ]] || start_lxcfs
containerd=$(start_containerd)
start_further_containerds

make_control_plane_certificates "$SERVER" "IP:$NODE_ADDRESS"
make_identity kubelet "/O=system:nodes/CN=system:node:$NODE_NAME" "$SERVER"
make_identities_of_further_nodes
make_identity kube-proxy /CN=system:kube-proxy "$SERVER"
make_cert "$RUN_DIR/ca" "$RUN_DIR/kubelet-client" /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth

# The images are loaded while the control plane starts.
load_images_of_all_nodes "$containerd" &
loading=$!
[[ -z $NODE_IPV6 ]] || SERVICE_RANGE+=,$IPV6_SERVICE_RANGE
# The default endpoint reconciler, which needs --advertise-address, must run: CoreDNS needs endpoints of the
# `kubernetes` Service.
start_control_plane 127.0.0.1 '*' scheduler --bind-address=0.0.0.0 --advertise-address="$NODE_ADDRESS" \
  --enable-aggregator-routing=true --kubelet-preferred-address-types=InternalIP \
  --kubelet-client-certificate="$RUN_DIR/kubelet-client.crt" --kubelet-client-key="$RUN_DIR/kubelet-client.key"
wait "$loading" || fail 'the images of the node could not be loaded'

kubelet=$(start_kubelet "$NODE_NAME" "$NODE_ADDRESS" "$RUN_DIR" "$TESTBED_CONTAINERD" "$TESTBED_CGROUP")
start_further_kubelets
start_kube_proxy
link_program kubectl
KUBECTL=$(program kubectl)
export TESTBED_DIR=$RUN_DIR KUBECTL KUBECONFIG=$RUN_DIR/admin.kubeconfig PATH="$RUN_DIR/bin:$PATH"
# All nodes have the same address: with the default directory, kubectl would use the discovery cache of another node's
# API server.
export KUBECACHEDIR=$RUN_DIR/kubectl-cache
TESTBED_ENTER=$(write_enter_script)
{ dns_manifests && volume_manifests "$NODE_VOLUMES" && { [[ -z $NODE_IPV6 ]] || ipv6_manifests; }; } | timeout 30 kubectl apply -f - >/dev/null ||
  fail 'DNS and volumes could not be created'

wait_until "$kubelet" "$NODE_READY_TIMEOUT" 'the node is not Ready' "$RUN_DIR/kubelet.log" \
  kubectl wait --for=condition=Ready "node/$NODE_NAME" --timeout=5s
wait_for_further_nodes
wait_until "$kubelet" "$DNS_READY_TIMEOUT" 'CoreDNS is not available' "$RUN_DIR/kubelet.log" \
  kubectl -n kube-system wait --for=condition=Available deployment/coredns --timeout=5s

[[ $# -gt 0 ]] || [[ ! -t 0 ]] || log "enter it from another terminal with: $TESTBED_ENTER"
run_until_end TESTBED_DIR KUBECONFIG KUBECTL TESTBED_CONTAINERD TESTBED_ENTER -- "$@"
