#!/usr/bin/env bash
# The demo on loopback: registers the guard by URL, runs the pods of etcd as processes, then runs the scenario. CMD of
# `testbed control-plane`.
# shellcheck source-path=SCRIPTDIR/..
set -euo pipefail

LOG_PREFIX=demo
LIB=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/..")
source "$LIB/log.sh"
source "$LIB/demo/steps.sh"
source "$LIB/demo/detach.sh"
source "$LIB/demo/metrics.sh"
source "$LIB/demo/scenario.sh"
STEPS_DIR=$TESTBED_DIR/steps
mkdir -p "$STEPS_DIR"

ETCD_READY_TIMEOUT=180s
GUARD_READY_TIMEOUT=60
GUARD_ADDRESS=$TESTBED_NET.1

# member_command POD WORD...: prints a command word by word. Without a kubelet no command can run in a pod, so etcdctl
# runs here and connects to the member of that pod.
member_command() {
  local address
  address=$(kubectl -n prod get pod "$1" -o 'jsonpath={.status.podIP}')
  printf '%s\n' "$2" "--endpoints=http://$address:2379" "${@:3}"
}

# background NAME COMMAND...: a process that dies with this shell, which the testbed ends.
background() {
  local name=$1
  shift
  # The parent is compared because it may have died before PDEATHSIG was set.
  # shellcheck disable=SC2016
  setsid setpriv --pdeathsig KILL -- sh -c '[ "$PPID" = "$0" ] || exit 1; exec "$@"' $$ "$@" \
    </dev/null >"$TESTBED_DIR/$name.log" 2>&1 &
}

# guard_kubeconfig: writes a kubeconfig of the guard's service account, which has exactly the permissions of
# deploy/base.
guard_kubeconfig() {
  local token
  token=$(kubectl -n etcd-guard create token etcd-guard --duration=24h)
  cp -- "$KUBECONFIG" "$TESTBED_DIR/guard.kubeconfig"
  KUBECONFIG=$TESTBED_DIR/guard.kubeconfig kubectl config set-credentials etcd-guard --token="$token" >/dev/null
  KUBECONFIG=$TESTBED_DIR/guard.kubeconfig kubectl config set-context --current --user=etcd-guard >/dev/null
}

start_guard() {
  local deadline=$((SECONDS + GUARD_READY_TIMEOUT)) pid
  guard_kubeconfig
  background etcd-guard "$GUARD" serve --namespace etcd-guard --listen "$GUARD_ADDRESS:8443" --admin-listen "$GUARD_ADDRESS:8080" \
    --tls-cert "$TESTBED_DIR/guard/tls.crt" --tls-key "$TESTBED_DIR/guard/tls.key" --kubeconfig "$TESTBED_DIR/guard.kubeconfig" \
    --survey-interval 5s --cluster-metrics
  pid=$!
  until guard_is_ready; do
    if ((SECONDS >= deadline)) || ! kill -0 "$pid" 2>/dev/null; then
      log_tail "$TESTBED_DIR/etcd-guard.log"
      fail "the guard has not become ready within $GUARD_READY_TIMEOUT s"
    fi
    sleep 0.2
  done
}

# get_from_guard PATH: prints the response of the guard's admin port, including the headers.
get_from_guard() {
  { exec 3<>"/dev/tcp/$GUARD_ADDRESS/8080"; } 2>/dev/null || return 1
  printf 'GET %s HTTP/1.1\r\nHost: guard\r\nConnection: close\r\n\r\n' "$1" >&3
  timeout 5 cat <&3 || true
  exec 3>&-
}

guard_is_ready() { [[ $(get_from_guard /readyz) == 'HTTP/1.1 200 '* ]]; }

guard_replicas() { printf 'etcd-guard'; }
guard_metrics() { get_from_guard /metrics | sed '1,/^\r$/d'; }

ln -sf -- "$ETCDCTL" "$TESTBED_DIR/bin/etcdctl"

heading 'Deploy the guard and a three-member etcd'
printf '%s\n' 'There is no kubelet: the guard and the members are processes, and etcdctl runs outside the pods.'
setup kubectl apply -k "$PROJECT/deploy/base"
# The guard is a process: the Deployment has no replicas, and the webhooks have a URL instead of the Service.
setup kubectl -n etcd-guard scale deployment/etcd-guard --replicas=0
client="{\"url\":\"https://$GUARD_ADDRESS:8443/validate\"}"
patch=''
for entry in 0 1 2; do
  patch+="${patch:+,}{\"op\":\"replace\",\"path\":\"/webhooks/$entry/clientConfig\",\"value\":$client}"
done
setup kubectl patch validatingwebhookconfiguration/etcd-guard --type=json -p "[$patch]"
setup "$SCRIPTS/certs" --apply --name "$GUARD_ADDRESS" "$TESTBED_DIR/guard"
start_guard
background process-node "$PROCESS_NODE" --kubeconfig "$KUBECONFIG" --node-kubeconfig "$TESTBED_DIR/process-node.kubeconfig" \
  --node process-node --network "$TESTBED_NET" --dir "$TESTBED_DIR/process-node" --program "etcd=$ETCD"
setup kubectl create namespace prod
setup kubectl label namespace prod etcd-guard.io/guard=enabled
setup kubectl -n prod apply -f "$PROJECT/etcd-manifests/plain.yaml"
if ! show "$STEPS_DIR/rollout" kubectl -n prod rollout status statefulset/etcd --timeout="$ETCD_READY_TIMEOUT"; then
  log_tail "$TESTBED_DIR/process-node.log"
  fail 'etcd has not become ready'
fi
setup kubectl get pods -A -o wide

cat >"$TESTBED_DIR/enter" <<ENTER
#!/bin/sh
# Runs a command, or a shell, with kubectl and etcdctl for this control plane.
[ \$# -gt 0 ] || set -- bash
KUBECONFIG=$(printf %q "$KUBECONFIG") PATH=$(printf %q "$PATH") exec "\$@"
ENTER
chmod +x "$TESTBED_DIR/enter"
status=0
run_scenario || status=$?
[[ $status -ne 0 ]] || save_metrics
end_demo "$status" "$TESTBED_DIR/enter"
