# One table of all that was measured: each figure beside its reference, what is promised, and whether it is kept.
# shellcheck shell=bash source-path=SCRIPTDIR

# Rows, with tabs between WHAT, FIGURE, REFERENCE, ITS FIGURE, PROMISED and `kept` or `MISSED`. benches/shared/rows.rs writes
# to the same file.
export BENCH_ROWS=${BENCH_ROWS-}

# processor_times: user, nice, system, idle, waiting, interrupts, soft ones, stolen; of all processors, since the machine's start.
processor_times() { sed -n 's/^cpu  *//p' /proc/stat; }

# stolen_since TIMES: how much of the time since then the host of this machine gave to others. A request that waits for a
# processor that is away is slow whatever it costs.
stolen_since() {
  awk -v before="$1" -v now="$(processor_times)" 'BEGIN {
    split(before, a, " ")
    split(now, b, " ")
    for (n = 1; n <= 8; n++) all += b[n] - a[n]
    printf "%.1f %% stolen", (all > 0 ? 100 * (b[8] - a[8]) / all : 0)
  }'
}

BENCH_BEGAN=$(processor_times)

# row WHAT FIGURE REFERENCE FIGURE [PROMISED kept|MISSED]: adds one, if somebody wants the table.
row() {
  [[ -z $BENCH_ROWS ]] || printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "${5-}" "${6-}" >>"$BENCH_ROWS"
}

# kept FIGURE LIMIT: whether a number stays within what is promised, in the table's words.
kept() { if (($1 <= $2)); then printf kept; else printf MISSED; fi; }

# table: prints the rows; fails if something promised is missed.
table() {
  printf '\n%s\n\n' "$(uname -m), $(nproc) cores, $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1), load $(cut -d' ' -f1-3 /proc/loadavg) at the end, $(stolen_since "$BENCH_BEGAN")"
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
