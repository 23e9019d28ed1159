# Waits of scripts that run on a node, for READY_TIMEOUT seconds. Requires the function `fail`.
# shellcheck shell=bash

# wait_until SUBJECT COMMAND...: retries until the command succeeds. Its output is the output of the command.
wait_until() {
  local subject=$1 deadline=$((SECONDS + READY_TIMEOUT))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || fail "not within $READY_TIMEOUT s: $subject"
    sleep 0.5
  done
}
