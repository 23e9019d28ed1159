# The development program `xtask`: finds programs, makes images, supervises testbeds, prints benchmark reports.
# shellcheck shell=bash source-path=SCRIPTDIR

LIB=$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")
PROJECT=$(realpath -- "$LIB/../..")

# After a plain `su`, these directories are not on root's PATH; containerd, kube-proxy, CNI plugins and dpkg need them.
for folder in /usr/sbin /sbin; do
  [[ :$PATH: == *:$folder:* ]] || PATH+=:$folder
done
export PATH

# Services and some containers set no HOME; Go and Cargo need one as well.
if [[ -z ${HOME-} ]]; then
  HOME=$(getent passwd "$EUID" | cut -d: -f6) || true
  export HOME
  [[ -n $HOME ]] || fail "HOME is not set and user $EUID has no home directory: set HOME to a writable directory"
fi
# shellcheck disable=SC2034 # scripts/test and scripts/record read it
CACHE=${ETCD_GUARD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-guard}

# A target directory of its own: no call waits for the lock of a long build of the product.
XTASK_TARGET=$(realpath -m -- "${CARGO_TARGET_DIR:-$PROJECT/target}")/xtask
XTASK=$XTASK_TARGET/debug/etcd-guard-xtask

# All other packages. Cargo unites the features of the packages that a call names: calls that name others would build shared
# dependencies again. xtask needs further features.
# shellcheck disable=SC2034 # other scripts read it
TESTED=(--workspace --exclude etcd-guard-xtask)

# xtask WORD...: runs a task; builds the program first if its sources have changed.
xtask() {
  # The body of a testbed continues with the build that its supervisor has used.
  [[ -n ${TESTBED_SUPERVISOR-} ]] || build_xtask
  "$XTASK" "$@"
}

# build_xtask: builds the program unless it is newer than its sources; Cargo alone needs a multiple of the time for
# that.
build_xtask() {
  local stamp=$XTASK_TARGET/built
  if [[ -x $XTASK && -e $stamp &&
    -z $(find "$PROJECT/xtask" "$PROJECT/Cargo.toml" "$PROJECT/Cargo.lock" -newer "$stamp" -print -quit) ]]; then
    return
  fi
  require_rust
  if [[ -x $XTASK ]]; then log 'rebuilding xtask: the sources have changed'; else log 'building xtask (once; half a minute)'; fi
  mkdir -p -- "$XTASK_TARGET"
  # Sources that change during the build are newer than this file.
  : >"$stamp.$$"
  (
    # `cargo test` sets variables that describe the tested package; build scripts that read them would run again.
    # shellcheck disable=SC2086 # names have no blanks
    unset ${!CARGO_PKG_*} ${!CARGO_MANIFEST_*}
    # The flags of a release build of the guard: procedural macros cannot be static.
    unset CARGO_ENCODED_RUSTFLAGS
    cd "$PROJECT" && exec cargo build --quiet --locked --package etcd-guard-xtask --target-dir "$XTASK_TARGET" >&2
  ) || { rm -f -- "$stamp.$$"; fail 'xtask could not be built'; }
  mv -- "$stamp.$$" "$stamp"
}

# require_rust: fails if Cargo or the linker is missing.
require_rust() {
  command -v cargo >/dev/null || fail 'Cargo is missing: install rustup (https://rustup.rs) and add it to PATH'
  command -v cc >/dev/null ||
    fail 'a C compiler, which Rust needs to link, is missing; on Debian: apt-get install --no-install-recommends gcc libc6-dev'
}

# The programs of a node of scripts/testbed. A script that starts nodes in other processes provides them first: their output,
# and with it the progress of builds, is often shown only at the end.
# shellcheck disable=SC2034 # other scripts read it
NODE_PROGRAMS=(etcd-3.6 kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl coredns
  containerd runc catatonit iptables conntrack ip cni-plugins)

# program NAME [--own-build]: prints the path of a program; builds or installs it first if necessary. With --own-build
# only the static build is accepted, which images need.
program() { xtask programs --modules "$LIB/programs" --path "$@"; }

# provide NAME...: builds or installs all of these programs if necessary.
provide() { xtask programs --modules "$LIB/programs" --quiet "$@"; }

# cargo_program NAME VERSION [OPTION...]: prints the path of a program of Cargo, from PATH or built once into the cache with these
# options. Cargo records the installed version: not every program prints it.
cargo_program() {
  local path=$CACHE/cargo/bin/$1
  if command -v "$1" >/dev/null; then
    path=$1
  elif [[ ! -x $path ]] || ! grep -qsF -- "\"$1 $2 (" "$CACHE/cargo/.crates.toml"; then
    log "building $1 $2 (once; some minutes)"
    # It runs for seconds: an optimized build would take longer than it saves.
    xtask progress --message "building $1" -- \
      cargo install --quiet --debug --locked --force --root "$CACHE/cargo" --version "$2" "${@:3}" "$1" >&2
  fi
  printf '%s\n' "$path"
}

# third_party FILE [TARGET [MANIFEST]]: writes the licences of all crates in a program, by default in the server for this machine.
third_party() {
  local target=${2-} part
  [[ -n $target ]] || target=$(rustc -vV | sed -n 's/^host: //p')
  mkdir -p -- "${1%/*}"
  part=$(mktemp -- "$1.XXXXXX")
  xtask licences --target "$target" --manifest-path "$PROJECT/${3-Cargo.toml}" >"$part"
  chmod 0644 -- "$part"
  mv -- "$part" "$1"
}

# protoc_path: prints the path of the protobuf compiler, which the product's build needs.
protoc_path() {
  if [[ -n ${PROTOC-} ]]; then printf '%s\n' "$PROTOC"; else program protoc; fi
}

# node_obstacle: prints the reason why no Kubernetes node can run here; fails if one can. Root in a container may often
# neither create namespaces nor mount file systems.
node_obstacle() {
  local output
  if [[ $EUID -ne 0 ]]; then
    printf 'it needs root (namespaces, mounts, a container runtime)'
  elif ! output=$(unshare --mount --net --pid --fork mount -t tmpfs tmpfs /run 2>&1); then
    printf 'root may not create namespaces and mounts here (%s), as in a container that is not privileged' "$output"
  else
    return 1
  fi
}

# wait_until PID LIMIT MESSAGE LOG COMMAND...: repeats COMMAND until it succeeds. After LIMIT seconds, or when process
# PID has ended, prints the last lines of LOG and fails. MESSAGE states the condition that does not hold.
wait_until() { xtask wait-until --pid "$1" --limit "$2" --message "$3" --log "$4" -- "${@:5}"; }
