"""syscall's filters: what a call is about, and by which program, seen by the caller itself."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest
import syscall_kit as kit
from agentkit import Bench, Benches

from controller.lab import Node

EIO, EACCES, EPERM = errno.EIO, errno.EACCES, errno.EPERM
ALL = ("debian-12", "debian-13", "full")
PREAD = {"call": ["pread64"], "errno": "EIO"}
OPEN = {"call": ["open-family"], "errno": "EACCES"}


@pytest.fixture
def bench(vm_node: Node, benches: Benches) -> Iterator[Bench]:
    found = benches.of(vm_node)
    found.node.sh("mkdir -p /mnt/t && mount -t tmpfs t /mnt/t")
    yield found
    found.revert_all()
    found.node.sh("umount -R /mnt/t")
    assert kit.hooks(found) == []


def hit(bench: Bench, worker: kit.Worker, spec: dict[str, Any]) -> list[int]:
    """What the worker's calls got under a fault that is armed for one turn of them."""
    fault = bench.inject("syscall", worker.target, spec=spec)
    found = worker.go()[0]
    hits = bench.evidence(fault.id)["hits"]
    bench.client.revert(fault.id)
    assert hits == sum(map(bool, found)), spec
    return found


TREE = """
import os
os.chdir("/mnt/t")
for folder in ("x/d", "xy", "x/sub", "other"):
    os.makedirs(folder)
os.system("mount -t tmpfs s x/sub; mount --bind x other")
for name in ("x/f", "xy/f", "x/sub/f", "x/d/f"):
    open(name, "w").close()
os.symlink("x/f", "link")
os.symlink("x", "to-x")
os.symlink("../xy/f", "x/out")
os.link("x/f", "xy/hard")
x, top, f = os.open("x", os.O_PATH), os.open(".", 0), os.open("x/f", 0)
os.chdir("/mnt/t/x/d")
R = os.O_RDONLY
"""
INSIDE = [
    'os.close(os.open("/mnt/t/x/f", R))',
    'os.close(os.open("../f", R))',
    'os.close(os.open("f", R))',
    'os.close(os.open("f", R, dir_fd=x))',
    'os.close(os.open("x/f", R, dir_fd=top))',
    'os.close(os.open("/mnt/t/link", R))',
    'os.close(os.open("/mnt/t/to-x/f", R))',
    'os.close(os.open("/mnt//t/./xy/../x/f", R))',
    'os.close(os.open("/proc/self/cwd/f", R))',
    'os.close(os.open(f"/proc/self/fd/{f}", R))',
    'os.close(os.open("/mnt/t/x/sub/f", R))',
    'os.close(os.open("/mnt/t/x", R))',
    'os.close(os.open("/mnt/t/x/new", R | os.O_CREAT))',
]
OUTSIDE = [
    'os.close(os.open("/mnt/t/xy/f", R))',
    'os.close(os.open("../../xy/f", R))',
    'os.close(os.open("/mnt/t/x/../xy/f", R))',
    'os.close(os.open("../xy/f", R, dir_fd=x))',
    'os.close(os.open("/mnt/t/x/out", R))',
    'os.close(os.open("/mnt/t/xy/hard", R))',
    'os.close(os.open("/mnt/t/other/f", R))',
    'os.close(os.open("/mnt/t", R))',
    'os.close(os.open("/etc/hostname", R))',
]


@pytest.mark.vm(*ALL)
def test_opens_by_path_however_the_path_is_written(vm_node: Node, bench: Bench) -> None:
    """Relative names, directories' descriptors, links and `..` are where they lead to."""
    with kit.forms(bench, TREE, INSIDE + OUTSIDE) as worker:
        plan = bench.plan("syscall", worker.target, spec={**OPEN, "path": ["/mnt/t/x/**"]})
        assert plan.mechanism == "bpf-lsm"
        wanted = [EACCES] * len(INSIDE) + [0] * len(OUTSIDE)
        assert hit(bench, worker, {**OPEN, "path": ["/mnt/t/x/**"]}) == wanted
        some = hit(bench, worker, {**OPEN, "path": ["/mnt/t/*/f"]})
        assert [i for i, code in enumerate(some) if code] == [
            *(i for i, form in enumerate(INSIDE) if i not in (2, 8, 10, 11, 12)),
            *(len(INSIDE) + i for i in (0, 1, 2, 3, 4, 6)),
        ]
        assert not any(hit(bench, worker, {**OPEN, "path": ["/mnt/t/y/**", "/x/**"]}))


