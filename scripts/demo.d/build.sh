# Builds the guard as a static program, which is all that its image holds.
# shellcheck shell=bash source-path=SCRIPTDIR

# guard_cargo PROFILE WORD...: builds with the flags that make a program static.
#
# Under `cargo test` we inherit what describes our own package, and build scripts of others that look at variables of
# those names would run again, and all that depends on them be built again.
guard_cargo() {
  local profile=$1
  shift
  # shellcheck disable=SC2086 # names have no blanks
  (cd "$PROJECT" && unset ${!CARGO_PKG_*} ${!CARGO_MANIFEST_*} && RUSTFLAGS="${RUSTFLAGS-} -C target-feature=+crt-static" cargo build --locked \
    --profile "$profile" --target "$RUST_TARGET" "$@")
}

# guard_program PROFILE: sets GUARD. Cargo decides what is to be done; a warm call takes under a second.
guard_program() {
  local folder=$1
  rust_ensure
  # Cargo is called in another folder than we are.
  [[ -z ${CARGO_TARGET_DIR-} ]] || CARGO_TARGET_DIR=$(realpath -m -- "$CARGO_TARGET_DIR")
  [[ $folder != dev ]] || folder=debug
  # With --target the flags reach the guard and not the build scripts, which cannot be static.
  RUST_TARGET=$(rustc -vV | sed -n 's/^host: //p')
  GUARD=${CARGO_TARGET_DIR:-$PROJECT/target}/$RUST_TARGET/$folder/etcd-guard
  [[ -x $GUARD ]] || say "building etcd-guard, profile $1 (once; some minutes)"
  guard_cargo "$1" --bin etcd-guard || die 'etcd-guard could not be built'
}

# guard_archive PROFILE: sets ARCHIVE to an image that holds the guard, under the name that deploy/base asks for.
guard_archive() {
  guard_program "$1"
  guard_image "etcd-guard:$(sed -n 's/^ *newTag: *//p' "$PROJECT/deploy/base/kustomization.yaml")"
  [[ $1 != release ]] || guard_fits
}

# guard_fits: dies if the image in ARCHIVE is larger than deploy/Dockerfile lets it be.
guard_fits() {
  local bytes most
  bytes=$(stat -c %s -- "$ARCHIVE")
  most=$(sed -n 's/^ARG MOST_BYTES=//p' "$PROJECT/deploy/Dockerfile")
  ((bytes <= most)) || die "the image has $bytes bytes, and may have $most: $ARCHIVE"
}

# guard_image NAME:TAG: sets ARCHIVE to an image with GUARD, with the labels that deploy/Dockerfile gives it.
guard_image() {
  local labels=()
  mapfile -t labels < <(sed -nE 's/^(LABEL| +) (org\.opencontainers\.[a-z.]+)="([^"]*)".*/--label\n\2=\3/p' "$PROJECT/deploy/Dockerfile")
  image_archive "$1" --file "$GUARD=/usr/local/bin/etcd-guard" --user 65532:65532 \
    "${labels[@]//\$VERSION/${1##*:}}" --entrypoint /usr/local/bin/etcd-guard
}

# image_of FILE: the first image that a manifest names.
image_of() { sed -n 's/^ *image: *//p' "$1" | head -n 1; }
