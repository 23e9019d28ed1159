#!/usr/bin/env bash
# Installs the shipped artifacts on a real node. CMD of `scripts/testbed node`: story.sh PART REPORT, with the variables of `run` or, for
# the release, of scripts/release. PART is
#   installing    manifests, chart and scripts/minikube; upgrade, drain, killed replicas, uninstallation
#   cert-manager  certificates of cert-manager, and every example of etcd-manifests/
#   stranger      a chart and an image in a registry: first denial, doctor, alert, uninstallation
#   release       two rehearsed releases in a registry: their files, first denial, upgrade, uninstallation
# Writes lines `NAME<tab>VALUE`; which tests/shipping_node/main.rs asserts.
set -euo pipefail

PART=$1 REPORT=$2
PROJECT=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
# shellcheck source=tests/shipping_node/calls.sh
source "$PROJECT/tests/shipping_node/calls.sh"
# shellcheck source=tests/shipping_node/examples.sh
source "$PROJECT/tests/shipping_node/examples.sh"
# shellcheck source=tests/shipping_node/cert_manager.sh
source "$PROJECT/tests/shipping_node/cert_manager.sh"
# shellcheck source=tests/shipping_node/registry.sh
source "$PROJECT/tests/shipping_node/registry.sh"
# shellcheck source=tests/shipping_node/release.sh
source "$PROJECT/tests/shipping_node/release.sh"
# shellcheck source=tests/shipping_node/stranger.sh
source "$PROJECT/tests/shipping_node/stranger.sh"
# shellcheck source=scripts/lib/wait.sh
source "$PROJECT/scripts/lib/wait.sh"

# Each wait takes seconds on an idle machine. The timeout only ends a failed run.
READY_TIMEOUT=300
NEXT=0.1.0-next

log() { printf 'shipping-node, %s: %s\n' "$PART" "$1" >&2; }
# report NAME VALUE: writes one line of the report.
report() { printf '%s\t%s\n' "$1" "${2//[$'\t\n']/ }" >>"$REPORT"; }
fail() { log "$1"; exit 1; }

# rolled_out NAMESPACE WORKLOAD
rolled_out() {
  kubectl -n "$1" rollout status "$2" --timeout="${READY_TIMEOUT}s" >/dev/null || fail "$(kubectl -n "$1" get pods -o wide)"
}

# output_of COMMAND...: prints the output, with any exit status.
output_of() { timeout 60 "$@" 2>&1 || true; }

# leader_of NAMESPACE SET COUNT [WORD...]: prints the pod whose member is the leader; WORD... are arguments of etcdctl.
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

# leader_denial NAMESPACE SET COUNT [WORD...]: prints the denial of a deletion of the current leader; fails without one.
leader_denial() {
  local leader response
  leader=$(leader_of "$@") || return 1
  response=$(output_of kubectl -n "$1" delete pod "$leader" --dry-run=server)
  [[ $response == *'denied the request: LeaderProtected: '* ]] || return 1
  printf '%s' "$response"
}

# delete_webhook_configurations: as docs/uninstall.md.
delete_webhook_configurations() {
  kubectl delete validatingwebhookconfigurations,mutatingwebhookconfigurations -l app.kubernetes.io/name=etcd-guard >/dev/null
}

# manifests TAG: prints the overlay with this tag of the image.
manifests() { kubectl kustomize "$PROJECT/deploy/overlays/self-managed" | sed "s#image: etcd-guard:.*#image: etcd-guard:$1#"; }
CHART=(etcd-guard "$PROJECT/deploy/chart/etcd-guard" --namespace etcd-guard --kubeconfig "$KUBECONFIG")

install_by_manifests() { manifests 0.1.0 | kubectl apply -f - >/dev/null; }
upgrade_by_manifests() { manifests "$NEXT" | kubectl apply -f - >/dev/null; }
uninstall_by_manifests() {
  delete_webhook_configurations
  manifests "$NEXT" | kubectl delete --ignore-not-found --timeout="${READY_TIMEOUT}s" -f - >/dev/null
}
install_by_chart() { "$HELM" install "${CHART[@]}" --create-namespace >/dev/null; }
upgrade_by_chart() { "$HELM" upgrade "${CHART[@]}" --reuse-values --set "image.tag=$NEXT" >/dev/null; }
uninstall_by_chart() {
  # The hook deletes the webhook configurations first.
  "$HELM" uninstall etcd-guard --namespace etcd-guard --kubeconfig "$KUBECONFIG" --wait >/dev/null
  kubectl delete namespace etcd-guard --timeout="${READY_TIMEOUT}s" >/dev/null
}

