"""libbpf and bcc: each cell of docs/loaders.md, and the same tests of syscall by bcc."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import syscall_kit as kit
import test_syscall as by_libbpf
from agentkit import Bench, Benches

from controller.lab import Node
from nodeagent.model.errors import FaultError, Refused

HERE = Path(__file__).parent
BPF = HERE.parents[1] / "bpf"
GUEST = "/tmp/guest_bpf_loaders.py"
FLAVOURS = ("debian-12", "debian-13", "full")
WITH_BCC = ("debian-13", "full")
INJECTION, OVERRIDE = "CONFIG_FUNCTION_ERROR_INJECTION", "CONFIG_BPF_KPROBE_OVERRIDE"
NO_BCC = "Debian package libbpfcc"
BCC_S = 200.0
"""Native seconds that all compilations may take together; a few in truth."""

# Loader -> mechanism -> flavour -> a word of what is missing; where none stands it works.
MATRIX: dict[str, dict[str, dict[str, str]]] = {
    "libbpf": {
        "bpf-fmod-ret": {"debian-12": INJECTION, "debian-13": INJECTION},
        "bpf-kprobe": {"debian-12": OVERRIDE, "debian-13": OVERRIDE},
        "bpf-lsm": {},
        "bpf-bio": {"debian-12": INJECTION, "debian-13": INJECTION},
        "evidence of bios": {},
    },
    "bcc": {
        "bpf-fmod-ret": {"debian-12": NO_BCC, "debian-13": INJECTION},
        "bpf-kprobe": {"debian-12": NO_BCC, "debian-13": OVERRIDE},
        "bpf-lsm": {"debian-12": NO_BCC},
    },
}


def in_guest(node: Node, what: str) -> Any:
    node.put(GUEST, (HERE / "guest_bpf_loaders.py").read_bytes())
    env = {"PYTHONPATH": "/opt/faultctl/code:/opt/faultctl/lib"}
    return json.loads(node.run(["python3", GUEST, what], timeout=BCC_S, env=env).out)


@pytest.mark.vm(*FLAVOURS)
@pytest.mark.slow
def test_each_cell_of_the_matrix_is_true(vm_node: Node) -> None:
    """What is said to work is loaded; what is said to be missing is refused by the kernel too."""
    vm_node.push_code()
    found = in_guest(vm_node, "loaders")
    flavour = vm_node.config.flavour
    assert {loader: list(rungs) for loader, rungs in found.items()} == {
        loader: list(rungs) for loader, rungs in MATRIX.items()
    }
    for loader, rungs in found.items():
        for rung, cell in rungs.items():
            word = MATRIX[loader][rung].get(flavour, "")
            assert bool(cell["missing"]) is bool(word), (loader, rung, cell)
            assert word in (cell["missing"] or "")
            if "works" in cell:
                assert cell["works"] is not bool(word), (loader, rung, cell)
    print(json.dumps(found))


# --- the tests of syscall, by bcc ------------------------------------------------------


@pytest.fixture
def bench(vm_node: Node, benches: Benches) -> Iterator[Bench]:
    """An agent that loads by bcc, with everything compiled before a test is on the clock."""
    found = benches.of(vm_node, "--bpf-loader", "bcc")
    _wait_compiled(vm_node)
    with kit.hookless_after(found):
        yield found


def again(test: Callable[..., None], *flavours: str) -> FunctionType:
    """The same test for this module's agent, on some flavours."""
    assert isinstance(test, FunctionType)
    copied = FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__)
    copied.__dict__.update(pytestmark=[pytest.mark.vm(*flavours), pytest.mark.slow])
    copied.__annotations__ = test.__annotations__
    return copied


test_bcc_all_threads = again(
    by_libbpf.test_all_threads_of_a_process_and_nobody_else, *WITH_BCC
)  # fmt: skip
test_bcc_how_often = again(by_libbpf.test_how_often, "full")
test_bcc_a_cgroup = again(by_libbpf.test_a_cgroup_with_who_is_born_into_it, *WITH_BCC)
test_bcc_a_family = again(by_libbpf.test_a_call_of_a_family_counts_once, *WITH_BCC)
test_bcc_a_tree = again(by_libbpf.test_a_tree_with_grandchildren_and_without, "full")
test_bcc_values_and_after = again(by_libbpf.test_chosen_values_and_after_the_call, "full")
test_bcc_static_and_32_bit = again(by_libbpf.test_a_static_program_and_its_32_bit_calls, "full")
test_bcc_security_hooks = again(by_libbpf.test_a_stock_kernel_by_its_security_hooks, "debian-13")
test_bcc_a_story = again(by_libbpf.test_a_story_is_one_fault_with_one_revert, "full")


