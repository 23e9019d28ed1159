# Where each program comes from: KUBEBUILDER_ASSETS, PATH when its version fits, the cache, or a build into it.
# shellcheck shell=bash source-path=SCRIPTDIR

PROGRAM_NAMES=(etcd-3.6 etcdctl-3.6 etcd-3.5 etcdctl-3.5 etcd-3.7 etcdctl-3.7 etcd-3.4 etcd-3.6.11
  kube-apiserver kube-controller-manager kubectl kube-scheduler kubelet kube-proxy coredns helm cert-manager
  containerd ctr runc lxcfs buildah catatonit busybox iptables conntrack promtool prometheus wrk protoc faketime g++ zsh fish)

# After a plain `su`, root's PATH lacks these, and containerd, kube-proxy, CNI plugins and dpkg look up programs by it.
for folder in /usr/sbin /sbin; do
  [[ :$PATH: == *:$folder:* ]] || PATH+=:$folder
done
export PATH

# Services and some containers set no HOME; Go and Cargo want one as well.
if [[ -z ${HOME-} ]]; then
  HOME=$(getent passwd "$EUID" | cut -d: -f6) || true
  export HOME
  [[ -n $HOME ]] || die "HOME is not set, and user $EUID has no home: set HOME to a folder that can be written to"
fi
CACHE=${ETCD_GUARD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-guard}

# cache_folder NAME...: makes them in the cache.
cache_folder() {
  local name
  for name in "$@"; do
    { mkdir -p -- "$CACHE/$name" && [[ -w $CACHE/$name ]]; } 2>/dev/null ||
      die "$CACHE/$name cannot be written to: set ETCD_GUARD_CACHE to a folder that can, for what is built"
  done
}

# A cold build of the largest program takes about 3 minutes on 2 cores; a caller waiting for another's build gets 30.
BUILD_LOCK_LIMIT=1800

# program_spec NAME: sets EXE (file name), FOLDER and PACKAGE and MODULE (built with Go) or DEB (Debian package).
program_spec() {
  EXE=$1 FOLDER='' PACKAGE='' MODULE='' DEB=''
  case $1 in
  kube-apiserver | kube-controller-manager | kube-scheduler | kube-proxy | kubelet | kubectl)
    FOLDER=kubernetes MODULE=k8s.io/kubernetes PACKAGE=$MODULE/cmd/$1
    ;;
  etcd-3.4) EXE=etcd FOLDER=$1 MODULE=go.etcd.io/etcd PACKAGE=$MODULE ;; # 3.4.21, by the name that Go has for that commit
  etcd-3.[567] | etcd-3.6.11) EXE=etcd FOLDER=$1 MODULE=go.etcd.io/etcd/server/v3 PACKAGE=$MODULE ;;
  etcdctl-3.[567]) EXE=etcdctl FOLDER=etcd-${1#etcdctl-} MODULE=go.etcd.io/etcd/etcdctl/v3 PACKAGE=$MODULE ;;
  coredns) FOLDER=coredns MODULE=github.com/coredns/coredns PACKAGE=$MODULE ;;
  helm) FOLDER=helm MODULE=helm.sh/helm/v3 PACKAGE=$MODULE/cmd/helm ;;
  cert-manager) FOLDER=$1 MODULE=github.com/cert-manager/cert-manager PACKAGE=. ;; # main.go there says what of it
  containerd | ctr) DEB=containerd ;;
  busybox) DEB=busybox-static ;;
  promtool | prometheus) DEB=prometheus ;;
  protoc) DEB='protobuf-compiler libprotobuf-dev' ;; # the second holds the files that every .proto imports
  ip) DEB=iproute2 ;;
  free) DEB=procps ;;
  runc | lxcfs | buildah | catatonit | iptables | conntrack | wrk | shellcheck | faketime | g++ | zsh | fish) DEB=$1 ;;
  *) die "unknown program: $1 (known: ${PROGRAM_NAMES[*]})" ;;
  esac
}

