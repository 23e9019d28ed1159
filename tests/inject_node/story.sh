#!/usr/bin/env bash
# Mutates pods and nodes on a real node. CMD of `scripts/testbed node --lxcfs`: story.sh GUARD REPORT.
# Writes lines `NAME<tab>VALUE`, which tests/inject_node/main.rs asserts.
set -euo pipefail

GUARD=$1 REPORT=$2
SCRIPTS=$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")/../../scripts
COMPONENTS=$SCRIPTS/../deploy/components
# deploy/lxcfs with a faster liveness probe.
LXCFS=$SCRIPTS/../tests/data/kustomizations/lxcfs-with-fast-probe
FILES=$TESTBED_DIR/guard
ADDRESS=127.0.0.1:8443 ADMIN=127.0.0.1:8081
NODE=node
LABEL=node-restriction.kubernetes.io/over-commit

# Every wait is for a condition. These timeouts only end a failed run, on slow machines too. The kubelet retries each of the
# eight failed mounts after up to 122 s before it starts the pod.
POD_TIMEOUT=600s
STEP_TIMEOUT=300
# The kubelet compares its node at the interval that the test sets, and writes each difference.
KUBELET_UPDATES=10
UPDATES_TIMEOUT=600

log() { printf 'inject-node: %s\n' "$1" >&2; }
# report NAME VALUE: writes one line of the report.
report() { printf '%s\t%s\n' "$1" "${2//[$'\t\n']/ }" >>"$REPORT"; }
fail() { log "$1"; exit 1; }
# wait_until SUBJECT COMMAND...: waits until the command succeeds.
wait_until() {
  local subject=$1 deadline=$((SECONDS + STEP_TIMEOUT))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { log "not within $STEP_TIMEOUT s: $subject"; return 1; }
    sleep 0.5
  done
}
# request_count WEBHOOK: prints the number of responses of a webhook.
request_count() {
  curl -fsS "http://$ADMIN/metrics" |
    awk -v webhook="webhook=\"$1\"" '/^etcd_guard_admission_requests_total/ && index($0, webhook) { sum += $NF } END { print sum + 0 }'
}

prepare_guard() {
  mkdir -p "$FILES"
  "$SCRIPTS/certs" --name 127.0.0.1 "$FILES" >/dev/null
  cat >"$FILES/config.yaml" <<'CONFIG'
apiVersion: etcd-guard.io/v1alpha1
overCommit: {}
CONFIG
}

# start_guard: sets GUARD_PID.
start_guard() {
  setpriv --pdeathsig KILL -- "$GUARD" serve --listen "$ADDRESS" --admin-listen "$ADMIN" --kubeconfig "$KUBECONFIG" \
    --tls-cert "$FILES/tls.crt" --tls-key "$FILES/tls.key" --config "$FILES/config.yaml" --write-node-status 2>>"$FILES/log" &
  GUARD_PID=$!
  wait_until 'the guard is ready' curl -fsS "http://$ADMIN/readyz" || fail "$(tail -n 5 "$FILES/log")"
}

# register COMPONENT: applies the shipped webhook configuration with the guard's address instead of its Service.
register() {
  local bundle
  bundle=$(base64 -w0 <"$FILES/ca.crt")
  sed -E "s#service: \{name: etcd-guard, .*path: (/[a-z]+)\}#url: https://$ADDRESS\1\n    caBundle: $bundle#" \
    "$COMPONENTS/$1/webhook.yaml" | kubectl apply -f - >/dev/null
}

# pod NAME: prints a pod with limits that requests lxcfs.
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

# stop_lxcfs: ends lxcfs and waits until its mount is gone. lxcfs unmounts itself and must not unmount its successor.
stop_lxcfs() {
  local pid
  pid=$(cat "$TESTBED_DIR/lxcfs.pid")
  kill "$pid"
  wait_until 'lxcfs has ended' has_ended "$pid" || kill -KILL "$pid"
  while mountpoint -q /var/lib/lxcfs || ! stat /var/lib/lxcfs >/dev/null 2>&1; do umount -l /var/lib/lxcfs; done
}

# start_lxcfs: starts lxcfs and waits until it serves.
start_lxcfs() {
  setpriv --pdeathsig KILL -- "$TESTBED_DIR/lxcfs.run" &
  wait_until 'lxcfs serves' serves_lxcfs || fail "$(tail -n 5 "$TESTBED_DIR/lxcfs.log")"
}

# inside NAMESPACE WORD...: runs a command in the pod `box` of a namespace.
inside() { kubectl -n "$1" exec box -- "${@:2}"; }

namespace() {
  kubectl create namespace "$1" >/dev/null
  wait_until "namespace $1 has its account" kubectl -n "$1" get serviceaccount default || fail 'no account'
}

