"""The lab itself: boots, resets, deaths, networks. The host's own tools are the witnesses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.lab import Disk, Node, NodeConfig, NodeFailed, attached, launch, unique
from controller.lab.supervise import start_time

Fresh = Callable[[NodeConfig], Node]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def alive(pid: int) -> bool:
    try:
        start_time(pid)
    except (ProcessLookupError, FileNotFoundError):
        return False
    return True


def gone(pid: int, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


def qemu_of(node: Node) -> int:
    return int(node.entry.read("pids.json")["qemu"])


@pytest.mark.vm("debian-13", "debian-12", "full")
def test_what_a_node_offers(vm_node: Node) -> None:
    """The tools and mounts that faults and witnesses build on."""
    tools = "psql fio dmsetup lvm cryptsetup mkfs.xfs mkfs.ext4 mkfs.btrfs modprobe ip tc ping"
    tools += " iperf3 ps fuser strace stress-ng bpftool blktrace iostat findmnt busybox nft sg_dd"
    assert vm_node.sh(f"for t in {tools}; do command -v $t >/dev/null || echo $t; done") == ""
    kinds = set(vm_node.sh("cut -d' ' -f3 /proc/mounts").split())
    assert {"overlay", "proc", "sysfs", "devtmpfs", "cgroup2", "bpf", "debugfs", "tracefs"} <= kinds
    assert vm_node.sh("cat /sys/kernel/btf/vmlinux | head -c4 | od -An -tx1").split() == [
        "9f", "eb", "01", "00"
    ]  # fmt: skip
    assert vm_node.sh("hostname").strip() == vm_node.name
    release = vm_node.sh("uname -r").strip()
    assert release == vm_node.kernel
    assert release.startswith({"debian-12": "6.1."}.get(vm_node.config.flavour, "6.12."))


@pytest.mark.vm("debian-13", "debian-12", "full")
def test_scratch_disks_are_what_was_asked_for(vm_node: Node) -> None:
    for disk in vm_node.config.disks:
        size, sector = vm_node.sh(f"blockdev --getsize64 --getss {disk.path}").split()
        assert (int(size), int(sector)) == (disk.size, disk.block_size)
    mark = os.urandom(512)
    target = f"of={vm_node.config.disks[0].path} bs=512 seek=100 oflag=direct conv=fsync"
    vm_node.run(f"dd {target}", stdin=mark)
    with (vm_node.home / "disks" / f"{vm_node.config.disks[0].name}.raw").open("rb") as file:
        file.seek(51200)
        assert file.read(512) == mark, "the host sees the very bytes"


@pytest.mark.vm("debian-13", "debian-12")
def test_stock_kernels_load_what_faults_need(vm_node: Node) -> None:
    vm_node.run(
        "set -e; modprobe -a dm_delay dm_flakey dm_snapshot dm_crypt scsi_debug loop null_blk "
        "sch_netem sch_tbf act_mirred xfs btrfs; modprobe ifb numifbs=0; rmmod scsi_debug null_blk",
        timeout=60,
    )
    assert "error" in vm_node.sh("dmsetup targets")


@pytest.mark.vm("full")
def test_full_has_what_it_is_for(vm_node: Node) -> None:
    assert "dust" in vm_node.sh("dmsetup targets")
    assert "should_fail_bio" in vm_node.sh("cat /sys/kernel/debug/error_injection/list")


@pytest.mark.vm("debian-13", "debian-12")
def test_the_code_under_test_is_there_with_byte_code(vm_node: Node) -> None:
    got = vm_node.sh(
        "python3 -c 'import grpc, pydantic, pyroute2, nodeagent.model.errors as e;"
        'print(e.__file__, e.__cached__, __import__("os").path.exists(e.__cached__))\''
    ).split()
    assert got[0] == "/opt/faultctl/code/nodeagent/model/errors.py" and got[2] == "True"


def test_an_edit_reaches_a_running_node(node: Callable[..., Node], tmp_path: Path) -> None:
    one = node("debian-13")
    one.sh("echo stale > /opt/faultctl/code/nodeagent/stale.py; ls /opt/faultctl/code/nodeagent")
    one.push_code()
    assert "stale.py" not in one.sh("ls /opt/faultctl/code/nodeagent")
    here = Path(sys.modules["nodeagent.model.errors"].__file__ or "").read_bytes()
    assert one.get("/opt/faultctl/code/nodeagent/model/errors.py") == here


def test_a_second_session_beside_the_first(node: Callable[..., Node]) -> None:
    one = node("debian-13")
    slow = one.popen("sleep 1; echo slow")
    with attached(one.name) as again:
        assert again.sh("echo quick") == "quick\n"
        left = again.popen("sleep 1000")
    assert slow.wait(one.deadline(30)).out == "slow\n"
    time.sleep(0.5)
    assert not one.run(["kill", "-0", str(left.pid)], check=False).ok, "its commands end with it"


def test_only_forwarded_ports(node: Callable[..., Node]) -> None:
    one = node("debian-13")
    one.spawn("socat TCP-LISTEN:7443,reuseaddr,fork SYSTEM:'echo hello'", "/tmp/socat.log")
    end = one.deadline(10)
    got = b""
    while not got and time.monotonic() < end:
        with socket.create_connection(("127.0.0.1", one.port()), 5) as sock:
            sock.settimeout(5)
            try:
                got = sock.recv(100)
            except (ConnectionResetError, TimeoutError):
                time.sleep(0.2)
    assert got == b"hello\n"
    with pytest.raises(NodeFailed, match="not forwarded"):
        one.port(22)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        tried = one.run(f"timeout 5 socat -u TCP:10.0.2.2:{port} -", check=False)
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert not tried.ok, "restrict=on: the guest does not reach this host"


@pytest.mark.slow
def test_reset_and_power_cut_keep_the_disks(fresh_node: Fresh) -> None:
    one = fresh_node(NodeConfig(disks=(Disk("data", 1 << 26),)))
    first, qemu = one.boot_id, qemu_of(one)
    path = one.config.disks[0].path
    one.sh(f"printf one | dd of={path} conv=fsync 2>/dev/null; echo x >/srv/volatile")
    one.reset()
    assert one.boot_id != first and qemu_of(one) == qemu
    assert one.sh(f"head -c3 {path}") == "one"
    assert not one.run(["test", "-e", "/srv/volatile"], check=False).ok, "the root is fresh"
    one.sh(f"printf two | dd of={path} conv=fsync 2>/dev/null")
    second = one.boot_id
    one.kill()
    assert gone(qemu)
    with pytest.raises(NodeFailed):
        one.sh("true")
    one.power_on()
    assert one.boot_id != second and one.sh(f"head -c3 {path}") == "two"


@pytest.mark.slow
def test_a_panic_is_told_at_once_with_its_last_words(fresh_node: Fresh) -> None:
    one = fresh_node(NodeConfig())
    begin = time.monotonic()
    with pytest.raises(NodeFailed) as caught:
        one.run("echo c > /proc/sysrq-trigger; sleep 600", timeout=600)
    assert time.monotonic() - begin < one.pace.stretch(20)
    assert "sysrq triggered crash" in caught.value.why and "console.log" in caught.value.hint
    one.reset()
    assert one.sh("echo back") == "back\n"


@pytest.mark.slow
def test_udev_on_request(fresh_node: Fresh) -> None:
    one = fresh_node(NodeConfig(udev=True, disks=(Disk("data", 1 << 26),)))
    one.sh("modprobe dm_mod; dmsetup create probe --table '0 8 zero'")
    assert one.sh("test -L /dev/mapper/probe && udevadm info -q property /dev/mapper/probe") != ""
    assert "S:disk/by-id/dm-name-probe" in one.sh("cat /run/udev/data/b253:0")


SKIPPERS = """
import pytest

