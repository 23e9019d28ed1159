# Who owns the processes and the directory of a testbed, and who takes them away, also after kill -9.
# Every child dies with this shell (PDEATHSIG); the reaper removes the directory when all of them are gone.
# shellcheck shell=bash source-path=SCRIPTDIR

RUN_DIR=${RUN_DIR-} # where this testbed keeps its files
DISPOSABLE=''   # the directory goes with the testbed: nobody reads what an orderly end would write
LIFE=${LIFE-}       # write end of the reaper's pipe
REAPER=''       # pid of the reaper
CHILDREN=()     # pids in the order they were started
COMMAND_PID=''  # pid of the caller's CMD

# Seconds for an orderly end; what needs longer is killed.
STOP_LIMIT=3
# The reaper itself gives up after 20 s.
REAPER_LIMIT=25

# life_begin DIR CGROUP: DIR is the caller's directory, or empty for one that goes with the testbed.
life_begin() {
  local ours=''
  if [[ -n $1 ]]; then
    mkdir -p -- "$1"
    RUN_DIR=$(realpath -- "$1")
  else
    ours=$(mktemp -d -- "${TMPDIR:-/tmp}/etcd-guard-testbed.XXXXXX")
    RUN_DIR=$(realpath -- "$ours")
    ours=$RUN_DIR
    DISPOSABLE=yes
  fi
  # In a session of its own, so that a signal to our process group or terminal does not end it.
  exec {LIFE}> >(exec setsid bash "$ROOMS/reaper.sh" "$ours" "$2" >/dev/null 2>&1)
  REAPER=$!
  trap life_end EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP
}

# life_end: the EXIT trap. Ends CMD, then the children, last started first, then waits for the reaper.
life_end() {
  local status=$? pids=() index
  trap '' INT TERM HUP
  trap - EXIT
  set +e
  if [[ -n $COMMAND_PID ]]; then
    # The first process of a node's PID namespace; unshare, its parent, passes no signals on.
    [[ ! -s $RUN_DIR/inside ]] || COMMAND_PID=$(<"$RUN_DIR/inside")
    stop_pids "$COMMAND_PID"
  fi
  for ((index = ${#CHILDREN[@]} - 1; index >= 0; index--)); do pids+=("${CHILDREN[index]}"); done
  mapfile -t -O "${#pids[@]}" pids < <(restarted_pids)
  if [[ -n $DISPOSABLE ]]; then
    [[ ${#pids[@]} -eq 0 ]] || kill -KILL "${pids[@]}" 2>/dev/null
  else
    stop_pids "${pids[@]}"
  fi
  exec {LIFE}>&-
  # Somebody may still hold the pipe (a program that CMD left behind); then the reaper goes on without us.
  local deadline=$((SECONDS + REAPER_LIMIT))
  while kill -0 "$REAPER" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.05; done
  exit "$status"
}

# restarted_pids: processes that CMD restarted through a run script; their pid files name them.
restarted_pids() {
  local file pid
  for file in "$RUN_DIR"/*.pid "$RUN_DIR"/*/pid; do
    [[ -f $file ]] || continue
    pid=$(<"$file")
    # The number may belong to someone else by now; only a command line that names our directory is ours.
    if [[ $pid =~ ^[0-9]+$ && -r /proc/$pid/cmdline ]] && grep -qsF -- "$RUN_DIR/" "/proc/$pid/cmdline"; then
      printf '%s\n' "$pid"
    fi
  done
}

# stop_pids PID...: TERM to all, then KILL to those that are left after STOP_LIMIT.
stop_pids() {
  local pid left deadline=$((SECONDS + STOP_LIMIT))
  [[ $# -gt 0 ]] || return 0
  kill -TERM "$@" 2>/dev/null || true
  while ((SECONDS <= deadline)); do
    left=()
    for pid in "$@"; do
      if alive "$pid"; then left+=("$pid"); fi
    done
    [[ ${#left[@]} -gt 0 ]] || return 0
    sleep 0.05
  done
  kill -KILL "${left[@]}" 2>/dev/null || true
}

# alive PID: it runs; a zombie does not.
alive() {
  local stat
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  [[ ${stat##*) } != Z* ]]
}

# start BASE [ARG...]: starts what write_run made, as a child that cannot outlive this shell; sets CHILD.
start() {
  local base=$1 join=.
  [[ ! -d $base ]] || join=/
  shift
  # A session of its own keeps Ctrl-C on the terminal away from it. The parent is compared because it may have
  # died before PDEATHSIG was set.
  # shellcheck disable=SC2016
  setsid setpriv --pdeathsig KILL -- sh -c '[ "$PPID" = "$0" ] || exit 1; exec "$@"' \
    $$ "$base${join}run" "$@" </dev/null >/dev/null 2>>"$base${join}log" &
  CHILD=$!
  CHILDREN+=("$CHILD")
  disown "$CHILD" # else bash comments on its end
}

# write_run BASE COMMAND...: makes BASE/run, BASE/log, BASE/pid if BASE is a directory, else BASE.run and so on.
# The script can be run by anyone at any time to start that program again.
write_run() {
  local base=$1 join=.
  [[ ! -d $base ]] || join=/
  shift
  {
    printf '#!/bin/sh\n# Starts %s again; further arguments follow the flags below, and the last of a kind counts.\n' "${base##*/}"
    printf 'echo $$ >%q\n' "$base${join}pid"
    printf 'exec'
    printf ' %q' "$@"
    # shellcheck disable=SC2016
    printf ' "$@" >>%q 2>&1\n' "$base${join}log"
  } >"$base${join}run"
  chmod +x "$base${join}run"
}

# wait_until LIMIT WHAT LOG COMMAND...: polls COMMAND; at the end of LIMIT seconds shows LOG and fails.
wait_until() {
  local limit=$1 what=$2 log=$3 deadline
  shift 3
  deadline=$((SECONDS + limit + 1))
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS >= deadline)); then
      show_tail "$log"
      die "$what: not within $limit s"
    fi
    if [[ -n $CHILD ]] && ! alive "$CHILD"; then
      show_tail "$log"
      die "$what: the process ended"
    fi
    sleep 0.1
  done
}
CHILD=''

# live VARIABLE... -- [CMD...]: exports the variables to CMD and lives as long as CMD; without CMD prints them
# and `ready`, and lives until stdin closes.
live() {
  local names=() name status
  while [[ $1 != -- ]]; do
    names+=("$1")
    shift
  done
  shift
  if [[ $# -eq 0 ]]; then
    for name in "${names[@]}"; do printf '%s=%s\n' "$name" "${!name}"; done
    printf 'ready\n'
    if [[ -t 0 ]]; then
      say "running in $RUN_DIR; Ctrl-C ends it"
      setpriv --pdeathsig KILL sleep infinity {LIFE}>&- &
      wait $!
    fi
    while read -r _; do :; done
    return
  fi
  export "${names[@]}"
  # On a terminal Ctrl-C belongs to CMD (it may be a shell); it reaches CMD by itself.
  [[ ! -t 0 ]] || trap '' INT
  # Background commands ignore INT and read /dev/null unless told otherwise. CMD does not hold the reaper's pipe.
  exec {COMMAND_STDIN}<&0
  env --default-signal=INT --default-signal=QUIT setpriv --pdeathsig KILL -- "$@" <&"$COMMAND_STDIN" {COMMAND_STDIN}<&- {LIFE}>&- &
  COMMAND_PID=$!
  wait "$COMMAND_PID" && status=0 || status=$?
  COMMAND_PID=''
  exit "$status"
}
