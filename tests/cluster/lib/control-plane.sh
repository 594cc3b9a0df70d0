# shellcheck shell=bash
# What the first node runs in addition to the components of every node. Sourced by lib/node.sh.

start_api_server() {
  # No fsync, because the data do not have to survive the cluster.
  start etcd etcd --data-dir "$RUN/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster default=http://127.0.0.1:2380
  start kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
    --advertise-address="$NODE_IP" --bind-address=0.0.0.0 --secure-port=6443 \
    --service-cluster-ip-range="$SERVICE_CIDR" --allow-privileged=true \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
    --kubelet-client-certificate="$pki/apiserver-kubelet.crt" --kubelet-client-key="$pki/apiserver-kubelet.key" \
    --service-account-key-file="$pki/sa.key" --service-account-signing-key-file="$pki/sa.key" \
    --requestheader-client-ca-file="$pki/ca.crt" --requestheader-allowed-names=kube-apiserver-kubelet-client \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- --enable-aggregator-routing=true \
    --proxy-client-cert-file="$pki/apiserver-kubelet.crt" --proxy-client-key-file="$pki/apiserver-kubelet.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local --profiling=false --v=1
}

start_controllers() { # once the API server is ready
  start kube-controller-manager kube-controller-manager --kubeconfig="$pki/controller-manager.kubeconfig" \
    --leader-elect=false --bind-address=127.0.0.1 --use-service-account-credentials=true \
    --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
    --kube-api-qps=100 --kube-api-burst=200 --profiling=false
  start kube-scheduler kube-scheduler --kubeconfig="$pki/scheduler.kubeconfig" --leader-elect=false \
    --bind-address=127.0.0.1 --kube-api-qps=100 --kube-api-burst=200
  ip addr add "$DNS_IP/32" dev lo
  start coredns coredns -conf "$NODE_RUN/config/Corefile"
}
