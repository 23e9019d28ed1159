# Builds the guard as a static program and packs it into an image. Builds the kubectl plugin.
# shellcheck shell=bash source-path=SCRIPTDIR/..
source "$LIB/xtask.sh"
# shellcheck source=release-flags.sh
source "$LIB/release-flags.sh"

# Linker flags of a static program. The image holds nothing else.
STATIC=(-C target-feature=+crt-static)

# Adds the list of the dependencies to a program, which `cargo audit bin` reads.
CARGO_AUDITABLE_VERSION=0.7.5

# target_directory: the target directory of Cargo, as an absolute path: Cargo runs in another directory than this
# script.
target_directory() { realpath -m -- "${CARGO_TARGET_DIR:-$PROJECT/target}"; }

# The Linux target of the functions below; empty: this machine.
GUARD_TARGET=''

# guard_cargo NAME PROFILE COMMAND WORD...: runs Cargo for a package of this workspace, and logs progress under NAME. A
# development build for this machine uses the artifacts of the tests. Other builds are static throughout: with --target the flags
# apply to everything except build scripts, which cannot be static. Except in development, they contain the list of their
# dependencies. They contain no path of this machine.
guard_cargo() {
  local name=$1 profile=$2 command=$3 flags=() cargo=(cargo)
  shift 3
  require_rust
  if [[ $profile != dev ]]; then
    cargo=("$(cargo_program cargo-auditable "$CARGO_AUDITABLE_VERSION")" auditable)
  fi
  (
    # The caller tests the status of this list, which disables `set -e` in it.
    PROTOC=$(protoc_path) || exit 1
    CARGO_TARGET_DIR=$(target_directory)
    export PROTOC CARGO_TARGET_DIR
    # `cargo test` sets variables that describe the tested package. Build scripts that read variables of those names,
    # and all crates that depend on them, would be built again.
    # shellcheck disable=SC2086 # names have no blanks
    unset ${!CARGO_PKG_*} ${!CARGO_MANIFEST_*}
    if ! uses_artifacts_of_tests "$profile"; then
      # shellcheck disable=SC2086 # words of flags
      CARGO_ENCODED_RUSTFLAGS=$(release_flags "$PROJECT" "$CARGO_TARGET_DIR" ${RUSTFLAGS-} "${STATIC[@]}")
      # Tools that record a time record this one.
      SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
      export CARGO_ENCODED_RUSTFLAGS SOURCE_DATE_EPOCH
      flags=(--profile "$profile" --target "${GUARD_TARGET:-$(host_target)}")
      # Debian's cross compiler.
      [[ $GUARD_TARGET != aarch64-* ]] || export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    fi
    cd "$PROJECT" &&
      xtask progress --message "building $name" -- "${cargo[@]}" "$command" --locked "${flags[@]}" "$@" >&2
  ) || fail "$name could not be built"
}

# uses_artifacts_of_tests PROFILE: whether a build of this profile shares its artifacts with the tests.
uses_artifacts_of_tests() { [[ $1 == dev && -z $GUARD_TARGET ]]; }

host_target() { rustc -vV | sed -n 's/^host: //p'; }

# program_directory PROFILE: prints the directory of the programs that are built with this profile.
program_directory() {
  local folder=$1
  # Cargo's name of the folder of this profile.
  [[ $1 != dev ]] || folder=debug
  if uses_artifacts_of_tests "$1"; then
    printf '%s/%s' "$(target_directory)" "$folder"
  else
    printf '%s/%s/%s' "$(target_directory)" "${GUARD_TARGET:-$(host_target)}" "$folder"
  fi
}

# build_guard PROFILE: prints the path of the guard's program. Cargo decides which parts to build; a warm call takes
# less than a second.
build_guard() {
  local directory guard
  directory=$(program_directory "$1")
  if uses_artifacts_of_tests "$1"; then
    # Static by its linker flags, and under another name: the program of the tests has shared libraries.
    guard=$directory/static-guard
    announce "$guard" "etcd-guard, profile $1"
    guard_cargo etcd-guard "$1" rustc --package etcd-guard-test-programs --bin static-guard -- "${STATIC[@]}"
  else
    guard=$directory/etcd-guard
    announce "$guard" "etcd-guard, profile $1"
    guard_cargo etcd-guard "$1" build --package etcd-guard --bin etcd-guard
  fi
  printf '%s\n' "$guard"
}

