#!/usr/bin/env bash
# Runs each command for maintenance on three clusters at the same time, and kills it at each step that it prints. It is repeated until it
# is complete. CMD of `scripts/testbed node`: story.sh FOLDER PLUGIN. Writes lines `CLUSTER-COMMAND<tab>KILLS<tab>FAILURES` to FOLDER/report.
set -euo pipefail

FOLDER=$1
PROJECT=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
LOG_PREFIX=maintenance-node
# shellcheck source=scripts/lib/log.sh
source "$PROJECT/scripts/lib/log.sh"
# shellcheck source=scripts/lib/wait.sh
source "$PROJECT/scripts/lib/wait.sh"
ln -sf -- "$2" "$TESTBED_DIR/bin/kubectl-etcd_guard"

# Namespaces, each with the StatefulSet `etcd`.
CLUSTERS=(plain secure owned)
READY_TIMEOUT=300
# Time for one command with all repetitions.
COMMAND_TIMEOUT=600
# Repetitions of one command that may fail by themselves: a killed command leaves the cluster between two states.
MAX_FAILURES=2
GROUP=operator.etcd.io

# ctl CLUSTER POD WORD...: runs etcdctl in the pod, with the input if INPUT is set.
ctl() {
  local tls=() pki=/etc/etcd/tls/server
  [[ $1 != secure ]] || tls=("--cacert=$pki/ca.crt" "--cert=$pki/tls.crt" "--key=$pki/tls.key")
  timeout 60 kubectl -n "$1" exec ${INPUT:+-i} "$2" -c etcd -- etcdctl "${tls[@]}" "${@:3}"
}

serves() {
  [[ $(kubectl -n "$1" get statefulset etcd -o 'jsonpath={.status.readyReplicas}') == 3 ]] &&
    ctl "$1" etcd-0 endpoint health --cluster >/dev/null 2>&1
}

