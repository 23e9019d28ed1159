#!/usr/bin/env bash
# The node itself: first process of its PID namespace, so that everything below ends with it. Started by node.sh.
# shellcheck source-path=SCRIPTDIR
set -euo pipefail

source "$ROOMS/say.sh"
source "$ROOMS/lifetime.sh"
source "$ROOMS/loopback.sh"
source "$ROOMS/image.sh"
source "$ROOMS/certs.sh"
source "$ROOMS/kubernetes.sh"
source "$ROOMS/load.sh"
source "$ROOMS/cluster-dns.sh"
source "$ROOMS/volumes.sh"

# What node.sh handed over is for us, not for CMD.
export -n RUN_DIR LIFE ROOMS CNI_BIN NODE_CGROUP NODE_VOLUMES NODE_LXCFS NODE_STATUS_FREQUENCY NODE_IMAGES

NODE_NAME=node
NODE_ADDRESS=192.168.77.2
POD_RANGE=10.244.0.0/24
SERVER=https://$NODE_ADDRESS:6443
export TESTBED_CONTAINERD=/run/containerd/containerd.sock

# Each of these takes 2 to 6 s on an idle machine with 2 cores.
CONTAINERD_READY_LIMIT=90
LXCFS_READY_LIMIT=30
NODE_READY_LIMIT=240
DNS_READY_LIMIT=240

# isolate: mounts, network and kernel settings that end with the namespaces.
isolate() {
  # /proc still shows the namespace outside: the pid by which the outer half and nsenter know us.
  local outer_pid
  read -r outer_pid _ </proc/self/stat
  printf '%s\n' "$outer_pid" >"$RUN_DIR/inside"
  mount -t proc proc /proc

  # Kubelet needs shared mounts. Nothing here spreads to the host: unshare made our copies private first.
  mount --make-rshared /
  mount -t tmpfs -o mode=755 tmpfs /run
  # Programs with fixed paths under /var (CNI results, container logs) write to memory; our files stay reachable.
  mkdir -p /run/var/upper /run/var/work /run/ours
  mount --bind "$RUN_DIR" /run/ours
  mount -t overlay -o lowerdir=/var,upperdir=/run/var/upper,workdir=/run/var/work overlay /var
  if [[ ! -e $RUN_DIR/inside ]]; then
    mkdir -p "$RUN_DIR"
    mount --bind /run/ours "$RUN_DIR"
  fi
  umount /run/ours

  # The kubelet sets these for the whole machine; give it files that already say what it wants.
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
    # Version 2 is one tree; what the kubelet limits must be switched on above it.
    hierarchies=(/sys/fs/cgroup/)
    for controller in cpu cpuset memory pids; do
      printf '+%s' "$controller" 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control || true
    done
  fi
  for hierarchy in "${hierarchies[@]}"; do
    if [[ -e $hierarchy/cgroup.procs ]]; then mkdir -p "$hierarchy$NODE_CGROUP"; fi
  done

  # The node address sits on a bridge without ports; the default route makes it the address that others pick.
  ip link set lo up
  ip link add node0 type bridge
  ip address add "$NODE_ADDRESS/24" dev node0
  ip link set node0 up
  ip route add default via 192.168.77.1 dev node0
  printf '1\n' >/proc/sys/net/ipv4/ip_forward
}

start_containerd() {
  mkdir -p "$RUN_DIR/cni"
  # ptp routes every packet through the node's own tables, so Services work between pods without br_netfilter.
  cat >"$RUN_DIR/cni/10-testbed.conflist" <<CNI
{
  "cniVersion": "0.4.0",
  "name": "testbed",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": "$POD_RANGE"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
CNI
  # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc dies when it is asked to lower that value.
  cat >"$RUN_DIR/containerd.toml" <<CONTAINERD
version = 2
root = "$RUN_DIR/containerd-data"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "$TESTBED_CONTAINERD"
[plugins."io.containerd.internal.v1.opt"]
  path = "$RUN_DIR/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$CNI_BIN"
    conf_dir = "$RUN_DIR/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
CONTAINERD
  program containerd
  write_run "$RUN_DIR/containerd" "$FOUND" --config "$RUN_DIR/containerd.toml" --log-level warn
  start "$RUN_DIR/containerd"
}

load_images() {
  local images=()
  wait_until "$CONTAINERD_READY_LIMIT" 'containerd does not answer' "$RUN_DIR/containerd.log" \
    timeout 5 ctr --address "$TESTBED_CONTAINERD" version
  mapfile -t images <<<"$NODE_IMAGES"
  load_main "${images[@]}"
}

start_kubelet() {
  printf 'nameserver %s\n' "$NODE_ADDRESS" >"$RUN_DIR/resolv.conf"
  cat >"$RUN_DIR/kubelet.yaml" <<KUBELET
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "$RUN_DIR/ca.crt"}}
authorization: {mode: Webhook}
address: $NODE_ADDRESS
healthzBindAddress: 127.0.0.1
containerRuntimeEndpoint: unix://$TESTBED_CONTAINERD
cgroupDriver: cgroupfs
cgroupRoot: /$NODE_CGROUP
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
clusterDomain: cluster.local
clusterDNS: [$DNS_ADDRESS]
resolvConf: $RUN_DIR/resolv.conf
podLogsDir: /var/log/pods
volumePluginDir: $RUN_DIR/volume-plugins
evictionHard: {memory.available: 1Mi, nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: $NODE_STATUS_FREQUENCY
nodeStatusReportFrequency: 5m # its default, which the line above would replace
maxPods: 110
serializeImagePulls: false
KUBELET
  program kubelet
  write_run "$RUN_DIR/kubelet" "$FOUND" --config="$RUN_DIR/kubelet.yaml" --kubeconfig="$RUN_DIR/kubelet.kubeconfig" \
    --root-dir="$RUN_DIR/kubelet-root" --cert-dir="$RUN_DIR/kubelet-root/pki" \
    --hostname-override="$NODE_NAME" --node-ip="$NODE_ADDRESS"
  start "$RUN_DIR/kubelet"
}

