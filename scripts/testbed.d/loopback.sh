# A loopback network for each testbed, so that testbeds run side by side on the usual ports.
# shellcheck shell=bash source-path=SCRIPTDIR

# listens ADDRESS PORT: somebody does.
listens() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# net_pick NET HOST PORT: sets NET to NET, or to a network derived from our pid on which HOST:PORT is free.
# 127.64 to 127.123 stays clear of 127.0.0.x, which tests use as they like.
net_pick() {
  local try number=$$
  NET=$1
  if [[ -n $NET ]]; then
    [[ $NET =~ ^127\.[0-9]{1,3}\.[0-9]{1,3}$ ]] || die "--net wants 127.A.B, not $NET"
    return
  fi
  for ((try = 0; try < 100; try++)); do
    NET=127.$((64 + number / 250 % 60)).$((1 + number % 250))
    listens "$NET.$2" "$3" || return 0
    number=$((number + 7919))
  done
  die "no free loopback network: 100 were tried"
}
