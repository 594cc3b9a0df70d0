# shellcheck shell=bash disable=SC2034  # the names are for the scripts that source this
# Shared by all scripts here: paths, names and failure messages. Each script sources this first. CLUSTER_HOME is
# tests/cluster; CACHE is a folder that outlives checkouts.
set -euo pipefail

CLUSTER_HOME=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
CHECKOUT=$(cd "$CLUSTER_HOME/../.." && pwd -P)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/aiperf-svc
SELF=tests/cluster/$(basename "$0")

say() { echo "$SELF: $*" >&2; }
fail() {
  say "$*"
  exit 1
}

# Scripts without arguments do nothing when they get one. In particular, `--help` must not stop a cluster.
no_arguments() { # "$@"
  case ${1:-} in
    "") ;;
    -h | --help)
      sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) fail "no option '$1': expected nothing" ;;
  esac
}

require_root() {
  [ "$(uname -s)" = Linux ] || fail "needs Linux, this is $(uname -s): give the tests a cluster of your own instead"
  [ "$(id -u)" = 0 ] || fail "needs root (namespaces, mounts, network links), this is user $(id -un): run it with sudo"
}

find_go() {
  command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin
  command -v go >/dev/null || fail "Go is missing: install Go 1.26 or newer and have 'go' on PATH"
}

# Names of a checkout's cluster. Checkouts never share a cluster, so they cannot break each other's.
name_cluster() { # CLUSTER_ID
  ID=$1
  NAME=aiperf-$ID           # network link, cgroup, kubeconfig context
  RUN=$CACHE/clusters/$ID   # everything that the cluster keeps on disk
  KUBECONFIG_FILE=$RUN/kubeconfig
}
name_cluster "$(printf %s "$CHECKOUT" | sha256sum | cut -c1-6)"

# Addresses of a cluster: one of 16 slots, the first whose ranges this machine has no route to.
SLOTS=16
name_addresses() { # SLOT
  SLOT=$1
  LINKS_CIDR=172.30.$SLOT.0/28 API_IP=172.30.$SLOT.2
  POD_CIDR=10.$((192 + SLOT)).0.0/16 DNS_IP=10.$((192 + SLOT)).255.53
  SERVICE_CIDR=10.$((208 + SLOT)).0.0/16 API_SERVICE_IP=10.$((208 + SLOT)).0.1
  FAKE_POD_CIDR=10.$((224 + SLOT)).0.1/16
}

# Names and addresses of a node. The first node has the control plane and a link to the host; each other node has a link
# to the first.
FIRST_NODE=node1
MAX_NODES=4 # links that are in LINKS_CIDR
name_node() { # NODE
  NODE=$1
  local number=${1#node}
  NODE_RUN=$RUN/$NODE # everything that the node keeps on disk
  CONTAINERD_SOCKET=$NODE_RUN/containerd.sock
  GATEWAY_IP=172.30.$SLOT.$((4 * number - 3)) NODE_IP=172.30.$SLOT.$((4 * number - 2))
  NODE_POD_CIDR=10.$((192 + SLOT)).$((number - 1)).0/24
}
nodes() { # prints the names of the cluster's nodes
  find "$RUN" -mindepth 1 -maxdepth 1 -name 'node*' -printf '%f\n' | sort
}

# A process is identified by its id and its start time, because ids are reused.
identify() { # PID: prints "PID START", fails if there is no such process
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) } # the command's name may hold anything, spaces too
  echo "$1 $(cut -d' ' -f20 <<<"$stat")"
}
still_runs() { # FILE written by identify
  local pid start
  [ -s "$1" ] && read -r pid start <"$1" && [ "$(identify "$pid")" = "$pid $start" ]
}

has_ended() { ! still_runs "$1"; }

# Waits until a command succeeds. Fails on timeout or when a given process has ended.
wait_until() { # SECONDS WHAT FILE_OF_PROCESS|- COMMAND...
  local deadline=$((SECONDS + $1)) what=$2 process=$3
  shift 3
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || fail "$what: still not so after its time limit; logs: $NODE_RUN/log"
    [ "$process" = - ] || still_runs "$process" || fail "$what: its process has ended; logs: $NODE_RUN/log"
    sleep 0.05
  done
}

is_up() { still_runs "$RUN/$FIRST_NODE/init.process"; }

# Each command of `with` holds a lock on this file, whose last line names the command. The lock ends with `with` itself,
# because child processes close descriptor 7.
use_cluster() { # WORDS...
  exec 7>>"$RUN.users"
  flock -s 7
  echo "process $$: $*" >&7
}
refuse_if_used() {
  [ -e "$RUN.users" ] || return 0
  exec 7<"$RUN.users"
  flock -n 7 || fail "the cluster is in use by $(tail -n 1 "$RUN.users"); wait for it, or end it"
  exec 7<&-
}

require_up() {
  is_up || fail "no cluster is up for $CHECKOUT: run tests/cluster/up"
  # shellcheck source=/dev/null
  . "$RUN/addresses"
  name_addresses "$SLOT"
  name_node $FIRST_NODE
}

# shellcheck source=lib/parts.sh
. "$CLUSTER_HOME/lib/parts.sh"
