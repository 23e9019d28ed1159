# demo --metrics: saves the metrics of the guard. The caller defines guard_replicas, which prints the names of the
# replicas, and guard_metrics NAME, which prints the metrics of one.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# Seconds until the replicas have surveyed their namespaces: the interval of deploy/overlays/minikube and the longest
# survey.
SURVEY_TIMEOUT=120

# save_metrics: writes the metrics of each replica to DEMO_METRICS/NAME, after all of them have finished a survey and one of
# them has counted the cluster: the replicas divide the namespaces.
save_metrics() {
  [[ -n ${DEMO_METRICS-} ]] || return 0
  local deadline=$((SECONDS + SURVEY_TIMEOUT))
  until save_replica_metrics; do
    ((SECONDS < deadline)) || fail "the replicas of the guard have not counted the cluster within $SURVEY_TIMEOUT s: $DEMO_METRICS"
    sleep 0.5
  done
}

# save_replica_metrics: writes the metrics. Fails if a replica has not finished a survey, or if none has counted the cluster.
save_replica_metrics() {
  local replica replicas is_counted=''
  replicas=$(guard_replicas) || return 1
  for replica in $replicas; do
    guard_metrics "$replica" >"$DEMO_METRICS/$replica" || return 1
    grep -q '^etcd_guard_survey_timestamp_seconds ' "$DEMO_METRICS/$replica" || return 1
    ! grep -Eq '^etcd_guard_clusters\{state="(spare|no_spare)"\} 1$' "$DEMO_METRICS/$replica" || is_counted=yes
  done
  [[ -n $is_counted ]]
}
