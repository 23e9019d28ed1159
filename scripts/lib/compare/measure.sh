# The measurement of one subject of scripts/compare, on one core.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# shellcheck disable=SC2034 # subjects.sh reads it
PORT=9443
DELETE_BYTES=9500
CREATE_BYTES=9000
CONNECTIONS=(1 16)
# Seconds from the start of a subject to correct responses. Kyverno needs some on one core.
START_TIMEOUT=120

# measure_subject NAME: runs inside `testbed control-plane` and appends to the files of COMPARE_DIR.
measure_subject() {
  local name=$1 folder host token reference_pid='' reference_url subject_pid='' validate_url='' mutate_url='' round
  local api_pid api_url
  folder=$(mktemp -d)
  # shellcheck disable=SC2064 # the directory is known now
  trap "rm -rf -- '$folder'" EXIT
  host=$TESTBED_NET.1
  api_url=https://$host:6443/api/v1/namespaces/default/pods
  api_pid=$(<"$TESTBED_DIR/kube-apiserver.pid")
  "$SCRIPTS/certs" --name "$host" "$folder" >/dev/null
  print_configuration >"$folder/config.yaml"
  write_reviews
  leave_server_core $$ "$TESTBED_DIR"/*.pid
  token=$(prepare_requests)
  start_reference

  log '  the API server without webhooks and policies'
  for ((round = 0; round < ROUNDS; round++)); do api_rounds "-unregistered"; done
  prepare_subject "$name"
  if [[ $name != policies ]]; then
    printf '%s program %s\n' "$name" "$(stat -L -c %s "$(subject_program "$name")")" >>"$COMPARE_DIR/facts"
    log '  start'
    measure_start
    sleep "$IDLE_SECONDS"
    printf '%s idle %s\n' "$name" "$(memory_of "$subject_pid" VmRSS)" >>"$COMPARE_DIR/facts"
    log '  direct requests'
    for ((round = 0; round < ROUNDS; round++)); do direct_rounds; done
  fi
  register_subject "$name"
  log '  through the API server'
  wait_for_api "$name does not mutate pods" POST "?dryRun=All" "$folder/create-pod.json" '"agent-data"'
  wait_for_api "$name does not deny the deletion of a pod that runs etcd" DELETE "/etcd-0?dryRun=All" '' denied
  for ((round = 0; round < ROUNDS; round++)); do api_rounds ''; done
  if [[ -n $subject_pid ]]; then
    printf '%s loaded %s\n' "$name" "$(memory_of "$subject_pid" VmRSS)" >>"$COMPARE_DIR/facts"
    stop "$subject_pid"
  fi
  stop "$reference_pid"
}

# write_reviews: the reviews and pods of all subjects. Uses `folder`.
write_reviews() {
  xtask mutate-review --operation delete --bytes "$DELETE_BYTES" --inject agent >"$folder/delete.json"
  xtask mutate-review --operation create --bytes "$CREATE_BYTES" --inject agent >"$folder/create.json"
  xtask mutate-review --operation create --bytes "$CREATE_BYTES" --inject agent --pod-only >"$folder/create-pod.json"
  xtask mutate-review --operation delete --bytes "$DELETE_BYTES" --inject agent --pod-only >"$folder/delete-pod.json"
  xtask mutate-review --operation delete --bytes 2000 --inject agent --image registry.example/etcd:1 --pod-only |
    sed 's/"web-0"/"etcd-0"/' >"$folder/etcd-pod.json"
}

# prepare_requests: creates the pods whose deletions are requested, and prints the token of an administrator: wrk has no
# client certificates. The pod of etcd has started as far as the API server knows, and no member responds.
prepare_requests() {
  "$KUBECTL" create serviceaccount compare >/dev/null
  "$KUBECTL" create clusterrolebinding compare --clusterrole cluster-admin --serviceaccount default:compare >/dev/null
  wait_until "$api_pid" "$KUBECTL_TIMEOUT" 'the service account of the pods does not exist' "$TESTBED_DIR/kube-controller-manager.log" \
    "$KUBECTL" get serviceaccount default
  "$KUBECTL" create -f "$folder/delete-pod.json" -f "$folder/etcd-pod.json" >/dev/null
  "$KUBECTL" patch pod etcd-0 --subresource status --patch '{"status": {"phase": "Running", "podIP": "127.0.0.1"}}' >/dev/null
  "$KUBECTL" create token compare --duration 2h
}

# start_reference: starts the server that approves everything, and sets `reference_pid` and `reference_url`.
start_reference() {
  : >"$folder/reference.log"
  setpriv --pdeathsig KILL -- taskset -c "$SERVER_CORE" "$REFERENCE" serve "$folder/tls.crt" "$folder/tls.key" \
    >/dev/null 2>"$folder/reference.log" &
  reference_pid=$!
  wait_until "$reference_pid" "$READY_TIMEOUT" 'the reference does not serve' "$folder/reference.log" \
    grep -q '"serving"' "$folder/reference.log"
  reference_url=https://$(guard_address "$folder/reference.log")/no-op
}

# measure_start: starts the subject and records the time to the first correct responses to both reviews.
measure_start() {
  local began limit=$((SECONDS + START_TIMEOUT))
  began=$(now_us)
  start_subject "$name"
  until responds delete "$validate_url" '"allowed":true' && responds create "$mutate_url" '"patch":'; do
    if ! kill -0 "$subject_pid" 2>/dev/null || ((SECONDS > limit)); then
      log_tail "$folder/log"
      fail "$name does not respond correctly after $START_TIMEOUT seconds: it has ended, or its policies are not loaded"
    fi
    sleep 0.005
  done
  printf '%s start %s\n' "$name" "$(($(now_us) - began))" >>"$COMPARE_DIR/facts"
}

# responds REVIEW URL TEXT: the response to a review contains the text.
responds() {
  local response
  response=$(curl -fsSk --max-time 5 -H 'Content-Type: application/json' --data-binary "@$folder/$1.json" "$2" 2>/dev/null) &&
    [[ $response == *"$3"* ]]
}

# wait_for_api MESSAGE METHOD PATH FILE TEXT: returns when the response of the API server contains the text.
wait_for_api() {
  wait_until "${subject_pid:-$api_pid}" "$START_TIMEOUT" "$1" "$folder/log" \
    "$SCRIPTS/lib/compare/api-responds" "$2" "$api_url$3" "$token" "$4" "$5"
}

# direct_rounds: one round of each review, and of the reference.
direct_rounds() {
  local connections
  for connections in "${CONNECTIONS[@]}"; do
    post_script delete
    wrk_round direct no-op "$connections" "$reference_url" "$reference_pid"
    wrk_round direct delete "$connections" "$validate_url" "$subject_pid"
    post_script create
    wrk_round direct create "$connections" "$mutate_url" "$subject_pid"
  done
}

# api_rounds SUFFIX: one round of each request to the API server.
api_rounds() {
  local connections
  for connections in "${CONNECTIONS[@]}"; do
    api_script DELETE ''
    wrk_round api "delete$1" "$connections" "$api_url/web-0?dryRun=All" "$api_pid" ${subject_pid:+"$subject_pid"}
    api_script POST create-pod
    wrk_round api "create$1" "$connections" "$api_url?dryRun=All" "$api_pid" ${subject_pid:+"$subject_pid"}
  done
}

post_script() {
  cat >"$folder/wrk.lua" <<LUA
local file = io.open("$folder/$1.json", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Content-Type"] = "application/json"
LUA
  figures_script
}

# api_script METHOD FILE
api_script() {
  cat >"$folder/wrk.lua" <<LUA
wrk.method = "$1"
if "$2" ~= "" then wrk.body = io.open("$folder/$2.json", "rb"):read("*a") end
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer $token"
LUA
  figures_script
}

figures_script() {
  cat >>"$folder/wrk.lua" <<'LUA'
done = function(summary, latency)
  local failed = summary.errors
  io.stderr:write(string.format("figures %d %d %d %d %d %d\n", summary.requests,
    summary.requests * 1e6 / summary.duration, latency:percentile(50), latency:percentile(99), latency:percentile(99.9),
    failed.status + failed.connect + failed.read + failed.write + failed.timeout))
end
LUA
}

# wrk_round PATH CASE CONNECTIONS URL PID...: appends the figures of one round. The CPU time is that of the processes.
wrk_round() {
  local path=$1 case=$2 connections=$3 url=$4 output requests rate p50 p99 p999 errors before
  shift 4
  before=$(cpu_times "$@")
  output=$(wrk --threads 1 --connections "$connections" --duration "${SECONDS_EACH}s" --timeout 10s --script "$folder/wrk.lua" \
    "$url" 2>&1) || fail "wrk failed: $output"
  read -r _ requests rate p50 p99 p999 errors < <(grep '^figures ' <<<"$output") || fail "wrk printed no figures: $output"
  [[ $errors == 0 ]] || fail "$name, $case: $errors requests failed"
  ((requests > 0)) || fail "$name, $case: no request was completed in $SECONDS_EACH seconds: choose larger SECONDS_EACH"
  printf '%s %s %s %s %s %s %s %s %s\n' "$name" "$path" "$case" "$connections" "$rate" "$p50" "$p99" "$p999" \
    "$((($(cpu_times "$@") - before) / requests))" >>"$COMPARE_DIR/rounds"
}

# cpu_times PID...: prints the processor time of processes together in microseconds.
cpu_times() {
  local pid sum=0
  for pid; do sum=$((sum + $(cpu_time "$pid"))); done
  printf '%s' "$sum"
}
