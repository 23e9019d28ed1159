#!/usr/bin/env bash
# What the mutating path does on a real node. CMD of `scripts/testbed node --lxcfs`: story.sh GUARD REPORT.
# Writes lines `NAME<tab>VALUE`; tests/inject_node.rs holds them against what they should be.
set -euo pipefail

GUARD=$1 REPORT=$2
SCRIPTS=$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")/../../scripts
COMPONENTS=$SCRIPTS/../deploy/components
LXCFS=$SCRIPTS/../deploy/lxcfs
FILES=$TESTBED_DIR/guard
ADDRESS=127.0.0.1:8443 ADMIN=127.0.0.1:8081
NODE=node
LABEL=node-restriction.kubernetes.io/over-commit

# Every wait is for a condition; these only end a story that has failed, however slow and busy the machine is. The kubelet
# tries a failed mount again after up to 122 s, each of eight, and only then begins to start the pod.
POD_LIMIT=600s
STEP_LIMIT=300
# The kubelet looks at its node as often as the test has told it to, and writes whenever that differs from what it reads.
KUBELET_UPDATES=10
UPDATES_LIMIT=600

say() { printf 'inject-node: %s\n' "$1" >&2; }
# tell NAME VALUE: one line of the report.
tell() { printf '%s\t%s\n' "$1" "${2//[$'\t\n']/ }" >>"$REPORT"; }
die() { say "$1"; exit 1; }
# until_so WHAT COMMAND...: waits until the command succeeds.
until_so() {
  local what=$1 deadline=$((SECONDS + STEP_LIMIT))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { say "not within $STEP_LIMIT s: $what"; return 1; }
    sleep 0.5
  done
}
# counted WEBHOOK: how many requests of a webhook were answered.
counted() {
  curl -fsS "http://$ADMIN/metrics" |
    awk -v webhook="webhook=\"$1\"" '/^etcd_guard_admission_requests_total/ && index($0, webhook) { sum += $NF } END { print sum + 0 }'
}

start_guard() {
  mkdir -p "$FILES"
  "$SCRIPTS/certs" --name 127.0.0.1 "$FILES" >/dev/null
  cat >"$FILES/config.yaml" <<'CONFIG'
apiVersion: etcd-guard.io/v1alpha1
overCommit: {}
CONFIG
  setpriv --pdeathsig KILL -- "$GUARD" serve --listen "$ADDRESS" --admin-listen "$ADMIN" --kubeconfig "$KUBECONFIG" \
    --tls-cert "$FILES/tls.crt" --tls-key "$FILES/tls.key" --config "$FILES/config.yaml" 2>"$FILES/log" &
  until_so 'the guard is ready' curl -fsS "http://$ADMIN/readyz" || die "$(tail -n 5 "$FILES/log")"
}

# register COMPONENT: the shipped configuration, with the guard's address in the place of its Service.
register() {
  local bundle
  bundle=$(base64 -w0 <"$FILES/ca.crt")
  sed -E "s#service: \{name: etcd-guard, .*path: (/[a-z]+)\}#url: https://$ADDRESS\1\n    caBundle: $bundle#" \
    "$COMPONENTS/$1/webhook.yaml" | kubectl apply -f - >/dev/null
}

# pod NAME: a pod with limits that asks for lxcfs.
pod() {
  cat <<POD
apiVersion: v1
kind: Pod
metadata:
  name: $1
  annotations: {sidecar-injector.lxcfs/inject: "true"}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: box
    image: inject-node-box:1
    command: [/bin/busybox, sleep, "3600"]
    resources: {limits: {cpu: "1", memory: 256Mi}, requests: {cpu: 10m, memory: 16Mi}}
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
POD
}

has_ended() { ! kill -0 "$1"; }
serves_lxcfs() { timeout 5 head -c 1 /var/lib/lxcfs/proc/meminfo; }

# stop_lxcfs: until it has ended and its mount is gone; it takes the mount down itself, and must not meet its successor's.
stop_lxcfs() {
  local pid
  pid=$(cat "$TESTBED_DIR/lxcfs.pid")
  kill "$pid"
  until_so 'lxcfs has ended' has_ended "$pid" || kill -KILL "$pid"
  while mountpoint -q /var/lib/lxcfs || ! stat /var/lib/lxcfs >/dev/null 2>&1; do umount -l /var/lib/lxcfs; done
}

# start_lxcfs: until it serves.
start_lxcfs() {
  setpriv --pdeathsig KILL -- "$TESTBED_DIR/lxcfs.run" &
  until_so 'lxcfs serves' serves_lxcfs || die "$(tail -n 5 "$TESTBED_DIR/lxcfs.log")"
}

# inside NAMESPACE WORD...: what a command says in the pod `box` of a namespace.
inside() { kubectl -n "$1" exec box -- "${@:2}"; }

namespace() {
  kubectl create namespace "$1" >/dev/null
  until_so "namespace $1 has its account" kubectl -n "$1" get serviceaccount default || die 'no account'
}

