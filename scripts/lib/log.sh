# Progress and errors on stderr, so that stdout carries only output that other programs read.
# shellcheck shell=bash source-path=SCRIPTDIR

# A failure inside $(...) ends the function there, as it does elsewhere under `set -e`.
shopt -s inherit_errexit

# The name before each line; the xtask program reads it as well.
export LOG_PREFIX=${LOG_PREFIX:-etcd-guard}

log() { printf '%s: %s\n' "$LOG_PREFIX" "$*" >&2; }

fail() {
  printf '%s: error: %s\n' "$LOG_PREFIX" "$*" >&2
  exit 1
}

# log_tail FILE: prints the last lines of a log file.
log_tail() {
  [[ -s $1 ]] || { log "$1 is empty"; return; }
  printf -- '--- last lines of %s\n' "$1" >&2
  tail -n 20 -- "$1" >&2
  printf -- '---\n' >&2
}

# require_value OPTION [VALUE]: fails if the option has no value.
require_value() { [[ $# -ge 2 ]] || fail "$1 needs a value"; }
