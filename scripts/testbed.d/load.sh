# Loads image archives into the node; runs inside it (in the CMD of `scripts/testbed node`).
# shellcheck shell=bash source-path=SCRIPTDIR

# Seconds for one archive, also next to compilers.
LOAD_LIMIT=300

load_main() {
  local archive
  if [[ $# -eq 0 || $1 == --help ]]; then
    printf 'usage: scripts/testbed load ARCHIVE...   (inside the CMD of scripts/testbed node)\n'
    return
  fi
  [[ -n ${TESTBED_CONTAINERD-} ]] || die 'load works inside the CMD of scripts/testbed node: TESTBED_CONTAINERD is not set'
  for archive in "$@"; do
    timeout "$LOAD_LIMIT" ctr --address "$TESTBED_CONTAINERD" --namespace k8s.io images import "$archive" >/dev/null ||
      die "could not load $archive"
  done
}
