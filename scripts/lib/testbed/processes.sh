# The programs of a testbed, and the end of its start: variables for the caller, or the caller's command.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# write_run BASE COMMAND...: writes the start script BASE/run if BASE is a directory, else BASE.run; it writes the files
# `pid` and `log` beside itself. Anyone can run it at any time to start the program again.
write_run() {
  local base=$1 separator=.
  [[ ! -d $base ]] || separator=/
  shift
  {
    printf '#!/bin/sh\n# Starts %s again. Further arguments follow the flags below; the last of equal flags is effective.\n' "${base##*/}"
    printf 'echo $$ >%q\n' "$base${separator}pid"
    printf 'exec'
    printf ' %q' "$@"
    # shellcheck disable=SC2016
    printf ' "$@" >>%q 2>&1\n' "$base${separator}log"
  } >"$base${separator}run"
  chmod +x "$base${separator}run"
}

# start_program BASE [ARG...]: runs a start script as a child of the supervisor; prints its process id.
start_program() { xtask start "$@"; }

# link_program NAME: links a program under its plain name into RUN_DIR/bin, which is on the PATH of CMD.
link_program() {
  local path
  path=$(program "$1")
  mkdir -p "$RUN_DIR/bin"
  ln -sf -- "$path" "$RUN_DIR/bin/${1%%-3.*}"
}

# print_variables NAME...: prints NAME=VALUE lines.
print_variables() {
  local name
  for name in "$@"; do printf '%s=%s\n' "$name" "${!name}"; done
}

# run_until_end NAME... -- [CMD...]: exports the variables to CMD and becomes CMD. Without CMD prints the variables and
# `ready`, and waits until stdin is closed. The testbed ends with this process.
run_until_end() {
  local names=()
  while [[ $1 != -- ]]; do
    names+=("$1")
    shift
  done
  shift
  export "${names[@]}"
  if [[ $# -eq 0 ]]; then
    print_variables "${names[@]}"
    printf 'ready\n'
    [[ ! -t 0 ]] || log "running in $RUN_DIR; Ctrl-C ends it"
    if [[ -t 0 ]]; then set -- sleep infinity; else set -- cat; fi
    exec >/dev/null
  fi
  # A program that CMD leaves behind must not delay the reaper.
  exec {REAPER_FD}>&-
  export -n RUN_DIR REAPER_FD TESTBED_SUPERVISOR TESTBED_CGROUP
  exec "$@"
}
