# The subjects of scripts/compare: how each is provided, prepared, started and registered.
# shellcheck shell=bash source-path=SCRIPTDIR/..
# measure_subject sets `folder` and `host`.
# shellcheck disable=SC2154

# Limits of waits in seconds. Kyverno and Gatekeeper need some seconds to load their policies on one core.
PREPARE_TIMEOUT=120
KUBECTL_TIMEOUT=60

# provide_subject NAME: builds its program if it has one. Otherwise records the reason and fails.
provide_subject() {
  local log=$COMPARE_DIR/provide.log
  case $1 in
  guard | policies) return ;;
  esac
  if ! (provide "$1") 2> >(tee -- "$log" >&2); then
    printf '%s: %s\n' "$1" "$(grep -m 1 -E '^compare: error|: error: ' "$log" || printf 'the build fails')" >>"$COMPARE_DIR/missing"
    return 1
  fi
}

# module_version DIRECTORY MODULE: prints the version that the go.mod of a program requires.
module_version() { sed -n "s|^\(require\)\?[[:space:]]*$2 \(v[^ ]*\).*|\2|p" "$LIB/programs/$1/go.mod" | head -n 1; }

describe_subject() {
  case $1 in
  guard) printf 'etcd-guard' ;;
  go-webhook) printf 'handler in Go' ;;
  gatekeeper) printf 'Gatekeeper %s' "$(module_version gatekeeper github.com/open-policy-agent/gatekeeper/v3)" ;;
  kyverno) printf 'Kyverno %s' "$(module_version kyverno github.com/kyverno/kyverno)" ;;
  policies) printf 'policies of the API server' ;;
  esac
}

subject_program() {
  case $1 in
  guard) printf '%s' "$GUARD" ;;
  policies) ;;
  *) program "$1" ;;
  esac
}

# apply FILE...: creates objects.
apply() {
  local file
  for file; do
    timeout "$KUBECTL_TIMEOUT" "$KUBECTL" apply --server-side -f "$file" >/dev/null || fail "cannot create the objects of $file"
  done
}

# module_directory DIRECTORY MODULE: prints the directory with the sources of a module, which have its CRDs.
module_directory() { (cd "$LIB/programs/$1" && go mod download "$2" && go list -mod=readonly -m -f '{{.Dir}}' "$2"); }

# on_server_core LOG COMMAND...: starts a subject and sets `subject_pid`. Do not call it in a subshell.
on_server_core() {
  local log=$1
  shift
  setpriv --pdeathsig KILL -- taskset -c "$SERVER_CORE" "$@" >"$log" 2>&1 &
  subject_pid=$!
}

# prepare_subject NAME: everything that must exist before the measured start. Uses `folder`.
prepare_subject() {
  local source
  case $1 in
  # It evaluates deletions in namespaces with this label.
  guard) "$KUBECTL" label namespace default etcd-guard.io/guard=enabled >/dev/null ;;
  gatekeeper)
    source=$(module_directory gatekeeper github.com/open-policy-agent/gatekeeper/v3)
    "$KUBECTL" create namespace gatekeeper-system >/dev/null
    # Gatekeeper owns its status objects by the pod that it runs in.
    "$KUBECTL" --namespace gatekeeper-system run gatekeeper --image gatekeeper >/dev/null
    apply "$source"/charts/gatekeeper/crds/
    "$KUBECTL" wait --for condition=established --timeout "${KUBECTL_TIMEOUT}s" crd --all >/dev/null
    apply "$LIB/compare/gatekeeper.yaml"
    # It creates the type of the Constraint.
    start_subject gatekeeper
    wait_until "$subject_pid" "$PREPARE_TIMEOUT" 'Gatekeeper has not created the type of the Constraint' "$folder/log" \
      "$KUBECTL" get crd compare.constraints.gatekeeper.sh
    "$KUBECTL" wait --for condition=established --timeout "${KUBECTL_TIMEOUT}s" crd compare.constraints.gatekeeper.sh >/dev/null
    apply "$LIB/compare/gatekeeper-constraint.yaml"
    stop "$subject_pid"
    ;;
  kyverno)
    source=$(module_directory kyverno github.com/kyverno/kyverno)
    "$KUBECTL" create namespace kyverno >/dev/null
    "$KUBECTL" --namespace kyverno create configmap kyverno >/dev/null
    "$KUBECTL" --namespace kyverno create configmap kyverno-metrics >/dev/null
    "$KUBECTL" --namespace kyverno create serviceaccount kyverno-admission-controller >/dev/null
    "$KUBECTL" --namespace kyverno create deployment kyverno-admission-controller --image kyverno --replicas 0 >/dev/null
    apply "$source"/config/crds/kyverno/ "$source"/config/crds/policies.kyverno.io/ "$source"/config/crds/policyreport/ \
      "$source"/config/crds/reports/
    "$KUBECTL" wait --for condition=established --timeout "${KUBECTL_TIMEOUT}s" crd --all >/dev/null
    apply "$LIB/compare/kyverno.yaml"
    # It creates its certificates.
    start_subject kyverno
    wait_until "$subject_pid" "$PREPARE_TIMEOUT" 'Kyverno does not serve' "$folder/log" \
      curl -fsSk "https://$host:$PORT/health/readiness"
    stop "$subject_pid"
    ;;
  esac
}