# program_version FOLDER MODULE: sets VERSION to the version that the room's go.mod asks for.
program_version() {
  local first second third
  VERSION=''
  while read -r first second third _; do
    [[ $first == require ]] && first=$second second=$third
    if [[ $first == "$2" ]]; then VERSION=$second; fi
  done <"$ROOMS/programs/$1/go.mod"
  [[ $VERSION == v* ]] || die "$ROOMS/programs/$1/go.mod names no version of $2"
}

declare -A REPORTED=() # versions by path: asking kubectl takes a tenth of a second

# own_version PATH NAME: sets REPORTED[PATH] to the version that the program itself reports, as 1.2.3, or to nothing.
own_version() {
  local words text
  [[ ! -v REPORTED["$1"] ]] || return 0
  REPORTED["$1"]=''
  case $2 in
  kubectl) words=(version --client) ;;
  etcdctl-*) words=(version) ;;
  helm) words=(version --short) ;;
  coredns) words=(-version) ;;
  *) words=(--version) ;;
  esac
  text=$(timeout 10 "$1" "${words[@]}" 2>/dev/null </dev/null) || return 0
  [[ $text =~ [0-9]+\.[0-9]+\.[0-9]+ ]] && REPORTED["$1"]=${BASH_REMATCH[0]}
}

