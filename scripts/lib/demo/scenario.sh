# The scenario of the demo: the response of the guard to each way to delete an etcd pod. It is the same on a node and on
# loopback, except that handover.sh adds a part on nodes. The caller defines member_command, which prints the words of a
# command beside a member.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# Seconds: until the webhook configuration is effective, and until a deleted member is ready again.
WEBHOOK_TIMEOUT=120
MEMBER_READY_TIMEOUT=300

MEMBERS=(etcd-0 etcd-1 etcd-2)

# members_by_role: prints the pod of the leader and then those of the followers, by the status of etcd at this moment.
members_by_role() {
  local pod status leader followers command attempt id
  for ((attempt = 0; attempt < 20; attempt++)); do
    leader='' followers=()
    for pod in "${MEMBERS[@]}"; do
      mapfile -t command < <(member_command "$pod" etcdctl endpoint status -w json)
      status=$(timeout 10 "${command[@]}" 2>/dev/null) || continue
      # A member leads if it names itself as the leader.
      if [[ $status =~ \"member_id\":([0-9]+) ]] && id=${BASH_REMATCH[1]} && [[ $status =~ \"leader\":${id}[,\}] ]]; then
        leader=$pod
      else
        followers+=("$pod")
      fi
    done
    if [[ -n $leader && ${#followers[@]} -eq 2 ]]; then
      printf '%s' "$leader ${followers[*]}"
      return
    fi
    sleep 0.5
  done
  fail 'etcd reports no leader'
}

# pod_uid POD
pod_uid() { kubectl -n prod get pod "$1" -o 'jsonpath={.metadata.uid}' 2>/dev/null; }

# wait_for_replacement POD UID: returns when a pod of that name with another UID is ready.
wait_for_replacement() {
  local deadline=$((SECONDS + MEMBER_READY_TIMEOUT)) uid
  while ((SECONDS < deadline)); do
    uid=$(pod_uid "$1") || uid=''
    if [[ -n $uid && $uid != "$2" ]]; then
      setup kubectl -n prod wait --for=condition=Ready "pod/$1" --timeout="$((deadline - SECONDS))s"
      return
    fi
    sleep 0.2
  done
  fail "pod $1 has not been replaced within $MEMBER_READY_TIMEOUT s"
}

# wait_until_guarded: returns when the API server calls the guard and the guard recognizes the cluster. Determines the
# leader for each attempt: a busy machine may elect another one in between.
wait_until_guarded() {
  local deadline=$((SECONDS + WEBHOOK_TIMEOUT)) response='' leader
  while ((SECONDS < deadline)); do
    leader=$(members_by_role) || exit 1
    leader=${leader%% *}
    response=$(timeout 15 kubectl -n prod delete pod "$leader" --dry-run=server 2>&1) || true
    [[ $response != *'denied the request'* ]] || return 0
    sleep 0.3
  done
  fail "the guard has not protected the leader within $WEBHOOK_TIMEOUT s; the last response was: $response"
}

# wait_until_led_elsewhere POD: returns when another pod leads.
wait_until_led_elsewhere() {
  local deadline=$((SECONDS + WEBHOOK_TIMEOUT)) leader
  while ((SECONDS < deadline)); do
    leader=$(members_by_role) || exit 1
    [[ ${leader%% *} == "$1" ]] || return 0
    sleep 0.3
  done
  fail "leadership has not moved away from $1 within $WEBHOOK_TIMEOUT s"
}

run_scenario() {
  local roles leader first second uid nodes denial command words=() eviction

  wait_until_guarded

  heading 'The cluster as etcd reports it'
  mapfile -t command < <(member_command etcd-0 etcdctl endpoint status --cluster -w table)
  step status 'status of the cluster' allowed '*true*' "${command[@]}"
  roles=$(members_by_role) || exit 1
  read -r leader first second <<<"$roles"

  heading "Delete the leader, $leader"
  step delete-leader "delete $leader, the leader" 'denied (Forbidden)' '*LeaderProtected: * leads *' \
    kubectl -n prod delete pod "$leader"

  heading 'Follow the advice of the denial'
  denial=$(<"$STEPS_DIR/delete-leader.output")
  # The denial ends with this command; a shell inserts the time:
  # kubectl -n prod annotate --overwrite statefulset/etcd etcd-guard.io/move-leader=POD@$(date ...)
  if [[ $denial =~ [Ww]ithout\ the\ plugin:\ (kubectl\ .*move-leader=[a-z0-9-]+@) ]]; then
    read -ra words <<<"${BASH_REMATCH[1]}$(date -u +%FT%TZ)"
    step move-leader "move leadership away from $leader" allowed '*annotated*' "${words[@]}"
    wait_until_led_elsewhere "$leader"
    # A denial may rest on a snapshot that is half a second old. This returns when the guard names the new leader.
    wait_until_guarded
    uid=$(pod_uid "$leader")
    step delete-former-leader "delete $leader, no longer the leader" allowed '*deleted*' kubectl -n prod delete pod "$leader"
    wait_for_replacement "$leader" "$uid"
  else
    log "the denial contains no command that moves leadership: $denial"
    record_step "move leadership away from $leader" allowed 'no command in the denial'
  fi

  roles=$(members_by_role) || exit 1
  read -r leader first second <<<"$roles"

  heading "Delete a follower, $first, and at once the other, $second"
  # Without the cordon of all nodes, the first pod could be ready before the second request, however slow kubectl starts.
  read -ra nodes < <(kubectl get nodes --field-selector spec.unschedulable=false -o 'jsonpath={.items[*].metadata.name}{"\n"}')
  setup kubectl cordon "${nodes[@]}"
  uid=$(pod_uid "$first")
  step delete-follower "delete $first, a follower" allowed '*deleted*' kubectl -n prod delete pod "$first" --wait=false
  step delete-second "delete $second while $first is away" 'denied (Forbidden)' "*$first*" \
    kubectl -n prod delete pod "$second"
  show "$STEPS_DIR/pods" kubectl -n prod get pods -o wide || true
  setup kubectl uncordon "${nodes[@]}"
  wait_for_replacement "$first" "$uid"

  heading "Now that $first is back"
  uid=$(pod_uid "$second")
  step delete-second-later "delete $second after $first is back" allowed '*deleted*' kubectl -n prod delete pod "$second"
  wait_for_replacement "$second" "$uid"

  heading 'Drain the node of the leader, server-side dry run'
  roles=$(members_by_role) || exit 1
  leader=${roles%% *}
  step drain 'drain the node of the leader (dry run)' allowed "*evicting pod prod/$leader*drained*" \
    kubectl drain "$(kubectl -n prod get pod "$leader" -o 'jsonpath={.spec.nodeName}')" --dry-run=server --force \
    --ignore-daemonsets --delete-emptydir-data --pod-selector app=etcd --timeout=30s

  roles=$(members_by_role) || exit 1
  leader=${roles%% *}
  uid=$(pod_uid "$leader")
  heading "Evict the leader, $leader, as a program does: leadership moves first"
  eviction="{\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"$leader\",\"namespace\":\"prod\"}}"
  step evict-leader "evict $leader, the leader" allowed '*leadership of etcd prod/etcd was moved to etcd-*' \
    kubectl create --raw "/api/v1/namespaces/prod/pods/$leader/eviction" -f - <<<"$eviction"
  wait_for_replacement "$leader" "$uid"

  if [[ $(type -t handover_scenario) == function ]]; then handover_scenario; fi
  summary
}