# event NAMESPACE REASON: prints the first event with this reason.
event() {
  kubectl -n "$1" get events -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}' | sed -n "/^$2: /{p;q}"
}
has_event() { [[ -n $(event "$@") ]]; }

# wait_ready NAMESPACE NAME: waits until a pod is ready.
wait_ready() { kubectl -n "$1" wait --for=condition=Ready "pod/$2" --timeout="$POD_TIMEOUT" >/dev/null; }

lxcfs_story() {
  log 'a pod with limits'
  namespace limited
  pod box | kubectl -n limited apply -f - >/dev/null
  wait_ready limited box || fail "$(kubectl -n limited describe pod box)"
  report limited-meminfo "$(inside limited /bin/busybox head -n 1 /proc/meminfo)"
  report limited-processors "$(inside limited /bin/busybox grep -c ^processor /proc/cpuinfo)"
  report limited-uptime "$(inside limited /bin/busybox cat /proc/uptime)"
  report limited-free "$(inside limited /usr/bin/free -k)"
  report node-uptime "$(cat /proc/uptime)"

  log 'a pod in a restricted namespace'
  namespace strict
  kubectl label namespace strict pod-security.kubernetes.io/enforce=restricted >/dev/null
  report strict-output "$(pod box | kubectl -n strict apply -f - 2>&1)"
  wait_ready strict box || fail "$(kubectl -n strict describe pod box)"
  report strict-meminfo "$(inside strict /bin/busybox head -n 1 /proc/meminfo)"
  report node-meminfo "$(head -n 1 /proc/meminfo)"

  log 'a pod on a node without lxcfs'
  kubectl delete pod box -n limited --now >/dev/null
  stop_lxcfs
  namespace missing
  pod box | kubectl -n missing apply -f - >/dev/null
  wait_until 'the kubelet reports the failed mount' has_event missing FailedMount || kubectl -n missing describe pod box >&2
  report missing-event "$(event missing FailedMount)"
  report missing-phase "$(kubectl -n missing get pod box -o 'jsonpath={.status.phase}')"
  start_lxcfs
  wait_ready missing box || fail "$(kubectl -n missing describe pod box)"
  report missing-meminfo "$(inside missing /bin/busybox head -n 1 /proc/meminfo)"
  report injected "$(request_count inject.etcd-guard.io)"
}

# The DaemonSet of deploy/lxcfs, beside the lxcfs of the node, with a separate root.
ROOT=/var/lib/lxcfs-root/lxcfs
lxcfs_pods() { kubectl -n etcd-guard-lxcfs get pods -o "jsonpath={range .items[*]}{.$1}{\"\\n\"}{end}"; }
node_label() { kubectl get node "$NODE" -o 'jsonpath={.metadata.labels.node-restriction\.kubernetes\.io/lxcfs-ready}'; }
is_labelled() { [[ $(node_label) == "$1" ]]; }
restart_count() { lxcfs_pods 'status.containerStatuses[?(@.name=="lxcfs")].restartCount'; }
# has_restarted COUNT: whether the container has restarted more often.
has_restarted() { (($(restart_count) > $1)); }
lxcfs_pid() { kubectl -n etcd-guard-lxcfs exec daemonset/lxcfs -c lxcfs -- cat /run/lxcfs.pid; }
# read_status NAMESPACE: prints the exit code of a read of /proc/meminfo in the running pod; 124 if it does not return.
read_status() {
  local status=0
  timeout 10 kubectl -n "$1" exec box -- /bin/busybox head -n 1 /proc/meminfo >/dev/null 2>&1 || status=$?
  printf '%s' "$status"
}
serves_at_root() { timeout 5 head -c 1 "$ROOT/proc/meminfo"; }
are_gone() { [[ -z $(lxcfs_pods metadata.name) ]]; }
roots_new_pods() { pod probe | kubectl -n default apply --dry-run=server -o yaml -f - | grep "path: $ROOT"; }
# read_in NAMESPACE: starts a pod in a new namespace and prints the first line of its /proc/meminfo.
read_in() {
  namespace "$1"
  pod box | kubectl -n "$1" apply -f - >/dev/null
  wait_ready "$1" box || fail "$(kubectl -n "$1" describe pod box)"
  inside "$1" /bin/busybox head -n 1 /proc/meminfo
}

