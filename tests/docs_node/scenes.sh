# Prepares the state that the commands of a section require: functions `before_PAGE_ANCHOR`. POD and OTHER are parameters of
# the commands in the environment, as the recipes describe them; story.sh resets them, and a function may assign them.
# shellcheck shell=bash source-path=SCRIPTDIR disable=SC2034,SC2153 # the commands use POD and OTHER

GUARD_LABEL=app.kubernetes.io/name=etcd-guard

# wait_until SUBJECT COMMAND...: retries until the command succeeds.
wait_until() {
  local subject=$1 deadline=$((SECONDS + READY_TIMEOUT))
  shift
  until "$@"; do
    if ((SECONDS >= deadline)); then
      show_state
      fail "not within $READY_TIMEOUT s: $subject"
    fi
    sleep 0.5
  done
}

# show_state: prints pods, events and logs after a failure.
show_state() {
  timeout 20 kubectl get pods -A -o wide >&2 || true
  timeout 20 kubectl -n prod get events --sort-by=.lastTimestamp 2>&1 | tail -n 15 >&2 || true
  timeout 20 kubectl -n etcd-guard logs -l "$GUARD_LABEL" --tail=15 >&2 || true
}

# leader: prints the pod whose etcd member is the leader.
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

# verdict_contains TEXT: whether the verdict on a dry-run deletion of the leader contains the text.
verdict_contains() {
  local pod output
  pod=$(leader) || return 1
  output=$(timeout 60 kubectl -n prod delete pod "$pod" --dry-run=server 2>&1) || true
  [[ $output == *"$1"* ]]
}
leader_is_protected() { wait_until 'the leader is protected' verdict_contains 'denied the request: LeaderProtected: '; }

# logged TEXT: whether the log of a guard contains the text. With `grep -q`, kubectl would end by SIGPIPE when the log is long.
logged() { kubectl -n etcd-guard logs -l "$GUARD_LABEL" --tail=-1 | grep -- "$1" >/dev/null; }

two_replicas() { [[ $(kubectl -n etcd-guard get pods -l "$GUARD_LABEL" -o name | wc -l) -eq 2 ]]; }

# three_serve: all three members are healthy, and all their pods ready.
three_serve() {
  [[ $(kubectl -n prod get statefulset etcd -o 'jsonpath={.status.readyReplicas}') == 3 ]] &&
    timeout 30 kubectl -n prod exec etcd-0 -c etcd -- etcdctl endpoint health --cluster >/dev/null 2>&1
}

# lead_elsewhere POD: whether another pod leads; transfers leadership away otherwise.
lead_elsewhere() {
  local other
  [[ $(leader) != "$1" ]] && return
  other=$(kubectl -n prod exec "$1" -c etcd -- etcdctl member list | awk -F', ' -v pod="$1" '$3 != pod {print $1; exit}')
  kubectl -n prod exec "$1" -c etcd -- etcdctl move-leader "$other" >/dev/null
}

before_reasons_first_checks() {
  # A short survey interval, so that the log contains a survey.
  kubectl -n etcd-guard set env deployment/etcd-guard ETCD_GUARD_SURVEY_INTERVAL=1s >/dev/null
  kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="${READY_TIMEOUT}s" >/dev/null
  # The commands read the logs of all replicas, which must not be terminating.
  wait_until 'the previous replicas are gone' two_replicas
  leader_is_protected
  wait_until 'a denial is in the log' logged 'verdict="denied"'
}
before_alerts_etcdguardnosparevoter() { wait_until 'a survey is in the log' logged ' survey '; }

before_alerts_etcdguardbreakglassused() {
  POD=$(leader)
  kubectl -n prod annotate --overwrite pod "$POD" "etcd-guard.io/allow-delete-until=$(TZ=UTC-1 date +%FT%TZ)" \
    etcd-guard.io/allow-delete-reason='a test of the manual' >/dev/null
  wait_until 'the break-glass is in the log' break_glass_is_logged
  kubectl -n prod annotate pod "$POD" etcd-guard.io/allow-delete-until- etcd-guard.io/allow-delete-reason- >/dev/null
}
break_glass_is_logged() { timeout 60 kubectl -n prod delete pod "$POD" --dry-run=server >/dev/null 2>&1 && logged 'reason="BreakGlass"'; }

