#!/usr/bin/env bash
# What is shipped, on a real node. CMD of `scripts/testbed node`: story.sh PART REPORT, with the programs in GUARD, HELM and
# CERT_MANAGER. PART is
#   installing    from the manifests, again from the chart, and by scripts/minikube; upgraded, drained, killed, taken away
#   cert-manager  with its certificates, and every example of etcd-manifests/
# Writes lines `NAME<tab>VALUE`; tests/shipping_node.rs holds them against what they should be.
set -euo pipefail

PART=$1 REPORT=$2
PROJECT=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/shipping_node/calls.sh
source "$PROJECT/tests/shipping_node/calls.sh"
# shellcheck source=tests/shipping_node/examples.sh
source "$PROJECT/tests/shipping_node/examples.sh"
# shellcheck source=tests/shipping_node/cert_manager.sh
source "$PROJECT/tests/shipping_node/cert_manager.sh"

# Each takes seconds on an idle machine. None of them is a promise: what is promised is what happens, not how soon.
READY_LIMIT=300
NEXT=0.1.0-next

say() { printf 'shipping-node, %s: %s\n' "$PART" "$1" >&2; }
# tell NAME VALUE: one line of the report.
tell() { printf '%s\t%s\n' "$1" "${2//[$'\t\n']/ }" >>"$REPORT"; }
die() { say "$1"; exit 1; }

# until_true WHAT COMMAND...: tries until it succeeds.
until_true() {
  local what=$1 deadline=$((SECONDS + READY_LIMIT))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || die "not within $READY_LIMIT s: $what"
    sleep 0.5
  done
}

# rolled_out NAMESPACE WORKLOAD
rolled_out() {
  kubectl -n "$1" rollout status "$2" --timeout="${READY_LIMIT}s" >/dev/null || die "$(kubectl -n "$1" get pods -o wide)"
}

# answer COMMAND...: what it says, whatever its exit status.
answer() { timeout 60 "$@" 2>&1 || true; }

