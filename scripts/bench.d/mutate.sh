# What a mutation costs, against the handler of the same server that changes nothing, on one core.
# shellcheck shell=bash source-path=SCRIPTDIR

# The server has this core to itself; wrk and the control plane have the others.
SERVER_CORE=0
# Each case is asked in turn, so often, so long: the medians of the rounds are printed.
ROUNDS=${ROUNDS:-3}
SECONDS_EACH=${SECONDS_EACH:-5}
REVIEW_BYTES=9000
LARGE_POD_BYTES=102400
# What is promised: requests per second on one core, and microseconds that 99 of 100 requests stay under.
BAR_RATE=6000
BAR_P99=5000
BAR_LARGE_P99=10000
# The reference: a review of no pod and of the same size, by the same server.
LET_THROUGH='read and let through'

# Inside `testbed control-plane`: measures, prints, and fails where a bar is missed.
mutate_measure() {
  command -v wrk >/dev/null || die 'wrk is missing: apt-get install wrk'
  (($(nproc --all) > 1)) || die 'this bench needs two cores: one for the server, one for who asks'
  FOLDER=$(mktemp -d)
  trap 'rm -rf -- "$FOLDER"' EXIT
  "$SCRIPTS/certs" --name 127.0.0.1 "$FOLDER" >/dev/null
  mutate_configuration >"$FOLDER/config.yaml"
  mutate_review configmaps "$REVIEW_BYTES" lxcfs,agent >"$FOLDER/other.json"
  mutate_review pods "$REVIEW_BYTES" none >"$FOLDER/silent.json"
  mutate_review pods "$REVIEW_BYTES" lxcfs,agent >"$FOLDER/pod.json"
  mutate_review pods "$LARGE_POD_BYTES" lxcfs,agent >"$FOLDER/large.json"
  mutate_review configmaps "$LARGE_POD_BYTES" lxcfs,agent >"$FOLDER/large-other.json"
  mutate_serve
  mutate_leave_core $$ "$TESTBED_DIR"/*.pid
  mutate_answers other '"allowed":true' && mutate_answers large-other '"allowed":true' &&
    mutate_answers silent '"reason":"NothingToInject"'
  mutate_answers pod '"patchType":"JSONPatch"' && mutate_answers large '"patchType":"JSONPatch"'

  local round began
  began=$(processor_times)
  for ((round = 0; round < ROUNDS; round++)); do
    mutate_ask reference other 16
    mutate_ask unchanged silent 16
    mutate_ask mutated pod 16
    mutate_ask alone pod 1
    mutate_ask large-reference large-other 16
    mutate_ask large large 16
    mutate_ask large-alone-reference large-other 1
    mutate_ask large-alone large 1
  done
  printf '%-52s %8s %6s %8s %9s %9s %9s\n' "one core, medians of $ROUNDS rounds of $SECONDS_EACH s, $(stolen_since "$began")" bytes conn. req/s p50 p99 CPU
  mutate_row reference 'reference: a review of no pod, read and let through'
  mutate_row unchanged 'a pod that gets nothing'
  mutate_row mutated 'a pod that gets lxcfs and a sidecar'
  mutate_row alone 'the same, one connection'
  mutate_row large-alone-reference 'reference: a review of 100 KiB, let through, one connection'
  mutate_row large-alone 'a pod of 100 KiB that gets both, one connection'
  mutate_row large-reference 'reference: a review of 100 KiB, let through'
  mutate_row large 'a pod of 100 KiB that gets both'
  mutate_rows
  mutate_bars
}

# mutate_rows: the same for the table of all.
mutate_rows() {
  row 'mutate: lxcfs and a sidecar, rate' "$(mutate_median mutated 3)/s" "$LET_THROUGH" "$(mutate_median reference 3)/s" \
    ">= $BAR_RATE/s" "$(kept "$BAR_RATE" "$(mutate_median mutated 3)")"
  mutate_row_p99 'mutate: the same, 16 connections' mutated reference "$BAR_P99"
  mutate_row_p99 'mutate: a pod of 100 KiB, one connection' large-alone large-alone-reference "$BAR_LARGE_P99"
  mutate_row_p99 'mutate: a pod of 100 KiB, 16 connections' large large-reference "$BAR_LARGE_P99"
}

# mutate_row_p99 WHAT CASE REFERENCE BAR
mutate_row_p99() {
  row "$1" "$(mutate_latency "$2")" "$LET_THROUGH" "$(mutate_latency "$3")" "p99 <= $(($4 / 1000)) ms" "$(kept "$(mutate_median "$2" 5)" "$4")"
}

# mutate_latency CASE
mutate_latency() { printf '%s ms, p99 %s ms' "$(milliseconds "$(mutate_median "$1" 4)")" "$(milliseconds "$(mutate_median "$1" 5)")"; }

mutate_configuration() {
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

# mutate_review RESOURCE BYTES WISH: a review, of at least so many bytes, of a new pod with that wish, shaped as a
# ReplicaSet's pods reach the apiserver: with defaults, a token's volume, and managed fields that name whatever the controller
# set, which makes them two fifths of it.
mutate_review() {
  local number env='' owned_env='' owned='' containers='' count=0 head owner spec tail
  for ((number = 0; number < 16; number++)); do
    env+="${env:+,}{\"name\":\"VARIABLE_$number\",\"value\":\"what the value of variable $number is, in a few words\"}"
    owned_env+=",\"k:{\\\"name\\\":\\\"VARIABLE_$number\\\"}\":{\".\":{},\"f:name\":{},\"f:value\":{}}"
  done
  head="{\"kind\":\"AdmissionReview\",\"apiVersion\":\"admission.k8s.io/v1\",\"request\":{\"uid\":\"705ab4f5-6393-11e8-b7cc-42010a800002\",\"kind\":{\"group\":\"\",\"version\":\"v1\",\"kind\":\"Pod\"},\"resource\":{\"group\":\"\",\"version\":\"v1\",\"resource\":\"$1\"},\"namespace\":\"default\",\"operation\":\"CREATE\",\"userInfo\":{\"username\":\"system:serviceaccount:kube-system:replicaset-controller\",\"groups\":[\"system:serviceaccounts\",\"system:authenticated\"]},\"object\":{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"generateName\":\"web-\",\"namespace\":\"default\",\"labels\":{\"app\":\"web\"},\"annotations\":{\"etcd-guard.io/inject\":\"$3\"},"
  owner="\"managedFields\":[{\"manager\":\"kube-controller-manager\",\"operation\":\"Update\",\"apiVersion\":\"v1\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:metadata\":{\"f:annotations\":{\".\":{},\"f:etcd-guard.io/inject\":{}},\"f:generateName\":{},\"f:labels\":{\".\":{},\"f:app\":{}}},\"f:spec\":{\"f:containers\":{"
  spec="},\"f:dnsPolicy\":{},\"f:restartPolicy\":{},\"f:schedulerName\":{},\"f:securityContext\":{},\"f:terminationGracePeriodSeconds\":{}}}}]},\"spec\":{\"volumes\":[{\"name\":\"token\",\"projected\":{\"sources\":[{\"serviceAccountToken\":{\"expirationSeconds\":3607,\"path\":\"token\"}}],\"defaultMode\":420}}],\"containers\":["
  tail="],\"restartPolicy\":\"Always\",\"terminationGracePeriodSeconds\":30,\"dnsPolicy\":\"ClusterFirst\",\"serviceAccountName\":\"default\",\"securityContext\":{},\"schedulerName\":\"default-scheduler\",\"tolerations\":[{\"key\":\"node.kubernetes.io/not-ready\",\"operator\":\"Exists\",\"effect\":\"NoExecute\",\"tolerationSeconds\":300}]},\"status\":{}},\"oldObject\":null,\"dryRun\":false,\"options\":{\"kind\":\"CreateOptions\",\"apiVersion\":\"meta.k8s.io/v1\"}}}"
  while ((${#head} + ${#owner} + ${#owned} + ${#spec} + ${#containers} + ${#tail} < $2)); do
    owned+="${owned:+,}\"k:{\\\"name\\\":\\\"web-$count\\\"}\":{\".\":{},\"f:env\":{\".\":{}$owned_env},\"f:image\":{},\"f:imagePullPolicy\":{},\"f:name\":{},\"f:resources\":{\".\":{},\"f:limits\":{\".\":{},\"f:cpu\":{},\"f:memory\":{}}},\"f:terminationMessagePath\":{}}"
    containers+="${containers:+,}{\"name\":\"web-$count\",\"image\":\"registry.example/web:1\",\"env\":[$env],\"resources\":{\"limits\":{\"cpu\":\"1\",\"memory\":\"256Mi\"}},\"volumeMounts\":[{\"name\":\"token\",\"readOnly\":true,\"mountPath\":\"/var/run/secrets/kubernetes.io/serviceaccount\"}],\"terminationMessagePath\":\"/dev/termination-log\",\"imagePullPolicy\":\"IfNotPresent\"}"
    count=$((count + 1))
  done
  printf '%s' "$head$owner$owned$spec$containers$tail"
}

# mutate_serve: starts the guard on its core, as it is shipped; sets HTTPS.
mutate_serve() {
  setpriv --pdeathsig KILL -- taskset -c "$SERVER_CORE" "$GUARD" serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 \
    --log-format json --config "$FOLDER/config.yaml" --tls-cert "$FOLDER/tls.crt" --tls-key "$FOLDER/tls.key" \
    --linger 0s 2>"$FOLDER/log" &
  PID=$!
  local deadline=$((SECONDS + READY_LIMIT)) line
  until line=$(grep -m 1 '"message":"serving"' "$FOLDER/log") && grep -q '"message":"ready"' "$FOLDER/log"; do
    ((SECONDS < deadline)) || { show_tail "$FOLDER/log"; die "not ready within $READY_LIMIT s"; }
    sleep 0.05
  done
  [[ $line =~ \"https\":\"([^\"]+)\" ]] || die 'the guard does not log its address'
  HTTPS=${BASH_REMATCH[1]}
}

# mutate_leave_core PID|FILE...: moves processes, or those that files name, to the cores that are not the server's.
mutate_leave_core() {
  local who
  for who; do
    [[ ! -f $who ]] || who=$(<"$who")
    taskset -apc "$((SERVER_CORE + 1))-$(($(nproc --all) - 1))" "$who" >/dev/null || die "no core for process $who"
  done
}

# mutate_answers NAME PART: the answer to a review holds this.
mutate_answers() {
  local answer
  answer=$(curl -fsS --cacert "$FOLDER/ca.crt" -H 'Content-Type: application/json' --data-binary "@$FOLDER/$1.json" \
    "https://$HTTPS/mutate?timeout=5s") || die "$1: no answer"
  [[ $answer == *"$2"* ]] || die "$1: the answer lacks $2: ${answer:0:300}"
}

# mutate_cpu: the processor time that the guard has used, in microseconds.
mutate_cpu() {
  local fields
  read -r -a fields <"/proc/$PID/stat"
  printf '%s' "$(((fields[13] + fields[14]) * 1000000 / $(getconf CLK_TCK)))"
}

# mutate_ask CASE REVIEW CONNECTIONS: one round; notes its figures.
mutate_ask() {
  local said requests rate p50 p99 errors before
  cat >"$FOLDER/post.lua" <<LUA
local file = io.open("$FOLDER/$2.json", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Content-Type"] = "application/json"
done = function(summary, latency)
  local failed = summary.errors
  io.stderr:write(string.format("figures %d %d %d %d %d\n", summary.requests, summary.requests * 1e6 / summary.duration, latency:percentile(50),
    latency:percentile(99), failed.status + failed.connect + failed.read + failed.write + failed.timeout))
end
LUA
  before=$(mutate_cpu)
  said=$(wrk --threads 1 --connections "$3" --duration "${SECONDS_EACH}s" --timeout 10s --script "$FOLDER/post.lua" \
    "https://$HTTPS/mutate?timeout=5s" 2>&1) || die "wrk failed: $said"
  read -r _ requests rate p50 p99 errors < <(grep '^figures ' <<<"$said") || die "wrk tells no figures: $said"
  [[ $errors == 0 ]] || die "$1: $errors requests failed"
  printf '%s %s %s %s %s %s\n' "$(stat -c %s "$FOLDER/$2.json")" "$3" "$rate" "$p50" "$p99" \
    "$((($(mutate_cpu) - before) / (requests > 0 ? requests : 1)))" >>"$FOLDER/$1.rounds"
}

# mutate_median CASE COLUMN
mutate_median() { awk -v column="$2" '{ print $column }' "$FOLDER/$1.rounds" | sort -n | sed -n "$(((ROUNDS + 1) / 2))p"; }

# mutate_row CASE TEXT
mutate_row() {
  printf '%-52s %8s %6s %8s %6s ms %6s ms %6s us\n' "$2" "$(mutate_median "$1" 1)" "$(mutate_median "$1" 2)" "$(mutate_median "$1" 3)" \
    "$(milliseconds "$(mutate_median "$1" 4)")" "$(milliseconds "$(mutate_median "$1" 5)")" "$(mutate_median "$1" 6)"
}

# milliseconds MICROSECONDS
milliseconds() { printf '%d.%02d' "$(($1 / 1000))" "$(($1 % 1000 / 10))"; }

mutate_bars() {
  local missed=0
  if (($(mutate_median mutated 3) < BAR_RATE)); then say "missed: $BAR_RATE requests per second"; missed=1; fi
  if (($(mutate_median mutated 5) > BAR_P99)); then say "missed: p99 of $BAR_P99 us at 16 connections"; missed=1; fi
  if (($(mutate_median large-alone 5) > BAR_LARGE_P99)); then say "missed: p99 of $BAR_LARGE_P99 us for 100 KiB"; missed=1; fi
  if (($(mutate_median large 5) > BAR_LARGE_P99)); then say "missed at 16 connections: p99 of $BAR_LARGE_P99 us for 100 KiB"; missed=1; fi
  return "$missed"
}