# follower CLUSTER: prints a pod whose member does not lead.
follower() {
  local pod status
  for pod in etcd-0 etcd-1 etcd-2; do
    status=$(ctl "$1" "$pod" endpoint status -w json)
    [[ $status =~ \"member_id\":([0-9]+) ]] || return 1
    if [[ ! $status =~ \"leader\":${BASH_REMATCH[1]}[,\}] ]]; then
      printf '%s' "$pod"
      return
    fi
  done
  return 1
}

# id CLUSTER POD: prints the id of the pod's member.
id() { ctl "$1" "$2" member list | awk -F', ' -v pod="$2" '$3 == pod {print $1}'; }

uids() { kubectl -n "$1" get pods -l app=etcd -o 'jsonpath={range .items[*]}{.metadata.uid}{"\n"}{end}' | sort; }

# steps LOG: prints the messages about steps, without what differs in each run: sizes, times and revisions.
steps() {
  sed -nE '/"state":"progress"/s/.*"message":"(.*)"}$/\1/p' "$1" |
    sed -E 's/[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z/TIME/g; s/[0-9]+(\.[0-9]+)? ?(s|ms|[KMG]iB)\b/N/g; s/\b[0-9a-f]{7,}\b/N/g; s/[0-9]{2,}/N/g'
}

# new_step LOG SEEN: prints the first step that is not in SEEN.
new_step() { steps "$1" | grep -vxFf "$2" | head -n 1 || true; }

# killed_at_each_step NAME COMMAND...: kills the command when it prints a line that no run has printed before, and repeats it until it is
# complete.
killed_at_each_step() {
  local name=$1 kills=0 failures=0 process step status deadline=$((SECONDS + COMMAND_TIMEOUT)) started=$SECONDS
  local log=$FOLDER/$1.log seen=$FOLDER/$1.seen output=$FOLDER/$1.output
  shift
  : >"$seen"
  while :; do
    ((SECONDS < deadline)) || fail "$name is not complete after $kills kills: $(cat "$output")"
    printf '$ %s\n' "$*" >>"$output"
    : >"$log"
    # kubectl becomes the plugin, with the same process id.
    "$@" -o json </dev/null >"$log" 2>&1 &
    process=$! step=''
    while kill -0 "$process" 2>/dev/null; do
      step=$(new_step "$log" "$seen")
      if [[ -n $step ]] && ! grep -q '"state":"complete"' "$log"; then
        kill -KILL "$process" 2>/dev/null || true
        break
      fi
      step=''
      sleep 0.05
    done
    status=0
    wait "$process" 2>/dev/null || status=$?
    cat "$log" >>"$output"
    if ((status == 0)); then break; fi
    if ((status == 137)); then
      printf '%s\n' "$step" >>"$seen"
      printf 'killed at: %s\n' "$step" >>"$output"
      kills=$((kills + 1))
    else
      printf 'exit status %s\n' "$status" >>"$output"
      failures=$((failures + 1))
      ((failures <= MAX_FAILURES)) || fail "$name failed: $(cat "$output")"
      sleep 2
    fi
  done
  log "$name: complete after $kills kills and $failures failed repetitions, $((SECONDS - started)) s"
  printf '%s\t%s\t%s\n' "$name" "$kills" "$failures" >>"$FOLDER/report"
}

# value CLUSTER POD: prints the value of the key.
value() { ctl "$1" "$2" get --print-value-only --consistency=s kept; }

# assert_value CLUSTER VALUE: all members have the value.
assert_value() {
  local pod
  wait_until "three members of $1 serve" serves "$1"
  for pod in etcd-0 etcd-1 etcd-2; do
    [[ $(value "$1" "$pod") == "$2" ]] || fail "$1/$pod has the value '$(value "$1" "$pod")', and not '$2'"
  done
}

# start CLUSTER: starts the members.
start() {
  kubectl create namespace "$1" >/dev/null
  kubectl label namespace "$1" etcd-guard.io/guard=enabled >/dev/null
  case $1 in
  secure)
    "$PROJECT/etcd-manifests/mtls-certs" secure >/dev/null
    kubectl -n secure apply -f "$PROJECT/etcd-manifests/mtls.yaml" >/dev/null
    ;;
  *) kubectl -n "$1" apply -f "$PROJECT/etcd-manifests/plain.yaml" >/dev/null ;;
  esac
  [[ $1 != owned ]] || own
}

# own: makes a custom resource the owner of the StatefulSet, and lets only evictions update its pods, as operators do.
own() {
  local uid
  kubectl apply -f - >/dev/null <<END
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: etcdclusters.$GROUP}
spec:
  group: $GROUP
  scope: Namespaced
  names: {plural: etcdclusters, singular: etcdcluster, kind: EtcdCluster}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
END
  wait_until 'the custom resource is served' create_owner
  uid=$(kubectl -n owned get "etcdclusters.$GROUP/main" -o 'jsonpath={.metadata.uid}')
  kubectl -n owned patch statefulset etcd --type=merge -p '{"metadata": {"ownerReferences": [{"apiVersion": "'"$GROUP"'/v1alpha1",
    "kind": "EtcdCluster", "name": "main", "uid": "'"$uid"'", "controller": true}]}, "spec": {"updateStrategy": {"type": "OnDelete",
    "rollingUpdate": null}}}' >/dev/null
}
create_owner() {
  kubectl apply -f - >/dev/null 2>&1 <<<'{"apiVersion": "'"$GROUP"'/v1alpha1", "kind": "EtcdCluster", "metadata": {"name": "main", "namespace": "owned"}}'
}

