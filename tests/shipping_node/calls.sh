# Clients that send admission requests through the API server in a loop and count failed calls. The state of a measurement
# NAME is in one directory: the client certificate, the file `running`, the pids of the clients, and their responses.
# shellcheck shell=bash

# Number of concurrent clients. The API server reuses its connections to the guard.
CALLERS=3
# Pause of a client between two requests, in seconds.
CALL_PAUSE=0.1

# calls_directory NAME: prints the directory of a measurement.
calls_directory() { printf '%s/calls.%s' "$TESTBED_DIR" "$1"; }

# caller DIRECTORY SERVER NUMBER: sends dry-run deletions of a member until the file `running` is removed. Writes one line
# per response.
caller() {
  local response url="$2/api/v1/namespaces/prod/pods/etcd-$(($3 % 3))?dryRun=All"
  while [[ -e $1/running ]]; do
    response=$(curl -sS --max-time 60 --cacert "$TESTBED_DIR/ca.crt" --cert "$1/user.crt" --key "$1/user.key" \
      -X DELETE "$url" 2>&1) || true
    case $response in
    *'denied the request'*) printf 'denied\n' ;;
    *'"kind":"Pod"'* | *'"kind": "Pod"'*) printf 'allowed\n' ;;
    *) printf 'failed: %s\n' "${response//$'\n'/ }" ;;
    esac >>"$1/responses.$3"
    sleep "$CALL_PAUSE"
  done
}

# response_count DIRECTORY: prints the number of responses so far.
response_count() { cat "$1"/responses.* 2>/dev/null | wc -l; }
# has_responses DIRECTORY COUNT: whether the clients have received this number of responses.
has_responses() { (($(response_count "$1") >= $2)); }

# calls_begin NAME: starts the clients and waits for the first responses. The shell that calls it must also call calls_end,
# because the clients are its children.
calls_begin() {
  local directory number server
  directory=$(calls_directory "$1")
  mkdir -- "$directory"
  : >"$directory/running"
  server=$(kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}')
  kubectl config view --minify --raw -o 'jsonpath={.users[0].user.client-certificate-data}' | base64 -d >"$directory/user.crt"
  kubectl config view --minify --raw -o 'jsonpath={.users[0].user.client-key-data}' | base64 -d >"$directory/user.key"
  for ((number = 0; number < CALLERS; number++)); do
    caller "$directory" "$server" "$number" &
    printf '%s\n' "$!" >>"$directory/pids"
  done
  wait_until 'the clients receive responses' has_responses "$directory" "$((CALLERS * 3))"
}

# calls_end NAME: waits for more responses, ends the clients, and reports NAME-calls and NAME-failed.
calls_end() {
  local directory count pids
  directory=$(calls_directory "$1")
  count=$(response_count "$directory")
  wait_until 'the clients still receive responses' has_responses "$directory" "$((count + CALLERS * 3))"
  rm -f -- "$directory/running"
  mapfile -t pids <"$directory/pids"
  wait "${pids[@]}" || true
  report "$1-calls" "$(response_count "$directory")"
  report "$1-failed" "$(cat "$directory"/responses.* | grep ^failed || true)"
}
