# The compiler flags of a release, for bash and for the shell of deploy/Dockerfile.
# shellcheck shell=sh

# release_flags PROJECT TARGET_DIRECTORY FLAG...: prints the flags in the format of CARGO_ENCODED_RUSTFLAGS, which separates
# them by 0x1f, so that paths with blanks work. The paths of the build are replaced in the program: builds in different
# folders result in the same file. Of several prefixes that match a path, the compiler uses the last one.
release_flags() {
  _project=$1 _target=$2
  shift 2
  for _flag in "$@" \
    "--remap-path-prefix=$(rustc --print sysroot)/lib/rustlib/src/rust=/rustc/$(rustc -vV | sed -n 's/^commit-hash: //p')" \
    "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
    "--remap-path-prefix=$_project=/etcd-guard" \
    "--remap-path-prefix=$_target=/target"; do
    printf '%s%s' "${_separator-}" "$_flag"
    _separator=$(printf '\037')
  done
  unset _separator
}
