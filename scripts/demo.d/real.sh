#!/usr/bin/env bash
# The demo on a real node: deploys the guard and etcd as a user would, then tells the story. CMD of `testbed node`.
# shellcheck source-path=SCRIPTDIR/..
set -euo pipefail

SPEAKER=demo
source "$SCRIPTS/testbed.d/say.sh"
source "$SCRIPTS/demo.d/show.sh"
source "$SCRIPTS/demo.d/keep.sh"
source "$SCRIPTS/demo.d/metrics.sh"
source "$SCRIPTS/demo.d/deploy.sh"
source "$SCRIPTS/demo.d/story.sh"

guard_replicas() {
  kubectl -n etcd-guard get pods -l app.kubernetes.io/name=etcd-guard -o 'jsonpath={.items[*].metadata.name}'
}
guard_metrics() { kubectl get --raw "/api/v1/namespaces/etcd-guard/pods/$1:8080/proxy/metrics"; }

heading 'Deploy the guard and a three-member etcd'
setup kubectl create namespace prod
deploy
setup kubectl get pods -A -o wide

status=0
story || status=$?
[[ $status -ne 0 ]] || save_metrics
keep_running "$status" "$TESTBED_ENTER"
