# Loads image archives into all nodes; runs inside the CMD of `scripts/testbed node`.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# Seconds for one archive, also beside compilers.
LOAD_TIMEOUT=300

# load_into SOCKET ARCHIVE...: loads image archives into one containerd.
load_into() {
  local archive
  for archive in "${@:2}"; do
    timeout "$LOAD_TIMEOUT" ctr --address "$1" --namespace k8s.io images import "$archive" >/dev/null ||
      fail "could not load $archive"
  done
}

load_main() {
  local socket
  if [[ $# -eq 0 || $1 == --help ]]; then
    printf 'usage: scripts/testbed load ARCHIVE...   (inside the CMD of scripts/testbed node)\n'
    return
  fi
  [[ -n ${TESTBED_CONTAINERD-} ]] || fail 'TESTBED_CONTAINERD is not set: run this inside the CMD of scripts/testbed node'
  # The containerd of the first node, and those of further nodes: /run/containerd-node2 and so on.
  for socket in "${TESTBED_CONTAINERD%/*}"{,-node?}/"${TESTBED_CONTAINERD##*/}"; do
    [[ ! -S $socket ]] || load_into "$socket" "$@"
  done
}
