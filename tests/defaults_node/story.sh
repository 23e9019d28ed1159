#!/usr/bin/env bash
# The default policies without a person: preemption, and a program that evicts members again and again. Then the guard is down, and
# starts on full nodes. CMD of `scripts/testbed node --nodes 3`: story.sh PLUGIN WRITER REPORT PLAIN-IMAGE [writes]. Writes lines
# `NAME<tab>VALUE`, which tests/defaults_node/main.rs asserts.
set -euo pipefail

# shellcheck disable=SC2034 # cluster.sh uses them
PLUGIN=$1 WRITER_PROGRAM=$2 REPORT=$3
PLAIN_IMAGE=$4 CHAPTERS=${5-}
PROJECT=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
LOG_PREFIX=defaults-node
# shellcheck source=scripts/lib/log.sh
source "$PROJECT/scripts/lib/log.sh"
# shellcheck source=scripts/lib/writer.sh
source "$PROJECT/scripts/lib/writer.sh"
# shellcheck source=tests/drain_node/cluster.sh
source "$PROJECT/tests/drain_node/cluster.sh"

# The evictions of a descheduler.
EVICTION_TIME=60
EVICTION_PAUSE=2
# Some of them must have happened on a slow machine as well.
MIN_REPLACED=4
MIN_MOVES=2

# The members can be preempted by urgent pods, and the guard can preempt both.
classes() {
  cat <<'CLASSES'
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: members}
value: 1000
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 100000
CLASSES
}

# plain_pod NAMESPACE NAME NODE MILLICORES [CLASS]: creates a pod that runs no etcd, by default with priority 0.
plain_pod() {
  kubectl -n "$1" apply -f - >/dev/null <<POD
apiVersion: v1
kind: Pod
metadata: {name: $2}
spec:
  nodeSelector: {kubernetes.io/hostname: $3}
  priorityClassName: ${5-}
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 5
  containers:
  - name: web
    image: $PLAIN_IMAGE
    resources: {requests: {cpu: ${4}m}}
POD
}

# runs NAMESPACE POD
runs() { [[ $(kubectl -n "$1" get pod "$2" -o 'jsonpath={.status.phase}{.metadata.deletionTimestamp}') == Running ]]; }

# free_cpu NODE: prints the millicores that no pod of the node has requested.
free_cpu() {
  local all
  all=$(kubectl get node "$1" -o 'jsonpath={.status.allocatable.cpu}')
  kubectl get pods -A --field-selector "spec.nodeName=$1" \
    -o 'jsonpath={range .items[*].spec.containers[*]}{.resources.requests.cpu}{"\n"}{end}' |
    awk -v all="$all" 'function milli(cpu) { return cpu ~ /m$/ ? cpu + 0 : cpu * 1000 }
      { used += milli($1) } END { print milli(all) - used }'
}

# urgent_pod_instead_of POD: creates an urgent pod that fits on the node of a member only without this member.
urgent_pod_instead_of() {
  local node cpu
  node=$(node_of "$1")
  cpu=$(field "$1" '.spec.containers[0].resources.requests.cpu')
  plain_pod default "instead-of-$1" "$node" "$(($(free_cpu "$node") + ${cpu%m}))" urgent
}

# guard_events OBJECT TYPE: prints the notes of the guard's events of this type about a pod. Fails if there is none.
guard_events() {
  kubectl -n prod get events.events.k8s.io \
    -o 'jsonpath={range .items[*]}{.reportingController} {.type} {.regarding.kind}/{.regarding.name} {.note}{"\n"}{end}' |
    sed -n "s|^etcd-guard $2 $1 ||p" | grep .
}

# preemption_waits_for_quorum: the scheduler preempts the leader's pod, and a second member only when the first one is back.
preemption_waits_for_quorum() {
  local before pod notes second=''
  roles
  before=$(uids)
  for pod in "${MEMBERS[@]}"; do [[ $pod == "$LEADER" ]] || second=$pod; done
  report preemption-leader "$LEADER $TERM"
  take_writes >/dev/null
  watch_members
  urgent_pod_instead_of "$LEADER"
  wait_until "an urgent pod runs instead of $LEADER" runs default "instead-of-$LEADER"
  notes=$(wait_until "the event about $LEADER" guard_events "Pod/$LEADER" Normal)
  report_lines preemption-move "$notes"
  urgent_pod_instead_of "$second"
  notes=$(wait_until "the guard keeps $second" guard_events "Pod/$second" Warning)
  report_lines preemption-denial "$notes"
  report preemption-pending "$(kubectl -n default get pod "instead-of-$second" -o 'jsonpath={.status.phase}')"
  report preemption-kept "$([[ $(uids) != *"$second=$(pod_uid_in "$before" "$second")"* ]] || printf yes)"
  kubectl -n default delete pod "instead-of-$LEADER" >/dev/null
  wait_until "an urgent pod runs instead of $second" runs default "instead-of-$second"
  kubectl -n default delete pod "instead-of-$second" >/dev/null
  wait_until 'the cluster is complete' is_complete "$LEADER=$(pod_uid_in "$before" "$LEADER") $second=$(pod_uid_in "$before" "$second")"
  report preemption-lowest "$(lowest_members)"
  report preemption-final "$(leader_and_term)"
  report preemption-writes "$(take_writes)"
}

two_plain_pods() { [[ $(plain_pods | wc -w) -eq 2 ]]; }