daemonset_story() {
  log 'lxcfs from the DaemonSet'
  local pid restarts began
  report unserved-label "$(node_label)"
  kubectl apply -k "$LXCFS" >/dev/null
  wait_until 'the node is labelled' is_labelled true || fail "$(kubectl -n etcd-guard-lxcfs describe pods)"
  cat >>"$FILES/config.yaml" <<CONFIG
lxcfs: {root: $ROOT, nodeAffinity: require}
CONFIG
  wait_until 'the guard uses the other root' roots_new_pods || fail "$(tail -n 5 "$FILES/log")"
  report daemonset-meminfo "$(read_in daemonset)"
  report daemonset-affinity "$(kubectl -n daemonset get pod box -o 'jsonpath={.spec.affinity.nodeAffinity}')"

  log 'its container is killed and leaves a dead mount'
  pid=$(lxcfs_pid)
  # The parent process is the container; the kubelet ends the other processes with it.
  kill -KILL "$(awk '{ print $4 }' "/proc/$pid/stat")"
  wait_until 'the container has been started again' has_restarted 0 || true
  wait_until 'lxcfs serves again' serves_at_root || fail "$(kubectl -n etcd-guard-lxcfs describe pods)"
  wait_until 'the node is labelled' is_labelled true || fail "$(kubectl -n etcd-guard-lxcfs logs daemonset/lxcfs -c label)"
  report killed-meminfo "$(read_in killed)"

  log 'lxcfs hangs'
  restarts=$(restart_count) pid=$(lxcfs_pid) began=$EPOCHREALTIME
  kill -STOP "$pid"
  report hung-read "$(read_status killed)"
  wait_until 'the label of the hung lxcfs is removed' is_labelled '' || true
  report hung-label "$(node_label)"
  wait_until 'the liveness probe restarts lxcfs' has_restarted "$restarts" || true
  log "restarted after $(elapsed "$began") s"
  report hung-restarts "$(($(restart_count) - restarts))"
  if kill -0 "$pid" 2>/dev/null; then report hung-process alive; else report hung-process ended; fi
  wait_until 'lxcfs serves again' serves_at_root || fail "$(kubectl -n etcd-guard-lxcfs describe pods)"
  wait_until 'the node is labelled' is_labelled true || fail "$(kubectl -n etcd-guard-lxcfs logs daemonset/lxcfs -c label)"
  report disconnected-read "$(read_status killed)"
  report hung-meminfo "$(read_in hung)"

  log 'the DaemonSet is deleted'
  kubectl delete namespace daemonset killed hung >/dev/null
  kubectl -n etcd-guard-lxcfs delete daemonset lxcfs >/dev/null
  wait_until 'its pod has ended' are_gone || fail "$(kubectl -n etcd-guard-lxcfs describe pods)"
  report removed-label "$(node_label)"
  report removed-mounts "$(grep -c " $ROOT " /proc/self/mounts || true)"
  kubectl delete -k "$LXCFS" --ignore-not-found >/dev/null
}

# is_called WEBHOOK COMMAND: whether the API server calls the webhook for a command. It learns of webhooks by a watch.
is_called() { "$2" && (($(request_count "$1") > 0)); }
new_pod() { pod probe | kubectl -n default apply --dry-run=server -f -; }

millis() { if [[ $1 == *m ]]; then printf '%s' "${1%m}"; else printf '%s' "$(($1 * 1000))"; fi; }
# is_allocatable MILLIS: whether the node offers this amount of CPU.
is_allocatable() { (($(millis "$(allocatable)") == $1)); }
# is_raised: whether the node offers twice its CPU, with a record.
is_raised() { is_allocatable "$twice" && kubectl get node "$NODE" -o yaml | grep -q rawAllocatable; }
# elapsed BEGAN: prints the seconds since this value of EPOCHREALTIME.
elapsed() { awk -v began="$1" -v now="$EPOCHREALTIME" 'BEGIN { printf "%.1f", now - began }'; }
# write_as N: writes another part of the status, as one of three other controllers, and prints the allocatable CPU of the
# response.
write_as() {
  local patch
  case $1 in
    1) patch='{"status":{"volumesInUse":["writer-1"]}}' ;;
    2) patch='{"status":{"conditions":[{"type":"Writer2","status":"False","reason":"Story","message":"a test writes this"}]}}' ;;
    *) patch='{"metadata":{"annotations":{"example.com/writer":"3"}},"status":{"capacity":{"example.com/writer":"3"}}}' ;;
  esac
  kubectl patch node "$NODE" --subresource=status --type=strategic -p "$patch" -o 'jsonpath={.status.allocatable.cpu}'
}
# heartbeat: prints the time of the kubelet's last status update.
heartbeat() { kubectl get node "$NODE" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].lastHeartbeatTime}'; }

allocatable() { kubectl get node "$NODE" -o 'jsonpath={.status.allocatable.cpu}'; }

