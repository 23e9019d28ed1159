# Builds the guard as a static program, which is all that its image holds.
# shellcheck shell=bash source-path=SCRIPTDIR

# What makes a program static, which is all that its image holds.
STATIC=(-C target-feature=+crt-static)

# guard_cargo PROFILE COMMAND WORD...: Cargo for our package. A development build is of what the tests are built of; others
# are static throughout: with --target the flags reach all but the build scripts, which cannot be static.
#
# Under `cargo test` we inherit what describes our package, and build scripts of others that look at variables of those
# names would run again, and all that depends on them be built again.
guard_cargo() {
  local profile=$1 command=$2
  shift 2
  (
    cd "$PROJECT" || exit
    # shellcheck disable=SC2086 # names have no blanks
    unset ${!CARGO_PKG_*} ${!CARGO_MANIFEST_*}
    [[ $profile != dev ]] || exec cargo "$command" --locked "$@"
    RUSTFLAGS="${RUSTFLAGS-} ${STATIC[*]}" exec cargo "$command" --locked --profile "$profile" --target "$RUST_TARGET" "$@"
  )
}

# guard_program PROFILE: sets GUARD, and EXAMPLES to the folder of examples that are built likewise. Cargo decides what is to
# be done; a warm call takes under a second.
guard_program() {
  rust_ensure
  # Cargo is called in another folder than we are.
  [[ -z ${CARGO_TARGET_DIR-} ]] || CARGO_TARGET_DIR=$(realpath -m -- "$CARGO_TARGET_DIR")
  RUST_TARGET=$(rustc -vV | sed -n 's/^host: //p')
  local folder=${CARGO_TARGET_DIR:-$PROJECT/target} build
  if [[ $1 == dev ]]; then
    # Static when it is linked, and under a name of its own: the tests' program has shared libraries.
    EXAMPLES=$folder/debug/examples
    GUARD=$EXAMPLES/static-guard
    build=(rustc --example static-guard -- "${STATIC[@]}")
  else
    # shellcheck disable=SC2034 # loopback.sh reads it
    EXAMPLES=$folder/$RUST_TARGET/$1/examples
    GUARD=$folder/$RUST_TARGET/$1/etcd-guard
    build=(build --bin etcd-guard)
  fi
  [[ -x $GUARD ]] || say "building etcd-guard, profile $1 (once; some minutes)"
  guard_cargo "$1" "${build[@]}" || die 'etcd-guard could not be built'
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
