#!/usr/bin/env bash
# The demo on real nodes: deploys the guard and etcd like a user, then runs the scenario. CMD of `testbed node`.
# shellcheck source-path=SCRIPTDIR/..
set -euo pipefail

LOG_PREFIX=demo
LIB=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/..")
source "$LIB/log.sh"
source "$LIB/demo/steps.sh"
source "$LIB/demo/detach.sh"
source "$LIB/demo/metrics.sh"
source "$LIB/demo/deploy.sh"
source "$LIB/demo/scenario.sh"
source "$LIB/writer.sh"
source "$LIB/demo/handover.sh"
STEPS_DIR=$TESTBED_DIR/steps
mkdir -p "$STEPS_DIR"

guard_replicas() {
  kubectl -n etcd-guard get pods -l app.kubernetes.io/name=etcd-guard -o 'jsonpath={.items[*].metadata.name}'
}
guard_metrics() { kubectl get --raw "/api/v1/namespaces/etcd-guard/pods/$1:8080/proxy/metrics"; }

heading 'Deploy the guard and a three-member etcd'
setup kubectl create namespace prod
deploy scripts/lib/demo/guard
setup kubectl get pods -A -o wide

status=0
run_scenario || status=$?
[[ $status -ne 0 ]] || save_metrics
end_demo "$status" "$TESTBED_ENTER"
