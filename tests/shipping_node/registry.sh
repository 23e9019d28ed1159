# A registry on loopback, from which the node pulls images, and helm the chart. Requires the functions of story.sh, and CRANE and HELM.
# shellcheck shell=bash

# The registry of scripts/release. containerd and helm use HTTP for this address.
REGISTRY=127.0.0.1:5000/example

# start_registry: starts a registry whose images end with it.
start_registry() {
  "$CRANE" registry serve --address "${REGISTRY%%/*}" >"$TESTBED_DIR/registry.log" 2>&1 &
  wait_until 'the registry answers' curl -sSf --max-time 5 -o "$TESTBED_DIR/registry.v2" "http://${REGISTRY%%/*}/v2/"
}

# push_image NAME:TAG ARCHIVE...: pushes the archives of all architectures as one image.
push_image() {
  local archive digest digests=() layout=$TESTBED_DIR/layout
  for archive in "${@:2}"; do
    rm -rf -- "$layout"
    mkdir -- "$layout"
    tar -xf "$archive" -C "$layout"
    digest=$("$CRANE" push "$layout" "$REGISTRY/${1%:*}:part-${#digests[@]}" 2>>"$TESTBED_DIR/push.log") || fail "$(<"$TESTBED_DIR/push.log")"
    digests+=(--manifest "$digest")
  done
  "$CRANE" index append "${digests[@]}" --tag "$REGISTRY/$1" >/dev/null 2>>"$TESTBED_DIR/push.log" || fail "$(<"$TESTBED_DIR/push.log")"
}

# push_chart PROJECT DIR: pushes the chart in DIR by the script of a project. Prints its reference with the digest.
push_chart() { PATH=$(path_with_helm) "$1/scripts/release" push "$REGISTRY" "$2" --plain-http; }

# path_with_helm: prints a PATH on which the name `helm` is known.
path_with_helm() {
  mkdir -p -- "$TESTBED_DIR/bin"
  ln -sf -- "$HELM" "$TESTBED_DIR/bin/helm"
  printf '%s:%s' "$TESTBED_DIR/bin" "$PATH"
}

# helm_published COMMAND VERSION WORD...: installs or upgrades the published chart.
helm_published() {
  "$HELM" "$1" etcd-guard "oci://$REGISTRY/charts/etcd-guard" --version "$2" --plain-http --namespace etcd-guard \
    --kubeconfig "$KUBECONFIG" "${@:3}" >/dev/null 2>"$TESTBED_DIR/helm.log" ||
    fail "$(<"$TESTBED_DIR/helm.log") $(kubectl -n etcd-guard describe pods)"
}
