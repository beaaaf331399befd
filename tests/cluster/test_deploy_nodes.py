"""The agents on real nodes: installed, used through the API server, killed, taken off again.

The tests build on one another in their order: one installation serves them all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import images
import kubenode
import pytest
from cluster import Cluster
from kubenode import KubeNode
from nodestate import agents, fingerprint, guardians, uninstall, untouched

DEVICE = "/dev/disk/by-id/virtio-data"
BAD, SECTORS = 40_000, 8
NODE = "node-a"
SYSTEM = "faultctl-system"
AGENT = "app.kubernetes.io/name=faultd"
REVERT_S = 2.0  # after the agent's end, on a native machine

# Prints, as JSON, how long after the agent's end the device could be read again.
WATCH = """
import json, os, sys, time
pid, device, offset = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
fd = os.pidfd_open(pid)
import mmap, select
buffer = mmap.mmap(-1, 4096)
def readable():
    disk = os.open(device, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.preadv(disk, [buffer], offset) == 4096
    except OSError:
        return False
    finally:
        os.close(disk)
assert not readable()
open("/run/watching", "w").close()
select.select([fd], [], [], 120)
end = time.monotonic()
while not readable():
    assert time.monotonic() < end + 60
    time.sleep(0.01)
print(json.dumps({"seconds": time.monotonic() - end}), flush=True)
"""


# Says again and again how fsync(2) fares.
SYNCS = """
import errno, os, time
fd = os.open("/run/syncs", os.O_CREAT | os.O_RDWR)
while True:
    try:
        os.fsync(fd)
        said = "ok"
    except OSError as exc:
        said = errno.errorcode[exc.errno]
    with open("/run/syncs.new", "w") as file:
        file.write(said)
    os.rename("/run/syncs.new", "/run/syncs.said")
    time.sleep(0.1)
"""


def until_it_says(node: KubeNode, what: str) -> None:
    kubenode.until(
        f"fsync: {what}",
        lambda: node.node.run("cat /run/syncs.said", check=False).out == what,
        node.node.deadline(20),
        lambda: node.node.run("cat /run/syncs.said", check=False).out,
    )


def reads(node: KubeNode, sector: int) -> bool:
    """Whether dd can read a sector past every cache."""
    argv = ["dd", f"if={DEVICE}", "of=/dev/null", "bs=512", "count=1", "iflag=direct"]
    done = node.node.run([*argv, f"skip={sector}"], check=False)
    assert done.code == 0 or "Input/output error" in done.err, done.err
    return done.code == 0


def inject(cluster: Cluster, fault: str) -> None:
    cluster.faultctl(
        *("inject", "latent-sector", "--on-node", NODE, "--device", DEVICE, "--id", fault),
        *("--sectors", f"{BAD}+{SECTORS}"),
    )


def armed_on(cluster: Cluster) -> dict[str, str]:
    found = json.loads(cluster.faultctl("ls", "--cluster", "-o", "json").stdout)
    return {one["id"]: one["state"] for one in found}


@pytest.fixture(scope="module")
def before(cluster: Cluster) -> dict[str, str]:
    return untouched(cluster)


@pytest.fixture(scope="module")
def installed(cluster: Cluster, before: dict[str, str]) -> Iterator[Cluster]:
    cluster.install()
    yield cluster
    if cluster.faultctl("deploy", "status", check=False).returncode != 3:  # 3: not installed
        cluster.faultctl("deploy", "uninstall", "--revert")


def test_every_node_has_a_sound_agent_of_the_built_image(installed: Cluster) -> None:
    found = json.loads(installed.faultctl("deploy", "status", "-o", "json").stdout)
    assert [one["node"] for one in found] == [one.place.name for one in installed.nodes]
    for one in found:
        assert one["ready"] and one["error"] is None
        assert one["guardian"].startswith("running")
        assert one["image"] == images.AGENT


def test_a_second_install_is_refused(installed: Cluster) -> None:
    done = installed.faultctl("deploy", "install", check=False)
    assert done.returncode == 3
    assert "faultctl deploy upgrade" in done.stderr


def test_agent_and_guardian_live_in_the_nodes_namespaces(installed: Cluster) -> None:
    """The agent stays in its pod's cgroup, the guardian has left it."""
    node = installed.node(NODE)
    (agent,), (guardian,) = agents(node), guardians(node)
    for pid in (agent, guardian):
        for name in ("mnt", "cgroup", "uts", "ipc"):
            links = [node.node.sh(f"readlink /proc/{p}/ns/{name}") for p in (1, pid)]
            assert links[0] == links[1], (pid, name)
        exe = node.node.sh(f"readlink /proc/{pid}/exe")
        assert exe.startswith("/var/lib/faultctl/runtime/")
    assert "kubepods" in node.node.sh(f"cat /proc/{agent}/cgroup")
    assert node.node.sh(f"cat /proc/{guardian}/cgroup").strip() == "0::/"
    assert node.node.sh(f"cat /proc/{guardian}/oom_score_adj").strip() == "-1000"


def test_a_fault_from_a_users_machine_through_the_api_server(installed: Cluster) -> None:
    node = installed.node(NODE)
    assert reads(node, BAD)
    inject(installed, "slice")
    assert not reads(node, BAD)
    assert reads(node, BAD - 1)
    assert reads(node, BAD + SECTORS)
    assert armed_on(installed) == {"slice-1": "armed"}
    installed.faultctl("revert", "--cluster", "slice")
    assert reads(node, BAD)
    assert armed_on(installed) == {}


def test_what_would_end_an_agent_is_refused_while_a_fault_is_armed(installed: Cluster) -> None:
    inject(installed, "held")
    for verb in ("upgrade", "uninstall"):
        done = installed.faultctl("deploy", verb, check=False)
        assert done.returncode == 3, done.stderr
        assert "held-1 on node-a" in done.stderr
    assert not reads(installed.node(NODE), BAD)
    installed.faultctl("revert", "--cluster", "held")


def test_an_agent_that_is_deleted_by_force_leaves_no_fault(installed: Cluster) -> None:
    node = installed.node(NODE)
    inject(installed, "orphan")
    (agent,) = agents(node)
    argv = ["python3", "-c", WATCH, str(agent), DEVICE, str(BAD * 512)]
    watch = node.node.popen(argv, timeout=180)
    kubenode.until(
        "the fault is watched",
        lambda: node.node.run("test -e /run/watching", check=False).code == 0,
        node.node.deadline(30),
        lambda: installed.faultctl("ls", "--cluster", check=False).stdout,
    )
    node.node.sh("rm /run/watching")
    pod = installed.api.json(
        *("get", "pods", "-n", SYSTEM, "-l", AGENT, "--field-selector", f"spec.nodeName={NODE}")
    )["items"][0]["metadata"]["name"]
    installed.api.kubectl("delete", "pod", "-n", SYSTEM, pod, "--force", "--grace-period=0")
    result = watch.wait(node.node.deadline(240)).check()
    took = json.loads(result.out.splitlines()[-1])["seconds"]
    print(f"reverted {took:.2f} s after the agent's end")
    assert took <= node.node.pace.stretch(REVERT_S)
    seconds = round(node.node.pace.stretch(90))
    installed.api.kubectl(
        *("rollout", "status", "-n", SYSTEM, "daemonset/faultd", f"--timeout={seconds}s"),
        timeout=seconds + 30,
    )
    shown = json.loads(installed.faultctl("ls", "--cluster", "--all", "-o", "json").stdout)
    ends = {one["id"]: one["end_reason"] for one in shown}
    assert ends["orphan-1"] == "agent-lost"


@pytest.mark.slow
def test_named_capabilities_do_what_needs_no_device_node(installed: Cluster) -> None:
    """System calls fail by BPF; the guardian still gets out of the pod; what a disk does cannot
    be looked at through the device filter, so that is refused; and back to privileged."""
    seconds = f"{round(installed.nodes[0].node.pace.stretch(120))}s"
    image = ["--image", images.AGENT, "--pull-policy", "Never", "--timeout", seconds]
    installed.faultctl("deploy", "upgrade", "--capabilities", *image, timeout=900)
    node = installed.node(NODE)
    (guardian,) = guardians(node)
    assert node.node.sh(f"cat /proc/{guardian}/cgroup").strip() == "0::/"
    pid = node.node.sh(f"setsid python3 -c '{SYNCS}' >/dev/null 2>&1 </dev/null & echo $!").strip()
    until_it_says(node, "ok")
    installed.faultctl(
        *("inject", "syscall", "--on-node", NODE, "--pid", pid, "--call", "fsync"),
        *("--errno", "EIO", "--id", "capable"),
    )
    until_it_says(node, "EIO")
    installed.faultctl("revert", "--cluster", "capable")
    until_it_says(node, "ok")
    node.node.sh(f"kill {pid}; rm /run/syncs*")
    refused = ("inject", "latent-sector", "--on-node", NODE, "--device", DEVICE, "--sectors")
    done = installed.faultctl(*refused, f"{BAD}+{SECTORS}", check=False)
    assert done.returncode == 3 and "device filter" in done.stderr, done.stderr
    assert reads(node, BAD) and armed_on(installed) == {}
    installed.faultctl("deploy", "upgrade", *image, timeout=900)


@pytest.mark.slow
def test_new_certificates_are_taken_by_running_agents(installed: Cluster) -> None:
    installed.faultctl("deploy", "certs", "--valid", "2d")
    node = installed.node(NODE)
    agent = agents(node)
    end = node.node.deadline(120)  # the kubelet brings Secrets within about a minute
    kubenode.until(
        "all agents answer with the new certificates",
        lambda: installed.faultctl("deploy", "status", check=False).returncode == 0,
        end,
        lambda: installed.faultctl("deploy", "status", check=False).stdout,
    )
    assert agents(node) == agent


def test_uninstall_leaves_nothing(installed: Cluster, before: dict[str, str]) -> None:
    inject(installed, "last")
    uninstall(installed)
    for one in installed.nodes:
        assert fingerprint(one) == before[one.place.name]
    kinds = "namespaces,priorityclasses,clusterroles,clusterrolebindings"
    names = installed.api.kubectl("get", kinds, "-o", "name").stdout
    assert "faultctl" not in names and "faultd" not in names, names  # `default` has a fault, too


@pytest.mark.slow
def test_a_power_cut_in_mid_fault_leaves_the_node_clean(installed: Cluster) -> None:
    """Last of all: with another boot the kernel counts its memory anew (fs.file-max)."""
    node = installed.node(NODE)
    installed.install()
    inject(installed, "cut")
    node.node.kill()
    node.node.power_on()
    kubenode.start(node, installed.plane)
    kubenode.connect(installed.nodes)  # as a cluster's network would
    assert reads(node, BAD)
    kubenode.until(
        "the agent is back and sound",
        lambda: installed.faultctl("deploy", "status", check=False).returncode == 0,
        node.node.deadline(120),
        lambda: installed.faultctl("deploy", "status", check=False).stdout + node.log("kubelet"),
    )
    shown = json.loads(installed.faultctl("ls", "--cluster", "--all", "-o", "json").stdout)
    ends = {one["id"]: one["end_reason"] for one in shown}
    assert ends["cut-1"] == "rebooted"
    assert reads(node, BAD)
    uninstall(installed)
