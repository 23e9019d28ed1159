# The first minutes of a new user: chart and image in a registry, a clean node, the first denial, `doctor`, an alert that names the
# cluster, and the uninstallation. Requires the functions of story.sh and registry.sh, and the variables of `run`.
# shellcheck shell=bash

PROMETHEUS_URL=http://127.0.0.1:9090

# prometheus_answer PATH: prints the answer of the Prometheus API.
prometheus_answer() { curl -sSf --max-time 10 "$PROMETHEUS_URL/api/v1/$1"; }
# firing_cluster_alerts: prints the firing alerts that name a cluster, one per line.
firing_cluster_alerts() {
  prometheus_answer alerts | grep -oE '\{"labels":\{[^}]*"cluster":"[^}]*\},"annotations":\{[^}]*\},"state":"firing"' || true
}
knows_the_cluster() { prometheus_answer 'query?query=etcd_guard_cluster_state' 2>/dev/null | grep -q '"namespace":"prod"'; }
names_the_cluster() { firing_cluster_alerts | grep -q '"alertname":"EtcdGuardNoSpareVoter","cluster":"etcd","namespace":"prod"'; }

# start_prometheus: starts a Prometheus with the installed rules. It scrapes the replicas with the labels and settings of the
# installed PodMonitor.
start_prometheus() {
  local folder=$TESTBED_DIR/prometheus address number=0
  mkdir -- "$folder"
  # The waiting times of the alerts are minutes, for which a test should not wait.
  kubectl -n etcd-guard get prometheusrule etcd-guard -o 'jsonpath={.spec}' | sed -E 's/"for":"[0-9]+m"/"for":"5s"/g' >"$folder/rules.yaml"
  {
    printf 'global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\nscrape_configs:\n'
    printf -- '- job_name: etcd-guard\n  honor_labels: %s\n  static_configs:\n' \
      "$(kubectl -n etcd-guard get podmonitor etcd-guard -o 'jsonpath={.spec.podMetricsEndpoints[0].honorLabels}')"
    for address in $(guard_pods status.podIP); do
      printf '  - {targets: ["%s:8080"], labels: {namespace: etcd-guard, pod: "etcd-guard-%s"}}\n' "$address" "$((number++))"
    done
  } >"$folder/prometheus.yml"
  "$PROMETHEUS" --config.file="$folder/prometheus.yml" --storage.tsdb.path="$folder/data" \
    --web.listen-address="${PROMETHEUS_URL#http://}" --log.level=warn >"$folder/log" 2>&1 &
  PROMETHEUS_PID=$!
  wait_until 'Prometheus has scraped the state of the cluster' knows_the_cluster
}

# signal_member SIGNAL POD: sends a signal to the etcd process of a pod of the namespace prod.
signal_member() {
  local container pid
  container=$(kubectl -n prod get pod "$2" -o 'jsonpath={.status.containerStatuses[0].containerID}')
  for pid in $(pgrep -x etcd); do
    if grep -q "${container#containerd://}" "/proc/$pid/cgroup"; then
      kill "-$1" "$pid"
      return
    fi
  done
  fail "no process of $2"
}

stranger_story() {
  local kind denial started status=0 output leader pod
  # The cluster of this user has the Prometheus operator.
  for kind in podmonitors servicemonitors prometheusrules; do
    kubectl create -f "$PROMETHEUS_CRDS/monitoring.coreos.com_$kind.yaml" >/dev/null
  done
  start_registry
  push_image "etcd-guard:$VERSION" "$ARCHIVE"
  PATH=$(path_with_helm) "$PROJECT/scripts/release" chart "$REGISTRY" "$TESTBED_DIR" >/dev/null
  output=$(push_chart "$PROJECT" "$TESTBED_DIR")
  report stranger-chart "$output"

  log 'helm install'
  started=$SECONDS
  helm_published install "$VERSION" --create-namespace --wait \
    --set monitoring.enabled=true,monitoring.clusterMetrics=500,monitoring.surveyInterval=5s
  denial=$(wait_until 'the leader is protected' leader_denial prod etcd 3)
  report stranger-seconds "$((SECONDS - started))"
  log "first denial $((SECONDS - started)) s after the start of helm install"
  report stranger-denied "$denial"
  report stranger-image "$(guard_pods 'spec.containers[0].image')"

  output=$(timeout 120 "$PLUGIN" doctor --kubeconfig "$KUBECONFIG" 2>&1) || status=$?
  report stranger-doctor "$status $output"

  log 'stop one member, with a Prometheus'
  start_prometheus
  report stranger-alerts-before "$(firing_cluster_alerts)"
  leader=$(leader_of prod etcd 3)
  pod=etcd-0
  [[ $leader != "$pod" ]] || pod=etcd-1
  started=$SECONDS
  signal_member STOP "$pod"
  wait_until 'an alert names the cluster' names_the_cluster
  log "alert $((SECONDS - started)) s after the stop"
  report stranger-alert "$(firing_cluster_alerts)"
  kill "$PROMETHEUS_PID"
  # A stopped process delays the deletion of its pod.
  signal_member CONT "$pod"

  log 'uninstall'
  uninstall_by_chart
  report stranger-left "$(left_behind)"
}
