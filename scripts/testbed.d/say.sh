# How the scripts speak: progress and errors to stderr, so that stdout carries only what programs read.
# shellcheck shell=bash source-path=SCRIPTDIR

SPEAKER=${SPEAKER:-testbed}

say() { printf '%s: %s\n' "$SPEAKER" "$*" >&2; }

die() {
  printf '%s: error: %s\n' "$SPEAKER" "$*" >&2
  exit 1
}

# show_tail FILE: the end of a log, for whoever has to find out why something failed.
show_tail() {
  [[ -s $1 ]] || { say "$1 is empty"; return; }
  printf -- '--- last lines of %s\n' "$1" >&2
  tail -n 20 -- "$1" >&2
  printf -- '---\n' >&2
}

# need_value OPTION [VALUE]: an option that takes a value has one.
need_value() { [[ $# -ge 2 ]] || die "$1 needs a value"; }
