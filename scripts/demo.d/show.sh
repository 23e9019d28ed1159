# How the demo shows what it does, and remembers it for the table and the report.
# shellcheck shell=bash source-path=SCRIPTDIR

if [[ -t 1 ]]; then BOLD=$'\e[1m' DIM=$'\e[2m' PLAIN=$'\e[0m'; else BOLD='' DIM='' PLAIN=''; fi

# No command of the story waits for anything longer than a pod's end.
COMMAND_LIMIT=300

ROWS=()        # step, asked, expected, answered, between tabs
DIFFERENCES=0
OUTPUT=''      # of the last command
STATUS=0       # its exit status

heading() { printf '\n%s== %s%s\n' "$BOLD" "$*" "$PLAIN"; }

# as_typed WORD...: the command as one would type it, with the programs by their names.
as_typed() {
  local word line=''
  for word in "$@"; do
    word=${word#"$PROJECT"/}
    if [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then line+=" $word"; else line+=" '${word//\'/\'\\\'\'}'"; fi
  done
  printf '%s' "${line# }"
}

# run [<<<INPUT] COMMAND...: shows the command and its output; sets OUTPUT and STATUS.
run() {
  printf '%s$ %s%s\n' "$BOLD" "$(as_typed "$@")" "$PLAIN"
  STATUS=0
  OUTPUT=$(timeout "$COMMAND_LIMIT" "$@" 2>&1) || STATUS=$?
  [[ -z $OUTPUT ]] || printf '%s\n' "$OUTPUT"
}

# setup COMMAND...: a command that the story needs to succeed.
setup() {
  run "$@" </dev/null
  [[ $STATUS -eq 0 ]] || die "this should have worked (exit status $STATUS): $(as_typed "$@")"
}

# verdict: what the last command was told, in one word or two.
verdict() {
  if [[ $STATUS -eq 0 ]]; then
    printf 'allowed'
  elif [[ $OUTPUT == *'failed calling webhook'* ]]; then
    printf 'guard not reached'
  elif [[ $OUTPUT != *'denied the request'* ]]; then
    printf 'error'
  elif [[ $OUTPUT == *'(Forbidden)'* ]]; then
    printf 'denied (Forbidden)'
  elif [[ $OUTPUT == *'(TooManyRequests)'* ]]; then
    printf 'denied (TooManyRequests)'
  else
    printf 'denied'
  fi
}

# judge ID ASKED EXPECTED PATTERN COMMAND...: runs a step. As expected is: that verdict, and PATTERN (a glob) in the output.
judge() {
  local id=$1 asked=$2 expected=$3 pattern=$4 seen
  shift 4
  run "$@"
  seen=$(verdict)
  # shellcheck disable=SC2053 # a pattern is meant
  if [[ $seen == "$expected" && $OUTPUT != $pattern ]]; then seen+=', other reason'; fi
  if [[ $seen == "$expected" ]]; then
    printf '%s-> %s, as expected%s\n' "$DIM" "$seen" "$PLAIN"
  else
    DIFFERENCES=$((DIFFERENCES + 1))
    printf '%s-> %s; EXPECTED: %s with %s%s\n' "$BOLD" "$seen" "$expected" "$pattern" "$PLAIN"
  fi
  ROWS+=("$id"$'\t'"$asked"$'\t'"$expected"$'\t'"$seen")
  report "$id" "$seen" "$expected" "$@"
}

# report ID VERDICT EXPECTED COMMAND...: one line of --report.
report() {
  [[ -n ${DEMO_REPORT-} ]] || return 0
  local text=${OUTPUT//\\/\\\\}
  text=${text//$'\t'/\\t}
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$(as_typed "${@:4}")" "$STATUS" "$2" "$3" "${text//$'\n'/\\n}" >>"$DEMO_REPORT"
}

# summary: the table, and how long it all took.
summary() {
  local row id asked expected seen mark
  heading 'What was asked, expected and answered'
  printf '%-3s %-52s %-26s %s\n' '' ASKED EXPECTED ANSWERED
  for row in "${ROWS[@]}"; do
    IFS=$'\t' read -r id asked expected seen <<<"$row"
    mark=ok
    [[ $seen == "$expected" ]] || mark=NO
    printf '%-3s %-52s %-26s %s\n' "$mark" "$asked" "$expected" "$seen"
  done
  printf '\n%s steps, %s differences; %s s from the start of the testbed\n' \
    "${#ROWS[@]}" "$DIFFERENCES" "$(($(date +%s) - DEMO_STARTED))"
  [[ $DIFFERENCES -eq 0 ]]
}