# prove CLUSTER: runs all commands.
prove() {
  local cluster=$1 paused=() pod before after generation
  [[ $1 != owned ]] || paused=(--paused)
  wait_until "three members of $1 serve" serves "$1"
  if [[ $1 == secure ]]; then kubectl etcd-guard inspect -n secure statefulset/etcd --role | kubectl apply -f - >/dev/null; fi
  ctl "$1" etcd-0 put kept before >/dev/null
  mkdir -p "$FOLDER/$1"
  wait_until "the guard sees $1" sees "$1"

  killed_at_each_step "$1-backup" kubectl etcd-guard backup -n "$1" statefulset/etcd "$FOLDER/$1"
  ctl "$1" etcd-0 put kept after >/dev/null

  pod=$(follower "$1")
  before=$(id "$1" "$pod")
  killed_at_each_step "$1-replace" kubectl etcd-guard replace -n "$1" "$pod" "${paused[@]}"
  assert_value "$1" after
  [[ -n $before && $(id "$1" "$pod") != "$before" ]] || fail "the member of $1/$pod was not replaced"

  before=$(uids "$1")
  generation=$(generation "$1")
  killed_at_each_step "$1-restart" kubectl etcd-guard restart -n "$1" statefulset/etcd
  assert_value "$1" after
  after=$(uids "$1")
  [[ $(wc -l <<<"$after") -eq 3 && -z $(comm -12 <(printf '%s\n' "$before") <(printf '%s\n' "$after")) ]] || fail "a pod of $1 was not restarted"
  # Only evictions: an operator would reverse a change of its StatefulSet.
  [[ $1 != owned || $(generation "$1") == "$generation" ]] || fail "the StatefulSet of $1 was changed"

  fragment "$1"
  killed_at_each_step "$1-defrag" kubectl etcd-guard defrag -n "$1" statefulset/etcd
  assert_value "$1" after
  assert_small "$1"

  killed_at_each_step "$1-restore" kubectl etcd-guard restore -n "$1" statefulset/etcd "$FOLDER/$1" --despite-quorum --confirm "$1/etcd" "${paused[@]}"
  assert_value "$1" before
  log "$cluster: done after $SECONDS s"
}

# fragment CLUSTER: leaves some mebibytes of free pages in each database. The pages are free with the writes after the compaction.
fragment() {
  local number status
  for number in {1..8}; do
    head -c 750000 /dev/urandom | base64 -w 0 | INPUT=yes ctl "$1" etcd-0 put filler >/dev/null
  done
  status=$(ctl "$1" etcd-0 endpoint status -w json)
  [[ $status =~ \"revision\":([0-9]+) ]]
  ctl "$1" etcd-0 compact --physical "${BASH_REMATCH[1]}" >/dev/null
  for number in {1..5}; do ctl "$1" etcd-0 del "none/$number" >/dev/null; done
}

# bytes CLUSTER POD: prints the size of the member's file.
bytes() {
  local status
  status=$(ctl "$1" "$2" endpoint status -w json)
  [[ $status =~ \"dbSize\":([0-9]+) ]] && printf '%s' "${BASH_REMATCH[1]}"
}

# assert_small CLUSTER: no member has the free pages of `fragment` any more.
assert_small() {
  local pod
  for pod in etcd-0 etcd-1 etcd-2; do
    (($(bytes "$1" "$pod") < 4000000)) || fail "$1/$pod still has $(bytes "$1" "$pod") bytes"
  done
}

generation() { kubectl -n "$1" get statefulset etcd -o 'jsonpath={.metadata.generation}'; }

# sees CLUSTER: whether the guard reaches all members.
sees() { kubectl etcd-guard status -n "$1" 2>/dev/null | grep '3 voters, 3 healthy' >/dev/null; }

kubectl apply -k "$PROJECT/deploy/overlays/self-managed" >/dev/null
for cluster in "${CLUSTERS[@]}"; do start "$cluster"; done
kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="${READY_TIMEOUT}s" >/dev/null || fail 'the guard is not ready'
proofs=()
for cluster in "${CLUSTERS[@]}"; do
  prove "$cluster" &
  proofs+=("$!")
done
for proof in "${proofs[@]}"; do
  wait "$proof" || fail "a cluster failed: $(kubectl get pods -A -o wide; kubectl -n etcd-guard logs -l app.kubernetes.io/name=etcd-guard --tail=20)"
done
for cluster in "${CLUSTERS[@]}"; do fragment "$cluster"; done
kubectl etcd-guard defrag -A >&2 || fail 'defrag -A failed'
for cluster in "${CLUSTERS[@]}"; do assert_small "$cluster"; done
log "defrag -A: done after $SECONDS s"