# left_behind: prints the remaining objects of all kinds that an installation can create.
left_behind() {
  local all optional kinds=namespaces,clusterroles,clusterrolebindings,validatingwebhookconfigurations,mutatingwebhookconfigurations
  kinds+=,validatingadmissionpolicies,validatingadmissionpolicybindings
  kinds+=,roles,rolebindings,serviceaccounts,secrets,configmaps,services,deployments,poddisruptionbudgets,networkpolicies
  kinds+=,leases,pods,resourcequotas,persistentvolumeclaims,replicasets,daemonsets,jobs,endpointslices
  # Kinds that an API server serves only with custom resources, or with flags.
  optional='^(mutatingadmissionpolicies|mutatingadmissionpolicybindings|podmonitors|servicemonitors|prometheusrules)[.]'
  kinds+=$(kubectl api-resources --no-headers -o name | grep -E "$optional" | sed 's/^/,/' | tr -d '\n' || true)
  # An error is printed as well, because objects that cannot be listed can still exist.
  all=$(kubectl get "$kinds" -A -o 'jsonpath={range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{"\n"}{end}' 2>&1) ||
    printf 'not listed: %s' "$all"
  grep etcd-guard <<<"$all" || true
}

guard_pods() { kubectl -n etcd-guard get pods -l app.kubernetes.io/name=etcd-guard -o "jsonpath={.items[*].$1}"; }
# two_are_ready: whether two pods exist, none of them terminating, and both are ready.
two_are_ready() {
  [[ $(guard_pods metadata.name | wc -w) -eq 2 ]] &&
    [[ $(kubectl -n etcd-guard get deployment etcd-guard -o 'jsonpath={.status.readyReplicas}') == 2 ]]
}
drain_waits() { grep -q 'disruption budget' "$TESTBED_DIR/drain.log"; }

# drain_story: drains the only node. The budget delays the second replica until the first has a successor.
drain_story() {
  local before drain
  before=$(guard_pods metadata.uid)
  calls_begin drain
  kubectl drain node --ignore-daemonsets --pod-selector=app.kubernetes.io/name=etcd-guard --timeout="${READY_TIMEOUT}s" \
    >"$TESTBED_DIR/drain.log" 2>&1 &
  drain=$!
  wait_until 'the budget delays the second replica' drain_waits
  report drain-output "$(grep -m 1 'disruption budget' "$TESTBED_DIR/drain.log")"
  kubectl uncordon node >/dev/null
  wait "$drain" || fail "$(cat "$TESTBED_DIR/drain.log")"
  # kubectl cordons once, at its start.
  wait_until 'two replicas are ready again' two_are_ready
  calls_end drain
  local uid
  for uid in $before; do [[ $(guard_pods metadata.uid) != *"$uid"* ]] || fail "pod $uid is still there after the drain"; done
}

# processes PATTERN: prints the pids whose command line matches, including processes of pods.
processes() {
  local process found=()
  for process in /proc/[0-9]*; do
    # shellcheck disable=SC2053 # a pattern is intended
    [[ $(tr '\0' ' ' 2>/dev/null <"$process/cmdline") != $1 ]] || found+=("${process#/proc/}")
  done
  printf '%s' "${found[*]}"
}

# kill_story: kills both replicas at once while the kubelet is stopped, and requests deletions before the restart.
kill_story() {
  local kubelet leader denial pids=()
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
metadata: {name: terminating, finalizers: [etcd-guard.io/test]}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: pause, image: "localhost/etcd-guard-testbed/pause:1", imagePullPolicy: Never}]
PODS
  kubectl -n prod wait --for=jsonpath='{.status.phase}'=Succeeded pod/finished --timeout="${READY_TIMEOUT}s" >/dev/null
  kubectl -n prod delete pod terminating --wait=false >/dev/null
  kubelet=$(processes '*/kubelet*--config=*')
  kill -STOP "$kubelet"
  read -ra pids <<<"$(processes '/usr/local/bin/etcd-guard serve*')"
  report killed "${#pids[@]}"
  kill -KILL "${pids[@]}"
  report dead-living "$(output_of kubectl -n prod delete pod "$leader" --wait=false)"
  report dead-evict "$(output_of kubectl create --raw "/api/v1/namespaces/prod/pods/$leader/eviction" -f - \
    <<<"{\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"$leader\",\"namespace\":\"prod\"}}")"
  report dead-finished "$(output_of kubectl -n prod delete pod finished --wait=false)"
  report dead-terminating "$(output_of kubectl -n prod delete pod terminating --wait=false)"
  kill -CONT "$kubelet"
  kubectl -n prod patch pod terminating --type=merge -p '{"metadata":{"finalizers":null}}' >/dev/null
  denial=$(wait_until 'the killed replicas have restarted' leader_denial prod etcd 3)
  report back "$denial"
  wait_until 'both are ready' two_are_ready
  report restarts "$(guard_pods 'status.containerStatuses[0].restartCount')"
}

