# Start and memory of an idle server, compared with a reference program.
# shellcheck shell=bash source-path=SCRIPTDIR/..

STARTS=20
# Seconds. A start takes milliseconds; one that takes this long has failed.
READY_TIMEOUT=20
IDLE_SECONDS=5

# measure_idle: runs inside `testbed control-plane`; measures and prints.
measure_idle() {
  local folder figures round pid
  folder=$(mktemp -d)
  figures=$folder/figures
  # shellcheck disable=SC2064 # the directory is known now
  trap "rm -rf -- '$folder'" EXIT
  "$SCRIPTS/certs" "$folder" >/dev/null
  for ((round = 0; round < STARTS; round++)); do
    measure_version >>"$figures"
    start_and_measure "$folder" "$figures"
    stop "$(<"$folder/pid")"
  done
  start_and_measure "$folder" "$figures"
  pid=$(<"$folder/pid")
  sleep "$IDLE_SECONDS"
  {
    printf 'resident %s\n' "$(memory_of "$pid" VmRSS)"
    printf 'anonymous %s\n' "$(memory_of "$pid" RssAnon)"
  } >>"$figures"
  stop "$pid"
  {
    printf 'reference-resident %s\n' "$(reference_memory "$folder")"
    printf 'program %s\n' "$(stat -c %s "$GUARD")"
    printf 'reference-program %s\n' "$(stat -c %s "$REFERENCE")"
  } >>"$figures"
  xtask idle-report "$figures" --title "$(uname -m), $(nproc) cores, $STARTS starts"
}

now_us() { printf '%s' "${EPOCHREALTIME//[.,]/}"; }

# measure_version: prints how long the program takes to print its version.
measure_version() {
  local began
  began=$(now_us)
  "$GUARD" --version >/dev/null
  printf 'version %s\n' "$(($(now_us) - began))"
}

# start_and_measure DIR FIGURES: starts the guard in the background, waits until it is ready, and appends the times from
# the start to serving and from there to ready. Writes its process id to DIR/pid. Do not call it in a subshell: the guard
# is killed when its parent ends.
start_and_measure() {
  local began serving ready pid log=$1/log
  : >"$log"
  began=$(now_us)
  setpriv --pdeathsig KILL -- "$GUARD" serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --log-format json \
    --tls-cert "$1/tls.crt" --tls-key "$1/tls.key" --linger 0s 2>"$log" &
  pid=$!
  printf '%s\n' "$pid" >"$1/pid"
  wait_for_guard "$pid" "$log"
  serving=$(logged_us serving "$log")
  ready=$(logged_us ready "$log")
  printf 'serving %s\nready %s\n' "$((serving - began))" "$((ready - serving))" >>"$2"
}

# wait_for_guard PID LOG: returns when the guard has logged that it is ready.
wait_for_guard() {
  wait_until "$1" "$READY_TIMEOUT" 'the guard is not ready' "$2" grep -q '"message":"ready"' "$2"
}

# logged_us MESSAGE LOG: prints the time at which the guard logged a message, in microseconds.
logged_us() {
  local line
  line=$(grep -m 1 "\"message\":\"$1\"" "$2")
  [[ $line =~ \"timestamp\":\"([^\"]+)\" ]] || fail "the log has no time of \"$1\": $2"
  printf '%s' "$(($(date -d "${BASH_REMATCH[1]}" +%s%N) / 1000))"
}

stop() {
  kill "$1"
  wait "$1" || true
}

# memory_of PID FIELD: prints a figure of /proc/PID/status in kB.
memory_of() { sed -n "s/^$2:[^0-9]*\([0-9]*\).*/\1/p" "/proc/$1/status"; }

# reference_memory DIR: prints the resident memory of the idle reference server in kB.
reference_memory() {
  local log=$1/reference.log pid
  : >"$log"
  setpriv --pdeathsig KILL -- "$REFERENCE" serve "$1/tls.crt" "$1/tls.key" >/dev/null 2>"$log" &
  pid=$!
  wait_until "$pid" "$READY_TIMEOUT" 'the reference does not serve' "$log" grep -q serving "$log"
  sleep "$IDLE_SECONDS"
  memory_of "$pid" VmRSS
  kill "$pid"
}
