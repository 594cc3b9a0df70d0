# shellcheck shell=bash
# The configuration files of the node's components, written into $NODE_RUN/config.

write_node_config() { # ROOT_OF_THE_UNPACKED_PACKAGES
  local packages=$1 config=$NODE_RUN/config pki=$RUN/pki
  mkdir -p "$config/cni"

  # Pods find DNS here. Names outside the cluster do not resolve.
  echo "nameserver $DNS_IP" >"$config/resolv.conf"

  # restrict_oom_score_adj and oom_score = 0: without CAP_SYS_RESOURCE no score can be lowered, and runc would fail with
  # "can't get final child's PID from pipe".
  cat >"$config/containerd.toml" <<EOF
version = 2
root = "$NODE_RUN/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "$CONTAINERD_SOCKET"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "$packages/usr/sbin/runc"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$packages/usr/lib/cni"
    conf_dir = "$config/cni"
EOF

  # Pods keep their own addresses when they leave the node: the host and the other nodes have routes back to them.
  cat >"$config/cni/10-bridge.conflist" <<EOF
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [[{"subnet": "$NODE_POD_CIDR"}]]}}]}
EOF

  # KubeletInUserNamespace: ignore kernel settings that even root cannot change on this machine.
  cat >"$config/kubelet.yaml" <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
featureGates: {KubeletInUserNamespace: true}
cgroupDriver: cgroupfs
cgroupRoot: /$NAME/$NODE
cgroupsPerQOS: true
enforceNodeAllocatable: [pods]
containerRuntimeEndpoint: unix://$CONTAINERD_SOCKET
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $pki/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $pki/kubelet-$NODE.crt
tlsPrivateKeyFile: $pki/kubelet-$NODE.key
clusterDomain: cluster.local
clusterDNS: [$DNS_IP]
resolvConf: $config/resolv.conf
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
maxPods: 200
serializeImagePulls: false
registerNode: true
EOF

  cat >"$config/Corefile" <<EOF
cluster.local:53 in-addr.arpa:53 {
  bind $DNS_IP
  errors
  ready 127.0.0.1:8181
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $pki/coredns.kubeconfig
    pods insecure
    ttl 5
  }
}
.:53 {
  bind $DNS_IP
  template ANY ANY {
    rcode NXDOMAIN
  }
}
EOF
}