@pytest.mark.vm(*ALL)
def test_an_open_in_a_chroot_by_the_path_that_it_writes(vm_node: Node, bench: Bench) -> None:
    forms = ['os.close(os.open("/x/f", R))', 'os.close(os.open("f", R, dir_fd=x))']
    with kit.forms(bench, TREE + 'os.chroot("/mnt/t")', forms) as worker:
        assert hit(bench, worker, {**OPEN, "path": ["/x/**"]}) == [EACCES] * 2
        assert hit(bench, worker, {**OPEN, "path": ["/mnt/t/x/**"]}) == [0] * 2


@pytest.mark.vm("full")
def test_opens_by_path_after_the_call(vm_node: Node, bench: Bench) -> None:
    with kit.forms(bench, TREE, INSIDE + OUTSIDE) as worker:
        found = hit(bench, worker, {**OPEN, "after": True, "path": ["/mnt/t/x/**"]})
        assert found == [EACCES] * len(INSIDE) + [0] * len(OUTSIDE)


FILES = """
import os
os.chdir("/mnt/t")
fds = []
for name in ("a.wal", "b.wal", "c.log", "d/e/a.wal"):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    open(name, "w").write("12345678")
    fds.append(os.open(name, os.O_RDONLY))
fds.append(os.open("/etc/hostname", os.O_RDONLY))
fds.append(os.open("/dev/disk/by-id/virtio-d0", os.O_RDONLY))
fds.append(os.open("/dev/zero", os.O_RDONLY))
"""
READS = [f"os.pread(fds[{n}], 4, 0)" for n in range(7)]


@pytest.mark.vm(*ALL)
def test_calls_on_open_files_by_path_type_and_device(vm_node: Node, bench: Bench) -> None:
    tmpfs = bench.node.sh("mountpoint -d /mnt/t").strip()
    disk = "/dev/disk/by-id/virtio-d0"
    with kit.forms(bench, FILES, READS) as worker:
        for more, which in (
            ({"path": ["/mnt/t/*.wal"]}, {0, 1}),
            ({"path": ["/mnt/t/?.wal"]}, {0, 1}),
            ({"path": ["/mnt/t/??.wal"]}, set()),
            ({"path": ["**.wal"]}, {0, 1, 3}),
            ({"path": ["/mnt/t/c.log", "/mnt/t/d/**"]}, {2, 3}),
            ({"path": ["/etc/hostname"]}, {4}),  # on a union file system, too
            ({"path": ["/mnt/t/a.wal/**"]}, {0}),
            ({"path": ["/mnt"]}, set()),
            ({"on_device": tmpfs}, {0, 1, 2, 3}),
            ({"on_device": disk}, {5}),
            ({"on_device": tmpfs, "path": ["/**/c*"]}, {2}),
            ({"fd_type": ["block"]}, {5}),
            ({"fd_type": ["char", "block"]}, {5, 6}),
            ({"fd_type": ["regular"], "path": ["/etc/**"]}, {4}),
            ({"fd_type": ["socket", "fifo"]}, set()),
            ({"uid": 0, "path": ["**.log"]}, {2}),
            ({"uid": 1}, set()),
        ):
            found = hit(bench, worker, {**PREAD, **more})
            assert {n for n, code in enumerate(found) if code == EIO} == which, more
        if vm_node.config.flavour == "full":
            found = hit(bench, worker, {**PREAD, "after": True, "path": ["**.wal"]})
            assert found == [EIO, EIO, 0, EIO, 0, 0, 0]


@pytest.mark.vm(*ALL)
def test_each_call_counts_once_on_a_union_file_system(vm_node: Node, bench: Bench) -> None:
    """The kernel passes the security hook twice there: for the file, and for the one below."""
    with kit.worker(bench, "pread", 1, 10) as worker:  # /etc/hostname
        fault = bench.inject("syscall", worker.target, spec={**PREAD, "every": 2})
        assert worker.go() == [[0, EIO] * 5]
        assert bench.evidence(fault.id)["counters"]["seen"] == 10
        bench.client.revert(fault.id)
    with kit.worker(bench, "open", 1, 10) as worker:
        fault = bench.inject("syscall", worker.target, spec={**OPEN, "every": 2})
        assert worker.go() == [[0, EACCES] * 5]
        bench.client.revert(fault.id)


