# The last part of the scenario on a real node: the drain of the leader's node, which needs no person, while a client writes. It needs several nodes: a member on another node takes over.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# Seconds until the guard records the event of a handover.
EVENT_TIMEOUT=120

# wait_for_event TEXT: returns when the guard has recorded an event with this text.
wait_for_event() {
  local deadline=$((SECONDS + EVENT_TIMEOUT))
  until kubectl -n prod get events --field-selector reason=LeaderMoved 2>/dev/null | grep -qF -- "$1"; do
    ((SECONDS < deadline)) || fail "no event within $EVENT_TIMEOUT s: $1"
    sleep 0.3
  done
}

# show_writes ID SUBJECT: prints and reports the results of the writes since the previous call.
show_writes() {
  local line
  line=$(take_writes)
  printf '%sA client that writes every 5 ms, %s: %s%s\n' "$BOLD" "$2" "$line" "$PLAIN"
  report_step "$1" 0 measured measured "$line" writer
}

handover_scenario() {
  local roles leader node uid

  heading 'Start a client that writes'
  setup kubectl -n prod rollout status statefulset/etcd --timeout="${MEMBER_READY_TIMEOUT}s"
  writer_services prod "${MEMBERS[@]}" >"$STEPS_DIR/services.yaml"
  kubectl apply -f "$STEPS_DIR/services.yaml" >/dev/null
  start_writer "$DEMO_WRITER" prod "${MEMBERS[@]}"

  roles=$(members_by_role) || exit 1
  leader=${roles%% *}
  node=$(kubectl -n prod get pod "$leader" -o 'jsonpath={.spec.nodeName}')
  uid=$(pod_uid "$leader")
  heading "Cordon $node, the node of the leader, $leader"
  take_writes >/dev/null
  step cordon "cordon $node, the node of the leader" allowed '*cordoned*' kubectl cordon "$node"
  wait_for_event "node $node is cordoned: leadership moved from $leader to "
  step handover "leadership left $leader before any eviction" allowed \
    "*node $node is cordoned: leadership moved from $leader to *" \
    kubectl -n prod get events --field-selector reason=LeaderMoved
  show_writes handover-writes 'during the handover'

  heading "Drain $node"
  step drain-node "drain $node" allowed "*evicting pod prod/$leader*drained*" \
    kubectl drain "$node" --pod-selector app=etcd --timeout="${MEMBER_READY_TIMEOUT}s"
  wait_for_replacement "$leader" "$uid"
  show_writes drain-writes 'during the drain'
  setup kubectl -n prod get pods -o wide
  setup kubectl uncordon "$node"
  stop_writer
}