# fits PATH NAME: may this program stand in for NAME?
fits() {
  local version
  case $2 in
  cert-manager) return 1 ;; # nobody else has a program of this kind
  busybox) ! ldd "$1" >/dev/null 2>&1 && return ;; # it runs in images that hold nothing else
  protoc) [[ -n ${PROTOC_INCLUDE-} || -e ${1%/bin/*}/include/google/protobuf/descriptor.proto ]] || return ;;
  esac
  [[ -z $MODULE ]] && return
  own_version "$1" "$2" || true
  version=${REPORTED["$1"]}
  case $2 in
  etcd-* | etcdctl-*) [[ $version == "${2##*-}" || $version == "${2##*-}".* ]] ;;
  kubectl) [[ $version =~ ^1\.(33|34|35)\. ]] ;; # the skew that Kubernetes supports
  kube*) [[ $version == 1.34.* ]] ;;
  helm) [[ $version == 3.* ]] ;;
  *) [[ -n $version ]] ;;
  esac
}

# program_look NAME [own]: sets FOUND and TAKEN_FROM and returns 0, or returns 1 when it must be built or installed.
# "own" skips what the machine offers: files that go into images must be the static builds.
program_look() {
  local candidate before=''
  FOUND='' TAKEN_FROM=''
  program_spec "$1"
  if [[ -n ${KUBEBUILDER_ASSETS-} && ${2-} != own && -x $KUBEBUILDER_ASSETS/$EXE ]] && fits "$KUBEBUILDER_ASSETS/$EXE" "$1"; then
    FOUND=$(realpath -- "$KUBEBUILDER_ASSETS/$EXE") TAKEN_FROM=KUBEBUILDER_ASSETS
    return
  fi
  if [[ -n $DEB || ${2-} != own ]]; then
    while read -r candidate; do
      # Where /bin is /usr/bin, every program is on PATH twice.
      [[ ! $candidate -ef $before ]] || continue
      before=$candidate
      if fits "$candidate" "$1"; then
        FOUND=$candidate TAKEN_FROM=PATH
        return
      fi
    done < <(type -aP "$EXE")
  fi
  [[ -n $MODULE ]] || return 1
  program_version "$FOLDER" "$MODULE"
  # What has a source here is another program when that changes.
  [[ $PACKAGE != . ]] || VERSION+=-$(sha256sum "$ROOMS/programs/$FOLDER/main.go" | cut -c 1-12)
  CACHED=$CACHE/bin/$EXE-$VERSION
  [[ -x $CACHED ]] || return 1
  FOUND=$CACHED TAKEN_FROM='the cache'
}

# program_build NAME: builds it once into the cache, whoever else asks for it at the same time.
program_build() {
  local name=$1 lock log started pid ldflags='-s -w'
  command -v go >/dev/null ||
    die "$name must be built and the Go compiler is missing: install Go 1.26 or newer (https://go.dev/doc/install) and put it on PATH"
  cache_folder bin lock log
  log=$CACHE/log/$EXE-$VERSION.log
  exec {lock}>"$CACHE/lock/$EXE-$VERSION"
  if ! flock -n "$lock"; then
    say "$name $VERSION is being built by someone else; waiting"
    flock -w "$BUILD_LOCK_LIMIT" "$lock" || die "$name: the other build did not end within $BUILD_LOCK_LIMIT s"
  fi
  if [[ ! -x $CACHED ]]; then
    # Unstamped builds report v0.0.0, and kubectl and the kubelet judge version skew by that.
    [[ $MODULE != k8s.io/kubernetes ]] || ldflags+=" -X k8s.io/component-base/version.gitVersion=$VERSION"
    [[ $MODULE != helm.sh/helm/v3 ]] || ldflags+=" -X helm.sh/helm/v3/internal/version.version=$VERSION"
    rm -f -- "$CACHED".[0-9]* # of a build that was killed
    say "building $name $VERSION (once; log: $log)"
    started=$SECONDS
    # The build gives up when this shell is gone, so that a half-done build never outlives its caller.
    (cd "$ROOMS/programs/$FOLDER" && CGO_ENABLED=0 exec setpriv --pdeathsig TERM \
      go build -v -mod=readonly -trimpath -ldflags "$ldflags" -o "$CACHED.$$" "$PACKAGE") >"$log" 2>&1 </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
      sleep 0.5
      (((SECONDS - started) % 15)) || progress "$name" $((SECONDS - started)) "$log"
    done
    if ! wait "$pid"; then
      rm -f -- "$CACHED.$$"
      show_tail "$log"
      die "$name $VERSION could not be built"
    fi
    mv -- "$CACHED.$$" "$CACHED"
    say "built $name $VERSION in $((SECONDS - started)) s"
  fi
  exec {lock}>&-
  FOUND=$CACHED TAKEN_FROM='a build just now'
}

PROGRESS_AT=0
# progress NAME SECONDS LOG: one line for each quarter of a minute.
progress() {
  [[ $PROGRESS_AT != "$1 $2" && $2 -gt 0 ]] || return 0
  PROGRESS_AT="$1 $2"
  say "  still building $1: $2 s, $(wc -l <"$3") packages compiled"
}

# Debian's way to forbid that a package starts its services: etcd's, containerd's and Prometheus' would.
POLICY=/usr/sbin/policy-rc.d
POLICY_TEXT='Written by etcd-guard scripts/testbed while it installs packages.'

# Somebody else's installation may take this long; ours is given no more.
INSTALL_LIMIT=900

# policy_is_ours: the file is there and we wrote it; whoever holds the lock may take it away.
policy_is_ours() { grep -qsF "$POLICY_TEXT" "$POLICY"; }

# policy_sweep: takes away what an installation that was killed has left.
policy_sweep() {
  local lock
  policy_is_ours && [[ -w $POLICY ]] || return 0
  exec {lock}</var/lib/dpkg
  if flock -n "$lock" && policy_is_ours; then rm -f -- "$POLICY"; fi
  exec {lock}<&-
}

# lists_update LOG: fetches the lists of packages; apt-get itself does not wait for another that does so.
lists_update() {
  local deadline=$((SECONDS + INSTALL_LIMIT))
  until timeout 300 apt-get -qq update >"$1" 2>&1 </dev/null; do
    grep -q 'Could not get lock' "$1" && ((SECONDS < deadline)) || return 1
    sleep 1
  done
}

# packages_install DEB...: installs Debian packages, or says which command does.
packages_install() {
  if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
    die "missing Debian packages: $*; install them with: apt-get install --no-install-recommends $*"
  fi
  local log lock mine=''
  # One at a time, so that nobody takes POLICY away from another. apt-get inherits the lock: if we are killed, it holds
  # until apt-get is through.
  exec {lock}</var/lib/dpkg
  if ! flock -n "$lock"; then
    say 'packages are being installed by someone else; waiting'
    flock -w "$INSTALL_LIMIT" "$lock" || die "the other installation did not end within $INSTALL_LIMIT s"
  fi
  log=$(mktemp)
  trap 'rm -f -- "$log" ${mine:+"$mine"}' EXIT
  say "installing Debian packages: $*"
  if [[ ! -e $POLICY ]] || policy_is_ours; then
    mine=$POLICY
    printf '#!/bin/sh\n# %s\nexit 101\n' "$POLICY_TEXT" >"$POLICY"
    chmod +x "$POLICY"
  fi
  export DEBIAN_FRONTEND=noninteractive LC_ALL=C
  if ! lists_update "$log" || ! timeout "$INSTALL_LIMIT" apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" >"$log" 2>&1 </dev/null; then
    show_tail "$log"
    die "apt-get could not install: $*"
  fi
  rm -f -- "$log" ${mine:+"$mine"}
  trap - EXIT
  exec {lock}<&-
}

# programs_ensure NAME...: installs every Debian package that is missing, all at once.
programs_ensure() {
  local name missing=()
  policy_sweep
  for name in "$@"; do
    program_spec "$name"
    # shellcheck disable=SC2206 # some programs take two packages
    [[ -z $DEB ]] || program_look "$name" || missing+=($DEB)
  done
  [[ ${#missing[@]} -eq 0 ]] || packages_install "${missing[@]}"
}

# program NAME [own]: sets FOUND and TAKEN_FROM; builds when there is nothing to find.
program() {
  program_look "$@" && return
  [[ -n $MODULE ]] || die "$1 is still not on PATH although Debian's package $DEB is installed"
  program_build "$1"
}

# rust_ensure: checks what Cargo needs, installs protoc if need be, and exports PROTOC.
rust_ensure() {
  command -v cargo >/dev/null || die 'Cargo is missing: install Rust 1.90 or newer (https://rustup.rs) and put it on PATH'
  command -v cc >/dev/null ||
    die 'a C compiler is missing, which Rust links with: install one, on Debian with: apt-get install --no-install-recommends gcc libc6-dev'
  [[ -z ${PROTOC-} ]] || return 0
  (programs_ensure protoc)
  program protoc
  export PROTOC=$FOUND
}

# node_possible: returns 0, or sets REFUSAL to what forbids a whole node here and returns 1. In a container root may often
# neither make namespaces nor mount.
node_possible() {
  local said
  if [[ $EUID -ne 0 ]]; then
    REFUSAL='it needs root (namespaces, mounts, a container runtime)'
  elif ! said=$(unshare --mount --net --pid --fork mount -t tmpfs tmpfs /run 2>&1); then
    # shellcheck disable=SC2034 # callers read it
    REFUSAL="root may not make namespaces and mounts here ($said), as in a container that is not privileged"
  else
    return 0
  fi
  return 1
}

# link_program NAME: puts a found program under its plain name into RUN_DIR/bin, for the PATH of CMD.
link_program() {
  program "$1"
  mkdir -p "$RUN_DIR/bin"
  ln -sf -- "$FOUND" "$RUN_DIR/bin/${1%%-3.*}"
}

programs_main() {
  local name
  if [[ ${1-} == --help ]]; then
    printf 'usage: scripts/testbed programs [NAME...]\n\nNames: %s\n' "${PROGRAM_NAMES[*]}"
    return
  fi
  [[ $# -gt 0 ]] || set -- "${PROGRAM_NAMES[@]}"
  (programs_ensure "$@")
  for name in "$@"; do
    program "$name"
    say "$name: $FOUND (from $TAKEN_FROM)"
    printf '%s=%s\n' "$name" "$FOUND"
  done
}
