# Takes away what a testbed leaves: started with the read end of a pipe whose write end every process of the
# testbed holds. The pipe ends when the last of them is gone, however it ended; no signal but KILL ends the reaper.
# usage: reaper.sh DIRECTORY CGROUP (each may be empty)
# shellcheck shell=bash source-path=SCRIPTDIR
trap '' INT TERM HUP QUIT
directory=$1 cgroup=$2

cat >/dev/null

# Containers let go of the pipe a moment before they die, so the first try may be early. 20 s in all.
for ((try = 0; try < 100; try++)); do
  left=''
  if [[ -n $cgroup ]]; then
    for root in /sys/fs/cgroup/"$cgroup" /sys/fs/cgroup/*/"$cgroup"; do
      [[ -d $root ]] || continue
      find "$root" -depth -type d -exec rmdir {} + 2>/dev/null
      [[ ! -d $root ]] || left=yes
    done
  fi
  if [[ -n $directory && -d $directory ]]; then
    rm -rf --one-file-system -- "$directory" 2>/dev/null || left=yes
  fi
  [[ -n $left ]] || exit 0
  sleep 0.2
done
exit 1
