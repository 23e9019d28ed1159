# demo --metrics: what a Prometheus would read of the guard. The caller says how a replica is asked: guard_replicas prints their
# names, and guard_metrics NAME prints the page of one.
# shellcheck shell=bash source-path=SCRIPTDIR

# Seconds until a replica has surveyed the story's etcd: an interval of deploy/overlays/minikube, and the longest look.
SURVEYED_LIMIT=120

# save_metrics: the page of each replica, once it counts a cluster, as DEMO_METRICS/NAME.
save_metrics() {
  local replica replicas
  [[ -n ${DEMO_METRICS-} ]] || return 0
  replicas=$(guard_replicas)
  for replica in $replicas; do
    save_page "$replica" "$DEMO_METRICS/$replica"
  done
}

# save_page NAME FILE
save_page() {
  local deadline=$((SECONDS + SURVEYED_LIMIT))
  until guard_metrics "$1" >"$2" && grep -Eq '^etcd_guard_clusters\{state="(spare|no_spare)"\} 1$' "$2"; do
    ((SECONDS < deadline)) || die "the guard's replica $1 has counted no cluster within $SURVEYED_LIMIT s: $2"
    sleep 0.5
  done
}
