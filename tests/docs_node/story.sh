#!/usr/bin/env bash
# Executes the commands of the documentation, section by section. CMD of `scripts/testbed node`: story.sh FOLDER PLUGIN HELM IMAGE.
# FOLDER/plan has lines `SECTION<tab>SCRIPT`; the number of successful commands of each section is written to FOLDER/report.
set -euo pipefail

FOLDER=$1
PROJECT=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")

# Programs on the PATH of a reader, and the variables that the recipes require.
ln -sf -- "$2" "$TESTBED_DIR/bin/kubectl-etcd_guard"
ln -sf -- "$3" "$TESTBED_DIR/bin/helm"
export NS=prod SET=etcd SELECTOR=app=etcd CONTAINER=etcd CLAIM=data HOST=etcd.prod.svc SCHEME=http ETCDCTL=etcdctl
export POD=etcd-1 OTHER=etcd-0 NODE=node IMAGE=$4

# On an idle machine every section takes less than a minute, except the upgrade of etcd.
SECTION_TIMEOUT=900
READY_TIMEOUT=300

log() { printf 'docs-node: %s\n' "$1" >&2; }
fail() { log "$1"; exit 1; }

# shellcheck source=tests/docs_node/scenes.sh
source "$PROJECT/tests/docs_node/scenes.sh"

# run_section SECTION SCRIPT: prepares the state, then executes the commands.
run_section() {
  local before=before_${1//[^a-z0-9]/_} status=0 started
  log "== $1"
  POD=etcd-1 OTHER=etcd-0
  if [[ $(type -t "$before") == function ]]; then "$before"; fi
  : >"$FOLDER/ran"
  started=$SECONDS
  (cd "$PROJECT" && RAN=$FOLDER/ran timeout "$SECTION_TIMEOUT" bash "$2") </dev/null >&2 || status=$?
  log "$1: $((SECONDS - started)) s"
  printf '%s\t%s\n' "$1" "$(stat -c %s "$FOLDER/ran")" >>"$FOLDER/report"
  if [[ $status -ne 0 ]]; then
    show_state
    fail "$1: a command failed (exit status $status)"
  fi
}

while IFS=$'\t' read -r -u 3 section script; do
  run_section "$section" "$script"
done 3<"$FOLDER/plan"