@pytest.mark.vm(*ALL)
def test_programs_by_their_executable(vm_node: Node, bench: Bench) -> None:
    kit.need_cgroup2(bench)
    bench.node.sh("cp -L /usr/bin/python3 /mnt/t/other-python")
    forms = ["os.close(os.open('/etc/hostname', 0))"]
    with (
        kit.cgroup(bench, "exe.slice") as path,
        kit.forms(bench, "", forms, path) as usual,
        kit.forms(bench, "", forms, path, "/mnt/t/other-python") as other,
    ):
        target = {"type": "cgroup", "cgroup": path}
        for exe, codes in (
            ("/usr/bin/python3*", (EACCES, 0)),
            ("/mnt/t/*", (0, EACCES)),
            ("/usr/bin/perl", (0, 0)),
        ):
            fault = bench.inject("syscall", target, spec={**OPEN, "exe": [exe]})
            assert (usual.go()[0][0], other.go()[0][0]) == codes, exe
            bench.client.revert(fault.id)


SOCKETS = """
import socket
def server(family, kind, address):
    made = socket.socket(family, kind)
    made.bind(address)
    if kind == socket.SOCK_STREAM:
        made.listen(64)
    return made
V4, V6, TCP, UDP = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM
kept = [server(V4, TCP, ("127.0.0.1", p)) for p in (5001, 5002)]
kept += [server(V4, TCP, ("127.1.2.3", 5001)), server(V6, TCP, ("::1", 5001))]
kept += [server(V4, UDP, ("127.0.0.1", 5001))]
def to(*address):
    made = socket.socket(V6 if ":" in address[0] else V4, TCP)
    made.connect(address)
    return made
one, two = to("127.0.0.1", 5001), to("127.0.0.1", 5002)
three, six = to("127.1.2.3", 5001), to("::1", 5001)
back = kept[0].accept()[0]
mapped = socket.socket(V6, TCP)
mapped.connect(("::ffff:127.0.0.1", 5001))
udp, pair = socket.socket(V4, UDP), socket.socketpair()
"""
SENDS = [
    "one.send(b'x')",
    "two.send(b'x')",
    "three.send(b'x')",
    "six.send(b'x')",
    "back.send(b'x')",  # the server's end: 5001 is its own port
    "mapped.send(b'x')",
    "udp.sendto(b'x', ('127.0.0.1', 5001))",
    "udp.sendto(b'x', ('127.9.9.9', 5003))",
    "pair[0].send(b'x')",
]
CONNECTS = [
    "to('127.0.0.1', 5001).close()",
    "to('127.0.0.1', 5002).close()",
    "to('127.1.2.3', 5001).close()",
    "to('::1', 5001).close()",
]


@pytest.mark.vm(*ALL)
def test_sockets_by_port_and_address(vm_node: Node, bench: Bench) -> None:
    bench.node.sh("ip link set lo up")
    send = {"call": ["sendto"], "errno": "EPERM"}
    connect = {"call": ["connect"], "errno": "EPERM"}
    with kit.forms(bench, SOCKETS, SENDS) as worker:
        for more, which in (
            ({"port": [5001]}, {0, 2, 3, 4, 5, 6}),
            ({"port": [5002, 5003]}, {1, 7}),
            ({"port": [80]}, set()),
            ({"address": ["127.0.0.1"]}, {0, 1, 4, 5, 6}),
            ({"address": ["127.0.0.0/8"]}, {0, 1, 2, 4, 5, 6, 7}),
            ({"address": ["::1"]}, {3}),
            ({"address": ["10.0.0.0/8", "127.1.0.0/16"]}, {2}),
            ({"address": ["127.0.0.1"], "port": [5002]}, {1}),
            ({"address": ["::/0"], "fd_type": ["socket"]}, set(range(8))),
        ):
            found = hit(bench, worker, {**send, **more})
            assert {n for n, code in enumerate(found) if code == EPERM} == which, more
    with kit.forms(bench, SOCKETS, CONNECTS) as worker:
        assert hit(bench, worker, {**connect, "port": [5001]}) == [EPERM, 0, EPERM, EPERM]
        assert hit(bench, worker, {**connect, "address": ["127.1.0.0/16"]}) == [0, 0, EPERM, 0]
