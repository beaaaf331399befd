"""syscall --when on real kernels: calls that match fail, the same calls that do not pass."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Any

import pytest
import syscall_kit as kit
from agentkit import Bench, Benches

from controller.lab import Node
from nodeagent.encode.syscall_args import WIDTHS, arguments
from nodeagent.encode.syscalls import ENTRY, table

EIO, EACCES = errno.EIO, errno.EACCES
ALL = ("debian-12", "debian-13", "full")
SETUP = """
import fcntl, mmap
one = os.open("/etc/hostname", os.O_RDONLY)
big = os.dup2(one, 100)
low = os.dup2(one, 7)
"""
# What the program does, in order; see PREDICATES for which of them fail.
FORMS = [
    "os.pread(7, 4, 0)",
    "os.pread(7, 4096, 0)",
    "os.pread(100, 4, 0)",
    "os.pread(100, 4096, 0)",
    "os.pread(100, 8192, 512)",
]
PREDICATES = {
    "count >= 4096 && fd > 10": [0, 0, 0, 1, 1],
    "count == 4 || pos != 0": [1, 0, 1, 0, 1],
    "!(fd == 7) && !(count > 4096)": [0, 0, 1, 1, 0],
    "count & 0x1000": [0, 1, 0, 1, 0],
    "fd < 0": [0, 0, 0, 0, 0],
    "buf != 0 && pos >= 0x200": [0, 0, 0, 0, 1],
}


@pytest.fixture
def bench(vm_node: Node, benches: Benches) -> Iterator[Bench]:
    with kit.hookless_after(benches.of(vm_node)) as found:
        yield found


def outcome(bench: Bench, hit: Any, spec: dict[str, Any]) -> list[int]:
    """Errnos of the forms while the fault is armed; then it is reverted."""
    fault = bench.inject("syscall", hit.target, spec=spec)
    found: list[int] = hit.go()[0]
    seen = bench.evidence(fault.id)
    assert seen["hits"] == sum(map(bool, found))
    bench.client.revert(fault.id)
    return found


@pytest.mark.vm(*ALL)
def test_only_calls_whose_arguments_match(vm_node: Node, bench: Bench) -> None:
    """By fmod_ret where there is error injection, by the LSM hook on stock kernels."""
    with kit.forms(bench, SETUP, FORMS) as hit:
        assert hit.go() == [[0] * len(FORMS)]
        for when, fails in PREDICATES.items():
            spec = {"call": ["pread64"], "errno": "EIO", "when": when}
            assert outcome(bench, hit, spec) == [EIO * one for one in fails], when
        assert hit.go() == [[0] * len(FORMS)]


@pytest.mark.vm("full")
def test_by_kprobes_before_and_after(vm_node: Node, bench: Bench) -> None:
    when = "count >= 4096 && fd > 10"
    with kit.forms(bench, SETUP, FORMS) as hit:
        for more in ({"after": True}, {}):
            spec = {"call": ["pread64"], "errno": "EIO", "when": when, **more}
            plan = bench.plan("syscall", hit.target, spec=spec)
            assert plan.mechanism == ("bpf-kprobe" if more else "bpf-fmod-ret")
            assert outcome(bench, hit, spec) == [0, 0, 0, EIO, EIO]
    forms = ["assert os.pread(7, 4, 0)", "assert os.pread(7, 5, 0) == b''"]
    with kit.forms(bench, SETUP, forms) as hit:
        fault = bench.inject(
            "syscall", hit.target, spec={"call": ["pread64"], "value": 0, "when": "count == 5"}
        )
        assert hit.go() == [[0, 0]]
        bench.client.revert(fault.id)


@pytest.mark.vm("debian-13", "full")
def test_flags_by_their_names_and_two_faults_at_once(vm_node: Node, bench: Bench) -> None:
    forms = [
        "os.close(os.open('/etc/hostname', os.O_RDONLY))",
        "os.close(os.open('/etc', os.O_RDONLY | os.O_DIRECTORY))",
        "os.close(os.open('/tmp/when', os.O_WRONLY | os.O_CREAT, 0o644))",
        "mmap.mmap(-1, 4096).close()",
        "mmap.mmap(-1, 8192, prot=mmap.PROT_READ).close()",
    ]
    bench.node.sh("touch /tmp/when")
    with kit.forms(bench, SETUP, forms) as hit:
        when = "flags & (O_DIRECTORY | O_CREAT) != 0 && dfd == AT_FDCWD"
        spec = {"call": ["openat"], "errno": "EACCES", "when": when}
        assert outcome(bench, hit, spec) == [0, EACCES, EACCES, 0, 0]
        if vm_node.config.flavour == "full":
            when = "fd == -1 && flags & MAP_ANONYMOUS && len > 4096 && prot == PROT_READ"
            mapped = {"call": ["mmap"], "errno": "ENOMEM", "when": when}
            both = [bench.inject("syscall", hit.target, spec=one) for one in (spec, mapped)]
            assert hit.go() == [[0, EACCES, EACCES, 0, errno.ENOMEM]]
            assert [bench.evidence(fault.id)["hits"] for fault in both] == [2, 1]
            for fault in both:
                bench.client.revert(fault.id)
        assert hit.go() == [[0] * len(forms)]


@pytest.mark.vm("debian-13")
def test_arguments_are_called_what_the_kernel_calls_them(vm_node: Node) -> None:
    """Its own list: names, order and types, descriptors apart."""
    folder = "/sys/kernel/tracing/events/syscalls"
    vm_node.sh("mountpoint -q /sys/kernel/tracing || mount -t tracefs t /sys/kernel/tracing")
    text = vm_node.sh(f"cd {folder} && grep -H 'field:' sys_enter_*/format", timeout=120)
    fields: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        found = re.match(r"sys_enter_(\w+)/format:\s*field:(.*?)\s*(\w+);\s*offset:", line)
        assert found, line
        if not found[3].startswith("common_") and found[3] != "__syscall_nr":
            fields.setdefault(found[1], []).append((found[2], found[3]))
    width = {number: letter for letter, number in WIDTHS.items()}
    letters = {"int": "i", "unsigned int": "u", "unsigned": "u", "umode_t": "m", "loff_t": "l",
               "off_t": "l", "long": "l", "u32": "u", "__u32": "u", "pid_t": "i", "clockid_t": "i",
               "const clockid_t": "i", "rwf_t": "i"}  # fmt: skip
    for name in table():
        entry = fields.get(f"new{name}") or fields.get(name) or fields.get(ENTRY.get(name, name))
        if entry is None:
            assert not arguments(name), name
            continue
        mine = arguments(name)
        assert [a.name for a in mine] == [n for _, n in entry][: len(mine)], name
        assert len(mine) == len(entry) or name == "clone"
        for argument, (kind, _) in zip(mine, entry, strict=False):
            if not re.search("fd$|fildes", argument.name):
                assert width[argument.width] == letters.get(kind, "z"), (name, argument.name)
