#!/usr/bin/env bash
# Runs the documentation's commands, section by section. CMD of `scripts/testbed node`: story.sh FOLDER GUARD HELM IMAGE.
# FOLDER/plan has lines `SECTION<tab>SCRIPT`; how many commands of each succeeded goes to FOLDER/report.
set -euo pipefail

FOLDER=$1
PROJECT=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")

# What a reader has on PATH, and sets as the runbook says.
ln -sf -- "$2" "$TESTBED_DIR/bin/etcd-guard"
ln -sf -- "$2" "$TESTBED_DIR/bin/kubectl-etcd_guard"
ln -sf -- "$3" "$TESTBED_DIR/bin/helm"
export NAMESPACE=prod SET=etcd POD=etcd-1 OTHER=etcd-0 NODE=node IMAGE=$4

# No section takes a minute on an idle machine, but for the upgrade of etcd.
SECTION_LIMIT=900
READY_LIMIT=300

say() { printf 'docs-node: %s\n' "$1" >&2; }
die() { say "$1"; exit 1; }

# shellcheck source=tests/docs_node/scenes.sh
source "$PROJECT/tests/docs_node/scenes.sh"

# play SECTION SCRIPT: its scene, then its commands.
play() {
  local before=before_${1//[^a-z0-9]/_} status=0
  say "== $1"
  POD=etcd-1 OTHER=etcd-0
  if [[ $(type -t "$before") == function ]]; then "$before"; fi
  : >"$FOLDER/ran"
  (cd "$PROJECT" && RAN=$FOLDER/ran timeout "$SECTION_LIMIT" bash "$2") </dev/null >&2 || status=$?
  printf '%s\t%s\n' "$1" "$(stat -c %s "$FOLDER/ran")" >>"$FOLDER/report"
  if [[ $status -ne 0 ]]; then
    show_state
    die "$1: a command failed (exit status $status)"
  fi
}

while IFS=$'\t' read -r -u 3 section script; do
  play "$section" "$script"
done 3<"$FOLDER/plan"
