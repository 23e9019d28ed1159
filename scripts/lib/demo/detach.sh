# demo --keep: the testbed continues in the background, in a session of its own, until the user stops it.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# run_detached COMMAND...: runs a testbed with a CMD that ends with end_demo; does not return.
run_detached() {
  build_xtask
  exec "$XTASK" detach -- "$@"
}

# end_demo STATUS ENTER: the last call of CMD. With --keep, writes the result and waits. If the process that prints the
# stop command was killed, ends CMD as without --keep.
end_demo() {
  if [[ -z ${DEMO_DETACH_DIR-} ]] || flock -n "$DEMO_DETACH_DIR/lock" true; then exit "$1"; fi
  printf '%s\n' "$2" >"$DEMO_DETACH_DIR/enter"
  printf '%s\n' "$1" >"$DEMO_DETACH_DIR/status"
  exec sleep infinity >/dev/null 2>&1
}
