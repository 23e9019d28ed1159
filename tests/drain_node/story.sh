#!/usr/bin/env bash
# Moves, drains and restarts the members of an etcd cluster on four nodes, while a client writes. CMD of `scripts/testbed node
# --nodes 4`: story.sh PLUGIN WRITER REPORT [NEXT-IMAGE]. Writes lines `NAME<tab>VALUE`, which tests/drain_node/main.rs asserts.
# With the image of etcd's next minor version, all chapters run.
set -euo pipefail

PLUGIN=$1 WRITER_PROGRAM=$2 REPORT=$3 NEXT_IMAGE=${4-}
PROJECT=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
LOG_PREFIX=drain-node
# shellcheck source=scripts/lib/log.sh
source "$PROJECT/scripts/lib/log.sh"
# shellcheck source=scripts/lib/writer.sh
source "$PROJECT/scripts/lib/writer.sh"

# Each wait takes seconds on an idle machine. The timeout only ends a failed run.
READY_TIMEOUT=240
COMMAND_TIMEOUT=300
# Time between a cordon and the deletion that a drain requests.
DELETION_DELAY=2
# Time after which the results of all writes around an event are complete: etcd answers within 7 s.
RESULT_TIME=8

MEMBERS=(etcd-0 etcd-1 etcd-2)
# The scheduler places each member on a node of its own. A cordoned node counts as a place without a member.
SPREAD='      topologySpreadConstraints:\
      - maxSkew: 1\
        topologyKey: kubernetes.io/hostname\
        whenUnsatisfiable: DoNotSchedule\
        labelSelector: {matchLabels: {app: etcd}}'

# report NAME VALUE: writes one line of the report.
report() { printf '%s\t%s\n' "$1" "${2//[$'\t\n']/ }" >>"$REPORT"; }

# report_lines NAME VALUE: the same, with the lines of the value separated by ` | `.
report_lines() { report "$1" "${2//$'\n'/ | }"; }

# wait_until SUBJECT COMMAND...: retries until the command succeeds. Its output is the output of the command.
wait_until() {
  local subject=$1 deadline=$((SECONDS + READY_TIMEOUT))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || fail "not within $READY_TIMEOUT s: $subject: $(kubectl get pods -A -o wide)"
    sleep 0.2
  done
}

# run NAME COMMAND...: runs a command, and reports its exit status and its output.
run() {
  local name=$1 status=0 output
  shift
  output=$(timeout "$COMMAND_TIMEOUT" "$@" 2>&1) || status=$?
  report "$name-status" "$status"
  report_lines "$name-output" "$output"
}

# run_move NAME POD: moves leadership to the pod. A member that responds too late on a busy machine counts as not healthy, and the
# guard rejects the move. The function then repeats the command, for at most READY_TIMEOUT seconds.
run_move() {
  local name=$1 target=$2 status output deadline=$((SECONDS + READY_TIMEOUT))
  while true; do
    status=0
    output=$(timeout "$COMMAND_TIMEOUT" "$PLUGIN" move-leader -n prod --to "$target" statefulset/etcd 2>&1) || status=$?
    if [[ $output != *'LeaderMoveRejected: '*' is not healthy '* ]] || ((SECONDS >= deadline)); then break; fi
    sleep 1
  done
  report "$name-status" "$status"
  report_lines "$name-output" "$output"
}

# field POD JSONPATH
field() { kubectl -n prod get pod "$1" -o "jsonpath={$2}"; }
node_of() { field "$1" .spec.nodeName; }

# uids, nodes: print a word for each pod: its name, and its uid or node.
uids() { kubectl -n prod get pods -l app=etcd -o 'jsonpath={range .items[*]}{.metadata.name}={.metadata.uid} {end}'; }
nodes() { kubectl -n prod get pods -l app=etcd -o 'jsonpath={range .items[*]}{.metadata.name}={.spec.nodeName} {end}'; }

