# The story: what the guard answers to each way of losing an etcd pod. The same on a node and on loopback; what differs
# is in_member, by which the caller says how a command runs beside a member.
# shellcheck shell=bash source-path=SCRIPTDIR

# Seconds: for the webhook configuration to take effect, and for a deleted member to be back and ready.
IN_FORCE_LIMIT=120
MEMBER_BACK_LIMIT=300

MEMBERS=(etcd-0 etcd-1 etcd-2)

# find_leader: sets LEADER and FOLLOWERS, by what etcd itself says at this moment.
find_leader() {
  local pod status leader='' try
  for ((try = 0; try < 20; try++)); do
    FOLLOWERS=()
    for pod in "${MEMBERS[@]}"; do
      in_member "$pod" etcdctl endpoint status -w json
      status=$(timeout 10 "${IN_MEMBER[@]}" 2>/dev/null) || continue
      # A member leads if the leader that it knows is itself.
      if [[ $status =~ \"member_id\":([0-9]+) ]] && leader=${BASH_REMATCH[1]} && [[ $status =~ \"leader\":${leader}[,\}] ]]; then
        LEADER=$pod
      else
        FOLLOWERS+=("$pod")
      fi
    done
    [[ ${#FOLLOWERS[@]} -ne 2 ]] || return 0
    sleep 0.5
  done
  die 'etcd shows no leader'
}

# uid POD
uid() { kubectl -n prod get pod "$1" -o 'jsonpath={.metadata.uid}' 2>/dev/null; }

# wait_back POD UID: until a pod of that name with another uid is ready.
wait_back() {
  local deadline=$((SECONDS + MEMBER_BACK_LIMIT)) now
  while ((SECONDS < deadline)); do
    now=$(uid "$1") || now=''
    if [[ -n $now && $now != "$2" ]]; then
      setup kubectl -n prod wait --for=condition=Ready "pod/$1" --timeout="$((deadline - SECONDS))s"
      return
    fi
    sleep 0.2
  done
  die "pod $1 is not back within $MEMBER_BACK_LIMIT s"
}

# wait_in_force: until the apiserver asks the guard, and the guard knows the cluster. Sets LEADER and FOLLOWERS anew each time:
# a busy machine may elect another while this waits.
wait_in_force() {
  local deadline=$((SECONDS + IN_FORCE_LIMIT)) answer=''
  while ((SECONDS < deadline)); do
    find_leader
    answer=$(timeout 15 kubectl -n prod delete pod "$LEADER" --dry-run=server 2>&1) || true
    [[ $answer != *'denied the request'* ]] || return 0
    sleep 0.3
  done
  die "the guard is not asked, or does not protect the leader, within $IN_FORCE_LIMIT s; the last answer was: $answer"
}

story() {
  local first second old node advice words=() eviction

  wait_in_force

  heading 'The cluster, by its own account'
  in_member etcd-0 etcdctl endpoint status --cluster -w table
  judge status 'status of the cluster' allowed '*true*' "${IN_MEMBER[@]}"
  find_leader
  first=${FOLLOWERS[0]} second=${FOLLOWERS[1]}

  heading "Delete the leader, $LEADER"
  judge delete-leader "delete $LEADER, the leader" 'denied (Forbidden)' '*is the leader of*' \
    kubectl -n prod delete pod "$LEADER"

  heading "Delete a follower, $first, and at once the other, $second"
  # So that the first stays away until the second was asked for, however long kubectl takes to start.
  node=$(kubectl -n prod get pod "$first" -o 'jsonpath={.spec.nodeName}')
  setup kubectl cordon "$node"
  old=$(uid "$first")
  judge delete-follower "delete $first, a follower" allowed '*deleted*' kubectl -n prod delete pod "$first" --wait=false
  judge delete-second "delete $second while $first is away" 'denied (Forbidden)' "*$first*" \
    kubectl -n prod delete pod "$second"
  run kubectl -n prod get pods -o wide
  setup kubectl uncordon "$node"
  wait_back "$first" "$old"

  heading "Now that $first is back"
  old=$(uid "$second")
  judge delete-second-later "delete $second after $first is back" allowed '*deleted*' kubectl -n prod delete pod "$second"
  wait_back "$second" "$old"

  heading 'Drain the node, server-side dry run'
  find_leader
  judge drain 'drain the node (dry run)' denied "*pods/\"$LEADER\"*denied the request*leader of*" \
    kubectl drain "$(kubectl -n prod get pod "$LEADER" -o 'jsonpath={.spec.nodeName}')" --dry-run=server --force \
    --ignore-daemonsets --delete-emptydir-data --pod-selector app=etcd --timeout=3s

  find_leader
  heading "Evict the leader, $LEADER, through the eviction API"
  eviction="{\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"$LEADER\",\"namespace\":\"prod\"}}"
  judge evict-leader "evict $LEADER, the leader" 'denied (TooManyRequests)' '*is the leader of*' \
    kubectl create --raw "/api/v1/namespaces/prod/pods/$LEADER/eviction" -f - <<<"$eviction"
  advice=$OUTPUT

  heading 'Follow the advice of the denial'
  old=$LEADER
  # From `... kubectl -n prod exec etcd-1 -c etcd -- etcdctl move-leader ID` we take what runs beside the member.
  if [[ $advice =~ exec\ ([a-z0-9-]+)\ .*(etcdctl\ move-leader\ [0-9a-f]+) ]]; then
    read -ra words <<<"${BASH_REMATCH[2]}"
    in_member "${BASH_REMATCH[1]}" "${words[@]}"
    judge move-leader "move leadership away from $old" allowed '*ransferred*' "${IN_MEMBER[@]}"
    # A denial may rest on a view of the cluster that is half a second old; by now it names another leader.
    wait_in_force
    judge delete-former-leader "delete $old, no leader any more" allowed '*deleted*' kubectl -n prod delete pod "$old"
  else
    say "the denial names no etcdctl command to move leadership: $advice"
    DIFFERENCES=$((DIFFERENCES + 1))
  fi

  summary
}
