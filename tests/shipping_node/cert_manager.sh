# cert-manager, the overlay for it, and the example mtls-cert-manager.yaml. The controllers of cert-manager run as a program
# beside the node, because their images cannot be pulled. The manifests do not depend on the place of the controllers.
# shellcheck shell=bash source-path=SCRIPTDIR

# crds_are_established: whether the API server serves the resources of cert-manager. `kubectl wait` fails before it does.
crds_are_established() {
  kubectl wait --for=condition=Established --timeout=5s \
    crd/{issuers,clusterissuers,certificates,certificaterequests}.cert-manager.io >/dev/null 2>&1
}

# test_cert_manager: tests the overlay while the controllers run.
test_cert_manager() {
  local controllers
  kubectl apply --server-side -f "$CERT_MANAGER_CRDS" >/dev/null
  wait_until 'the resources of cert-manager are served' crds_are_established
  kubectl create namespace cert-manager >/dev/null
  "$CERT_MANAGER" </dev/null >"$TESTBED_DIR/cert-manager.log" 2>&1 &
  controllers=$!
  test_method cert_manager
  kill "$controllers"
  wait "$controllers" || true
}

install_by_cert_manager() { kubectl apply -k "$PROJECT/deploy/overlays/cert-manager" >/dev/null; }
uninstall_by_cert_manager() {
  delete_webhook_configurations
  kubectl delete -k "$PROJECT/deploy/overlays/cert-manager" --ignore-not-found --timeout="${READY_TIMEOUT}s" >/dev/null
}

# secret_field NAMESPACE SECRET FIELD: prints the stored value in base64.
secret_field() { kubectl -n "$1" get secret "$2" -o "jsonpath={.data.${3//./\\.}}"; }
# bundles: prints the distinct caBundles of the guard's webhook configuration.
bundles() {
  kubectl get validatingwebhookconfiguration etcd-guard -o 'jsonpath={range .webhooks[*]}{.clientConfig.caBundle}{"\n"}{end}' | sort -u
}
# bundle_has_the_ca: whether every webhook has the current CA in the same bundle. cainjector retains earlier CAs in it.
bundle_has_the_ca() {
  [[ $(bundles | wc -l) -eq 1 &&
    $(bundles | base64 -d) == *"$(secret_field etcd-guard etcd-guard-ca tls.crt | base64 -d)"* ]]
}

# stored_leaf, served_leaves: print the serial numbers of the stored certificate and of those that the replicas serve.
stored_leaf() { secret_field etcd-guard etcd-guard-tls tls.crt | base64 -d | openssl x509 -noout -serial; }
served_leaves() {
  local address addresses
  read -ra addresses <<<"$(guard_pods status.podIP)"
  for address in "${addresses[@]}"; do
    timeout 20 openssl s_client -connect "$address:8443" -servername etcd-guard.etcd-guard.svc </dev/null 2>/dev/null |
      openssl x509 -noout -serial 2>/dev/null || printf 'no certificate\n'
  done | sort -u
}
leaf_is_new() { [[ $(stored_leaf 2>/dev/null) == serial=* && $(stored_leaf) != "$1" ]]; }
leaf_is_served() { [[ $(stored_leaf) == serial=* && $(served_leaves) == "$(stored_leaf)" ]]; }
ca_is_new() { [[ $(secret_field etcd-guard etcd-guard-ca tls.crt) != "$1" ]]; }

# refresh_volumes: changes the pods of the guard, so that the kubelet refreshes their volumes immediately. Without a change, this
# takes up to two minutes.
refresh_volumes() {
  kubectl -n etcd-guard annotate pods -l app.kubernetes.io/name=etcd-guard --overwrite "etcd-guard.io/test=$(date +%s.%N)" >/dev/null
}

# request_renewal CERTIFICATE: requests an early renewal, as `cmctl renew` does. The API server rejects it while cert-manager
# issues the certificate.
request_renewal() {
  local now
  now=$(date -u +%FT%TZ)
  kubectl -n etcd-guard patch certificate "$1" --subresource=status --type=json -p "[{\"op\":\"add\",\"path\":\"/status/conditions/-\",
    \"value\":{\"type\":\"Issuing\",\"status\":\"True\",\"reason\":\"ManuallyTriggered\",\"message\":\"by the test\",\"lastTransitionTime\":\"$now\"}}]" \
    >/dev/null
}

# renewal: renews both certificates under load; the leaf because its Secret is deleted.
renewal() {
  local leaf ca denial
  # cert-manager can store another certificate after the pods have started. The kubelet refreshes the volumes with a delay.
  refresh_volumes
  wait_until 'both replicas serve the stored certificate' leaf_is_served
  leaf=$(stored_leaf)
  report cert_manager-served "$(served_leaves | sed "s/^$leaf\$/the stored one/")"
  ca=$(secret_field etcd-guard etcd-guard-ca tls.crt)
  calls_begin cert_manager-renewal
  # A second apply, as during an update, must not remove the bundles of cainjector.
  install_by_cert_manager
  kubectl -n etcd-guard delete secret etcd-guard-tls >/dev/null
  wait_until 'the deleted certificate is issued again' leaf_is_new "$leaf"
  wait_until 'the renewal of the CA is requested' request_renewal etcd-guard-ca
  wait_until 'the CA is renewed' ca_is_new "$ca"
  wait_until 'the new CA is in every entry' bundle_has_the_ca
  refresh_volumes
  wait_until 'both replicas serve the new certificate' leaf_is_served
  calls_end cert_manager-renewal
  report cert_manager-restarts "$(guard_pods 'status.containerStatuses[0].restartCount')"
  denial=$(wait_until 'the leader is protected' leader_denial prod etcd 3)
  report cert_manager-denied-after "$denial"
}

# begin_mtls_cert_manager: follows the header of the manifest, in another namespace.
begin_mtls_cert_manager() {
  example mtls-cert-manager
  sed 's/etcd\.prod\.svc/etcd.mtls-cert-manager.svc/g' "$PROJECT/etcd-manifests/mtls-cert-manager.yaml" |
    kubectl -n mtls-cert-manager apply -f - >/dev/null
  kubectl -n mtls-cert-manager wait --for=condition=Ready certificate/etcd-server certificate/etcd-client \
    --timeout="${READY_TIMEOUT}s" >/dev/null || fail "$(kubectl -n mtls-cert-manager get certificates,certificaterequests)"
  permit mtls-cert-manager etcd-client-tls
  kubectl -n mtls-cert-manager apply -f "$PROJECT/etcd-manifests/mtls.yaml" >/dev/null
}
end_mtls_cert_manager() { assert_protected mtls-cert-manager etcd 3 "${MTLS[@]}"; }
