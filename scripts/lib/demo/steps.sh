# The steps of the demo: shows each command and its output, and records the results for the table and the report. The
# caller sets STEPS_DIR to an existing directory.
# shellcheck shell=bash source-path=SCRIPTDIR/..

if [[ -t 1 ]]; then BOLD=$'\e[1m' DIM=$'\e[2m' PLAIN=$'\e[0m'; else BOLD='' DIM='' PLAIN=''; fi

# Seconds. The longest wait of a command is for the end of a pod.
COMMAND_TIMEOUT=300

heading() { printf '\n%s== %s%s\n' "$BOLD" "$*" "$PLAIN"; }

# as_typed WORD...: prints the command as a user would type it.
as_typed() {
  local word line=''
  for word in "$@"; do
    word=${word#"$PROJECT"/}
    if [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then line+=" $word"; else line+=" '${word//\'/\'\\\'\'}'"; fi
  done
  printf '%s' "${line# }"
}

# show [<<<INPUT] FILE COMMAND...: shows the command and, while it runs, its output, which FILE receives as well; returns its
# exit status.
show() {
  local file=$1 status=0
  shift
  printf '%s$ %s%s\n' "$BOLD" "$(as_typed "$@")" "$PLAIN"
  timeout "$COMMAND_TIMEOUT" "$@" 2>&1 | tee -- "$file" || status=$?
  return "$status"
}

# setup COMMAND...: a command that must succeed.
setup() {
  local status=0
  show "$STEPS_DIR/setup" "$@" </dev/null || status=$?
  [[ $status -eq 0 ]] || fail "this command failed with exit status $status: $(as_typed "$@")"
}

# verdict STATUS OUTPUT: prints the result of a request.
verdict() {
  if [[ $1 -eq 0 ]]; then
    printf 'allowed'
  elif [[ $2 == *'failed calling webhook'* ]]; then
    printf 'guard not reached'
  elif [[ $2 != *'denied the request'* ]]; then
    printf 'error'
  elif [[ $2 == *'(Forbidden)'* ]]; then
    printf 'denied (Forbidden)'
  elif [[ $2 == *'(TooManyRequests)'* ]]; then
    printf 'denied (TooManyRequests)'
  else
    printf 'denied'
  fi
}

# step ID REQUEST EXPECTED PATTERN COMMAND...: runs a command of the scenario. It passes if the verdict is EXPECTED and
# the output matches PATTERN (a glob). The output is stored in STEPS_DIR/ID.output.
step() {
  local id=$1 request=$2 expected=$3 pattern=$4 result output status=0
  shift 4
  show "$STEPS_DIR/$id.output" "$@" || status=$?
  output=$(<"$STEPS_DIR/$id.output")
  result=$(verdict "$status" "$output")
  # shellcheck disable=SC2053 # the right side is a pattern
  if [[ $result == "$expected" && $output != $pattern ]]; then result+=', other reason'; fi
  if [[ $result == "$expected" ]]; then
    printf '%s-> %s, as expected%s\n' "$DIM" "$result" "$PLAIN"
  else
    printf '%s-> %s; EXPECTED: %s with %s%s\n' "$BOLD" "$result" "$expected" "$pattern" "$PLAIN"
  fi
  record_step "$request" "$expected" "$result"
  report_step "$id" "$status" "$result" "$expected" "$output" "$@"
}

# record_step REQUEST EXPECTED RESULT: one row of the table at the end.
record_step() {
  local mark=ok
  [[ $3 == "$2" ]] || mark=NO
  printf '%-3s %-52s %-26s %s\n' "$mark" "$1" "$2" "$3" >>"$STEPS_DIR/table"
}

# report_step ID STATUS VERDICT EXPECTED OUTPUT COMMAND...: one line of --report.
report_step() {
  [[ -n ${DEMO_REPORT-} ]] || return 0
  local text=${5//\\/\\\\}
  text=${text//$'\t'/\\t}
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$(as_typed "${@:6}")" "$2" "$3" "$4" "${text//$'\n'/\\n}" >>"$DEMO_REPORT"
}

# summary: prints the table and the duration; fails if a result is not as expected.
summary() {
  local steps differences
  heading 'Requests, expected results and results'
  printf '%-3s %-52s %-26s %s\n' '' REQUEST EXPECTED RESULT
  cat -- "$STEPS_DIR/table"
  steps=$(wc -l <"$STEPS_DIR/table")
  differences=$(grep -c '^NO' "$STEPS_DIR/table") || true
  printf '\n%s steps, %s differences; %s s from the start of the testbed\n' "$steps" "$differences" "$(($(date +%s) - DEMO_STARTED))"
  [[ $differences -eq 0 ]]
}
