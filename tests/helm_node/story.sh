#!/usr/bin/env bash
# Uninstalls a release with a running etcd cluster, while a client writes through its Services. At the same time, reads a status
# that takes long through a port-forward. CMD of `scripts/testbed node`: story.sh REPORT. Writes lines `NAME<tab>VALUE`, which tests/helm_node/main.rs asserts.
set -euo pipefail

REPORT=$1
PROJECT=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/../..")
LOG_PREFIX=helm-node
# shellcheck source=scripts/lib/log.sh
source "$PROJECT/scripts/lib/log.sh"

# Each wait takes seconds on an idle machine. The timeout only ends a failed run.
READY_TIMEOUT=240
# The number of writes through each Service before and after an uninstallation: several seconds. kube-proxy and CoreDNS learn
# of the deletion of a Service by watches.
WRITES=60

# report NAME VALUE: writes one line of the report.
report() { printf '%s\t%s\n' "$1" "${2//[$'\t\n']/ }" >>"$REPORT"; }

# wait_until SUBJECT COMMAND...: retries until the command succeeds.
wait_until() {
  local subject=$1 deadline=$((SECONDS + READY_TIMEOUT))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || fail "not within $READY_TIMEOUT s: $subject: $(kubectl get pods -A -o wide)"
    sleep 0.5
  done
}

# write_chart DIR: a chart of the example with a second Service, which has an address of its own.
write_chart() {
  mkdir -p "$1/templates"
  printf 'apiVersion: v2\nname: etcd\nversion: 1.0.0\n' >"$1/Chart.yaml"
  cp "$PROJECT/etcd-manifests/plain.yaml" "$1/templates/etcd.yaml"
  cat >"$1/templates/client.yaml" <<'SERVICE'
apiVersion: v1
kind: Service
metadata: {name: etcd-client}
spec:
  selector: {app: etcd}
  ports: [{port: 2379}]
SERVICE
}

# start_client: a pod that writes through both Services. Each write is a process of its own, so that it resolves the name of
# the Service and connects again. The name of the headless Service leads to the pods, the other one to kube-proxy's rules.
start_client() {
  kubectl create namespace client >/dev/null
  kubectl -n client apply -f - >/dev/null <<'POD'
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
  - name: writer
    image: localhost/etcd-client:1
    imagePullPolicy: Never
    command:
    - /bin/sh
    - -c
    - |
      n=0
      while :; do
        n=$((n + 1))
        for service in etcd etcd-client; do
          if out=$(/bin/etcdctl --endpoints="http://$service.prod.svc:2379" --command-timeout=5s put "$service" "$n" 2>&1); then
            echo "ok $service $n"
          else
            echo "failed $service $n: $out"
          fi
        done
        /bin/sleep 0.1
      done
POD
}

# slow_status: reads the status from a pod in the place of the guard. Its response is complete after 35 s, and has a space every
# 5 s until then. Reports the exit status and the output.
slow_status() {
  local status=0 output
  kubectl create namespace slow >/dev/null
  wait_until 'the namespace has a service account' kubectl -n slow get serviceaccount default >/dev/null
  kubectl -n slow apply -f - >/dev/null <<'POD'
apiVersion: v1
kind: Pod
metadata: {name: slow, labels: {app: slow}}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
  - name: slow
    image: localhost/etcd-client:1
    imagePullPolicy: Never
    command:
    - /bin/nc
    - -ll
    - -p
    - "8080"
    - -e
    - /bin/sh
    - -c
    - |
      while read -r line && [ ${#line} -gt 1 ]; do :; done
      printf 'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n'
      spaces=0
      while [ $spaces -lt 9 ]; do
        /bin/sleep 5
        printf '1\r\n \r\n'
        spaces=$((spaces + 1))
      done
      text='{"clusters":[],"problems":["a late problem"],"warnings":[],"gaps":[]}'
      printf '%x\r\n%s\r\n0\r\n\r\n' ${#text} "$text"
POD
  kubectl -n slow wait --for=condition=Ready pod/slow --timeout="${READY_TIMEOUT}s" >/dev/null
  output=$(timeout 120 "$PLUGIN" status -A --kubeconfig "$KUBECONFIG" --guard-namespace slow --guard-selector app=slow 2>&1) || status=$?
  report slow-status "$status $output"
}

# lines PATTERN: prints the lines of the client since its first successful write, or since the line number in MARK.
MARK=1
lines() { kubectl -n client logs writer 2>/dev/null | sed -n '/^ok etcd-client /,$p' | tail -n "+$MARK" | grep "$1" || true; }
count() { lines "$1" | wc -l; }
has_written() { (($(count "^ok $1 ") >= WRITES)); }
has_tried() { (($(count ' etcd-client ') >= WRITES)); }
has_failed() { (($(count '^failed etcd ') > 0 && $(count '^failed etcd-client ') > 0)); }

# uninstall NAME SUBJECT COMMAND: uninstalls the release, and reports the result and the writes until the command succeeds.
uninstall() {
  local status=0 output
  MARK=$(($(count .) + MARK))
  output=$(timeout 120 "$HELM" uninstall etcd -n prod --kubeconfig "$KUBECONFIG" --debug 2>&1) || status=$?
  report "$1-status" "$status"
  report "$1-output" "$output"
  wait_until "$2" "$3"
  report "$1-tried" "$(count ' etcd ') $(count ' etcd-client ')"
  report "$1-failed" "$(count '^failed etcd ') $(count '^failed etcd-client ')"
  report "$1-first-failure" "$(lines '^failed ' | head -n 1)"
  report "$1-objects" "$(kubectl -n prod get services,statefulsets,pods -o name | sort | tr '\n' ' ')"
}

slow_status &
SLOW_STATUS=$!
kubectl create namespace prod >/dev/null
kubectl label namespace prod etcd-guard.io/guard=enabled >/dev/null
chart=$TESTBED_DIR/etcd-chart
write_chart "$chart"
"$HELM" install etcd "$chart" -n prod --kubeconfig "$KUBECONFIG" >/dev/null
kubectl apply -k "$PROJECT/deploy/overlays/self-managed" >/dev/null
start_client
kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="${READY_TIMEOUT}s" >/dev/null || fail 'the guard is not ready'
kubectl -n prod rollout status statefulset/etcd --timeout="${READY_TIMEOUT}s" >/dev/null || fail 'etcd is not ready'
wait_until 'the client writes through the headless Service' has_written etcd
wait_until 'the client writes through the other Service' has_written etcd-client
MARK=$(($(count .) + MARK))
wait_until 'the client writes without a failure' has_written etcd-client
report before-failed "$(count '^failed ')"
log "the client writes after $SECONDS s"

uninstall guarded "the client has tried $WRITES writes through each Service" has_tried
log "refused after $SECONDS s"

# The same without the entry for objects that members use: this is the outage that the entry prevents.
index=$(kubectl get validatingwebhookconfiguration etcd-guard -o 'jsonpath={.webhooks[*].name}' | tr ' ' '\n' |
  grep -n '^resources\.guard\.etcd-guard\.io$' | cut -d: -f1)
kubectl patch validatingwebhookconfiguration etcd-guard --type=json \
  -p "[{\"op\":\"remove\",\"path\":\"/webhooks/$((index - 1))\"}]" >/dev/null
is_unguarded() { kubectl -n prod delete service etcd-client --dry-run=server >/dev/null 2>&1; }
wait_until 'the API server no longer calls the entry' is_unguarded
uninstall unguarded 'a write fails through each Service' has_failed
wait "$SLOW_STATUS" || fail 'the slow status was not read'
report end reached