# event NAMESPACE REASON: the first one for this reason.
event() {
  kubectl -n "$1" get events -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}' | sed -n "/^$2: /{p;q}"
}
has_event() { [[ -n $(event "$@") ]]; }

# wait_ready NAMESPACE NAME: whether a pod gets ready.
wait_ready() { kubectl -n "$1" wait --for=condition=Ready "pod/$2" --timeout="$POD_LIMIT" >/dev/null; }

lxcfs_story() {
  say 'a pod with limits'
  namespace limited
  pod box | kubectl -n limited apply -f - >/dev/null
  wait_ready limited box || die "$(kubectl -n limited describe pod box)"
  tell limited-meminfo "$(inside limited /bin/busybox head -n 1 /proc/meminfo)"
  tell limited-processors "$(inside limited /bin/busybox grep -c ^processor /proc/cpuinfo)"
  tell limited-uptime "$(inside limited /bin/busybox cat /proc/uptime)"
  tell limited-free "$(inside limited /usr/bin/free -k)"
  tell node-uptime "$(cat /proc/uptime)"

  say 'a pod in a restricted namespace'
  namespace strict
  kubectl label namespace strict pod-security.kubernetes.io/enforce=restricted >/dev/null
  tell strict-said "$(pod box | kubectl -n strict apply -f - 2>&1)"
  wait_ready strict box || die "$(kubectl -n strict describe pod box)"
  tell strict-meminfo "$(inside strict /bin/busybox head -n 1 /proc/meminfo)"
  tell node-meminfo "$(head -n 1 /proc/meminfo)"

  say 'a pod on a node without lxcfs'
  kubectl delete pod box -n limited --now >/dev/null
  stop_lxcfs
  namespace missing
  pod box | kubectl -n missing apply -f - >/dev/null
  until_so 'the kubelet tells that the mount failed' has_event missing FailedMount || kubectl -n missing describe pod box >&2
  tell missing-event "$(event missing FailedMount)"
  tell missing-phase "$(kubectl -n missing get pod box -o 'jsonpath={.status.phase}')"
  start_lxcfs
  wait_ready missing box || die "$(kubectl -n missing describe pod box)"
  tell missing-meminfo "$(inside missing /bin/busybox head -n 1 /proc/meminfo)"
  tell injected "$(counted inject.etcd-guard.io)"
}

# The DaemonSet of deploy/lxcfs, beside the node's own lxcfs, in a root of its own.
ROOT=/var/lib/lxcfs-root/lxcfs
lxcfs_pods() { kubectl -n etcd-guard-lxcfs get pods -o "jsonpath={range .items[*]}{.$1}{\"\\n\"}{end}"; }
node_label() { kubectl get node "$NODE" -o 'jsonpath={.metadata.labels.etcd-guard\.io/lxcfs-ready}'; }
is_labelled() { [[ $(node_label) == "$1" ]]; }
has_restarted() { [[ $(lxcfs_pods 'status.containerStatuses[?(@.name=="lxcfs")].restartCount') -gt 0 ]]; }
serves_at_root() { timeout 5 head -c 1 "$ROOT/proc/meminfo"; }
are_gone() { [[ -z $(lxcfs_pods metadata.name) ]]; }
roots_new_pods() { pod asked | kubectl -n default apply --dry-run=server -o yaml -f - | grep "path: $ROOT"; }
# read_in NAMESPACE: what a new pod there reads.
read_in() {
  namespace "$1"
  pod box | kubectl -n "$1" apply -f - >/dev/null
  wait_ready "$1" box || die "$(kubectl -n "$1" describe pod box)"
  inside "$1" /bin/busybox head -n 1 /proc/meminfo
}

daemonset_story() {
  say 'lxcfs by the DaemonSet'
  local pid
  tell unserved-label "$(node_label)"
  kubectl apply -k "$LXCFS" >/dev/null
  until_so 'the node is labelled' is_labelled true || die "$(kubectl -n etcd-guard-lxcfs describe pods)"
  cat >>"$FILES/config.yaml" <<CONFIG
lxcfs: {root: $ROOT, nodeAffinity: require}
CONFIG
  until_so 'the guard takes the other root' roots_new_pods || die "$(tail -n 5 "$FILES/log")"
  tell daemonset-meminfo "$(read_in daemonset)"
  tell daemonset-affinity "$(kubectl -n daemonset get pod box -o 'jsonpath={.spec.affinity.nodeAffinity}')"

  say 'its container is killed; its mount is left behind, dead'
  pid=$(kubectl -n etcd-guard-lxcfs exec daemonset/lxcfs -c lxcfs -- cat /run/lxcfs.pid)
  # The parent is the container: with it the kubelet ends the rest.
  kill -KILL "$(awk '{ print $4 }' "/proc/$pid/stat")"
  until_so 'the container has been started again' has_restarted || true
  until_so 'lxcfs serves again' serves_at_root || die "$(kubectl -n etcd-guard-lxcfs describe pods)"
  until_so 'the node is labelled' is_labelled true || die "$(kubectl -n etcd-guard-lxcfs logs daemonset/lxcfs -c label)"
  tell killed-meminfo "$(read_in killed)"

  say 'the DaemonSet goes'
  kubectl delete namespace daemonset killed >/dev/null
  kubectl -n etcd-guard-lxcfs delete daemonset lxcfs >/dev/null
  until_so 'its pod has ended' are_gone || die "$(kubectl -n etcd-guard-lxcfs describe pods)"
  tell removed-label "$(node_label)"
  tell removed-mounts "$(grep -c " $ROOT " /proc/self/mounts || true)"
  kubectl delete -k "$LXCFS" --ignore-not-found >/dev/null
}

