# A writer's etcd cluster on the nodes of scripts/testbed, for the stories of tests/drain_node and tests/defaults_node: its start,
# its state, and the disruptions that both cause. Uses WRITER_PROGRAM, PLUGIN and REPORT of the story.
# shellcheck shell=bash

# Each wait takes seconds on an idle machine. The timeout only ends a failed run.
READY_TIMEOUT=240
COMMAND_TIMEOUT=300

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
    ((SECONDS < deadline)) || {
      kubectl get pods -A -o wide >&2 || true
      kubectl get events -A --sort-by=.metadata.creationTimestamp | tail -n 40 >&2 || true
      fail "not within $READY_TIMEOUT s: $subject"
    }
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

# start_cluster GUARD [SED-COMMAND]: installs the kustomization of a guard, and starts the members of the shipped example, after
# sed has changed the manifest, and the writer.
start_cluster() {
  kubectl apply -k "$PROJECT/$1" >/dev/null
  kubectl create namespace prod >/dev/null
  kubectl label namespace prod etcd-guard.io/guard=enabled >/dev/null
  sed "s|^      affinity:|$SPREAD\n&|${2:+; $2}" "$PROJECT/etcd-manifests/plain.yaml" | kubectl -n prod apply -f - >/dev/null
  writer_services prod "${MEMBERS[@]}" | kubectl apply -f - >/dev/null
  kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="${READY_TIMEOUT}s" >/dev/null || fail 'the guard is not ready'
  kubectl -n prod rollout status statefulset/etcd --timeout="${READY_TIMEOUT}s" >/dev/null || fail 'etcd is not ready'
  report nodes "$(nodes)"
  start_writer "$WRITER_PROGRAM" prod "${MEMBERS[@]}"
  wait_until 'the guard reads the cluster' knows_cluster
  log "the guard and etcd are ready after $SECONDS s"
}
knows_cluster() { "$PLUGIN" status -n prod --exit-code >/dev/null 2>&1; }

# run_chapters NAME...: runs these functions.
run_chapters() {
  local chapter
  for chapter in "$@"; do
    "$chapter"
    log "$chapter: done after $SECONDS s"
  done
  report end reached
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
  LEADER=$(wait_until 'one of three members leads' leader_and_term)
  TERM=${LEADER#* } LEADER=${LEADER% *}
  NODE=$(node_of "$LEADER")
}

# is_complete UIDS: all pods are ready, and none of these pods remains.
is_complete() {
  local word current
  current=$(uids)
  for word in $1; do [[ " $current" != *" $word "* ]] || return 1; done
  kubectl -n prod wait --for=condition=Ready "${MEMBERS[@]/#/pod/}" --timeout=0s >/dev/null 2>&1 && leader_and_term >/dev/null
}

# watch_members: records the state of each member from now on. lowest_members ends it and prints the lowest number of members
# that ran at the same time and were not terminating. The container counts, and not its startup probe: the guard asks etcd
# itself, which serves before the kubelet reports that.
watch_members() {
  kubectl -n prod get pods -l app=etcd --watch \
    -o 'jsonpath={.metadata.name}|{.metadata.deletionTimestamp}|{.status.containerStatuses[0].state.running.startedAt}{"\n"}' >"$TESTBED_DIR/members" &
  WATCH=$!
}
lowest_members() {
  kill "$WATCH" 2>/dev/null || true
  awk -F '|' 'BEGIN { lowest = 3 }
    { runs[$1] = $2 == "" && $3 != ""; known = running = 0; for (pod in runs) { known++; running += runs[pod] } }
    known == 3 && running < lowest { lowest = running }
    END { print lowest }' "$TESTBED_DIR/members"
}

# pod_uid_in UIDS POD
pod_uid_in() {
  local rest=${1#*"$2="}
  printf '%s' "${rest%% *}"
}

# drain_nodes_in_turn [NAME]: kubectl drain of every node with a member, as an upgrade of the nodes does. NAME begins the names in
# the report, also of the next functions.
drain_nodes_in_turn() {
  local name=${1-drain} before pod node number=0
  roles
  report "$name-leader" "$LEADER on $NODE, term $TERM"
  before=$(uids)
  take_writes >/dev/null
  watch_members
  for pod in "${MEMBERS[@]}"; do
    node=$(node_of "$pod")
    run "$name-$((number++))" kubectl drain "$node" --pod-selector app=etcd --timeout="${READY_TIMEOUT}s"
    wait_until 'the drained cluster is complete' is_complete "$pod=$(pod_uid_in "$before" "$pod")"
    report "$name-of-$pod" "$node $(node_of "$pod")"
    kubectl uncordon "$node" >/dev/null
  done
  report "$name-lowest" "$(lowest_members)"
  report "$name-final" "$(leader_and_term)"
  report "$name-writes" "$(take_writes)"
}

# try_evict POD: one attempt of an eviction. Writes the response to the file `eviction`.
try_evict() {
  kubectl create --raw "/api/v1/namespaces/prod/pods/$1/eviction" -f - >"$TESTBED_DIR/eviction" 2>&1 \
    <<<"{\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"$1\",\"namespace\":\"prod\"}}"
}

# evict_leaders [NAME]: evicts the leader's pod twice, with retries, as autoscalers and deschedulers do.
evict_leaders() {
  local name=${1-eviction} before number
  take_writes >/dev/null
  watch_members
  for number in 0 1; do
    roles
    before=$(uids)
    wait_until "the eviction of $LEADER is approved" try_evict "$LEADER"
    report_lines "$name-$number-output" "$(<"$TESTBED_DIR/eviction")"
    wait_until 'the cluster is complete' is_complete "$LEADER=$(pod_uid_in "$before" "$LEADER")"
    report "$name-$number" "$LEADER $(leader_and_term)"
  done
  report "$name-lowest" "$(lowest_members)"
  report "$name-writes" "$(take_writes)"
}

# rollout_of_leader NAME: the StatefulSet controller replaces the highest ordinal first. Let etcd-2 lead before.
rollout_of_leader() {
  local name=$1 before
  roles
  before=$(uids)
  report "$name-leader" "$LEADER $TERM"
  take_writes >/dev/null
  watch_members
  kubectl -n prod rollout restart statefulset/etcd >/dev/null
  run "$name" kubectl -n prod rollout status statefulset/etcd --timeout="${READY_TIMEOUT}s"
  report "$name-lowest" "$(lowest_members)"
  wait_until 'the updated cluster is complete' is_complete "$before"
  report "$name-final" "$(leader_and_term)"
  report "$name-writes" "$(take_writes)"
}

# rollout_moves_leadership: a rollout that begins with the leader's pod.
rollout_moves_leadership() {
  run_move rollout-move etcd-2
  rollout_of_leader rollout
}