start_kube_proxy() {
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
  program kube-proxy
  write_run "$RUN_DIR/kube-proxy" "$FOUND" --config="$RUN_DIR/kube-proxy.yaml"
  start "$RUN_DIR/kube-proxy"
}

start_lxcfs() {
  mkdir -p /var/lib/lxcfs
  program lxcfs
  write_run "$RUN_DIR/lxcfs" "$FOUND" -l --enable-cfs /var/lib/lxcfs
  start "$RUN_DIR/lxcfs"
  wait_until "$LXCFS_READY_LIMIT" 'lxcfs does not serve' "$RUN_DIR/lxcfs.log" test -e /var/lib/lxcfs/proc/meminfo
}

# write_enter: the way in from outside, for people and for tests.
write_enter() {
  TESTBED_ENTER=$RUN_DIR/enter
  cat >"$TESTBED_ENTER" <<ENTER
#!/bin/sh
# Runs a command, or a shell, inside the node.
[ \$# -gt 0 ] || set -- bash
exec nsenter --target $(<"$RUN_DIR/inside") --mount --net --pid -- \\
  env TESTBED_DIR=$(printf %q "$RUN_DIR") KUBECONFIG=$(printf %q "$KUBECONFIG") TESTBED_CONTAINERD=$TESTBED_CONTAINERD PATH=$(printf %q "$PATH") "\$@"
ENTER
  chmod +x "$TESTBED_ENTER"
}

inside_end() {
  local status=$?
  trap '' INT TERM HUP
  trap - EXIT
  set +e
  [[ -z $COMMAND_PID ]] || stop_pids "$COMMAND_PID"
  exit "$status"
}

trap inside_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

isolate
[[ -z $NODE_LXCFS ]] || start_lxcfs
start_containerd
CONTAINERD_PID=$CHILD

kubernetes_certs "$SERVER" "IP:$NODE_ADDRESS"
kubernetes_identity kubelet "/O=system:nodes/CN=system:node:$NODE_NAME" "$SERVER"
kubernetes_identity kube-proxy /CN=system:kube-proxy "$SERVER"
make_cert "$RUN_DIR/ca" "$RUN_DIR/kubelet-client" /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth

# The default endpoint reconciler must run (advertise address): CoreDNS needs endpoints of the `kubernetes` Service.
CONTROL_PLANE_ADDRESS=127.0.0.1
CONTROL_PLANE_CONTROLLERS='*'
APISERVER_EXTRA=(--bind-address=0.0.0.0 --advertise-address="$NODE_ADDRESS" --enable-aggregator-routing=true
  --kubelet-preferred-address-types=InternalIP
  --kubelet-client-certificate="$RUN_DIR/kubelet-client.crt" --kubelet-client-key="$RUN_DIR/kubelet-client.key")
# Images load while the control plane comes up.
(CHILD=$CONTAINERD_PID load_images) &
LOADING=$!
kubernetes_start scheduler
wait "$LOADING" || die 'the images of the node could not be loaded'

start_kubelet
KUBELET_PID=$CHILD
start_kube_proxy
link_program kubectl
export TESTBED_DIR=$RUN_DIR KUBECTL=$FOUND KUBECONFIG=$RUN_DIR/admin.kubeconfig PATH="$RUN_DIR/bin:$PATH"
# All nodes have the same address, by which kubectl would find what another one's apiserver knows.
export KUBECACHEDIR=$RUN_DIR/kubectl-cache
write_enter
{ dns_manifests && volume_manifests "$NODE_VOLUMES"; } | timeout 30 kubectl apply -f - >/dev/null || die 'DNS and volumes were not accepted'

CHILD=$KUBELET_PID
wait_until "$NODE_READY_LIMIT" 'the node is not Ready' "$RUN_DIR/kubelet.log" \
  kubectl wait --for=condition=Ready "node/$NODE_NAME" --timeout=5s
wait_until "$DNS_READY_LIMIT" 'CoreDNS is not available' "$RUN_DIR/kubelet.log" \
  kubectl -n kube-system wait --for=condition=Available deployment/coredns --timeout=5s

[[ $# -gt 0 ]] || [[ ! -t 0 ]] || say "enter it from elsewhere with: $TESTBED_ENTER"
live TESTBED_DIR KUBECONFIG KUBECTL TESTBED_CONTAINERD TESTBED_ENTER -- "$@"
