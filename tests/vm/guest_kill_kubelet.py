"""A process that is named, configured and supervised as a kubelet, for tests on lab nodes.

It reads evictionHard of its --config when it starts, as the real one does, holds nodefs.available
against what df(1) says, and tells its node's condition in a file.
"""

CONFIG = "/var/lib/kubelet/config.yaml"
TEXT = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration   # written by hand
clusterDNS: [10.96.0.10]
evictionHard:
    nodefs.available:  "3%"
    memory.available: 100Mi
syncFrequency: 0s
"""
PROGRAM = """#!/usr/bin/python3
import os, sys, time
config, want = sys.argv[1].removeprefix("--config="), "10"
for line in open(config):
    name, _, value = line.strip().partition(": ")
    want = value.strip(" '\\"%") if name == "nodefs.available" else want
def say(name, text):
    with open("/run/kubelet.new", "w") as file:
        file.write(text + "\\n")
    os.rename("/run/kubelet.new", "/run/kubelet." + name)
say("threshold", want)
while True:
    space = os.statvfs("/var/lib/kubelet")
    say("status", f"DiskPressure={space.f_bavail * 100 < float(want) * space.f_blocks}")
    time.sleep(2)
"""
FILES = f"""mkdir -p /var/lib/kubelet
cat > {CONFIG} <<'EOF'
{TEXT}EOF
chmod 640 {CONFIG}; chown 0:4 {CONFIG}; touch -d '2024-02-03 04:05:06.789' {CONFIG}
setfattr -n trusted.mark -v kept {CONFIG}
cat > /usr/local/bin/kubelet <<'EOF'
{PROGRAM}EOF
chmod 755 /usr/local/bin/kubelet
"""
WAIT = "for i in $(seq 100); do [ -s /run/kubelet.status ] && exit 0; sleep 0.1; done; exit 1"
SET_UP = f"""{FILES}touch /run/kubelet.wanted
setsid sh -c 'while [ -e /run/kubelet.wanted ]; do
/usr/local/bin/kubelet --config={CONFIG}; sleep 0.2; done' >/dev/null 2>&1 </dev/null &
{WAIT}"""
UNIT = f"""[Unit]
DefaultDependencies=no
[Service]
ExecStart=/usr/local/bin/kubelet --config={CONFIG}
Restart=always
RestartSec=1h
"""
"""As kubeadm's, but that it comes back in time only when it is restarted in order."""
TEAR_DOWN = """rm -f /run/kubelet.wanted; pkill -x kubelet || true
for i in $(seq 100); do pgrep -x kubelet >/dev/null || break; sleep 0.1; done
rm -rf /var/lib/kubelet /run/kubelet.* /usr/local/bin/kubelet"""
