# Makes a lab node a Kubernetes node; run once after boot, with the settings in /run/kube/env:
# PODS, the node's /24 of pod addresses.
set -eu
. /run/kube/env
export PATH=/kube/bin:/kube/usr/bin:/kube/usr/sbin:$PATH

mkdir -p /kube /etc/cni/net.d /var/log/pods
mount /dev/disk/by-id/virtio-kube /kube
# The state of runtime, kubelet and agent is on a disk, as on a real node: a reset keeps it.
mount --bind /kube/var /var/lib
mount --make-rshared /
# The stock kernels have these as modules, `full` has them built in.
for module in overlay bridge br_netfilter veth; do modprobe -q $module || :; done
for library in /kube/usr/lib/x86_64-linux-gnu/*; do
  [ -e "/usr/lib/x86_64-linux-gnu/${library##*/}" ] || cp -d "$library" /usr/lib/x86_64-linux-gnu/
done
sysctl -q net.ipv4.ip_forward=1
ip link set lo up
# The plugins take a bridge that is there; one that they make has another address at each boot.
ip link add cni0 address 02:00:00:00:00:01 type bridge
[ -s /etc/machine-id ] || tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id

cat >/etc/cni/net.d/10-pods.conflist <<CNI
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$PODS"}]],
            "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/cni"}}]}
CNI
cat >/run/kube/containerd.toml <<TOML
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/faultctl/pause:test"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/kube/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "/kube/usr/sbin/runc"
TOML
cat >/run/kube/kubelet.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: /run/kube/ca.pem}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
resolvConf: ""
evictionHard: {memory.available: 20Mi, nodefs.available: 1%, imagefs.available: 1%}
imageMinimumGCAge: 24h
nodeStatusUpdateFrequency: 5s
YAML
echo "node prepared"
