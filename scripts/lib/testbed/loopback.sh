# A loopback network for each testbed, so that testbeds run side by side on the usual ports.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# is_listening ADDRESS PORT
is_listening() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# pick_network NET HOST PORT: prints NET; if NET is empty, a network derived from the process id on which HOST:PORT is
# free. The range 127.64 to 127.123 does not overlap 127.0.0.x, which tests use freely.
pick_network() {
  local attempt number=$$ network=$1
  if [[ -n $network ]]; then
    [[ $network =~ ^127\.[0-9]{1,3}\.[0-9]{1,3}$ ]] || fail "--net needs 127.A.B, not $network"
    printf '%s' "$network"
    return
  fi
  for ((attempt = 0; attempt < 100; attempt++)); do
    network=127.$((64 + number / 250 % 60)).$((1 + number % 250))
    if ! is_listening "$network.$2" "$3"; then
      printf '%s' "$network"
      return
    fi
    number=$((number + 7919))
  done
  fail 'no free loopback network after 100 attempts'
}
