#!/usr/bin/env bash
# The demo on a real node: deploys the guard and etcd as a user would, then tells the story. CMD of `testbed node`.
# shellcheck source-path=SCRIPTDIR/..
set -euo pipefail

SPEAKER=demo
source "$SCRIPTS/testbed.d/say.sh"
source "$SCRIPTS/demo.d/show.sh"
source "$SCRIPTS/demo.d/keep.sh"
source "$SCRIPTS/demo.d/story.sh"

# Each takes a few seconds on an idle machine with 2 cores.
GUARD_READY_LIMIT=300s
ETCD_READY_LIMIT=300s

# in_member POD WORD...: sets IN_MEMBER to the command that runs WORD... in the container of a member.
in_member() {
  # shellcheck disable=SC2034 # story.sh reads it
  IN_MEMBER=(kubectl -n prod exec "$1" -c etcd -- "${@:2}")
}

heading 'Deploy the guard and a three-member etcd'
setup kubectl apply -k "$PROJECT/deploy/base"
setup "$SCRIPTS/certs" --apply
setup kubectl create namespace prod
setup kubectl label namespace prod etcd-guard.io/guard=enabled
setup kubectl -n prod apply -f "$PROJECT/etcd-manifests/plain.yaml"
setup kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="$GUARD_READY_LIMIT"
setup kubectl -n prod rollout status statefulset/etcd --timeout="$ETCD_READY_LIMIT"
setup kubectl get pods -A -o wide

status=0
story || status=$?
keep_running "$status" "$TESTBED_ENTER"
