# shellcheck shell=bash
# Changes of a cluster to the host, their removal, and the check for leftovers. Sourced by `up` and `down`. Every object
# contains the cluster's name or addresses. Kernel settings are saved before the first change.

# shellcheck source=lib/image-storage.sh
. "$CLUSTER_HOME/lib/image-storage.sh"

# Host-wide settings: the kubelet sets the first six, `up` the last (each pod watches files).
KERNEL_SETTINGS=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys
  kernel.keys.root_maxbytes fs.inotify.max_user_instances)
SAVED_SETTINGS=$CACHE/clusters/kernel-settings.saved # shared: the first cluster saves, the last one restores
CGROUPS=/sys/fs/cgroup
CONTROLLERS=(cpu cpuacct cpuset memory devices freezer blkio pids systemd)

# Only one `up` or `down` at a time on this machine. Processes that outlive it must be started without descriptor 8.
lock_clusters() {
  mkdir -p "$CACHE/clusters"
  exec 8>"$CACHE/clusters/lock"
  flock -n 8 || { say "another up or down is running: waiting for it"; flock 8; }
}

any_cluster_runs() {
  local process
  for process in "$CACHE"/clusters/*/node*/init.process; do
    ! still_runs "$process" || return 0
  done
  return 1
}

# ---- kernel settings

save_kernel_settings() {
  [ -s "$SAVED_SETTINGS" ] || sysctl "${KERNEL_SETTINGS[@]}" >"$SAVED_SETTINGS"
}

changed_kernel_settings() { # prints those that differ from what was saved
  [ -s "$SAVED_SETTINGS" ] || return 0
  sysctl "${KERNEL_SETTINGS[@]}" | grep -vxFf "$SAVED_SETTINGS" || true
}

restore_kernel_settings() {
  [ -s "$SAVED_SETTINGS" ] || return 0
  ! any_cluster_runs || return 0 # its own `down` restores them
  local setting
  while read -r setting; do
    [ "$(sysctl "${setting%% *}")" = "$setting" ] || sysctl -qw "${setting// /}"
  done <"$SAVED_SETTINGS"
  [ -n "$(changed_kernel_settings)" ] || rm "$SAVED_SETTINGS"
}

# ---- addresses

routes_to() { # CIDR: routes into the range, or of a range around it
  ip -4 route show to root "$1"
  ip -4 route show to match "$1" | grep -v '^default' || true
}

free_slot() { # prints the first slot none of whose ranges is routed on this machine
  local slot
  for ((slot = 0; slot < SLOTS; slot++)); do
    name_addresses $slot
    if [ -z "$(for range in "$LINKS_CIDR" "$POD_CIDR" "$SERVICE_CIDR"; do routes_to "$range"; done)" ]; then
      echo $slot
      return
    fi
  done
  return 1
}

# ---- processes

# Every process that the cluster starts on the host inherits this variable. This finds what an interrupted `up` left even
# if it did not record a process id.
marked_processes() { # prints the ids
  grep -lzxF "AIPERF_TEST_CLUSTER=$NAME" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true
}

# The processes in the cluster's cgroups are those of its pods.
pod_processes() { # prints the ids
  find "$CGROUPS"/*/"$NAME" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un || true
}

# Killing the first process of a pid namespace makes the kernel kill all others in it.
end_processes() {
  local pid process tries
  for process in "$RUN"/node*/init.process; do
    if still_runs "$process"; then kill -KILL "$(cut -d' ' -f1 "$process")" || true; fi
  done
  for ((tries = 0; tries < 200; tries++)); do
    [ -n "$(marked_processes)$(pod_processes)" ] || return 0
    if ((tries % 50 == 20)); then # processes outside of that namespace, or without one so far
      for pid in $(marked_processes) $(pod_processes); do kill -KILL "$pid" 2>/dev/null || true; done
    fi
    sleep 0.05
  done
}

# ---- cgroups

make_cgroups() { # for the pods of the node that name_node named
  local controller parent group
  for controller in "${CONTROLLERS[@]}"; do
    parent=$CGROUPS/$controller
    [ -d "$parent" ] || continue
    for group in "$NAME" "$NAME/$NODE"; do
      mkdir -p "$parent/$group"
      if [ "$controller" = cpuset ]; then # a new cpuset is empty, and nothing can run in it
        cat "$parent/cpuset.cpus" >"$parent/$group/cpuset.cpus"
        cat "$parent/cpuset.mems" >"$parent/$group/cpuset.mems"
      fi
    done
  done
}

cgroups_left() {
  find "$CGROUPS" -mindepth 2 -maxdepth 2 -type d -name "$NAME" 2>/dev/null || true
}

remove_cgroups() {
  local tries top
  for ((tries = 0; tries < 100; tries++)); do
    [ -n "$(cgroups_left)" ] || return 0
    for top in $(cgroups_left); do find "$top" -depth -type d -exec rmdir {} + 2>/dev/null || true; done
    sleep 0.05
  done
}

# ---- all of it

take_down() { # the cluster named by name_cluster
  end_processes
  ip link delete "$NAME" 2>/dev/null || true # also removes its address and routes
  remove_cgroups
  if [ -z "$(mounts_left)" ]; then rm -rf --one-file-system "$RUN"; fi
  restore_kernel_settings
  (! lock_image_storage -n || release_image_storage)
}

mounts_left() {
  awk -v run="$RUN" -v name="$NAME" 'index($0, run) || index($0, "/" name "/") {print $5}' /proc/self/mountinfo
}

tables_left() { # nftables and iptables of the host: all of the cluster's are in its own network namespace
  local nft
  nft=$(part node-packages)/root
  [ ! -x "$nft/usr/sbin/nft" ] ||
    LD_LIBRARY_PATH=$nft/usr/lib/x86_64-linux-gnu "$nft/usr/sbin/nft" list tables 2>/dev/null |
    grep -E ' (netpol|kube-proxy|cni)' || true
  ! command -v iptables-save >/dev/null || iptables-save 2>/dev/null | grep -E '^:(KUBE|CNI)-' || true
}

# Inspects the machine independently of `down`. Prints each leftover of the cluster on a line.
leftovers() {
  local pid range slot
  for pid in $(marked_processes) $(pod_processes); do
    [ ! -d "/proc/$pid" ] || echo "process $pid: $({ tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | cut -c1-100)"
  done
  {
    mounts_left
    (! lock_image_storage -n || image_mounts) # those of a build that is running are its own
  } | sed 's/^/mount /'
  ip -o link show | awk -F': ' -v name="$NAME" 'index($2, name) == 1 {print "network link " $2}'
  ip -4 route show table all | awk -v name="$NAME" '$0 ~ "dev " name "( |$)" {print "route " $0}'
  tables_left | sed 's/^/firewall /'
  cgroups_left | sed 's/^/cgroup /'
  [ ! -e "$RUN" ] || echo "folder $RUN"
  any_cluster_runs || changed_kernel_settings | sed 's/^/kernel setting /'
}
