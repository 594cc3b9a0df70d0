#!/bin/sh
# Replaces ssh: rank_agent.sh [-OPTION]... ADDRESS COMMAND...
#
# Runs COMMAND on the rank with that address. The courier of this rank forwards the request, so no
# rank needs an ssh server, a key or a port. Output and exit code are returned when it has ended.
while [ $# -gt 0 ]; do
  case $1 in
    -*) shift ;;
    *) break ;;
  esac
done
folder=${0%/*}
address=$1
shift
echo "$*" >"$folder/launches/$$.command"
echo "$$ $address" >"$folder/asked"
# The courier creates the FIFO within some milliseconds; from then on nothing polls.
until [ -p "$folder/launches/$$.reply" ]; do sleep 0.02; done
read -r code <"$folder/launches/$$.reply"
while IFS= read -r line; do echo "$line"; done <"$folder/launches/$$.stdout"
while IFS= read -r line; do echo "$line" >&2; done <"$folder/launches/$$.stderr"
exit "$code"
