# shellcheck shell=bash
# Coverage of the modules that decide: the share of their regions and branches that a test executes. A region is a piece of code that
# control flow enters only at its start. A condition is an `if`, an operand of `&&` or `||`, a `let ... else`, a `while`, or the guard of an
# arm of `match`. Each of its two outcomes is a branch. Arms of `match`, `?` and `await` have no branch counters. Arms of `match` are
# counted as regions.

# The modules with the code that decides: the rules, and what evaluates them.
DECISION_SOURCES=(
  src/core/src/{assess,ledger,membership,policy,reservation,snapshot,tally}
  src/guard/src/{evaluation,observe,ownership,policy,reserve}
)

# llvm_program NAME: prints the path of a program of LLVM that can read the profiles of this Rust compiler.
llvm_program() {
  local path version
  path=$(rustc --print target-libdir)/../bin/$1
  if [[ -x $path ]]; then
    printf '%s\n' "$path"
    return
  fi
  for version in '' -{30..19}; do
    if path=$(command -v "$1$version"); then
      # Older programs cannot read the profiles.
      [[ -n $version || $("$path" --version 2>&1) =~ version\ (19|[2-9][0-9]) ]] || continue
      printf '%s\n' "$path"
      return
    fi
  done
  fail "$1 of LLVM 19 or later is missing: rustup component add llvm-tools, or apt-get install llvm-19"
}

# use_coverage: makes Cargo instrument the members of the workspace, in a target folder of its own. The caller removes
# $PROFILE_FOLDER.
use_coverage() {
  LLVM_PROFDATA=$(llvm_program llvm-profdata)
  LLVM_COV=$(llvm_program llvm-cov)
  PROFILE_FOLDER=$(mktemp -d)
  CARGO_TARGET_DIR=$(target_directory)/coverage
  # Dependencies are not instrumented: they would make the simulation slower.
  RUSTC_WORKSPACE_WRAPPER=$LIB/instrumented-rustc
  LLVM_PROFILE_FILE=$PROFILE_FOLDER/%p-%m.profraw
  export CARGO_TARGET_DIR RUSTC_WORKSPACE_WRAPPER LLVM_PROFILE_FILE
}

# report_coverage TEST: prints the shares of the regions and of the branches that the integration test TEST has executed, also by
# module.
report_coverage() {
  local program sources=() source
  for source in "${DECISION_SOURCES[@]}"; do
    sources+=("$PROJECT/$source.rs")
    [[ ! -d $PROJECT/$source ]] || sources+=("$PROJECT/$source")
  done
  program=$(find "$CARGO_TARGET_DIR/debug/deps" -name "$1-*" -executable -type f -printf '%T@ %p\n' | sort -rn | head -n 1 | cut -d ' ' -f 2-)
  [[ -n $program ]] || fail "the instrumented program of the test $1 is missing in $CARGO_TARGET_DIR"
  "$LLVM_PROFDATA" merge --sparse --output "$PROFILE_FOLDER/merged" "$PROFILE_FOLDER"/*.profraw
  # Columns of a file: its name relative to the common folder of all sources; then, for regions, functions, lines and branches each:
  # the number, the number of those not executed, and the share.
  "$LLVM_COV" report --instr-profile "$PROFILE_FOLDER/merged" "$program" --sources "${sources[@]}" |
    awk '
      $1 ~ /\.rs$/ {
        # CRATE/src/MODULE.rs or CRATE/src/MODULE/FILE.rs
        split($1, parts, "/")
        module = parts[1] "/" parts[3]
        sub(/\.rs$/, "", module)
        modules[module]
        count("regions", module, $2, $3)
        count("branches", module, $11, $12)
      }
      function count(kind, module, number, missed) {
        numbers[kind, module] += number; numbers[kind] += number
        executed[kind, module] += number - missed; executed[kind] += number - missed
      }
      function share(key) {
        if (numbers[key] == 0) return "0 of 0"
        return sprintf("%d of %d (%.1f %%)", executed[key], numbers[key], 100 * executed[key] / numbers[key])
      }
      function report(kind, module) {
        printf "executed %s of decisions: %s\n", kind, share(kind)
        for (module in modules) printf "  %s: %s\n", module, share(kind SUBSEP module) | "sort"
        close("sort")
      }
      END {
        if (numbers["regions"] == 0 || numbers["branches"] == 0) exit 1
        report("regions")
        report("branches")
      }' || fail 'the profile cannot be read, or contains no region or no branch of a decision'
}
