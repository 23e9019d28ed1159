# cert-manager beside the node, and what is shipped for it: the overlay, and etcd by mtls-cert-manager.yaml. Its controllers are
# a program here, because its images cannot be pulled; nothing of the manifests rests on where they run.
# shellcheck shell=bash source-path=SCRIPTDIR

# defined: the apiserver knows what the controllers watch; `kubectl wait` fails where nothing is told yet.
defined() {
  kubectl wait --for=condition=Established --timeout=5s \
    crd/{issuers,clusterissuers,certificates,certificaterequests}.cert-manager.io >/dev/null 2>&1
}

cert_manager_begin() {
  kubectl apply --server-side -f "$CERT_MANAGER_CRDS" >/dev/null
  until_true 'the kinds of cert-manager are defined' defined
  kubectl create namespace cert-manager >/dev/null
  "$CERT_MANAGER" </dev/null >"$TESTBED_DIR/cert-manager.log" 2>&1 &
  CERT_MANAGER_PID=$!
}

cert_manager_end() {
  kill "$CERT_MANAGER_PID"
  wait "$CERT_MANAGER_PID" || true
}

install_by_cert_manager() { kubectl apply -k "$PROJECT/deploy/overlays/cert-manager" >/dev/null; }
uninstall_by_cert_manager() {
  "$GUARD" unregister --kubeconfig "$KUBECONFIG" 2>/dev/null
  kubectl delete -k "$PROJECT/deploy/overlays/cert-manager" --ignore-not-found --timeout="${READY_LIMIT}s" >/dev/null
}

# secret_field NAMESPACE SECRET FIELD: as it is stored, in base64.
secret_field() { kubectl -n "$1" get secret "$2" -o "jsonpath={.data.${3//./\\.}}"; }
# bundles: every caBundle of the guard's own configuration, each once.
bundles() {
  kubectl get validatingwebhookconfiguration etcd-guard -o 'jsonpath={range .webhooks[*]}{.clientConfig.caBundle}{"\n"}{end}' | sort -u
}
# bundle_has_the_ca: cainjector has brought the CA of now to every entry, the same to all; it leaves earlier ones beside it.
bundle_has_the_ca() {
  [[ $(bundles | wc -l) -eq 1 &&
    $(bundles | base64 -d) == *"$(secret_field etcd-guard etcd-guard-ca tls.crt | base64 -d)"* ]]
}

# stored_leaf, served_leaves: the serial numbers of the guard's certificate, as stored and as each replica shows it.
stored_leaf() { secret_field etcd-guard etcd-guard-tls tls.crt | base64 -d | openssl x509 -noout -serial; }
served_leaves() {
  local address addresses
  read -ra addresses <<<"$(guard_pods status.podIP)"
  for address in "${addresses[@]}"; do
    openssl s_client -connect "$address:8443" -servername etcd-guard.etcd-guard.svc </dev/null 2>/dev/null |
      openssl x509 -noout -serial 2>/dev/null || printf 'none\n'
  done | sort -u
}
leaf_is_new() { [[ $(stored_leaf 2>/dev/null) == serial=* && $(stored_leaf) != "$1" ]]; }
leaf_is_served() { [[ $(served_leaves) == "$(stored_leaf)" ]]; }
ca_is_new() { [[ $(secret_field etcd-guard etcd-guard-ca tls.crt) != "$1" ]]; }

# renew CERTIFICATE: asks for a new one before its time, as `cmctl renew` does.
renew() {
  local now
  now=$(date -u +%FT%TZ)
  kubectl -n etcd-guard patch certificate "$1" --subresource=status --type=json -p "[{\"op\":\"add\",\"path\":\"/status/conditions/-\",
    \"value\":{\"type\":\"Issuing\",\"status\":\"True\",\"reason\":\"ManuallyTriggered\",\"message\":\"by the test\",\"lastTransitionTime\":\"$now\"}}]" \
    >/dev/null
}

# renewal: both certificates are made anew under load, the leaf by the loss of its Secret.
renewal() {
  local leaf ca
  leaf=$(stored_leaf)
  tell cert_manager-served "$(served_leaves | sed "s/^$leaf\$/the stored one/")"
  ca=$(secret_field etcd-guard etcd-guard-ca tls.crt)
  calls_begin
  # Applied again, as an update is: what cainjector has filled in stays.
  install_by_cert_manager
  kubectl -n etcd-guard delete secret etcd-guard-tls >/dev/null
  until_true 'the lost certificate is made anew' leaf_is_new "$leaf"
  renew etcd-guard-ca
  until_true 'the CA is made anew' ca_is_new "$ca"
  until_true 'the new CA is in every entry' bundle_has_the_ca
  # By itself the kubelet looks after a pod's volumes within a minute or two, and at once if the pod changes.
  kubectl -n etcd-guard annotate pods -l app.kubernetes.io/name=etcd-guard etcd-guard.io/test=look >/dev/null
  until_true 'both replicas serve the new certificate' leaf_is_served
  calls_end cert_manager-renewal
  tell cert_manager-restarts "$(guard_pods 'status.containerStatuses[0].restartCount')"
  until_true 'the leader is protected' denies_leader prod etcd 3
  tell cert_manager-denied-after "$DENIAL"
}

# begin_mtls_cert_manager: as the head of the file says, in another namespace than it names.
begin_mtls_cert_manager() {
  example mtls-cert-manager
  sed 's/etcd\.prod\.svc/etcd.mtls-cert-manager.svc/g' "$PROJECT/etcd-manifests/mtls-cert-manager.yaml" |
    kubectl -n mtls-cert-manager apply -f - >/dev/null
  kubectl -n mtls-cert-manager wait --for=condition=Ready certificate/etcd-server certificate/etcd-client \
    --timeout="${READY_LIMIT}s" >/dev/null || die "$(kubectl -n mtls-cert-manager get certificates,certificaterequests)"
  permit mtls-cert-manager etcd-client-tls
  kubectl -n mtls-cert-manager apply -f "$PROJECT/etcd-manifests/mtls.yaml" >/dev/null
}
end_mtls_cert_manager() { judged mtls-cert-manager etcd 3 "${MTLS[@]}"; }
