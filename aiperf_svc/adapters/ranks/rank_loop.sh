#!/bin/sh
# Runs commands in a rank for its courier. Needs a POSIX shell; with setsid(1) each command is a
# process group of its own, and without it the shell must be the first process of a container.
#
# usage: rank_loop.sh FOLDER [child]
#
# A `child` ends when its standard input does: its courier is gone.
#
# FOLDER/orders (FIFO), from the courier:
#   run ID          run FOLDER/commands/ID/run.sh, which waits until the courier lets its command go
#   TERM ID         send SIGTERM to its process group; KILL ID likewise
#   stat NAME       copy the container's CPU and memory counters to FOLDER/stats/NAME
#   reset TOKEN     end all commands
#   end             the same, and leave
# FOLDER/events (FIFO), to the courier:
#   ready PID       this loop listens
#   started ID PID  from run.sh, before the command's first instruction
#   ended ID CODE   as the shell knows it: 128 + number for a signal
#   copied NAME     the counters are there
#   reset TOKEN     no command runs, and nothing of one will be said
#
# The loop blocks in `read` while nothing is ordered: nothing polls beside a measurement.
folder=$1
cd "$folder" || exit 1
waiters=""
watcher=""
command -v setsid >/dev/null 2>&1 && has_setsid=1 || has_setsid=""
if [ -z "$has_setsid" ] && [ $$ -ne 1 ]; then
  echo "rank_loop.sh: no setsid here, and not the first process of a container" >&2
  exit 1
fi

# A group's number is the process id of its first command. Without setsid, everything else in the
# container belongs to a command.
send() {
  if [ -z "$has_setsid" ]; then
    kill -s "$1" -- -1
  elif [ -f "commands/$2/pid" ]; then
    read -r pid <"commands/$2/pid"
    [ -z "$pid" ] || kill -s "$1" -- "-$pid"
  fi
} 2>/dev/null

end_commands() {
  # In a container all else belongs to a command, daemons in groups of their own too.
  [ $$ -ne 1 ] || kill -s KILL -- -1 2>/dev/null
  # By the process that waits for each command: the files here may be gone already.
  for waiter in $waiters; do kill -s TERM "${waiter#*:}" 2>/dev/null; done
  for waiter in $waiters; do wait "${waiter#*:}"; done
  waiters=""
}

end_all() {
  trap '' TERM INT HUP
  end_commands
  [ -z "$watcher" ] || kill -s KILL "$watcher" 2>/dev/null
  exit 0
}
trap end_all TERM INT HUP

# Opened for reading and writing: neither end waits for the other, and no end of file is seen.
exec 3<>orders 4<>events

# A signal is not enough: one that comes just before `read` blocks is noticed only after it.
if [ "$2" = child ]; then
  exec 5<&0 </dev/null
  (
    exec 4<&-
    read -r _ <&5
    echo end >&3
  ) &
  watcher=$!
  exec 5<&-
fi

run() {
  (
    trap 'kill -s KILL "$!"; kill -s KILL -- "-$!"; exit' TERM INT HUP
    # One end of a pipe would do, but its process could not be waited for.
    if [ -n "$has_setsid" ]; then
      setsid sh "commands/$1/run.sh" 3<&- >"commands/$1/stdout" 2>"commands/$1/stderr" </dev/null &
    else
      sh "commands/$1/run.sh" 3<&- >"commands/$1/stdout" 2>"commands/$1/stderr" </dev/null &
    fi
    pid=$!
    exec 2>/dev/null # Some shells print what a signal did.
    wait "$pid"
    code=$?
    # Nothing of its group is left, so its number may be another's soon.
    # busybox takes no `--` after a signal.
    kill -0 "-$pid" || echo >"commands/$1/pid"
    echo "ended $1 $code" >&4
    echo "gone $1" >&3
  ) &
  waiters="$waiters $1:$!"
}

# The number of a process that has ended may be another's soon.
forget() {
  others=""
  for waiter in $waiters; do
    [ "${waiter%%:*}" = "$1" ] || others="$others $waiter"
  done
  waiters=$others
}

# Without any other program: the image may have none.
stat() {
  for file in cpu.stat cpu/cpu.stat cpuacct/cpuacct.usage memory.peak memory.max memory.events \
    memory/memory.max_usage_in_bytes memory/memory.limit_in_bytes memory/memory.oom_control; do
    [ -r "/sys/fs/cgroup/$file" ] || continue
    while read -r line; do echo "$file $line"; done <"/sys/fs/cgroup/$file"
  done >"stats/$1"
  echo "copied $1" >&4
}

echo "ready $$" >&4
while read -r order id <&3; do
  case $order in
    run) run "$id" ;;
    TERM | KILL) send "$order" "$id" ;;
    gone) forget "$id" ;;
    stat) stat "$id" ;;
    reset)
      end_commands
      echo "reset $id" >&4
      ;;
    end) end_all ;;
  esac
done