# build_plugin PROFILE: prints the path of the program for people, the kubectl plugin. A development build has shared libraries: it
# runs on this machine only.
build_plugin() {
  local plugin packages=(--package etcd-guard-plugin)
  ! uses_artifacts_of_tests "$1" || packages=("${TESTED[@]}")
  plugin=$(program_directory "$1")/kubectl-etcd_guard
  announce "$plugin" "kubectl-etcd_guard, profile $1"
  guard_cargo kubectl-etcd_guard "$1" build "${packages[@]}" --bin kubectl-etcd_guard
  printf '%s\n' "$plugin"
}

# build_test_program PROFILE NAME: prints the path of a program of tests/programs.
build_test_program() {
  local program
  program=$(program_directory "$1")/$2
  announce "$program" "$2"
  guard_cargo "$2" "$1" build --package etcd-guard-test-programs --bin "$2"
  printf '%s\n' "$program"
}

# build_writer: prints the path of the client that measures how long no write succeeds. Always a development build: it
# measures milliseconds, and is built within a minute.
build_writer() {
  local program
  program=$(program_directory dev)/etcd-guard-writer
  announce "$program" 'the writer'
  guard_cargo etcd-guard-writer dev build --package etcd-guard-writer
  printf '%s\n' "$program"
}

# announce FILE NAME: logs that a long build starts, if the file does not exist.
announce() { [[ -x $1 ]] || log "building $2 (once; some minutes)"; }

# guard_archive GUARD [PROFILE]: prints the path of an image archive with the guard, under the name that deploy/base
# uses. The image of a release build must not exceed the limit of deploy/Dockerfile.
guard_archive() {
  local archive
  archive=$(guard_image "$1" "etcd-guard:$(sed -n 's/^ *newTag: *//p' "$PROJECT/deploy/base/kustomization.yaml")")
  [[ ${2-} != release ]] || check_image_size "$archive"
  printf '%s\n' "$archive"
}

# check_image_size ARCHIVE: fails if the image is larger than deploy/Dockerfile allows.
check_image_size() {
  local bytes limit
  bytes=$(stat -c %s -- "$1")
  limit=$(sed -nE 's/^ARG [A-Z_]*BYTES=([0-9]+)$/\1/p' "$PROJECT/deploy/Dockerfile")
  ((bytes <= limit)) || fail "the image has $bytes bytes, the limit is $limit: $1"
}

# guard_image GUARD NAME:TAG [ARCH]: prints the path of an image archive with the guard, the licences and the labels of
# deploy/Dockerfile. ARCH is amd64 or arm64.
guard_image() {
  local labels=() licences architecture=()
  licences=$(target_directory)/licences/THIRD-PARTY${GUARD_TARGET:+-$GUARD_TARGET}.txt
  third_party "$licences" "$GUARD_TARGET"
  [[ -z ${3-} ]] || architecture=(--architecture "$3")
  mapfile -t labels < <(sed -nE 's/^(LABEL| +) (org\.opencontainers\.[a-z.]+)="([^"]*)".*/--label\n\2=\3/p' "$PROJECT/deploy/Dockerfile")
  xtask image "$2" "${architecture[@]}" --file "$1=/usr/local/bin/etcd-guard" --user 65532:65532 \
    --file "$PROJECT/LICENSE=/licenses/LICENSE" --file "$licences=/licenses/THIRD-PARTY.txt" \
    "${labels[@]//\$VERSION/${2##*:}}" --entrypoint /usr/local/bin/etcd-guard
}

# first_image FILE: prints the first image that a manifest names.
first_image() { sed -n 's/^ *image: *//p' "$1" | head -n 1; }