over_commit_story() {
  log 'a node that offers twice its CPU'
  local raw twice began seen=() answers=() value before beat last='' beats=0 writers=0 deadline largest=0
  raw=$(allocatable)
  report raw-allocatable "$raw"
  twice=$((2 * $(millis "$raw")))
  # Only the guard and the kubelet write the status, here and below.
  began=$EPOCHREALTIME
  kubectl label node "$NODE" "$LABEL=2" >/dev/null
  wait_until 'the node offers twice its CPU' is_allocatable "$twice" || fail "$(tail -n 5 "$FILES/log")"
  report raised-after "$(elapsed "$began")"
  report out-allocatable "$(allocatable)"

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
    report large-pod started
  else
    report large-pod "$(kubectl -n missing describe pod large)"
  fi

  log "ten of the kubelet's updates and three other writers"
  before=$(request_count nodes.etcd-guard.io) deadline=$((SECONDS + UPDATES_TIMEOUT))
  while ((beats < KUBELET_UPDATES && SECONDS < deadline)); do
    value=$(allocatable) beat=$(heartbeat)
    [[ " ${seen[*]} " == *" $value "* ]] || seen+=("$value")
    if [[ $beat != "$last" ]]; then
      [[ -z $last ]] || beats=$((beats + 1))
      last=$beat
    fi
    if ((writers < 3)); then
      writers=$((writers + 1))
      # The kubelet can correct a wrong value before the next read, so the response to each write counts.
      value=$(write_as "$writers")
      answers+=("$value")
    fi
    sleep 1
  done
  report kubelet-updates "$beats"
  report other-writers "$writers"
  report writers-responses "${answers[*]}"
  report node-updates "$(($(request_count nodes.etcd-guard.io) - before))"
  report seen-allocatable "${seen[*]}"

  log 'its record is removed; the next writes must not double the values'
  kubectl annotate node "$NODE" etcd-guard.io/over-commit- >/dev/null
  deadline=$((SECONDS + STEP_TIMEOUT))
  until is_raised || ((SECONDS >= deadline)); do
    value=$(millis "$(allocatable)")
    ((value <= largest)) || largest=$value
  done
  report unrecorded-allocatable "${largest}m"
  report again-allocatable "$(allocatable)"

  log 'an outage of the guard'
  began=$EPOCHREALTIME
  kill -KILL "$GUARD_PID"
  wait_until 'the kubelet restores its values' is_allocatable "$(millis "$raw")" || true
  log "restored by the kubelet after $(elapsed "$began") s"
  report outage-allocatable "$(allocatable)"
  began=$EPOCHREALTIME
  start_guard
  wait_until 'the node offers twice its CPU after the outage' is_allocatable "$twice" || true
  report recovered-after "$(elapsed "$began")"
  report recovered-allocatable "$(allocatable)"

  began=$EPOCHREALTIME
  kubectl label node "$NODE" "$LABEL-" >/dev/null
  wait_until 'the node offers its own CPU' is_allocatable "$(millis "$raw")" || true
  log "restored after $(elapsed "$began") s"
  report restored-allocatable "$(allocatable)"
}

# runs_agent: whether a new pod gets the template.
runs_agent() {
  pod probe | sed 's#annotations: .*#annotations: {etcd-guard.io/inject: agent}#' |
    kubectl -n default apply --dry-run=server -o yaml -f - | grep -q 'name: agent'
}
# job: prints a Job whose only own container ends, and whose sidecar does not.
job() {
  cat <<JOB
apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec:
  backoffLimit: 0
  template:
    metadata:
      annotations: {etcd-guard.io/inject: agent}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: box
        image: inject-node-box:1
        command: [/bin/busybox, sleep, "2"]
JOB
}

job_story() {
  log 'a Job with an injected sidecar that never ends by itself'
  cat >>"$FILES/config.yaml" <<'CONFIG'
sidecars:
  templates:
  - name: agent
    containers: [{name: agent, image: 'inject-node-box:1', command: [/bin/busybox, sleep, '86400']}]
CONFIG
  wait_until 'the guard injects the template' runs_agent || fail "$(tail -n 5 "$FILES/log")"
  namespace job
  job | kubectl -n job create -f - >/dev/null
  kubectl -n job wait --for=condition=Complete job/job --timeout="$POD_TIMEOUT" >/dev/null ||
    kubectl -n job describe pods >&2
  report job-succeeded "$(kubectl -n job get job job -o 'jsonpath={.status.succeeded}')"
  report job-sidecar "$(kubectl -n job get pods -l job-name=job -o \
    'jsonpath={.items[0].spec.initContainers[0].name} {.items[0].spec.initContainers[0].restartPolicy} {.items[0].status.initContainerStatuses[0].started}')"
  report job-phase "$(kubectl -n job get pods -l job-name=job -o 'jsonpath={.items[0].status.phase}')"
  kubectl delete namespace job >/dev/null
}

prepare_guard
start_guard
register inject
register over-commit
wait_until 'the API server calls the guard for pods' is_called inject.etcd-guard.io new_pod || fail "$(tail -n 5 "$FILES/log")"
lxcfs_story
daemonset_story
job_story
over_commit_story
report end reached