# is_asked WEBHOOK COMMAND: whether the apiserver asks it when the command is run; it learns of a webhook by a watch.
is_asked() { "$2" && (($(counted "$1") > 0)); }
new_pod() { pod asked | kubectl -n default apply --dry-run=server -f -; }
new_status() { kubectl patch node "$NODE" --subresource=status --type=merge -p '{"status":{"volumesInUse":[]}}'; }

millis() { if [[ $1 == *m ]]; then printf '%s' "${1%m}"; else printf '%s' "$(($1 * 1000))"; fi; }
# is_allocatable MILLIS: the node offers so much CPU.
is_allocatable() { (($(millis "$(allocatable)") == $1)); }
# write_as N: one of three writers, each with another part of the status, as other controllers have; says what CPU the
# apiserver answers that the node offers then.
write_as() {
  local patch
  case $1 in
    1) patch='{"status":{"volumesInUse":["writer-1"]}}' ;;
    2) patch='{"status":{"conditions":[{"type":"Writer2","status":"False","reason":"Story","message":"a test writes this"}]}}' ;;
    *) patch='{"metadata":{"annotations":{"example.com/writer":"3"}},"status":{"capacity":{"example.com/writer":"3"}}}' ;;
  esac
  kubectl patch node "$NODE" --subresource=status --type=strategic -p "$patch" -o 'jsonpath={.status.allocatable.cpu}'
}
# heartbeat: when the kubelet last wrote the node's status.
heartbeat() { kubectl get node "$NODE" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].lastHeartbeatTime}'; }

allocatable() { kubectl get node "$NODE" -o 'jsonpath={.status.allocatable.cpu}'; }

over_commit_story() {
  say 'a node that offers twice its CPU'
  local raw seen=() answers=() value before beat last='' beats=0 writers=0 deadline
  raw=$(allocatable)
  tell raw-allocatable "$raw"
  kubectl label node "$NODE" "$LABEL=2" >/dev/null
  until_so 'the guard is asked about nodes' is_asked nodes.etcd-guard.io new_status || die "$(tail -n 5 "$FILES/log")"
  # Nobody has sent the CPU anew: the kubelet is made to say it, which it does when it looks at its node again.
  until_so 'the node offers twice its CPU' is_allocatable "$((2 * $(millis "$raw")))" || true
  tell out-allocatable "$(allocatable)"

  kubectl create -n missing -f - >/dev/null <<POD
apiVersion: v1
kind: Pod
metadata: {name: large}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: box
    image: inject-node-box:1
    command: [/bin/busybox, sleep, "3600"]
    resources: {requests: {cpu: "$(($(nproc) + 1))"}}
POD
  if wait_ready missing large; then
    tell large-pod started
  else
    tell large-pod "$(kubectl -n missing describe pod large)"
  fi

  say "ten of the kubelet's updates and three other writers"
  before=$(counted nodes.etcd-guard.io) deadline=$((SECONDS + UPDATES_LIMIT))
  while ((beats < KUBELET_UPDATES && SECONDS < deadline)); do
    value=$(allocatable) beat=$(heartbeat)
    [[ " ${seen[*]} " == *" $value "* ]] || seen+=("$value")
    if [[ $beat != "$last" ]]; then
      [[ -z $last ]] || beats=$((beats + 1))
      last=$beat
    fi
    if ((writers < 3)); then
      writers=$((writers + 1))
      # The kubelet may put a wrong value right before the next look at the node: each writer's own answer counts.
      value=$(write_as "$writers")
      answers+=("$value")
    fi
    sleep 1
  done
  tell kubelet-updates "$beats"
  tell other-writers "$writers"
  tell writers-answers "${answers[*]}"
  tell node-updates "$(($(counted nodes.etcd-guard.io) - before))"
  tell seen-allocatable "${seen[*]}"

  say 'its record is removed; the next writers must not double what it offers'
  kubectl annotate node "$NODE" etcd-guard.io/over-commit- >/dev/null
  new_status >/dev/null
  tell unrecorded-allocatable "$(allocatable)"
  until_so 'the node offers twice its CPU again' is_allocatable "$((2 * $(millis "$raw")))" || true
  tell again-allocatable "$(allocatable)"

  kubectl label node "$NODE" "$LABEL-" >/dev/null
  new_status >/dev/null
  tell restored-allocatable "$(allocatable)"
}

start_guard
register inject
register over-commit
until_so 'the guard is asked about pods' is_asked inject.etcd-guard.io new_pod || die "$(tail -n 5 "$FILES/log")"
lxcfs_story
daemonset_story
over_commit_story
tell end reached
