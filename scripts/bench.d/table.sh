# One table of all that was measured: each figure beside its reference, what is promised, and whether it is kept.
# shellcheck shell=bash source-path=SCRIPTDIR

# Rows, with tabs between WHAT, FIGURE, REFERENCE, ITS FIGURE, PROMISED and `kept` or `MISSED`. benches/shared/rows.rs writes
# to the same file.
export BENCH_ROWS=${BENCH_ROWS-}

# row WHAT FIGURE REFERENCE FIGURE [PROMISED kept|MISSED]: adds one, if somebody wants the table.
row() {
  [[ -z $BENCH_ROWS ]] || printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "${5-}" "${6-}" >>"$BENCH_ROWS"
}

# kept FIGURE LIMIT: whether a number stays within what is promised, in the table's words.
kept() { if (($1 <= $2)); then printf kept; else printf MISSED; fi; }

# table: prints the rows; fails if something promised is missed.
table() {
  printf '\n%s\n\n' "$(uname -m), $(nproc) cores, $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1), load $(cut -d' ' -f1-3 /proc/loadavg) at the end"
  {
    printf '%s\t' what figure reference 'its figure' promised
    printf '\n'
    cat -- "$BENCH_ROWS"
  } | awk -F '\t' '
    { lines[NR] = $0; for (n = 1; n <= 5; n++) if (length($n) > width[n]) width[n] = length($n) }
    END {
      for (line = 1; line <= NR; line++) {
        split(lines[line], field, FS)
        text = ""
        for (n = 1; n <= 5; n++) text = text sprintf("%-" width[n] "s  ", field[n])
        text = text field[6]
        sub(/ +$/, "", text)
        print text
      }
    }'
  ! cut -f6 -- "$BENCH_ROWS" | grep -q MISSED
}
