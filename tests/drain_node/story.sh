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
# shellcheck source=tests/drain_node/cluster.sh
source "$PROJECT/tests/drain_node/cluster.sh"

# Time between a cordon and the deletion that a drain requests.
DELETION_DELAY=2
# Time after which the results of all writes around an event are complete: etcd answers within 7 s.
RESULT_TIME=8

leads_another() {
  local now
  now=$(leader_and_term) && [[ ${now% *} != "$1" ]]
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
  run upgrade "$PLUGIN" restart statefulset/etcd -n prod --no-backup --image "$NEXT_IMAGE"
  report upgrade-lowest "$(lowest_members)"
  wait_until 'the upgraded cluster is complete' is_complete "$before"
  report upgrade-versions "$(versions | tr -d '\n')"
  report upgrade-strategy "$(strategy)"
  report upgrade-writes "$(take_writes)"
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

start_cluster tests/drain_node/guard
chapters=(cordon_moves_leadership command_moves_leadership drain_nodes_in_turn evict_leaders rollout_moves_leadership
  restart_replaces_every_pod)
if [[ -n $NEXT_IMAGE ]]; then
  chapters+=(killed_restart_resumes min_voters_denies_deletions upgrade_replaces_the_image)
fi
run_chapters "${chapters[@]}" reference