@pytest.mark.vm(*WITH_BCC)
@pytest.mark.slow
def test_no_compiler_in_the_agent(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "pread", 1, 2) as hit:
        fault = bench.inject("syscall", hit.target, spec=by_libbpf.PREAD)
        assert hit.failed() == 2
        agent, guardian = bench.pids()
        for pid in (agent, guardian):
            assert not re.search("libbcc|LLVM|clang", vm_node.sh(f"cat /proc/{pid}/maps"))
        assert vm_node.sh("ls -A /tmp | grep -e kheaders -e faultctl-bcc || true") == ""
        bench.client.revert(fault.id)
    assert bench.residue() == []
    said = {f.what: f.detail for f in bench.client.doctor()}
    assert "bpf-lsm" in said["BPF loader bcc (in use)"]
    assert "BPF loader libbpf" in said


@pytest.mark.vm("full")
@pytest.mark.slow
def test_headers_and_btf_say_the_same(vm_node: Node) -> None:
    """Where the members lie, by both sources; a kernel without BTF has only its headers."""
    vm_node.push_code()
    found = in_guest(vm_node, "both_layouts")
    assert found["headers"] == found["btf"]
    assert len(found["btf"]) > 10


@pytest.mark.vm("full")
@pytest.mark.slow
def test_a_kernel_without_btf(vm_node: Node, benches: Benches) -> None:
    """Its BTF is hidden; the headers that it carries serve. Only kprobes need no BTF."""
    vm_node.sh("mount -t tmpfs none /sys/kernel/btf")
    try:
        bare = benches.of(vm_node, "--bpf-loader", "auto")
        with kit.worker(bare, "pread", 2, 3) as hit:
            request = bare.request("syscall", hit.target, spec=by_libbpf.PREAD)
            plan, _ = bare.client.plan(request)
            assert plan.mechanism == "bpf-kprobe"
            assert all("BTF" in rejected.reason for rejected in plan.rejected)
            _wait_compiled(vm_node)
            fault = bare.inject("syscall", hit.target, spec=by_libbpf.PREAD)
            assert hit.failed() == 6
            assert bare.evidence(fault.id)["hits"] == 6
            bare.client.revert(fault.id)
            assert hit.failed() == 0
            with pytest.raises(Refused, match="struct mount"):
                bare.plan("syscall", hit.target, spec={**by_libbpf.PREAD, "path": ["/etc/**"]})
        assert kit.hooks(bare) == []
    finally:
        vm_node.sh("umount /sys/kernel/btf")


def _wait_compiled(node: Node) -> None:
    """No child for a while: there is a short time between two of them."""
    deadline, quiet = node.deadline(BCC_S), 0
    while quiet < 3:
        assert time.monotonic() < deadline, "bcc is still at it"
        running = node.run("pgrep -f '[n]odeagent.bcc_child'", check=False).code == 0
        quiet = 0 if running else quiet + 1
        time.sleep(1)


# --- a program that the kernel does not take --------------------------------------------

BAD = """
#include "syscall.bpf.h"
FC_LICENSE;
FC_PRESET(fc_point);
SEC("fmod_ret")
long fc_syscall_modret(__u64 *ctx)
{
	return *(volatile long *)(ctx[1] + 12345);
}
"""


@pytest.mark.vm("full")
def test_the_verifiers_words_are_short_here_and_in_full_in_the_event(
    vm_node: Node, benches: Benches, tmp_path: Path
) -> None:
    bench = benches.of(vm_node)
    bad = "/opt/faultctl/code/nodeagent/bpf_objects/syscall_modret.bpf.o"
    source = tmp_path / "syscall_modret.bpf.c"
    source.write_text(BAD)
    flags = ["-g", "-O2", "-mcpu=v3", "-target", "bpf", f"-I{BPF}"]
    arch = subprocess.run(["clang", "-print-multiarch"], capture_output=True, text=True, check=True)
    flags += ["-idirafter", f"/usr/include/{arch.stdout.strip()}", "-c", str(source)]
    subprocess.run(["clang", *flags, "-o", tmp_path / "bad.o"], check=True)
    good = vm_node.get(bad)
    vm_node.put(bad, (tmp_path / "bad.o").read_bytes())
    try:
        with kit.worker(bench, "pread") as hit:
            spec = {"call": ["getrandom"], "errno": "EAGAIN"}
            request = bench.request("syscall", hit.target, spec=spec)
            with pytest.raises(FaultError, match="invalid mem access") as caught:
                bench.inject("syscall", hit.target, spec=spec, id=request.id)
    finally:
        vm_node.put(bad, good)
    assert len(str(caught.value)) < 300
    (event,) = [e for e in bench.client.watch(fault_id=request.id) if e.type == "program-rejected"]
    data = json.loads(event.data_json)
    assert "processed" in data["log"]
    assert "fc_syscall_modret" in data["log"]
    assert kit.hooks(bench) == []
