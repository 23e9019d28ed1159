# demo --keep: the testbed goes on without this shell, in a session of its own, until somebody stops it.
# shellcheck shell=bash source-path=SCRIPTDIR

# run_and_keep COMMAND...: runs a testbed whose CMD ends its story by writing DEMO_KEEP_DIR/status and then waits.
run_and_keep() {
  local pid shown status held
  DEMO_KEEP_DIR=$(mktemp -d -- "${TMPDIR:-/tmp}/etcd-guard-demo.XXXXXX")
  export DEMO_KEEP_DIR
  : >"$DEMO_KEEP_DIR/output"
  # Held by this shell alone, so that the other end can tell whether we live, from another PID namespace as well.
  exec {held}>"$DEMO_KEEP_DIR/held"
  flock "$held"
  setsid "$@" </dev/null >"$DEMO_KEEP_DIR/output" 2>&1 {held}>&- &
  pid=$!
  printf '%s\n' "$pid" >"$DEMO_KEEP_DIR/pid"
  # Until the story has ended, Ctrl-C ends the testbed as it would without --keep.
  # shellcheck disable=SC2064
  trap "kill -TERM $pid 2>/dev/null; rm -rf -- '$DEMO_KEEP_DIR'" EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  tail -n +1 -f -s 0.2 --pid="$pid" "$DEMO_KEEP_DIR/output" {held}>&- &
  shown=$!
  while [[ ! -s $DEMO_KEEP_DIR/status ]] && kill -0 "$pid" 2>/dev/null; do sleep 0.2 {held}>&-; done
  sleep 0.5
  kill "$shown" 2>/dev/null || true
  if [[ ! -s $DEMO_KEEP_DIR/status ]]; then
    wait "$pid" && status=0 || status=$?
    trap - EXIT
    rm -rf -- "$DEMO_KEEP_DIR"
    exit "$((status > 0 ? status : 1))"
  fi
  trap - EXIT
  printf '\nIt goes on running.\n  a shell with kubectl in it:  %s\n  stop it:                     kill %s\n' \
    "$(<"$DEMO_KEEP_DIR/enter")" "$pid"
  status=$(<"$DEMO_KEEP_DIR/status")
  # The testbed's own directory stays with the testbed; this one has served.
  rm -rf -- "$DEMO_KEEP_DIR"
  exit "$status"
}

# keep_running STATUS ENTER: the other end, as the last words of CMD. Without --keep it just exits, and also when the demo
# was killed: then nobody was told how to stop it.
keep_running() {
  [[ -n ${DEMO_KEEP_DIR-} ]] || exit "$1"
  if flock -n "$DEMO_KEEP_DIR/held" true; then
    rm -rf -- "$DEMO_KEEP_DIR"
    exit "$1"
  fi
  printf '%s\n' "$2" >"$DEMO_KEEP_DIR/enter"
  printf '%s\n' "$1" >"$DEMO_KEEP_DIR/status"
  # Nobody reads the output any more.
  exec >/dev/null 2>&1
  exec sleep infinity
}
