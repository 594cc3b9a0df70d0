#!/bin/bash
# Process 1 of the node: it runs in network, mount, pid, uts and ipc namespaces of its own and starts every
# component of Kubernetes in them. When it ends, the kernel ends all of them.
#
# Called by `up` with SLOT set. It tells `up` by files in $RUN/sync when its namespaces are ready for a network
# link, and waits there for the link.
# shellcheck source=lib/common.sh
. "$(dirname "$0")/common.sh"
name_addresses "$SLOT"
# shellcheck source=lib/node-config.sh
. "$CLUSTER_HOME/lib/node-config.sh"

trap 'exit 0' TERM INT
# -n: no line in the host's /etc/mtab. Shared propagation is what the kubelet's volumes need.
mount -n --make-rshared /
mount -n --bind "$RUN/var" /var
mount -n -t tmpfs tmpfs /run
hostname "$NODE"
: >"$RUN/sync/namespaces-are-ready"
wait_until 30 "network link of the node" - test -e "$RUN/sync/link-is-ready"

ip link set lo up
ip addr add "$DNS_IP/32" dev lo
ip addr add "$NODE_IP/${LINK_CIDR#*/}" dev eth0
ip link set eth0 up
ip route add default via "$HOST_IP"
# The second lets nftables see traffic between pods, which only crosses the bridge.
sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1

unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY no_proxy NO_PROXY KUBECONFIG
packages=$(part node-packages)/root
PATH=$(part hyperkube)/bin:$packages/usr/bin:$packages/usr/sbin:$PATH
LD_LIBRARY_PATH=$packages/usr/lib/x86_64-linux-gnu
export PATH LD_LIBRARY_PATH
write_node_config "$packages"

declare -A component_of
start() { # NAME COMMAND...
  local name=$1
  shift
  "$@" >"$RUN/log/$name.log" 2>&1 &
  component_of[$!]=$name
}

pki=$RUN/pki
# No fsync: the data need not survive the cluster.
start etcd etcd --data-dir "$RUN/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
  --initial-cluster default=http://127.0.0.1:2380
start containerd containerd --config "$RUN/config/containerd.toml" --log-level warn
start kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
  --advertise-address="$NODE_IP" --bind-address=0.0.0.0 --secure-port=6443 \
  --service-cluster-ip-range="$SERVICE_CIDR" --allow-privileged=true \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
  --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
  --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
  --kubelet-client-certificate="$pki/apiserver-kubelet.crt" --kubelet-client-key="$pki/apiserver-kubelet.key" \
  --service-account-key-file="$pki/sa.key" --service-account-signing-key-file="$pki/sa.key" \
  --service-account-issuer=https://kubernetes.default.svc.cluster.local --profiling=false --v=1
wait_until 60 "API server" - curl -fsk -o /dev/null https://127.0.0.1:6443/readyz
start kube-controller-manager kube-controller-manager --kubeconfig="$pki/controller-manager.kubeconfig" \
  --leader-elect=false --bind-address=127.0.0.1 --use-service-account-credentials=true \
  --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
  --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
  --kube-api-qps=100 --kube-api-burst=200 --profiling=false
start kube-scheduler kube-scheduler --kubeconfig="$pki/scheduler.kubeconfig" --leader-elect=false \
  --bind-address=127.0.0.1 --kube-api-qps=100 --kube-api-burst=200
start kubelet kubelet --config="$RUN/config/kubelet.yaml" --kubeconfig="$pki/kubelet.kubeconfig" \
  --root-dir="$RUN/kubelet" --cert-dir="$pki/kubelet" --node-ip="$NODE_IP" --hostname-override="$NODE" --v=2
# Connection tracking keeps the kernel's own limits: they are the host's to set.
start kube-proxy kube-proxy --kubeconfig="$pki/proxy.kubeconfig" --proxy-mode=nftables --cluster-cidr="$POD_CIDR" \
  --hostname-override="$NODE" --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 \
  --conntrack-tcp-timeout-close-wait=0
start coredns coredns -conf "$RUN/config/Corefile"
start netpol hyperkube netpol "$pki/netpol.kubeconfig" "$NODE" "$POD_CIDR" "$DNS_IP"

# Nothing is restarted: a component that ends is a finding, and its log says why.
while :; do
  status=0
  wait -n -p ended || status=$?
  if [ -n "${ended:-}" ]; then
    echo "$(date -u +%T) ${component_of[$ended]:-process $ended} ended with status $status"
  else
    sleep 1 # every component has ended
  fi
done
