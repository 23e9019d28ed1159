# demo --metrics: saves the metrics of the guard. The caller defines guard_replicas, which prints the names of the
# replicas, and guard_metrics NAME, which prints the metrics of one.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# Seconds until a replica has surveyed the etcd cluster: the interval of deploy/overlays/minikube and the longest
# survey.
SURVEY_TIMEOUT=120

# save_metrics: writes the metrics of each replica that has surveyed a cluster to DEMO_METRICS/NAME.
save_metrics() {
  local replica replicas
  [[ -n ${DEMO_METRICS-} ]] || return 0
  replicas=$(guard_replicas)
  for replica in $replicas; do
    save_replica_metrics "$replica" "$DEMO_METRICS/$replica"
  done
}

# save_replica_metrics NAME FILE
save_replica_metrics() {
  local deadline=$((SECONDS + SURVEY_TIMEOUT))
  until guard_metrics "$1" >"$2" && grep -Eq '^etcd_guard_clusters\{state="(spare|no_spare)"\} 1$' "$2"; do
    ((SECONDS < deadline)) || fail "replica $1 of the guard has not counted a cluster within $SURVEY_TIMEOUT s: $2"
    sleep 0.5
  done
}