# start_subject NAME: starts it and sets `subject_pid`, `validate_url` and `mutate_url`. Uses `folder` and `host`.
start_subject() {
  : >"$folder/log"
  validate_url="https://$host:$PORT/validate?timeout=5s"
  mutate_url="https://$host:$PORT/mutate?timeout=5s"
  case $1 in
  guard)
    on_server_core "$folder/log" "$GUARD" serve --listen "$host:$PORT" --admin-listen "$host:0" --log-format json \
      --config "$folder/config.yaml" --tls-cert "$folder/tls.crt" --tls-key "$folder/tls.key" --linger 0s
    ;;
  go-webhook)
    on_server_core "$folder/log" "$(program go-webhook)" "$host:$PORT" "$folder/tls.crt" "$folder/tls.key"
    ;;
  gatekeeper)
    validate_url="https://$host:$PORT/v1/admit?timeout=5s"
    mutate_url="https://$host:$PORT/v1/mutate?timeout=5s"
    on_server_core "$folder/log" env POD_NAMESPACE=gatekeeper-system POD_NAME=gatekeeper NAMESPACE=gatekeeper-system \
      CONTAINER_NAME=manager "$(program gatekeeper)" --host "$host" --port "$PORT" --cert-dir "$folder" \
      --disable-cert-rotation --health-addr "$host:0" --prometheus-port 0 --shutdown-delay 0 --operation webhook \
      --operation mutation-webhook --operation mutation-controller --operation generate --operation status \
      --operation mutation-status
    ;;
  kyverno)
    validate_url="https://$host:$PORT/vpol/compare?timeout=5s"
    mutate_url="https://$host:$PORT/mpol/compare?timeout=5s"
    # No reports, and no metrics server, which would use a fixed port of all networks.
    on_server_core "$folder/log" env KYVERNO_NAMESPACE=kyverno KYVERNO_SERVICEACCOUNT_NAME=kyverno-admission-controller \
      KYVERNO_ROLE_NAME=kyverno:admission-controller KYVERNO_DEPLOYMENT=kyverno-admission-controller \
      KYVERNO_POD_NAME=kyverno KYVERNO_SVC=kyverno-svc INIT_CONFIG=kyverno METRICS_CONFIG=kyverno-metrics \
      "$(program kyverno)" --kubeconfig "$KUBECONFIG" --serverIP "$host:$PORT" --webhookServerHost "$host" \
      --webhookServerPort "$PORT" --caSecretName kyverno-ca --tlsSecretName kyverno-tls --admissionReports=false \
      --enableReporting none --disableMetrics --otelConfig none --controllerRuntimeMetricsAddress 0 \
      --backgroundServiceAccountName system:serviceaccount:kyverno:kyverno-background-controller \
      --reportsServiceAccountName system:serviceaccount:kyverno:kyverno-reports-controller
    ;;
  esac
}

# register_subject NAME: lets the API server consult it.
register_subject() {
  case $1 in
  policies) apply "$LIB/compare/policies.yaml" ;;
  # It has registered itself.
  kyverno) ;;
  *) print_registration | "$KUBECTL" create -f - >/dev/null || fail "$1 could not be registered" ;;
  esac
}

print_registration() {
  local authority
  authority=$(base64 -w 0 "$folder/ca.crt")
  cat <<REGISTRATION
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: compare}
webhooks:
- name: validate.compare.example
  clientConfig: {url: "${validate_url%\?*}", caBundle: $authority}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [DELETE], resources: [pods]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  failurePolicy: Fail
  sideEffects: NoneOnDryRun
  admissionReviewVersions: [v1]
  timeoutSeconds: 10
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: compare}
webhooks:
- name: mutate.compare.example
  clientConfig: {url: "${mutate_url%\?*}", caBundle: $authority}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]
  timeoutSeconds: 10
REGISTRATION
}