before_recipes_move_leadership() { wait_until 'three members serve' three_serve; }

# The claim of the CronJob for backups.
before_recipes_back_up() {
  kubectl -n prod apply -f - >/dev/null <<'END'
{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "etcd-backups"},
 "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
END
  wait_until 'three members serve' three_serve
}

before_recipes_restart_all_members() { wait_until 'three members serve' three_serve; }

before_recipes_upgrade_etcd() { wait_until 'three members serve' three_serve; }

# volume_path POD: prints the directory of the member's volume.
volume_path() {
  local volume
  volume=$(kubectl -n prod get pvc "data-$1" -o 'jsonpath={.spec.volumeName}')
  kubectl get pv "$volume" -o 'jsonpath={.spec.hostPath.path}'
}

# kill_member POD: its container restarts.
kill_member() {
  local process
  for process in /proc/[0-9]*; do
    if [[ $(tr '\0' ' ' 2>/dev/null <"$process/cmdline") == *"etcd --name=$1 "* ]]; then kill -KILL "${process##*/}"; fi
  done
}

before_recipes_replace_a_lost_or_corrupt_member() {
  local path
  wait_until 'three members serve' three_serve
  # A lost disk: the member restarts with an empty data directory, which etcd rejects.
  path=$(volume_path "$POD")
  rm -rf -- "${path:?}/data"
  kill_member "$POD"
  wait_until "$POD crashes" crashes "$POD"
  raise_corrupt_alarm "$POD"
}

# raise_corrupt_alarm POD: raises the alarm as a member does that finds another one's data to differ.
raise_corrupt_alarm() {
  local id
  id=$(kubectl -n prod exec "$OTHER" -c etcd -- etcdctl member list | awk -F', ' -v pod="$1" '$3 == pod {print $1}')
  printf '{"action": "ACTIVATE", "memberID": "%u", "alarm": "CORRUPT"}' "0x$id" |
    kubectl create --raw "/api/v1/namespaces/prod/pods/$OTHER:2379/proxy/v3/maintenance/alarm" -f - >/dev/null
  kubectl -n prod exec "$OTHER" -c etcd -- etcdctl alarm list | grep CORRUPT >/dev/null || fail 'no alarm was raised'
}
crashes() { [[ $(kubectl -n prod get pod "$1" -o 'jsonpath={.status.containerStatuses[0].restartCount}') -ge 2 ]]; }

before_recipes_scale_in() {
  wait_until 'the command and the Job have defragmented' defragmented 2
  # The recipe before has restored it: otherwise no later rollout would replace a pod.
  [[ $(kubectl -n prod get statefulset etcd -o 'jsonpath={.spec.updateStrategy.type}') == RollingUpdate ]] ||
    fail 'the update strategy was not restored'
  POD=etcd-2
  wait_until 'three members serve' three_serve
  wait_until "$POD does not lead" lead_elsewhere "$POD"
}

before_recipes_scale_out() { POD=etcd-2; }

# Versions of one key, which the recipe compacts.
before_recipes_free_space_after_nospace() {
  local version
  wait_until 'three members serve' three_serve
  for version in 1 2 3 4; do
    head -c 750000 /dev/urandom | base64 -w 0 | kubectl -n prod exec -i etcd-0 -c etcd -- etcdctl put "manual/$version" >/dev/null
    kubectl -n prod exec etcd-0 -c etcd -- etcdctl del "manual/$version" >/dev/null
  done
}

# defragmented NUMBER: whether the guard has completed this many requests.
defragmented() {
  [[ $(kubectl -n prod get events --field-selector=reason=DefragmentationCompleted -o name | wc -l) -eq $1 ]]
}

