# What a section of the documentation takes for granted, made before its commands run: `before_PAGE_ANCHOR`.
# shellcheck shell=bash source-path=SCRIPTDIR disable=SC2034 # POD and OTHER are the commands'

GUARD_LABEL=app.kubernetes.io/name=etcd-guard

# until_true WHAT COMMAND...: tries until it succeeds.
until_true() {
  local what=$1 deadline=$((SECONDS + READY_LIMIT))
  shift
  until "$@"; do
    if ((SECONDS >= deadline)); then
      show_state
      die "not within $READY_LIMIT s: $what"
    fi
    sleep 0.5
  done
}

# show_state: for whoever reads why it failed.
show_state() {
  timeout 20 kubectl get pods -A -o wide >&2 || true
  timeout 20 kubectl -n prod get events --sort-by=.lastTimestamp 2>&1 | tail -n 15 >&2 || true
  timeout 20 kubectl -n etcd-guard logs -l "$GUARD_LABEL" --tail=15 >&2 || true
}

# leader: the pod that leads by etcd's own account.
leader() {
  local pod status
  for pod in etcd-0 etcd-1 etcd-2; do
    status=$(timeout 20 kubectl -n prod exec "$pod" -c etcd -- etcdctl endpoint status -w json 2>/dev/null) || continue
    if [[ $status =~ \"member_id\":([0-9]+) && $status =~ \"leader\":${BASH_REMATCH[1]}[,\}] ]]; then
      printf '%s' "$pod"
      return
    fi
  done
  return 1
}

# answers WORDS: whether the guard says that to a dry run of the leader's deletion.
answers() {
  local pod said
  pod=$(leader) || return 1
  said=$(timeout 60 kubectl -n prod delete pod "$pod" --dry-run=server 2>&1) || true
  [[ $said == *"$1"* ]]
}
leader_is_protected() { until_true 'the leader is protected' answers '[LeaderProtected]'; }

# logged WORDS: whether a guard's log has them.
logged() { kubectl -n etcd-guard logs -l "$GUARD_LABEL" --tail=-1 | grep -q -- "$1"; }

two_replicas() { [[ $(kubectl -n etcd-guard get pods -o name | wc -l) -eq 2 ]]; }

# three_serve: all three members are healthy, and all their pods ready.
three_serve() {
  [[ $(kubectl -n prod get statefulset etcd -o 'jsonpath={.status.readyReplicas}') == 3 ]] &&
    timeout 30 kubectl -n prod exec etcd-0 -c etcd -- etcdctl endpoint health --cluster >/dev/null 2>&1
}

# lead_elsewhere POD: another pod leads.
lead_elsewhere() {
  local other
  [[ $(leader) != "$1" ]] && return
  other=$(kubectl -n prod exec "$1" -c etcd -- etcdctl member list | awk -F', ' -v pod="$1" '$3 != pod {print $1; exit}')
  kubectl -n prod exec "$1" -c etcd -- etcdctl move-leader "$other" >/dev/null
}

before_runbook_first_look() {
  # Surveys often, so that its log has a line of them.
  kubectl -n etcd-guard set env deployment/etcd-guard ETCD_GUARD_SURVEY_INTERVAL=1s >/dev/null
  kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="${READY_LIMIT}s" >/dev/null
  # Whose logs are read must not be going.
  until_true 'the replicas of before are gone' two_replicas
  leader_is_protected
  until_true 'a denial is in the log' logged 'verdict="denied"'
}
before_runbook_etcdguardnosparevoter() { until_true 'a survey is in the log' logged ' survey '; }

before_runbook_etcdguardbreakglassused() {
  POD=$(leader)
  kubectl -n prod annotate pod "$POD" "etcd-guard.io/allow-delete-until=$(date -u -d '+1 hour' +%FT%TZ)" \
    etcd-guard.io/allow-delete-reason='a test of the runbook' >/dev/null
  until_true 'the break-glass is in the log' broken
}
broken() { timeout 60 kubectl -n prod delete pod "$POD" --dry-run=server >/dev/null 2>&1 && logged 'reason="BreakGlass"'; }

before_runbook_moving_leadership_by_hand() { until_true 'three members serve' three_serve; }

before_runbook_a_rolling_upgrade_of_etcd() { until_true 'three members serve' three_serve; }

before_runbook_replacing_a_dead_member() {
  local volume path process
  until_true 'three members serve' three_serve
  # A disk that was lost: the member starts with an empty one, and may not.
  volume=$(kubectl -n prod get pvc "data-$POD" -o 'jsonpath={.spec.volumeName}')
  path=$(kubectl get pv "$volume" -o 'jsonpath={.spec.hostPath.path}')
  rm -rf -- "$path/data"
  for process in /proc/[0-9]*; do
    if [[ $(tr '\0' ' ' 2>/dev/null <"$process/cmdline") == *"etcd --name=$POD "* ]]; then kill -KILL "${process##*/}"; fi
  done
  until_true "$POD crashes" crashes "$POD"
}
crashes() { [[ $(kubectl -n prod get pod "$1" -o 'jsonpath={.status.containerStatuses[0].restartCount}') -ge 2 ]]; }

before_runbook_scaling_in() {
  POD=etcd-2
  until_true 'three members serve' three_serve
  until_true "$POD does not lead" lead_elsewhere "$POD"
}
before_runbook_scaling_out() { POD=etcd-2; }

before_runbook_losing_the_quorum() { until_true 'three members serve' three_serve; }

before_runbook_taking_the_guard_out_of_the_way() { until_true 'three members serve' three_serve; }

before_install_3_apply() {
  # What the runbook's sections have chosen.
  kubectl -n prod annotate statefulset etcd etcd-guard.io/leader- etcd-guard.io/single-member- >/dev/null
  leader_is_protected
}