# evict_again_and_again: evicts the leader's pod and a random one in turn, whatever the answer is.
evict_again_and_again() {
  local pod word round=0 moves=0 end=$((SECONDS + EVICTION_TIME)) limit=$((SECONDS + EVICTION_TIME + READY_TIMEOUT))
  local -A seen=() answers=()
  take_writes >/dev/null
  watch_members
  until ((SECONDS >= end && moves >= MIN_MOVES && ${#seen[@]} >= ${#MEMBERS[@]} + MIN_REPLACED)); do
    ((SECONDS < limit)) || fail "too few evictions: ${#seen[@]} pods, $moves moves of leadership, answers: ${!answers[*]}"
    pod=${MEMBERS[RANDOM % 3]}
    if ((round++ % 2)); then
      word=$(leader_and_term) && pod=${word% *}
    fi
    if try_evict "$pod"; then word=evicted; else word=$(sed -nE 's/^Error from server \(([A-Za-z]+)\): .*/\1/p' "$TESTBED_DIR/eviction"); fi
    answers[${word:-$(<"$TESTBED_DIR/eviction")}]=yes
    ! grep -q '^Warning: leadership of etcd prod/etcd was moved' "$TESTBED_DIR/eviction" || moves=$((moves + 1))
    for word in $(uids); do seen[$word]=yes; done
    sleep "$EVICTION_PAUSE"
  done
  wait_until 'the cluster is complete' is_complete ''
  report loop-answers "${!answers[*]}"
  report loop-replaced "$((${#seen[@]} - ${#MEMBERS[@]}))"
  report loop-moves "$moves"
  report loop-lowest "$(lowest_members)"
  report loop-writes "$(take_writes)"
}

# guard_pods: prints the pods of the guard. is_down: it has none.
guard_pods() { kubectl -n etcd-guard get pods -l app.kubernetes.io/name=etcd-guard -o name; }
is_down() { [[ -z $(guard_pods) ]]; }

# plain_pods: prints the pods without etcd that remain.
plain_pods() { kubectl -n prod get pods -l app!=etcd -o 'jsonpath={.items[*].metadata.name}'; }

# is_protected: the guard refuses a person the deletion of the leader's pod.
is_protected() {
  local output
  output=$(kubectl -n prod delete pod "$LEADER" --dry-run=server 2>&1) || true
  grep -F 'LeaderProtected: ' <<<"$output"
}

# guard_returns_on_full_nodes: no replica of the guard runs; then the nodes are full, and it starts.
guard_returns_on_full_nodes() {
  local before node denial
  roles
  before=$(uids)
  take_writes >/dev/null
  kubectl -n etcd-guard scale deployment/etcd-guard --replicas=0 >/dev/null
  wait_until 'the guard is down' is_down

  plain_pod prod web "$NODE" 1
  wait_until 'the plain pod runs' runs prod web
  if try_evict web; then report plain-eviction evicted; else report plain-eviction "$(<"$TESTBED_DIR/eviction")"; fi
  run plain-deletion kubectl -n prod delete pod web
  run member-deletion kubectl -n prod delete pod "$LEADER" --wait=false
  run down-drain kubectl drain "$NODE" --pod-selector app=etcd --timeout="${READY_TIMEOUT}s"
  report down-unschedulable "$(kubectl get node "$NODE" -o 'jsonpath={.spec.unschedulable}')"
  kubectl uncordon "$NODE" >/dev/null

  for node in $(nodes); do
    node=${node#*=}
    plain_pod prod "fills-$node" "$node" "$(free_cpu "$node")"
    wait_until "$node is full" runs prod "fills-$node"
  done
  report full-nodes "$(plain_pods)"
  plain_pod default urgent "$NODE" 100 urgent
  wait_until 'an urgent pod runs instead of a plain pod' runs default urgent
  # The kubelet starts it when the containers of the other pod have ended, before that pod is gone.
  wait_until 'a plain pod is gone' two_plain_pods
  report after-preemption "$(plain_pods)"
  plain_pod prod "fills-$NODE" "$NODE" "$(free_cpu "$NODE")"
  wait_until "$NODE is full again" runs prod "fills-$NODE"

  kubectl -n etcd-guard scale deployment/etcd-guard --replicas=2 >/dev/null
  run return kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="${READY_TIMEOUT}s"
  report after-return "$(plain_pods)"
  denial=$(wait_until 'the guard protects the leader' is_protected)
  report return-protects "$denial"
  report return-members-unchanged "$([[ $(uids) != "$before" ]] || printf yes)"
  report down-writes "$(take_writes)"
}

# reference: the same disruptions without the guard.
reference() {
  run_move reference-move etcd-2
  kubectl label namespace prod etcd-guard.io/guard- >/dev/null
  # The guard forgets the namespace.
  sleep 2
  rollout_of_leader reference-rollout
  drain_nodes_in_turn reference-drain
  evict_leaders reference-eviction
}

classes | kubectl apply -f - >/dev/null
start_cluster deploy/overlays/self-managed 's|priorityClassName: .*|priorityClassName: members|'
if [[ $CHAPTERS == writes ]]; then
  run_chapters drain_nodes_in_turn evict_leaders rollout_moves_leadership reference
else
  run_chapters preemption_waits_for_quorum evict_again_and_again guard_returns_on_full_nodes
fi
