# The cost of a mutation, compared with a request to the same handler that changes nothing, on one core.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# The server runs alone on this core; wrk and the control plane use the others.
SERVER_CORE=0
# Number and length in seconds of the rounds of each case; the report has the medians of the rounds.
ROUNDS=${ROUNDS:-3}
SECONDS_EACH=${SECONDS_EACH:-5}
REVIEW_BYTES=9000
LARGE_POD_BYTES=102400

# measure_mutate: runs inside `testbed control-plane`; measures and prints, and fails if a target is missed.
measure_mutate() {
  local guard_pid https folder round before
  command -v wrk >/dev/null || fail 'wrk is missing: apt-get install wrk'
  (($(nproc --all) > 1)) || fail 'this bench needs two cores: one for the server and one for the client'
  folder=$(mktemp -d)
  # shellcheck disable=SC2064 # the directory is known now
  trap "rm -rf -- '$folder'" EXIT
  "$SCRIPTS/certs" --name 127.0.0.1 "$folder" >/dev/null
  print_configuration >"$folder/config.yaml"
  xtask mutate-review --resource configmaps --bytes "$REVIEW_BYTES" --inject lxcfs,agent >"$folder/other.json"
  xtask mutate-review --bytes "$REVIEW_BYTES" --inject none >"$folder/unchanged.json"
  xtask mutate-review --bytes "$REVIEW_BYTES" --inject lxcfs,agent >"$folder/pod.json"
  xtask mutate-review --bytes "$LARGE_POD_BYTES" --inject lxcfs,agent >"$folder/large.json"
  xtask mutate-review --resource configmaps --bytes "$LARGE_POD_BYTES" --inject lxcfs,agent >"$folder/large-other.json"

  setpriv --pdeathsig KILL -- taskset -c "$SERVER_CORE" "$GUARD" serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 \
    --log-format json --config "$folder/config.yaml" --tls-cert "$folder/tls.crt" --tls-key "$folder/tls.key" \
    --linger 0s 2>"$folder/log" &
  guard_pid=$!
  wait_for_guard "$guard_pid" "$folder/log"
  https=$(guard_address "$folder/log")
  leave_server_core $$ "$TESTBED_DIR"/*.pid
  check_response other '"allowed":true'
  check_response large-other '"allowed":true'
  check_response unchanged '"reason":"NothingToInject"'
  check_response pod '"patchType":"JSONPatch"'
  check_response large '"patchType":"JSONPatch"'

  before=$(processor_times)
  for ((round = 0; round < ROUNDS; round++)); do
    measure_round reference other 16
    measure_round unchanged unchanged 16
    measure_round mutated pod 16
    measure_round alone pod 1
    measure_round large-reference large-other 16
    measure_round large large 16
    measure_round large-alone-reference large-other 1
    measure_round large-alone large 1
  done
  xtask mutate-report "$folder" \
    --title "one core, medians of $ROUNDS rounds of $SECONDS_EACH s, $(stolen_since "$before")"
}

print_configuration() {
  cat <<'CONFIG'
apiVersion: etcd-guard.io/v1alpha1
sidecars:
  templates:
  - name: agent
    containers:
    - name: agent
      image: agent:1
      volumeMounts: [{name: agent-data, mountPath: /data}]
    volumes: [{name: agent-data, emptyDir: {}}]
    appContainers:
      env: [{name: AGENT_SOCKET, value: /agent/socket}]
      volumeMounts: [{name: agent-data, mountPath: /agent}]
CONFIG
}

# guard_address LOG: prints the address of the HTTPS port.
guard_address() {
  local line
  line=$(grep -m 1 '"message":"serving"' "$1")
  [[ $line =~ \"https\":\"([^\"]+)\" ]] || fail 'the log of the guard has no address'
  printf '%s' "${BASH_REMATCH[1]}"
}

# leave_server_core PID|FILE...: moves processes, or those of pid files, to the cores that the server does not use.
leave_server_core() {
  local process
  for process; do
    [[ ! -f $process ]] || process=$(<"$process")
    taskset -apc "$((SERVER_CORE + 1))-$(($(nproc --all) - 1))" "$process" >/dev/null || fail "cannot move process $process to another core"
  done
}

# check_response REVIEW TEXT: the response to a review contains the text. Uses `folder` and `https` of measure_mutate.
check_response() {
  local response
  response=$(curl -fsS --cacert "$folder/ca.crt" -H 'Content-Type: application/json' --data-binary "@$folder/$1.json" \
    "https://$https/mutate?timeout=5s") || fail "$1: no response"
  [[ $response == *"$2"* ]] || fail "$1: the response does not contain $2: ${response:0:300}"
}

# cpu_time PID: prints the processor time of a process in microseconds.
cpu_time() {
  local fields
  read -r -a fields <"/proc/$1/stat"
  printf '%s' "$(((fields[13] + fields[14]) * 1000000 / $(getconf CLK_TCK)))"
}

# measure_round CASE REVIEW CONNECTIONS: appends the figures of one round to CASE.rounds. Uses `folder`, `https` and
# `guard_pid` of measure_mutate.
measure_round() {
  local output requests rate p50 p99 errors before
  cat >"$folder/post.lua" <<LUA
local file = io.open("$folder/$2.json", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Content-Type"] = "application/json"
done = function(summary, latency)
  local failed = summary.errors
  io.stderr:write(string.format("figures %d %d %d %d %d\n", summary.requests, summary.requests * 1e6 / summary.duration, latency:percentile(50),
    latency:percentile(99), failed.status + failed.connect + failed.read + failed.write + failed.timeout))
end
LUA
  before=$(cpu_time "$guard_pid")
  output=$(wrk --threads 1 --connections "$3" --duration "${SECONDS_EACH}s" --timeout 10s --script "$folder/post.lua" \
    "https://$https/mutate?timeout=5s" 2>&1) || fail "wrk failed: $output"
  read -r _ requests rate p50 p99 errors < <(grep '^figures ' <<<"$output") || fail "wrk printed no figures: $output"
  [[ $errors == 0 ]] || fail "$1: $errors requests failed"
  printf '%s %s %s %s %s %s\n' "$(stat -c %s "$folder/$2.json")" "$3" "$rate" "$p50" "$p99" \
    "$((($(cpu_time "$guard_pid") - before) / (requests > 0 ? requests : 1)))" >>"$folder/$1.rounds"
}