# leader_of NAMESPACE SET COUNT [WORD...]: the pod that leads by etcd's own account; WORD... goes to etcdctl.
leader_of() {
  local pod status member ordinal
  for ((ordinal = 0; ordinal < $3; ordinal++)); do
    pod=$2-$ordinal
    status=$(timeout 20 kubectl -n "$1" exec "$pod" -c etcd -- etcdctl "${@:4}" endpoint status -w json 2>/dev/null) || continue
    if [[ $status =~ \"member_id\":([0-9]+) ]]; then
      member=${BASH_REMATCH[1]}
      if [[ $status =~ \"leader\":${member}[,\}] ]]; then
        printf '%s' "$pod"
        return
      fi
    fi
  done
  return 1
}

# denies_leader NAMESPACE SET COUNT [WORD...]: whether the guard protects who leads now; sets DENIAL.
denies_leader() {
  local leader
  leader=$(leader_of "$@") || return 1
  DENIAL=$(answer kubectl -n "$1" delete pod "$leader" --dry-run=server)
  [[ $DENIAL == *'denied the request'*'[LeaderProtected]'* ]]
}

# manifests TAG: the overlay with another tag of the same image.
manifests() { kubectl kustomize "$PROJECT/deploy/overlays/self-managed" | sed "s#image: etcd-guard:.*#image: etcd-guard:$1#"; }
CHART=(etcd-guard "$PROJECT/deploy/chart/etcd-guard" --namespace etcd-guard --kubeconfig "$KUBECONFIG")

install_by_manifests() { manifests 0.1.0 | kubectl apply -f - >/dev/null; }
upgrade_by_manifests() { manifests "$NEXT" | kubectl apply -f - >/dev/null; }
uninstall_by_manifests() {
  # As a user would, who has the program beside kubectl.
  "$GUARD" unregister --kubeconfig "$KUBECONFIG" 2>/dev/null
  manifests "$NEXT" | kubectl delete --ignore-not-found --timeout="${READY_LIMIT}s" -f - >/dev/null
}
install_by_chart() { "$HELM" install "${CHART[@]}" --create-namespace >/dev/null; }
upgrade_by_chart() { "$HELM" upgrade "${CHART[@]}" --reuse-values --set "image.tag=$NEXT" >/dev/null; }
uninstall_by_chart() {
  kubectl delete validatingwebhookconfiguration etcd-guard >/dev/null
  "$HELM" uninstall etcd-guard --namespace etcd-guard --kubeconfig "$KUBECONFIG" --wait >/dev/null
  kubectl delete namespace etcd-guard --timeout="${READY_LIMIT}s" >/dev/null
}

# left_behind: every object that is there now, of all kinds that an installation could make, and was not there before.
left_behind() {
  local all kinds=namespaces,clusterroles,clusterrolebindings,validatingwebhookconfigurations,mutatingwebhookconfigurations
  kinds+=,roles,rolebindings,serviceaccounts,secrets,configmaps,services,deployments,poddisruptionbudgets,networkpolicies
  kinds+=,leases,pods,resourcequotas,persistentvolumeclaims,replicasets,daemonsets
  # What cannot be listed is not gone.
  all=$(kubectl get "$kinds" -A -o 'jsonpath={range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{"\n"}{end}' 2>&1) ||
    printf 'not listed: %s' "$all"
  grep etcd-guard <<<"$all" || true
}

guard_pods() { kubectl -n etcd-guard get pods -l app.kubernetes.io/name=etcd-guard -o "jsonpath={.items[*].$1}"; }
# two_are_ready: and no third is left, not even an ending one.
two_are_ready() {
  [[ $(guard_pods metadata.name | wc -w) -eq 2 ]] &&
    [[ $(kubectl -n etcd-guard get deployment etcd-guard -o 'jsonpath={.status.readyReplicas}') == 2 ]]
}
drain_waits() { grep -q 'disruption budget' "$TESTBED_DIR/drain.log"; }

# drain_story: both replicas have to leave the only node. The second waits until the first has a successor.
drain_story() {
  local before drain
  before=$(guard_pods metadata.uid)
  calls_begin
  kubectl drain node --ignore-daemonsets --pod-selector=app.kubernetes.io/name=etcd-guard --timeout="${READY_LIMIT}s" \
    >"$TESTBED_DIR/drain.log" 2>&1 &
  drain=$!
  until_true 'the budget holds the second replica back' drain_waits
  tell drain-said "$(grep -m 1 'disruption budget' "$TESTBED_DIR/drain.log")"
  kubectl uncordon node >/dev/null
  wait "$drain" || die "$(cat "$TESTBED_DIR/drain.log")"
  # kubectl cordons once, at its beginning.
  until_true 'two replicas are ready again' two_are_ready
  calls_end drain
  local uid
  for uid in $before; do [[ $(guard_pods metadata.uid) != *"$uid"* ]] || die "pod $uid is still there after the drain"; done
}

# processes PATTERN: the pids whose command line is like that; the node sees those of its pods, too.
processes() {
  local process found=()
  for process in /proc/[0-9]*; do
    # shellcheck disable=SC2053 # a pattern is meant
    [[ $(tr '\0' ' ' 2>/dev/null <"$process/cmdline") != $1 ]] || found+=("${process#/proc/}")
  done
  printf '%s' "${found[*]}"
}

# kill_story: both replicas end at once, and no kubelet starts them again until it has been seen what that means.
kill_story() {
  local kubelet leader pids=()
  leader=$(leader_of prod etcd 3)
  kubectl -n prod apply -f - >/dev/null <<'PODS'
apiVersion: v1
kind: Pod
metadata: {name: finished}
spec:
  restartPolicy: Never
  containers: [{name: etcd, image: "quay.io/coreos/etcd:v3.6.16", command: [etcd, --version]}]
---
apiVersion: v1
kind: Pod
metadata: {name: going, finalizers: [etcd-guard.io/test]}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: pause, image: "localhost/etcd-guard-testbed/pause:1", imagePullPolicy: Never}]
PODS
  kubectl -n prod wait --for=jsonpath='{.status.phase}'=Succeeded pod/finished --timeout="${READY_LIMIT}s" >/dev/null
  kubectl -n prod delete pod going --wait=false >/dev/null
  kubelet=$(processes '*/kubelet*--config=*')
  kill -STOP "$kubelet"
  read -ra pids <<<"$(processes '/usr/local/bin/etcd-guard serve*')"
  tell killed "${#pids[@]}"
  kill -KILL "${pids[@]}"
  tell dead-living "$(answer kubectl -n prod delete pod "$leader" --wait=false)"
  tell dead-evict "$(answer kubectl create --raw "/api/v1/namespaces/prod/pods/$leader/eviction" -f - \
    <<<"{\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"$leader\",\"namespace\":\"prod\"}}")"
  tell dead-finished "$(answer kubectl -n prod delete pod finished --wait=false)"
  tell dead-terminating "$(answer kubectl -n prod delete pod going --wait=false)"
  kill -CONT "$kubelet"
  kubectl -n prod patch pod going --type=merge -p '{"metadata":{"finalizers":null}}' >/dev/null
  until_true 'the killed replicas are back' denies_leader prod etcd 3
  tell back "$DENIAL"
  until_true 'both are ready' two_are_ready
  tell restarts "$(guard_pods 'status.containerStatuses[0].restartCount')"
}

# plugin_story NAME: the program as a kubectl plugin asks the guard through the apiserver and the kubelet.
plugin_story() {
  local leader path=$TESTBED_DIR/plugin
  mkdir -p -- "$path"
  ln -sf -- "$GUARD" "$path/kubectl-etcd_guard"
  leader=$(leader_of prod etcd 3)
  tell "$1-check" "$(PATH=$path:$PATH answer kubectl etcd-guard check "$leader" -n prod)"
  tell "$1-status" "$(PATH=$path:$PATH answer kubectl etcd-guard status -n prod)"
}

# way NAME: install, deny, whatever else is to be seen there, uninstall.
way() {
  say "$1: install"
  "install_by_$1"
  rolled_out etcd-guard deployment/etcd-guard
  tell "$1-image" "$(guard_pods 'spec.containers[0].image')"
  until_true 'the leader is protected' denies_leader prod etcd 3
  tell "$1-denied" "$DENIAL"

  "story_of_$1"

  say "$1: uninstall"
  "uninstall_by_$1"
  tell "$1-left" "$(left_behind)"
}

# upgraded WAY
upgraded() {
  plugin_story "$1"
  say "$1: upgrade under load"
  calls_begin
  "upgrade_by_$1"
  rolled_out etcd-guard deployment/etcd-guard
  until_true 'two replicas are ready' two_are_ready
  calls_end "$1-upgrade"
  tell "$1-image-after" "$(guard_pods 'spec.containers[0].image')"
  until_true 'the leader is protected' denies_leader prod etcd 3
  tell "$1-denied-after" "$DENIAL"
}

story_of_manifests() {
  upgraded manifests
  say 'drain the node of the guard, under load'
  drain_story
  say 'kill both replicas'
  kill_story
}

story_of_chart() {
  upgraded chart
  say 'chart: conformance'
  conformance_story
}

# conformance_story: what a user asks of a test cluster, from outside of it.
conformance_story() {
  local status=0
  timeout 900 "$GUARD" conformance --kubeconfig "$KUBECONFIG" --yes -o json </dev/null >"$TESTBED_DIR/conformance.json" \
    2>"$TESTBED_DIR/conformance.log" || status=$?
  tell conformance-status "$status $(tail -n 1 "$TESTBED_DIR/conformance.log")"
  tell conformance "$(<"$TESTBED_DIR/conformance.json")"
  tell conformance-left "$(kubectl get namespaces -l app.kubernetes.io/managed-by=etcd-guard-conformance -o name)"
}

story_of_cert_manager() {
  say 'new certificates, under load'
  renewal
  examples
}

# minikube_story: what the script does on a cluster of one's own, where the images are loaded already.
minikube_story() {
  local script=$PROJECT/scripts/minikube
  "$script" --no-load >"$TESTBED_DIR/minikube.log" 2>&1 || die "$(cat "$TESTBED_DIR/minikube.log")"
  tell minikube-story "$(tail -n 1 "$TESTBED_DIR/minikube.log")"
  until_true 'the leader is protected' denies_leader prod etcd 3
  tell minikube-denied "$DENIAL"
  "$script" --remove >"$TESTBED_DIR/minikube.log" 2>&1 || die "$(cat "$TESTBED_DIR/minikube.log")"
  tell minikube-left "$(left_behind)$(kubectl get namespace prod --ignore-not-found -o name)"
}

kubectl create namespace prod >/dev/null
kubectl label namespace prod etcd-guard.io/guard=enabled >/dev/null
kubectl -n prod apply -f "$PROJECT/etcd-manifests/plain.yaml" >/dev/null
rolled_out prod statefulset/etcd

case $PART in
installing)
  way manifests
  way chart
  ;;
cert-manager)
  cert_manager_begin
  way cert_manager
  cert_manager_end
  ;;
*) die "unknown part: $PART" ;;
esac

say 'a namespace whose guard is gone'
kubectl delete namespace prod --timeout="${READY_LIMIT}s" >/dev/null || true
tell "$PART-namespace-after" "$(kubectl get namespace prod --ignore-not-found -o name)"

if [[ $PART == installing ]]; then
  say 'scripts/minikube'
  minikube_story
fi
tell "$PART-end" reached
