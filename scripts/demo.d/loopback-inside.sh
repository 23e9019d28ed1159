#!/usr/bin/env bash
# The demo on loopback: registers the guard by URL, runs etcd's pods as processes, then tells the story. CMD of
# `testbed control-plane`.
# shellcheck source-path=SCRIPTDIR/..
set -euo pipefail

SPEAKER=demo
source "$SCRIPTS/testbed.d/say.sh"
source "$SCRIPTS/demo.d/show.sh"
source "$SCRIPTS/demo.d/keep.sh"
source "$SCRIPTS/demo.d/metrics.sh"
source "$SCRIPTS/demo.d/story.sh"

ETCD_READY_LIMIT=180s
GUARD_READY_LIMIT=60
GUARD_ADDRESS=$TESTBED_NET.1

# in_member POD WORD...: sets IN_MEMBER. Nothing can be executed in a pod without a kubelet, so etcdctl runs here and
# calls that pod's member.
in_member() {
  local address
  address=$(kubectl -n prod get pod "$1" -o 'jsonpath={.status.podIP}')
  # shellcheck disable=SC2034 # story.sh reads it
  IN_MEMBER=("$2" "--endpoints=http://$address:2379" "${@:3}")
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

# guard_kubeconfig: the guard's own service account, so that it can do here what deploy/base lets it do and no more.
guard_kubeconfig() {
  local token
  token=$(kubectl -n etcd-guard create token etcd-guard --duration=24h)
  cp -- "$KUBECONFIG" "$TESTBED_DIR/guard.kubeconfig"
  KUBECONFIG=$TESTBED_DIR/guard.kubeconfig kubectl config set-credentials etcd-guard --token="$token" >/dev/null
  KUBECONFIG=$TESTBED_DIR/guard.kubeconfig kubectl config set-context --current --user=etcd-guard >/dev/null
}

start_guard() {
  local deadline=$((SECONDS + GUARD_READY_LIMIT)) pid
  guard_kubeconfig
  background etcd-guard "$GUARD" serve --namespace etcd-guard --listen "$GUARD_ADDRESS:8443" --admin-listen "$GUARD_ADDRESS:8080" \
    --tls-cert "$TESTBED_DIR/guard/tls.crt" --tls-key "$TESTBED_DIR/guard/tls.key" --kubeconfig "$TESTBED_DIR/guard.kubeconfig" \
    --survey-interval 5s
  pid=$!
  until guard_is_ready; do
    if ((SECONDS >= deadline)) || ! kill -0 "$pid" 2>/dev/null; then
      show_tail "$TESTBED_DIR/etcd-guard.log"
      die "the guard is not ready within $GUARD_READY_LIMIT s"
    fi
    sleep 0.2
  done
}

# guard_says PATH: what the guard's second port answers to a GET, with the answer's head.
guard_says() {
  { exec 3<>"/dev/tcp/$GUARD_ADDRESS/8080"; } 2>/dev/null || return 1
  printf 'GET %s HTTP/1.1\r\nHost: guard\r\nConnection: close\r\n\r\n' "$1" >&3
  timeout 5 cat <&3 || true
  exec 3>&-
}

guard_is_ready() { [[ $(guard_says /readyz) == 'HTTP/1.1 200 '* ]]; }

guard_replicas() { printf 'etcd-guard'; }
guard_metrics() { guard_says /metrics | sed '1,/^\r$/d'; }

ln -sf -- "$ETCDCTL" "$TESTBED_DIR/bin/etcdctl"

heading 'Deploy the guard and a three-member etcd'
printf '%s\n' 'No kubelet runs here: the guard and the members are processes, and etcdctl runs beside a pod, not in it.'
setup kubectl apply -k "$PROJECT/deploy/base"
# Here the guard is a process, reached by address: no Deployment, and a URL instead of the Service.
setup kubectl -n etcd-guard scale deployment/etcd-guard --replicas=0
client="{\"url\":\"https://$GUARD_ADDRESS:8443/validate\"}"
setup kubectl patch validatingwebhookconfiguration/etcd-guard --type=json \
  -p "[$(for entry in 0 1 2; do printf '%s{"op":"replace","path":"/webhooks/%d/clientConfig","value":%s}' "${comma-}" "$entry" "$client"; comma=,; done)]"
setup "$SCRIPTS/certs" --apply --name "$GUARD_ADDRESS" "$TESTBED_DIR/guard"
start_guard
background process-node "$PROCESS_NODE" --kubeconfig "$KUBECONFIG" --node-kubeconfig "$TESTBED_DIR/process-node.kubeconfig" \
  --node process-node --network "$TESTBED_NET" --dir "$TESTBED_DIR/process-node" --program "etcd=$ETCD"
setup kubectl create namespace prod
setup kubectl label namespace prod etcd-guard.io/guard=enabled
setup kubectl -n prod apply -f "$PROJECT/etcd-manifests/plain.yaml"
run kubectl -n prod rollout status statefulset/etcd --timeout="$ETCD_READY_LIMIT"
# shellcheck disable=SC2153 # run sets it
if [[ $STATUS -ne 0 ]]; then
  show_tail "$TESTBED_DIR/process-node.log"
  die 'etcd did not come up'
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
story || status=$?
[[ $status -ne 0 ]] || save_metrics
keep_running "$status" "$TESTBED_DIR/enter"
