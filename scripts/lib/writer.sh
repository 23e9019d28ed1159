# A client that writes to all members of etcd while a script continues, on a node of scripts/testbed.
# shellcheck shell=bash source-path=SCRIPTDIR

# writer_services NAMESPACE POD...: prints a Service with an address of its own for each pod. The writer runs outside the
# pods, where their names cannot be resolved, and a pod has another address when it is replaced.
writer_services() {
  local pod
  for pod in "${@:2}"; do
    cat <<SERVICE
---
apiVersion: v1
kind: Service
metadata: {name: $pod-client, namespace: $1}
spec:
  selector: {statefulset.kubernetes.io/pod-name: $pod}
  ports: [{port: 2379}]
SERVICE
  done
}

# start_writer PROGRAM NAMESPACE POD...: starts a write every 5 ms, at the Services of these pods in turn.
start_writer() {
  local program=$1 namespace=$2 pod address urls=()
  shift 2
  for pod in "$@"; do
    address=$(kubectl -n "$namespace" get service "$pod-client" -o 'jsonpath={.spec.clusterIP}')
    urls+=("http://$address:2379")
  done
  coproc WRITER { exec "$program" "${urls[@]}"; }
}

# take_writes: prints the results of the writes since the previous call.
take_writes() {
  local line
  printf '\n' >&"${WRITER[1]}"
  read -r -t 10 line <&"${WRITER[0]}" || fail 'the writer does not answer'
  printf '%s' "$line"
}

# stop_writer: ends the client.
stop_writer() {
  local input=${WRITER[1]} process=$WRITER_PID
  exec {input}>&-
  wait "$process" || true
}
