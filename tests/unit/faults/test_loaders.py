"""Which mechanism works with which BPF loader, as data; and what is missing, by name."""

from __future__ import annotations

import pytest
from test_syscall import OBJECTS, facts

from nodeagent.faults._loaders import matrix, summary
from nodeagent.model.bpf import chosen_loader
from nodeagent.model.facts import Facts, NeedBpf

ALL = (*OBJECTS, "bio_fail", "bio_trace")
FULL = facts(
    bpf_objects=ALL,
    bcc="libbcc.so.0",
    error_injection=(*facts().error_injection, "should_fail_bio"),
)
RUNGS = ("bpf-fmod-ret", "bpf-kprobe", "bpf-lsm")


def works(found: Facts) -> dict[str, list[str]]:
    return {
        loader: [name for name, reason in rungs.items() if reason is None]
        for loader, rungs in matrix(found).items()
    }


def test_the_chosen_loader() -> None:
    assert [chosen_loader(w, btf) for w in ("auto", "libbpf", "bcc") for btf in (True, False)] == [
        "libbpf", "bcc", "libbpf", "libbpf", "bcc", "bcc",
    ]  # fmt: skip


def test_a_kernel_with_everything() -> None:
    assert works(FULL) == {
        "libbpf": [*RUNGS, "bpf-bio", "evidence of bios"],
        "bcc": list(RUNGS),
    }


def test_a_stock_kernel() -> None:
    stock = FULL.model_copy(update={"error_injection": (), "kprobe_override": False})
    assert works(stock) == {"libbpf": ["bpf-lsm", "evidence of bios"], "bcc": ["bpf-lsm"]}


def test_without_btf_only_kprobes_and_only_by_bcc() -> None:
    bare = FULL.model_copy(update={"btf": False, "kernel_headers": "/sys/kernel/kheaders.tar.xz"})
    assert works(bare) == {"libbpf": [], "bcc": ["bpf-kprobe"]}
    none = bare.model_copy(update={"kernel_headers": ""})
    assert works(none) == {"libbpf": [], "bcc": []}
    reason = matrix(none)["bcc"]["bpf-kprobe"]
    assert reason is not None
    assert "linux-headers-6.12" in reason
    assert "CONFIG_IKHEADERS" in reason


@pytest.mark.parametrize("program", OBJECTS)
def test_a_missing_library_is_named_with_its_package(program: str) -> None:
    by_bcc = FULL.model_copy(update={"bpf_loader": "bcc", "bcc": ""})
    reason = NeedBpf(program).missing(by_bcc)
    if program == "syscall_maps":
        assert reason is None  # libbpf makes the maps
    else:
        assert reason == "libbcc.so.0 is not installed (Debian package libbpfcc)"
    assert NeedBpf("bio_trace").missing(by_bcc) is None
    bare = by_bcc.model_copy(update={"bcc": "libbcc.so.0", "libbpf": ""})
    assert "libbpf1" in str(NeedBpf(program).missing(bare))


def test_a_summary_gives_each_reason_once() -> None:
    said = summary({"a": None, "b": "no BTF", "c": "no BTF", "d": "no root"})
    assert said == "a; not b, c: no BTF; not d: no root"
    assert summary({"a": "no BTF"}) == "nothing; not a: no BTF"
