#!/bin/bash
# Process 1 of a node. It runs in its own network, mount, pid, uts and ipc namespaces and starts the node's Kubernetes
# components in them. When it ends, the kernel ends all of them.
#
# Called by lib/nodes.sh with SLOT and NODE set. It reports through files in $NODE_RUN/sync that its namespaces are ready
# for a network link, and waits there for the link.
# shellcheck source=lib/common.sh
. "$(dirname "$0")/common.sh"
name_addresses "$SLOT"
name_node "$NODE"
# shellcheck source=lib/node-config.sh
. "$CLUSTER_HOME/lib/node-config.sh"
# shellcheck source=lib/control-plane.sh
. "$CLUSTER_HOME/lib/control-plane.sh"

trap 'exit 0' TERM INT
# -n: no line in the host's /etc/mtab. The kubelet's volumes need shared propagation.
mount -n --make-rshared /
mount -n --bind "$NODE_RUN/var" /var
mount -n -t tmpfs tmpfs /run
hostname "$NODE"
: >"$NODE_RUN/sync/namespaces-are-ready"
wait_until 30 "network link of the node" - test -e "$NODE_RUN/sync/link-is-ready"

ip link set lo up
ip addr add "$NODE_IP/30" dev eth0
ip link set eth0 up
ip route add default via "$GATEWAY_IP"
# The second setting lets nftables see traffic between pods, which only crosses the bridge.
sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1

unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY no_proxy NO_PROXY KUBECONFIG
packages=$(part node-packages)/root
PATH=$(part hyperkube)/bin:$packages/usr/bin:$packages/usr/sbin:$PATH
LD_LIBRARY_PATH=$packages/usr/lib/x86_64-linux-gnu
export PATH LD_LIBRARY_PATH
write_node_config "$packages"

pki=$RUN/pki
declare -A component_of
start() { # NAME COMMAND...
  local name=$1
  shift
  "$@" >>"$NODE_RUN/log/$name.log" 2>&1 &
  component_of[$!]=$name
}

start containerd containerd --config "$NODE_RUN/config/containerd.toml" --log-level warn
[ "$NODE" != $FIRST_NODE ] || start_api_server
wait_until 60 "API server" - curl -fsk -o /dev/null "https://$API_IP:6443/readyz"
[ "$NODE" != $FIRST_NODE ] || start_controllers
start kubelet kubelet --config="$NODE_RUN/config/kubelet.yaml" --kubeconfig="$pki/kubelet-$NODE.kubeconfig" \
  --root-dir="$NODE_RUN/kubelet" --cert-dir="$NODE_RUN/kubelet/pki" --node-ip="$NODE_IP" \
  --hostname-override="$NODE" --v=2
# Connection tracking keeps the kernel's limits, because they belong to the host.
start kube-proxy kube-proxy --kubeconfig="$pki/proxy.kubeconfig" --proxy-mode=nftables --cluster-cidr="$POD_CIDR" \
  --hostname-override="$NODE" --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 \
  --conntrack-tcp-timeout-close-wait=0
start netpol hyperkube netpol "$pki/netpol.kubeconfig" "$POD_CIDR" "$NODE_POD_CIDR" "$DNS_IP"

# Nothing is restarted: the exit of a component is a finding, and its log has the reason.
while :; do
  status=0
  wait -n -p ended || status=$?
  if [ -n "${ended:-}" ]; then
    echo "$(date -u +%T) ${component_of[$ended]:-process $ended} ended with status $status"
  else
    sleep 1 # every component has ended
  fi
done
