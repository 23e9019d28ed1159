# The machine that a bench runs on.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# processor_times: prints the times of all processors since the start of the machine: user, nice, system, idle, I/O
# wait, interrupts, soft interrupts, stolen.
processor_times() { sed -n 's/^cpu  *//p' /proc/stat; }

# stolen_since TIMES: prints the share of the processor time since then that the host gave to other machines. A request
# that waits for an absent processor is slow regardless of its cost.
stolen_since() {
  awk -v before="$1" -v now="$(processor_times)" 'BEGIN {
    split(before, a, " ")
    split(now, b, " ")
    for (n = 1; n <= 8; n++) all += b[n] - a[n]
    printf "%.1f %% stolen", (all > 0 ? 100 * (b[8] - a[8]) / all : 0)
  }'
}

# describe_machine TIMES: prints one line about the machine and its load since TIMES.
describe_machine() {
  local model load
  model=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
  load=$(cut -d' ' -f1-3 /proc/loadavg)
  printf '%s' "$(uname -m), $(nproc) cores, $model, load $load at the end, $(stolen_since "$1")"
}
