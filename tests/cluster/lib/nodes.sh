# shellcheck shell=bash
# Starts and stops a node from the host. `up` and `node` source this after lib/host.sh. The node is that of the last
# name_node call.

start_node() {
  mkdir -p "$NODE_RUN"/{log,sync,config,var/log,var/lib,var/tmp,var/cache,kubelet,containerd}
  rm -f "$NODE_RUN"/sync/*
  make_cgroups
  SLOT=$SLOT NODE=$NODE AIPERF_TEST_CLUSTER=$NAME setsid \
    unshare --net --mount --pid --uts --ipc --fork --kill-child --mount-proc \
    "$CLUSTER_HOME/lib/node.sh" >>"$NODE_RUN/log/node.log" 2>&1 </dev/null 8>&- &
  local unshare=$! init
  identify $unshare >"$NODE_RUN/unshare.process"
  wait_until 20 "namespaces of $NODE" "$NODE_RUN/unshare.process" test -e "$NODE_RUN/sync/namespaces-are-ready"
  init=$(cat "/proc/$unshare/task/$unshare/children")
  identify "${init% }" >"$NODE_RUN/init.process"
  if [ "$NODE" = $FIRST_NODE ]; then link_to_host "${init% }"; else link_to_first_node "${init% }"; fi
  : >"$NODE_RUN/sync/link-is-ready"
}

link_to_host() { # PROCESS
  ip link add "$NAME" type veth peer name eth0 netns "$1"
  ip addr add "$GATEWAY_IP/30" dev "$NAME"
  ip link set "$NAME" up
  ip route add "$POD_CIDR" via "$NODE_IP"
  ip route add "$SERVICE_CIDR" via "$NODE_IP"
}

link_to_first_node() { # PROCESS
  on_first_node ip link delete "$NODE-stopped" 2>/dev/null || true
  on_first_node ip link add "$NODE" type veth peer name eth0 netns "$1"
  on_first_node ip addr add "$GATEWAY_IP/30" dev "$NODE"
  on_first_node ip link set "$NODE" up
  on_first_node ip route add "$NODE_POD_CIDR" via "$NODE_IP"
  ip route replace "$LINKS_CIDR" via "$API_IP"
}

on_first_node() { # COMMAND... in the network of the first node
  nsenter --net="/proc/$(cut -d' ' -f1 "$RUN/$FIRST_NODE/init.process")/ns/net" "$@"
}

limit_link() { # RATE, or none
  local own change=replace how=(tbf rate "$1" burst 256k latency 50ms)
  [ "$1" != none ] || { change=del && how=(); }
  own=$(cut -d' ' -f1 "$NODE_RUN/init.process")
  nsenter --net="/proc/$own/ns/net" tc qdisc $change dev eth0 root "${how[@]}"
  on_first_node tc qdisc $change dev "$NODE" root "${how[@]}"
}

# Everything on the node ends without notice. The network ends first, so no connection is closed, and packets to the node
# are lost from then on. Its disk remains.
stop_node() {
  on_first_node ip link add "$NODE-stopped" type veth peer name "$NODE-nowhere"
  on_first_node ip link set "$NODE-nowhere" up
  on_first_node ip link set "$NODE-stopped" arp off up
  on_first_node ip route replace "$NODE_IP" dev "$NODE-stopped"
  on_first_node ip route replace "$NODE_POD_CIDR" dev "$NODE-stopped"
  on_first_node ip link delete "$NODE"
  kill -KILL "$(cut -d' ' -f1 "$NODE_RUN/init.process")"
  wait_until 20 "end of $NODE" - has_ended "$NODE_RUN/init.process"
}

is_schedulable() {
  [[ $(kubectl get node "$NODE" -o jsonpath='{.status.conditions[?(@.type=="Ready")].status} {.spec.taints}') == "True " ]]
}

wait_until_schedulable() {
  wait_until 60 "$NODE" "$NODE_RUN/init.process" is_schedulable
}

kubectl() { "$CLUSTER_HOME/kubectl" "$@"; }