def test_skips():
    pytest.skip("no reason that the table knows")

@pytest.mark.xfail
def test_xfails():
    assert False

def test_known():
    pytest.skip("fine")

@pytest.mark.skipif(True, reason="marked")
@pytest.mark.parametrize("flavour", ["debian-13"])
def test_marked(flavour):
    pass

def test_runs():
    pass
"""


def test_an_unexpected_skip_is_a_failure(tmp_path: Path) -> None:
    here = Path(__file__).parent
    (tmp_path / "conftest.py").write_bytes((here / "conftest.py").read_bytes())
    known = 'SKIPS[("test_skips.py::test_known", "*")] = "a known reason"\n'
    (tmp_path / "expect.py").write_text((here / "expect.py").read_text() + known)
    (tmp_path / "test_skips.py").write_text(SKIPPERS)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), str(here)])}
    done = subprocess.run(
        [*argv, f"--rootdir={tmp_path}", str(tmp_path)], capture_output=True, text=True, env=env
    )
    assert done.returncode == 1
    assert "2 failed, 1 passed, 1 skipped, 1 error in" in done.stdout, done.stdout
    assert "may not be skipped on debian-13" in done.stdout


OWNER = """
import sys, time
from controller.lab import NodeConfig, launch
node = launch(NodeConfig(name=sys.argv[1]))
print(node.entry.read("pids.json")["qemu"], flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_node_dies_with_its_killed_owner(fresh_node: Fresh) -> None:
    """SIGKILL leaves no time to clean up: the supervisor does it."""
    name = unique(NodeConfig()).name
    owner = subprocess.Popen([sys.executable, "-c", OWNER, name], stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        qemu = int(owner.stdout.readline())
        assert alive(qemu)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert gone(qemu)


@pytest.mark.slow
def test_a_detached_node_has_an_end(fresh_node: Fresh) -> None:
    one = launch(unique(NodeConfig()), ttl=3600)
    try:
        qemu = qemu_of(one)
        one.close()
        assert alive(qemu), "close() ends the session only"
        with attached(one.name) as again:
            assert again.sh("echo there") == "there\n"
    finally:
        one.down()
    assert gone(qemu) and not one.home.exists()


@root_only
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_nodes_on_one_network(fresh_node: Fresh) -> None:
    first = fresh_node(NodeConfig(network="pair", memory=512 << 20))
    second = launch(unique(NodeConfig(network="pair", memory=512 << 20)))
    try:
        assert first.address and second.address and first.address != second.address
        first.sh(f"ping -c 3 -W 10 {second.address}", timeout=30)
        first.sh("ping -c 2 -W 10 10.77.0.1", timeout=30)  # this host, inside the namespace
        seen = ["ip", "-n", "faultctl-pair", "neigh"]
        assert first.address in subprocess.run(seen, capture_output=True, text=True).stdout
        assert first.port() != second.port(), "the agents' ports stay reachable from here"
        names = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True)
        assert "tap" not in names.stdout and "br0" not in names.stdout, "nothing on the host"
    finally:
        second.close()
    listed = ["ip", "netns", "list"]
    assert "faultctl-pair" in subprocess.run(listed, capture_output=True, text=True).stdout
    first.down()
    assert "faultctl-pair" not in subprocess.run(listed, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_icount_makes_guest_time_repeatable(fresh_node: Fresh) -> None:
    """The same instructions take the same guest time, whatever else this host does."""
    one = fresh_node(NodeConfig(clock="icount"))
    script = (
        "import os, time\nfor _ in range(5):\n t = time.perf_counter_ns()\n"
        " for _ in range(20000): os.getppid()\n print(time.perf_counter_ns() - t)"
    )
    took = sorted(int(word) for word in one.run(["python3", "-c", script], timeout=120).out.split())
    assert took[-2] / took[1] < 1.05, took