# A backup; then the databases of two of three members are corrupt.
before_recipes_restore_all_members_from_a_backup() {
  local pod
  # The recipe before has restored it.
  [[ $(kubectl -n prod get statefulset etcd -o yaml) != *initial-cluster-state=existing* ]] ||
    fail 'the flag was not set back'
  wait_until 'three members serve' three_serve
  REVISION=$(revision)
  kubectl -n prod exec etcd-0 -c etcd -- etcdctl put manual/restored before >/dev/null
  export BACKUP=$TESTBED_DIR/snapshots
  mkdir -p "$BACKUP"
  kubectl etcd-guard backup -n prod statefulset/etcd "$BACKUP" >&2
  kubectl -n prod exec etcd-0 -c etcd -- etcdctl put manual/restored after >/dev/null
  for pod in etcd-1 etcd-2; do
    printf 'corrupt' >"$(volume_path "$pod")/data/member/snap/db"
    kill_member "$pod"
  done
  for pod in etcd-1 etcd-2; do wait_until "$pod crashes" crashes "$pod"; done
}

# revision: prints the revision of the data.
revision() {
  local status
  status=$(kubectl -n prod exec etcd-0 -c etcd -- etcdctl endpoint status -w json)
  [[ $status =~ \"revision\":([0-9]+) ]] && printf '%s' "${BASH_REMATCH[1]}"
}

before_break_glass_one_pod() {
  wait_until 'three members serve' three_serve
  [[ $(kubectl -n prod exec etcd-0 -c etcd -- etcdctl get --print-value-only manual/restored) == before ]] ||
    fail 'the data of the snapshot was not restored'
  (($(revision) > REVISION + 1000000000)) || fail "the revision $(revision) was not raised above $REVISION"
}

# A cluster with TLS, while the guard runs: the value of ETCDCTL that the recipes name, a backup, and a restoration.
before_uninstall_kustomize() {
  local command
  log '== etcdctl with TLS'
  command=$(sed -n "s/^\$ export ETCDCTL='\(etcdctl --.*\)'$/\1/p" "$PROJECT/docs/recipes.md")
  [[ -n $command ]] || fail 'the recipes have no ETCDCTL for TLS'
  kubectl create namespace secure >/dev/null
  "$PROJECT/etcd-manifests/mtls-certs" secure >/dev/null
  kubectl -n secure apply -f "$PROJECT/etcd-manifests/mtls.yaml" >/dev/null
  kubectl -n secure rollout status statefulset/etcd --timeout="${READY_TIMEOUT}s" >&2
  # shellcheck disable=SC2086 # the words are separate arguments, as in the recipes
  kubectl -n secure exec etcd-0 -c etcd -- $command endpoint health --cluster -w table >&2 || fail 'etcdctl with TLS failed'
  log '== a backup with TLS'
  kubectl label namespace secure etcd-guard.io/guard=enabled >&2
  kubectl etcd-guard inspect -n secure statefulset/etcd --role | kubectl apply -f - >&2
  wait_until 'a backup is saved' kubectl etcd-guard backup -n secure statefulset/etcd "$TESTBED_DIR/secure.db" >&2
  log '== a restoration with TLS'
  # shellcheck disable=SC2086 # as above
  kubectl -n secure exec etcd-0 -c etcd -- $command put manual/after-the-backup value >&2
  kubectl etcd-guard restore -n secure statefulset/etcd "$TESTBED_DIR/secure.db" --despite-quorum --confirm secure/etcd >&2 ||
    fail 'the restoration failed'
  # shellcheck disable=SC2086 # as above
  kubectl -n secure exec etcd-0 -c etcd -- $command endpoint health --cluster -w table >&2 || fail 'the restored cluster is not healthy'
  # shellcheck disable=SC2086 # as above
  [[ -z $(kubectl -n secure exec etcd-0 -c etcd -- $command get manual/after-the-backup) ]] || fail 'the backup was not restored'
}

before_uninstall_helm() {
  helm install etcd-guard "$PROJECT/deploy/chart/etcd-guard" -n etcd-guard --create-namespace >&2
  kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="${READY_TIMEOUT}s" >&2
}