# leader_and_term: prints the pod that leads and the term, as this member reports it. Fails unless all members respond and
# one of them leads.
leader_and_term() {
  local name address status found='' count=0
  while read -r name address; do
    [[ -n $address ]] || return 1
    status=$(curl -fsS --max-time 5 "http://$address:2379/v3/maintenance/status" -d '{}' 2>/dev/null) || return 1
    count=$((count + 1))
    [[ $status =~ \"member_id\":\"([0-9]+)\".*\"raft_term\":\"([0-9]+)\" ]] || return 1
    [[ $status != *"\"leader\":\"${BASH_REMATCH[1]}\""* ]] || found="$name ${BASH_REMATCH[2]}"
  done < <(kubectl -n prod get pods -l app=etcd -o 'jsonpath={range .items[*]}{.metadata.name} {.status.podIP}{"\n"}{end}')
  [[ $count -eq 3 && -n $found ]] && printf '%s' "$found"
}

# roles: reads the leader, its node and the term into LEADER, NODE and TERM.
roles() {
  read -r LEADER TERM <<<"$(wait_until 'one of three members leads' leader_and_term)"
  NODE=$(node_of "$LEADER")
}

leads_another() {
  local now
  now=$(leader_and_term) && [[ ${now% *} != "$1" ]]
}

# is_complete UIDS: all pods are ready, and none of these pods remains.
is_complete() {
  local word current
  current=$(uids)
  for word in $1; do [[ " $current" != *" $word "* ]] || return 1; done
  kubectl -n prod wait --for=condition=Ready "${MEMBERS[@]/#/pod/}" --timeout=0s >/dev/null 2>&1 && leader_and_term >/dev/null
}

# events NOTE: prints the events of the guard whose notes contain the text, with the objects.
events() {
  kubectl -n prod get events.events.k8s.io -o 'jsonpath={range .items[*]}{.reason} {.regarding.kind}/{.regarding.name}: {.note}{"\n"}{end}' |
    grep -F -- "$1"
}
has_event() { events "$1" | grep -q " $2: "; }

# handovers TRIGGER: prints the handovers with this trigger that moved leadership, of all replicas.
handovers() {
  local replica
  for replica in $(kubectl -n etcd-guard get pods -l app.kubernetes.io/name=etcd-guard -o name); do
    kubectl get --raw "/api/v1/namespaces/etcd-guard/pods/${replica#pod/}:8080/proxy/metrics"
  done | awk -v labels="{trigger=\"$1\",result=\"moved\"}" 'index($1, "etcd_guard_handovers_total" labels) == 1 { sum += $2 } END { print sum + 0 }'
}

# watch_members: records the state of each member from now on. lowest_members ends it and prints the lowest number of members
# that ran at the same time and were not terminating.
watch_members() {
  kubectl -n prod get pods -l app=etcd --watch \
    -o 'jsonpath={.metadata.name} {.metadata.deletionTimestamp} {.status.containerStatuses[0].started}{"\n"}' >"$TESTBED_DIR/members" &
  WATCH=$!
}
lowest_members() {
  kill "$WATCH" 2>/dev/null || true
  awk 'BEGIN { lowest = 3 }
    { runs[$1] = NF == 2 && $2 == "true"; known = running = 0; for (pod in runs) { known++; running += runs[pod] } }
    known == 3 && running < lowest { lowest = running }
    END { print lowest }' "$TESTBED_DIR/members"
}

# kill_etcd POD: kills the process of a member. The kubelet starts the container again.
kill_etcd() {
  local pid
  pid=$(pgrep -f -- "^/usr/local/bin/etcd --name=$1 ") || fail "no process of $1"
  kill -KILL "$pid"
}

# cordon_moves_leadership: a cordon, and after some seconds the deletion that a drain would request.
cordon_moves_leadership() {
  local before moved_to
  roles
  before=$(uids)
  report cordon-handovers-before "$(handovers cordon)"
  take_writes >/dev/null
  kubectl cordon "$NODE" >/dev/null
  wait_until "leadership leaves $LEADER" leads_another "$LEADER"
  moved_to=$(leader_and_term)
  report cordon-leader "$LEADER on $NODE, term $TERM"
  report cordon-successor "${moved_to% *} on $(node_of "${moved_to% *}"), term ${moved_to#* }"
  report cordon-pods-unchanged "$([[ $(uids) != "$before" ]] || printf yes)"
  wait_until 'the event about the pod' has_event "node $NODE is cordoned: " "Pod/$LEADER"
  wait_until 'the event about the StatefulSet' has_event "node $NODE is cordoned: " StatefulSet/etcd
  report_lines cordon-events "$(events "node $NODE is cordoned: ")"
  sleep "$DELETION_DELAY"
  report cordon-writes "$(take_writes)"
  report cordon-handovers "$(handovers cordon)"
  run deletion kubectl -n prod delete pod "$LEADER" --wait=false
  sleep "$RESULT_TIME"
  report deletion-writes "$(take_writes)"
  wait_until "$LEADER is replaced" is_complete "$LEADER=$(pod_uid_in "$before" "$LEADER")"
  report deletion-nodes "$(nodes)"
  report cordon-final "$(leader_and_term)"
  kubectl uncordon "$NODE" >/dev/null
}

# pod_uid_in UIDS POD
pod_uid_in() {
  local rest=${1#*"$2="}
  printf '%s' "${rest%% *}"
}

# command_moves_leadership: move-leader, and then the sudden end of the member that led.
command_moves_leadership() {
  local pod target=''
  roles
  for pod in "${MEMBERS[@]}"; do [[ $pod == "$LEADER" ]] || target=$pod; done
  take_writes >/dev/null
  run_move move "$target"
  report move-expected "$target"
  report move-leader "$(wait_until 'one of three members leads' leader_and_term)"
  report move-writes "$(take_writes)"
  kill_etcd "$LEADER"
  sleep "$RESULT_TIME"
  report former-leader-killed-writes "$(take_writes)"
  wait_until "$LEADER runs again" is_complete ''
}

# drain_nodes_in_turn: kubectl drain of every node with a member, as an upgrade of the nodes does.
drain_nodes_in_turn() {
  local before pod node number=0
  roles
  report drain-leader "$LEADER on $NODE, term $TERM"
  before=$(uids)
  take_writes >/dev/null
  watch_members
  for pod in "${MEMBERS[@]}"; do
    node=$(node_of "$pod")
    run "drain-$((number++))" kubectl drain "$node" --pod-selector app=etcd --timeout="${READY_TIMEOUT}s"
    wait_until 'the drained cluster is complete' is_complete "$pod=$(pod_uid_in "$before" "$pod")"
    report "drain-of-$pod" "$node $(node_of "$pod")"
    kubectl uncordon "$node" >/dev/null
  done
  report drain-lowest "$(lowest_members)"
  report drain-final "$(leader_and_term)"
  report drain-writes "$(take_writes)"
}

# try_evict POD: one attempt of an eviction. Writes the response to the file `eviction`.
try_evict() {
  kubectl create --raw "/api/v1/namespaces/prod/pods/$1/eviction" -f - >"$TESTBED_DIR/eviction" 2>&1 \
    <<<"{\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"$1\",\"namespace\":\"prod\"}}"
}

# evict_leaders: evicts the leader's pod twice, with retries, as autoscalers and deschedulers do.
evict_leaders() {
  local before number
  take_writes >/dev/null
  watch_members
  for number in 0 1; do
    roles
    before=$(uids)
    wait_until "the eviction of $LEADER is approved" try_evict "$LEADER"
    report_lines "eviction-$number-output" "$(<"$TESTBED_DIR/eviction")"
    wait_until 'the cluster is complete' is_complete "$LEADER=$(pod_uid_in "$before" "$LEADER")"
    report "eviction-$number" "$LEADER $(leader_and_term)"
  done
  report eviction-lowest "$(lowest_members)"
  report eviction-writes "$(take_writes)"
}

restart_replaces_every_pod() {
  local before
  roles
  before=$(uids)
  report restart-leader "$LEADER"
  take_writes >/dev/null
  watch_members
  run restart "$PLUGIN" restart statefulset/etcd -n prod
  report restart-lowest "$(lowest_members)"
  wait_until 'the restarted cluster is complete' is_complete "$before"
  report restart-before "$before"
  report restart-after "$(uids)"
  report restart-strategy "$(strategy)"
  report restart-writes "$(take_writes)"
}

# rollout_moves_leadership: the StatefulSet controller replaces the highest ordinal first, the pod of the leader, etcd-2.
rollout_moves_leadership() {
  local before
  run_move rollout-move etcd-2
  roles
  before=$(uids)
  report rollout-leader "$LEADER $TERM"
  take_writes >/dev/null
  watch_members
  kubectl -n prod rollout restart statefulset/etcd >/dev/null
  run rollout kubectl -n prod rollout status statefulset/etcd --timeout="${READY_TIMEOUT}s"
  report rollout-lowest "$(lowest_members)"
  wait_until 'the updated cluster is complete' is_complete "$before"
  report rollout-final "$(leader_and_term)"
  report rollout-writes "$(take_writes)"
}

# strategy: prints the update strategy of the StatefulSet, and the annotation of a restart.
strategy() {
  kubectl -n prod get statefulset etcd -o 'jsonpath={.spec.updateStrategy.type} {.metadata.annotations.etcd-guard\.io/restart}'
}

# is_begun UIDS: a pod was replaced.
is_begun() { [[ $(uids) != "$1" ]]; }

# killed_restart_resumes: the command is killed after the first member, and run again.
killed_restart_resumes() {
  local before command status
  before=$(uids)
  "$PLUGIN" restart statefulset/etcd -n prod >/dev/null 2>&1 &
  command=$!
  wait_until 'the first member is replaced' is_begun "$before"
  kill -KILL "$command"
  wait "$command" || true
  status=$(strategy)
  report resume-between "${status%% *}"
  take_writes >/dev/null
  run resume "$PLUGIN" restart statefulset/etcd -n prod
  wait_until 'the restarted cluster is complete' is_complete "$before"
  report resume-before "$before"
  report resume-after "$(uids)"
  report resume-strategy "$(strategy)"
  report resume-writes "$(take_writes)"
}

# denies_min_voters, permits_deletion: requests the deletion of etcd-1, as a dry run.
denies_min_voters() {
  local output
  output=$(kubectl -n prod delete pod etcd-1 --dry-run=server 2>&1) || true
  [[ $output == *TooFewVoters* ]]
}
permits_deletion() { kubectl -n prod delete pod etcd-1 --dry-run=server >/dev/null 2>&1; }

# min_voters_denies_deletions: sets etcd-guard.io/min-voters above the number of voters.
min_voters_denies_deletions() {
  run min-voters-move "$PLUGIN" move-leader -n prod --to etcd-0 statefulset/etcd
  kubectl -n prod annotate statefulset/etcd etcd-guard.io/min-voters=5 >/dev/null
  wait_until 'deletions are denied' denies_min_voters
  run min-voters kubectl -n prod delete pod etcd-1 --wait=false
  kubectl -n prod annotate statefulset/etcd etcd-guard.io/min-voters- >/dev/null
  wait_until 'deletions are approved again' permits_deletion
}

# versions: prints the release of each member.
versions() {
  local address
  for address in $(kubectl -n prod get pods -l app=etcd -o 'jsonpath={.items[*].status.podIP}'); do
    curl -fsS --max-time 5 "http://$address:2379/version" | sed 's/.*"etcdserver":"\([^"]*\)".*/\1 /'
  done
}

upgrade_replaces_the_image() {
  local before
  before=$(uids)
  take_writes >/dev/null
  watch_members
  run upgrade "$PLUGIN" restart statefulset/etcd -n prod --image "$NEXT_IMAGE"
  report upgrade-lowest "$(lowest_members)"
  wait_until 'the upgraded cluster is complete' is_complete "$before"
  report upgrade-versions "$(versions | tr -d '\n')"
  report upgrade-strategy "$(strategy)"
  report upgrade-writes "$(take_writes)"
}

# unguarded_drain_and_rollout: the commands of kubectl without the guard, after `reference` has removed the label.
unguarded_drain_and_rollout() {
  local before
  roles
  before=$(uids)
  take_writes >/dev/null
  run reference-drain kubectl drain "$NODE" --pod-selector app=etcd --delete-emptydir-data --timeout="${READY_TIMEOUT}s"
  wait_until 'the drained cluster is complete' is_complete "$LEADER=$(pod_uid_in "$before" "$LEADER")"
  report reference-drain-writes "$(take_writes)"
  kubectl uncordon "$NODE" >/dev/null
  before=$(uids)
  kubectl -n prod rollout restart statefulset/etcd >/dev/null
  run reference-rollout kubectl -n prod rollout status statefulset/etcd --timeout="${READY_TIMEOUT}s"
  wait_until 'the updated cluster is complete' is_complete "$before"
  report reference-rollout-writes "$(take_writes)"
}

# reference: the same cordon without the guard, and the sudden end of the leader.
reference() {
  kubectl label namespace prod etcd-guard.io/guard- >/dev/null
  # The guard forgets the namespace.
  sleep 2
  roles
  take_writes >/dev/null
  kubectl cordon "$NODE" >/dev/null
  sleep "$DELETION_DELAY"
  report reference-leader "$LEADER"
  report reference-stays "$(leader_and_term)"
  report reference-cordon-writes "$(take_writes)"
  kill_etcd "$LEADER"
  sleep "$RESULT_TIME"
  report reference-killed-writes "$(take_writes)"
  kubectl uncordon "$NODE" >/dev/null
}

kubectl apply -k "$PROJECT/tests/drain_node/guard" >/dev/null
kubectl create namespace prod >/dev/null
kubectl label namespace prod etcd-guard.io/guard=enabled >/dev/null
sed "s|^      affinity:|$SPREAD\n&|" "$PROJECT/etcd-manifests/plain.yaml" | kubectl -n prod apply -f - >/dev/null
writer_services prod "${MEMBERS[@]}" | kubectl apply -f - >/dev/null
kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="${READY_TIMEOUT}s" >/dev/null || fail 'the guard is not ready'
kubectl -n prod rollout status statefulset/etcd --timeout="${READY_TIMEOUT}s" >/dev/null || fail 'etcd is not ready'
report nodes "$(nodes)"
start_writer "$WRITER_PROGRAM" prod "${MEMBERS[@]}"
knows_cluster() { "$PLUGIN" status -n prod --exit-code >/dev/null 2>&1; }
wait_until 'the guard reads the cluster' knows_cluster
log "the guard and etcd are ready after $SECONDS s"

chapters=(cordon_moves_leadership command_moves_leadership drain_nodes_in_turn evict_leaders rollout_moves_leadership
  restart_replaces_every_pod)
if [[ -n $NEXT_IMAGE ]]; then
  chapters+=(killed_restart_resumes min_voters_denies_deletions upgrade_replaces_the_image reference
    unguarded_drain_and_rollout)
else
  chapters+=(reference)
fi
for chapter in "${chapters[@]}"; do
  "$chapter"
  log "$chapter: done after $SECONDS s"
done
report end reached
