# Loads image archives into the node; runs inside the CMD of `scripts/testbed node`.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# Seconds for one archive, also beside compilers.
LOAD_TIMEOUT=300

load_main() {
  local archive
  if [[ $# -eq 0 || $1 == --help ]]; then
    printf 'usage: scripts/testbed load ARCHIVE...   (inside the CMD of scripts/testbed node)\n'
    return
  fi
  [[ -n ${TESTBED_CONTAINERD-} ]] || fail 'TESTBED_CONTAINERD is not set: run this inside the CMD of scripts/testbed node'
  for archive in "$@"; do
    timeout "$LOAD_TIMEOUT" ctr --address "$TESTBED_CONTAINERD" --namespace k8s.io images import "$archive" >/dev/null ||
      fail "could not load $archive"
  done
}
