"""Every khaos name against a program that makes all calls: those of the name fail, no other."""

from __future__ import annotations

import errno
import json
import subprocess
import time
from pathlib import Path

import pytest
import syscall_kit as kit
from agentkit import Bench, Benches

from controller.lab import Node
from nodeagent.encode.syscalls import expand
from nodeagent.faults._khaos_table import PARTS, STORIES
from nodeagent.model.errors import Refused

SOURCE = Path(__file__).with_name("all_calls.c")
OUT = "/tmp/all-calls"
NOTHING = 1000  # what the program says for a result of 0 where that means nothing was given
NAMES = [*((name, (name,)) for name in PARTS), *((n, story.parts) for n, story in STORIES.items())]


def expected(parts: tuple[str, ...]) -> dict[str, int]:
    """Call -> what it returns by these parts, as the program says it."""
    found = {}
    for part in (PARTS[name] for name in parts):
        result = NOTHING if part.result == "0" else getattr(errno, part.result)
        found |= {call.name: result for call in expand(part.call)}
    return found


def start(bench: Bench, folder: Path) -> int:
    program = folder / "all-calls"
    subprocess.run(["gcc", "-static", "-O1", "-w", "-o", program, SOURCE], check=True, timeout=120)
    bench.node.put("/tmp/all-calls-program", program.read_bytes())
    bench.node.sh(
        "chmod +x /tmp/all-calls-program; "
        f"setsid /tmp/all-calls-program {OUT} > /tmp/all-calls.log 2>&1 < /dev/null & "
        f"for i in $(seq 100); do grep -q ready /tmp/all-calls.log && exit; sleep 0.1; done; exit 1"
    )
    return int(bench.node.sh("pgrep -f '^/tmp/all-calls-program'"))


def go(bench: Bench, pid: int, turn: int) -> dict[str, int]:
    """Its calls' errnos; turn counts from 1."""
    bench.node.sh(f"kill -USR1 {pid}")
    deadline = bench.node.deadline(20)
    while True:
        text = bench.node.sh(f"tr -d '\\0' < {OUT}")
        if text.startswith(f'{{"turn": {turn},') and text.endswith("}\n"):
            found: dict[str, int] = json.loads(text)
            del found["turn"]
            return found
        assert time.monotonic() < deadline, "the program did not answer"


# What a security hook stands for, on kernels without error injection.
STOCK = {
    "read_error",
    "pread_error",
    "write_error",
    "pwrite_error",
    "open_error",
    "ioctl_fail",
    "cuda_malloc_fail",
    "fork_fail",
    "socket_block",
    "mmap_fail",
    "mmap_oom",
    "bind_enetdown",
    "mount_io_error",
    "oom_memchunk",
    "latent_sector_error",
    "storage_controller_read_failure",
    "dram_module_failure",
    "network_interface_link_down",
}


def try_all(bench: Bench, folder: Path, names: list[tuple[str, tuple[str, ...]]]) -> None:
    """Each name fails its calls, and no other one, and is taken back."""
    pid = start(bench, folder)
    healthy, wrong = go(bench, pid, 1), {}
    for turn, (name, parts) in enumerate(names, 2):
        target = {"type": "pid", "pid": pid}
        fault = bench.inject(f"khaos:{name}", target, spec={"rate": "100%"})
        seen = go(bench, pid, turn)
        hits = bench.evidence(fault.id)["hits"]
        bench.client.revert(fault.id)
        want = {**healthy, **{c: r for c, r in expected(parts).items() if c in healthy}}
        print(name, "ok" if seen == want and hits else "WRONG", flush=True)
        if seen != want or not hits:
            wrong[name] = {c: (seen[c], want[c]) for c in want if seen[c] != want[c]} or "no hits"
    assert wrong == {}
    assert go(bench, pid, len(names) + 2) == healthy
    assert kit.hooks(bench) == []
    bench.node.sh(f"kill -9 {pid}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.vm("full")
def test_each_name_hits_its_calls_and_no_other(
    vm_node: Node, benches: Benches, tmp_path: Path
) -> None:
    try_all(benches.of(vm_node), tmp_path, NAMES)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.vm("debian-12", "debian-13")
def test_a_stock_kernel_does_what_it_has_hooks_for_and_refuses_the_rest(
    vm_node: Node, benches: Benches, tmp_path: Path
) -> None:
    bench = benches.of(vm_node)
    with kit.worker(bench, "pread") as idle:
        for name, _ in NAMES:
            if name not in STOCK:
                with pytest.raises(Refused, match=r"security hook|CONFIG_"):
                    bench.plan(f"khaos:{name}", idle.target)
    try_all(bench, tmp_path, [(name, parts) for name, parts in NAMES if name in STOCK])
