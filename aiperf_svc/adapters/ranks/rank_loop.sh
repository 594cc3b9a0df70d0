#!/bin/sh
# Runs commands in a rank for its courier. Needs a POSIX shell. With setsid(1) each command has its
# own process group; without it the shell must be process 1 of a container.
#
# usage: rank_loop.sh FOLDER [child]
#
# A `child` ends at the end of its standard input, because its courier is gone.
#
# FOLDER/orders (FIFO), from the courier:
#   run ID          run FOLDER/commands/ID/run.sh, which waits until the courier starts its command
#   TERM ID         send SIGTERM to its process group; KILL ID likewise
#   stat NAME       copy the container's CPU and memory counters to FOLDER/stats/NAME
#   reset TOKEN     end all commands
#   end             end all commands and exit
# FOLDER/events (FIFO), to the courier:
#   ready PID       this loop listens
#   started ID PID  from run.sh, before the command's first instruction
#   ended ID CODE   the shell's exit status: 128 + number for a signal
#   copied NAME     the counters are there
#   reset TOKEN     no command runs, and no more events of commands follow
#
# The loop blocks in `read` until an order arrives, so nothing polls during a measurement.
folder=$1
cd "$folder" || exit 1
waiters=""
watcher=""
command -v setsid >/dev/null 2>&1 && has_setsid=1 || has_setsid=""
if [ -z "$has_setsid" ] && [ $$ -ne 1 ]; then
  echo "rank_loop.sh: no setsid here, and not the first process of a container" >&2
  exit 1
fi

# A group's number is the process id of its first process. Without setsid, everything else in the
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
  # In a container, all other processes belong to a command, including daemons with their own
  # groups.
  [ $$ -ne 1 ] || kill -s KILL -- -1 2>/dev/null
  # Through the process that waits for each command: the files here may already have been removed.
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

# Opened for reading and writing: neither end waits for the other, and there is no end of file.
exec 3<>orders 4<>events

# A signal is not enough: if it arrives just before `read` blocks, it is noticed only afterwards.
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
    # One end of a pipe would suffice, but its process could not be waited for.
    if [ -n "$has_setsid" ]; then
      setsid sh "commands/$1/run.sh" 3<&- >"commands/$1/stdout" 2>"commands/$1/stderr" </dev/null &
    else
      sh "commands/$1/run.sh" 3<&- >"commands/$1/stdout" 2>"commands/$1/stderr" </dev/null &
    fi
    pid=$!
    exec 2>/dev/null # Some shells print what a signal did.
    wait "$pid"
    code=$?
    # Nothing of its group is left, so its number may soon be reused.
    # busybox accepts no `--` after a signal.
    kill -0 "-$pid" || echo >"commands/$1/pid"
    echo "ended $1 $code" >&4
    echo "gone $1" >&3
  ) &
  waiters="$waiters $1:$!"
}

# The number of an ended process may soon be reused.
forget() {
  others=""
  for waiter in $waiters; do
    [ "${waiter%%:*}" = "$1" ] || others="$others $waiter"
  done
  waiters=$others
}

# Without any other program, because the image may have none.
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
