# Two rehearsed releases: published in a registry, their files, the first denial, the upgrade under load, the uninstallation, and
# install.yaml. Requires the functions of story.sh and registry.sh, and from scripts/release: REHEARSAL with a folder for each of the
# versions FIRST and SECOND, a key, and the programs in bin; PLATFORM, CRANE, HELM; and EMULATOR, if the plugin for arm64 needs it.
# shellcheck shell=bash source-path=SCRIPTDIR

# step NAME COMMAND...: runs a command, and reports how long it took.
step() {
  local started=$SECONDS
  "${@:2}"
  report "$1" "$((SECONDS - started)) s"
  log "$1: $((SECONDS - started)) s"
}

# documented PAGE PATTERN: prints the commands of a page of docs that match, for this registry.
documented() {
  sed -nE 's/^ *\$ //p' "$PROJECT/docs/$1" | grep -E "$2" |
    sed -E "s#deploy/chart/etcd-guard#oci://$REGISTRY/charts/etcd-guard#; s#(REGISTRY|ghcr.io/OWNER)/#$REGISTRY/#; s#oci://[^ ]*#& --plain-http#" ||
    fail "docs/$1 has no command $2"
}

# run_documented PAGE PATTERN: runs these commands.
run_documented() {
  local commands
  commands=$(documented "$@")
  log "$commands"
  PATH=$REHEARSAL/bin:$PATH timeout 600 bash -e -c "$commands" >"$TESTBED_DIR/documented.log" 2>&1 ||
    fail "$(<"$TESTBED_DIR/documented.log") $(kubectl -n etcd-guard describe pods)"
}

# publish VERSION: pushes and signs the image and the chart.
publish() {
  local archives image chart
  mapfile -t archives <"$REHEARSAL/$1/images"
  push_image "etcd-guard:$1" "${archives[@]}"
  image=$REGISTRY/etcd-guard@$("$CRANE" digest "$REGISTRY/etcd-guard:$1")
  report "image $1" "$image: $("$CRANE" manifest "$image" | grep -oE '"architecture": ?"[^"]+"' | cut -d '"' -f 4 | tr '\n' ' ')"
  chart=$(push_chart "$REHEARSAL/$1/project" "$REHEARSAL/$1/dist")
  report "chart $1" "$chart"
  PATH=$REHEARSAL/bin:$PATH COSIGN_PASSWORD='' "$REHEARSAL/$1/project/scripts/release" sign "$REHEARSAL/$1/dist" "$image" "$chart" -- \
    --key "$REHEARSAL/cosign.key" --signing-config "$REHEARSAL/signing.json" --trusted-root "$REHEARSAL/trusted.json" \
    >"$TESTBED_DIR/sign.log" 2>&1 || fail "$(<"$TESTBED_DIR/sign.log")"
}

# verify VERSION: runs the commands of docs/development/releasing.md, with the key of the rehearsal.
verify() {
  local commands
  commands=$(documented development/releasing.md '^(cosign verify|sha256sum )' | sed "/lxcfs/d; s/0\.2\.0/$1/")
  log "$commands"
  (cd -- "$REHEARSAL/$1/dist" && PATH=$REHEARSAL/bin:$PATH bash -e -c "SIGNER=(--key $REHEARSAL/cosign.pub --insecure-ignore-tlog)
$commands") >"$TESTBED_DIR/verify.log" 2>&1 || fail "$(<"$TESTBED_DIR/verify.log")"
}

# check_files VERSION: the checksums, and the plugin as krew installs it. The plugin is then on PATH.
check_files() {
  local archive=etcd-guard-$1-$PLATFORM.tar.gz sum
  (cd -- "$REHEARSAL/$1/dist" && sha256sum --check --quiet --strict SHA256SUMS) || fail "the checksums of $1 are wrong"
  sum=$(sha256sum "$REHEARSAL/$1/dist/$archive")
  grep -A 1 -F "/v$1/$archive" "$REHEARSAL/$1/dist/etcd-guard.yaml" | grep -qF "sha256: ${sum%% *}" || fail "etcd-guard.yaml has another checksum of $archive"
  mkdir -- "$TESTBED_DIR/plugin-$1"
  tar -xzf "$REHEARSAL/$1/dist/$archive" -C "$TESTBED_DIR/plugin-$1"
  PATH=$TESTBED_DIR/plugin-$1:$PATH
}

# first_denial: waits until the leader is protected by this installation.
first_denial() {
  local denial
  rolled_out etcd-guard deployment/etcd-guard
  denial=$(wait_until 'the leader is protected' leader_denial prod etcd 3)
  log "$denial"
}

# assert_image VERSION: both replicas run the published image.
assert_image() {
  local image=$REGISTRY/etcd-guard:$1 images
  images=$(guard_pods 'spec.containers[0].image')
  [[ $images == "$image $image" ]] || fail "the replicas run $images, not $image"
}

# assert_nothing_left: no object of the installation remains.
assert_nothing_left() {
  local left
  left=$(left_behind)
  [[ -z $left ]] || fail "after the uninstallation remain: $left"
}

# run_doctor [COMMAND...]: runs `doctor` by kubectl, or by this command.
run_doctor() {
  [[ $# -gt 0 ]] || set -- kubectl etcd-guard
  timeout 120 "$@" doctor >"$TESTBED_DIR/doctor" 2>&1 || fail "$(<"$TESTBED_DIR/doctor")"
}

# upgrade: to the second release, while clients request deletions.
upgrade() {
  calls_begin upgrade
  run_documented upgrade.md '^helm upgrade '
  rolled_out etcd-guard deployment/etcd-guard
  wait_until 'two replicas are ready' two_are_ready
  calls_end upgrade
  ! grep '^upgrade-failed.failed' "$REPORT" || fail 'a request failed during the upgrade'
}

apply_install_yaml() {
  kubectl apply -f "$REHEARSAL/$SECOND/dist/install.yaml" >/dev/null
  first_denial
}
delete_install_yaml() {
  delete_webhook_configurations
  kubectl delete -f "$REHEARSAL/$SECOND/dist/install.yaml" --ignore-not-found --timeout="${READY_TIMEOUT}s" >/dev/null
}

release_story() {
  local started
  start_registry
  report helm "$("$HELM" version --short)"
  step "publish $FIRST" publish "$FIRST"
  step "verify $FIRST" verify "$FIRST"
  check_files "$FIRST"

  started=$SECONDS
  step "helm install $FIRST" run_documented install.md '^helm install .* oci://'
  step 'first denial' first_denial
  report 'from helm install to the first denial' "$((SECONDS - started)) s"
  ((SECONDS - started <= 300)) || fail "first denial after $((SECONDS - started)) s"
  assert_image "$FIRST"
  step doctor run_doctor
  [[ -z ${EMULATOR-} ]] || step 'doctor for arm64, emulated' run_doctor "$EMULATOR" "$REHEARSAL/programs/plugin-linux-arm64/kubectl-etcd_guard"

  step "publish $SECOND" publish "$SECOND"
  step "verify $SECOND" verify "$SECOND"
  check_files "$SECOND"
  step "helm upgrade $SECOND" upgrade
  step 'denial after the upgrade' first_denial
  assert_image "$SECOND"
  step 'doctor after the upgrade' run_doctor

  step 'helm uninstall' run_documented uninstall.md '^(helm uninstall etcd-guard -n etcd-guard|kubectl delete namespace etcd-guard)$'
  assert_nothing_left

  step 'install.yaml to the first denial' apply_install_yaml
  assert_image "$SECOND"
  step 'kubectl delete -f install.yaml' delete_install_yaml
  assert_nothing_left
}
