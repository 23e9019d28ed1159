# The container images of a node and of the etcd examples. Each function prints the path of an archive in the cache.
# shellcheck shell=bash source-path=SCRIPTDIR
source "$LIB/xtask.sh"

PAUSE_IMAGE=localhost/etcd-guard-testbed/pause:1
COREDNS_IMAGE=localhost/etcd-guard-testbed/coredns:1

pause_archive() {
  local catatonit
  catatonit=$(program catatonit)
  xtask image "$PAUSE_IMAGE" --file "$catatonit=/pause" --entrypoint /pause -P
}

coredns_archive() {
  local coredns
  coredns=$(program coredns --own-build)
  xtask image "$COREDNS_IMAGE" --file "$coredns=/coredns" --entrypoint /coredns
}

# next_etcd_archive NAME:TAG: the server and the client of the next minor version, for upgrades.
next_etcd_archive() {
  local server client
  server=$(program etcd-3.7 --own-build)
  client=$(program etcdctl-3.7 --own-build)
  xtask image "$1" --file "$server=/usr/local/bin/etcd" --file "$client=/usr/local/bin/etcdctl" --entrypoint /usr/local/bin/etcd
}

# etcd_archive NAME:TAG: as in the image of the etcd project, all three programs are on PATH and there is no shell.
etcd_archive() {
  local server client offline
  server=$(program etcd-3.6 --own-build)
  client=$(program etcdctl-3.6 --own-build)
  offline=$(program etcdutl-3.6 --own-build)
  xtask image "$1" --file "$server=/usr/local/bin/etcd" --file "$client=/usr/local/bin/etcdctl" \
    --file "$offline=/usr/local/bin/etcdutl" --entrypoint /usr/local/bin/etcd
}
