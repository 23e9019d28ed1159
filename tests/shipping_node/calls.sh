# Callers that ask the guard through the apiserver, again and again, and count how often nobody answered.
# shellcheck shell=bash

# So many at a time; the apiserver keeps their connections to the guard.
CALLERS=3
# Pause of a caller between two requests, seconds.
CALL_PAUSE=0.1

# caller NUMBER: dry runs of the deletion of a member, until the folder is gone. One line per answer.
caller() {
  local answer url="$CALL_SERVER/api/v1/namespaces/prod/pods/etcd-$(($1 % 3))?dryRun=All"
  while [[ -e $CALLS/go ]]; do
    answer=$(curl -sS --max-time 60 --cacert "$TESTBED_DIR/ca.crt" --cert "$CALLS/user.crt" --key "$CALLS/user.key" \
      -X DELETE "$url" 2>&1) || true
    case $answer in
    *'denied the request'*) printf 'denied\n' ;;
    *'"kind":"Pod"'* | *'"kind": "Pod"'*) printf 'allowed\n' ;;
    *) printf 'failed: %s\n' "${answer//$'\n'/ }" ;;
    esac >>"$CALLS/answers.$1"
    sleep "$CALL_PAUSE"
  done
}

# every_caller_was_answered: at least COUNT more answers from each caller than when it was asked first.
answered() { cat "$CALLS"/answers.* 2>/dev/null | wc -l; }
enough_answers() { (($(answered) >= CALLS_WANTED)); }

calls_begin() {
  local number
  CALLS=$(mktemp -d -- "$TESTBED_DIR/calls.XXXXXX")
  : >"$CALLS/go"
  CALL_SERVER=$(kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}')
  kubectl config view --minify --raw -o 'jsonpath={.users[0].user.client-certificate-data}' | base64 -d >"$CALLS/user.crt"
  kubectl config view --minify --raw -o 'jsonpath={.users[0].user.client-key-data}' | base64 -d >"$CALLS/user.key"
  CALLER_PIDS=()
  for ((number = 0; number < CALLERS; number++)); do
    caller "$number" &
    CALLER_PIDS+=($!)
  done
  CALLS_WANTED=$((CALLERS * 3))
  until_true 'callers are answered' enough_answers
}

# calls_end NAME: goes on until some more were answered, and tells NAME-calls and NAME-failed.
calls_end() {
  CALLS_WANTED=$(($(answered) + CALLERS * 3))
  until_true 'callers are still answered' enough_answers
  rm -f -- "$CALLS/go"
  wait "${CALLER_PIDS[@]}" || true
  tell "$1-calls" "$(answered)"
  tell "$1-failed" "$(cat "$CALLS"/answers.* | grep ^failed || true)"
}