# plugin_story NAME: queries the guard with the kubectl plugin, through the API server and the kubelet.
plugin_story() {
  local leader path=$TESTBED_DIR/plugin
  mkdir -p -- "$path"
  ln -sf -- "$PLUGIN" "$path/kubectl-etcd_guard"
  leader=$(leader_of prod etcd 3)
  report "$1-check" "$(PATH=$path:$PATH output_of kubectl etcd-guard check "$leader" -n prod)"
  report "$1-status" "$(PATH=$path:$PATH output_of kubectl etcd-guard status -n prod)"
}

# test_method NAME: installs, asserts a denial, runs the specific steps, uninstalls.
test_method() {
  local denial
  log "$1: install"
  "install_by_$1"
  rolled_out etcd-guard deployment/etcd-guard
  report "$1-image" "$(guard_pods 'spec.containers[0].image')"
  denial=$(wait_until 'the leader is protected' leader_denial prod etcd 3)
  report "$1-denied" "$denial"

  "story_of_$1"

  log "$1: uninstall"
  "uninstall_by_$1"
  report "$1-left" "$(left_behind)"
}

# upgrade_story METHOD
upgrade_story() {
  local denial
  plugin_story "$1"
  log "$1: upgrade under load"
  calls_begin "$1-upgrade"
  "upgrade_by_$1"
  rolled_out etcd-guard deployment/etcd-guard
  wait_until 'two replicas are ready' two_are_ready
  calls_end "$1-upgrade"
  report "$1-image-after" "$(guard_pods 'spec.containers[0].image')"
  denial=$(wait_until 'the leader is protected' leader_denial prod etcd 3)
  report "$1-denied-after" "$denial"
}

story_of_manifests() {
  upgrade_story manifests
  log 'drain the node of the guard, under load'
  drain_story
  log 'kill both replicas'
  kill_story
}

story_of_chart() {
  upgrade_story chart
  log 'chart: conformance'
  conformance_story
}

# conformance_story: runs the conformance suite.
conformance_story() {
  local status=0
  timeout 900 "$PLUGIN" conformance --kubeconfig "$KUBECONFIG" --yes -o json </dev/null >"$TESTBED_DIR/conformance.json" \
    2>"$TESTBED_DIR/conformance.log" || status=$?
  report conformance-status "$status $(tail -n 1 "$TESTBED_DIR/conformance.log")"
  report conformance "$(<"$TESTBED_DIR/conformance.json")"
  report conformance-left "$(kubectl get namespaces -l app.kubernetes.io/managed-by=etcd-guard-conformance -o name)"
}

story_of_cert_manager() {
  log 'new certificates, under load'
  renewal
  examples
}

# minikube_story: runs the script on a cluster with preloaded images.
minikube_story() {
  local denial script=$PROJECT/scripts/minikube
  "$script" --no-load >"$TESTBED_DIR/minikube.log" 2>&1 || fail "$(cat "$TESTBED_DIR/minikube.log")"
  report minikube-story "$(tail -n 1 "$TESTBED_DIR/minikube.log")"
  denial=$(wait_until 'the leader is protected' leader_denial prod etcd 3)
  report minikube-denied "$denial"
  "$script" --remove >"$TESTBED_DIR/minikube.log" 2>&1 || fail "$(cat "$TESTBED_DIR/minikube.log")"
  report minikube-left "$(left_behind)$(kubectl get namespace prod --ignore-not-found -o name)"
}

kubectl create namespace prod >/dev/null
kubectl label namespace prod etcd-guard.io/guard=enabled >/dev/null
kubectl -n prod apply -f "$PROJECT/etcd-manifests/plain.yaml" >/dev/null
rolled_out prod statefulset/etcd

case $PART in
installing)
  test_method manifests
  test_method chart
  ;;
cert-manager)
  test_cert_manager
  ;;
stranger) stranger_story ;;
release) release_story ;;
*) fail "unknown part: $PART" ;;
esac

log 'a namespace whose guard is gone'
kubectl delete namespace prod --timeout="${READY_TIMEOUT}s" >/dev/null || true
report "$PART-namespace-after" "$(kubectl get namespace prod --ignore-not-found -o name)"

if [[ $PART == installing ]]; then
  log 'scripts/minikube'
  minikube_story
fi
report "$PART-end" reached
