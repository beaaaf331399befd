"""Plans of syscall and of the khaos presets, as data."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.encode.syscalls import all_functions, table
from nodeagent.faults import about_calls, kind_named, kinds
from nodeagent.faults._khaos_table import PARTS, STORIES
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.facts import Facts
from nodeagent.model.kind import Measured
from nodeagent.model.plan import FaultRequest, Plan, plan_from_data
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.process import CgroupScope, PidScope, ProcessBinding
from nodeagent.model.steps.strace import StraceInject
from nodeagent.model.steps.syscall import SyscallFail

OBJECTS = ("syscall_kprobe", "syscall_lsm", "syscall_maps", "syscall_modret", "syscall_tree")


def facts(**more: Any) -> Facts:
    able: dict[str, Any] = {
        "node_id": "n", "kernel_release": "6.12", "arch": "x86_64", "boot_id": "b", "root": True,
        "btf": True, "libbpf": "libbpf.so.1", "bpf_objects": OBJECTS, "lsm": ("bpf",),
        "kprobe_override": True, "cgroup": "v2",
        "error_injection": tuple(all_functions(more.get("arch", "x86_64"))),
    }  # fmt: skip
    return Facts(**{**able, **more})


STOCK = facts(error_injection=(), kprobe_override=False)
PROCESS = ProcessBinding(target="p", scope=PidScope(pid=42, start_ticks=7), processes=1)
CGROUP = ProcessBinding(
    target="c",
    scope=CgroupScope(id=9, level=2, path="/a/b"),
    processes=3,
    node_agents=("pause (7)",),
)


def plan(
    spec: dict[str, Any],
    kind: str = "syscall",
    on: Facts | None = None,
    binding: ProcessBinding = PROCESS,
    **more: Any,
) -> Plan:
    target: dict[str, Any] = {"type": "pid", "pid": 42}
    if isinstance(binding.scope, CgroupScope):
        target = {"type": "cgroup", "cgroup": "/a/b"}
    request = FaultRequest(id="t-1", kind=kind, target=target, spec=spec, **more)
    found = kind_named(kind)
    parsed, options = parse_request(found, request)
    return make_plan(found, request, parsed, options, binding, on or facts())


def step(found: Plan) -> SyscallFail:
    assert len(found.steps) == 1
    only = found.steps[0]
    assert isinstance(only, SyscallFail)
    return only


def test_an_errno_takes_the_cheapest_rung_with_its_32_bit_forms() -> None:
    found = plan({"call": ["read"], "errno": "EIO", "rate": "30%", "seed": 4, "at_most": 2})
    only = step(found)
    assert found.mechanism == "bpf-fmod-ret"
    assert (only.way, only.value, only.rate_ppm, only.at_most) == ("modret", -5, 300_000, 2)
    hook = only.hooks[0]
    assert hook.functions == ("__x64_sys_read",)
    assert "__ia32_sys_read" in hook.compat
    assert plan_from_data(found.model_dump(mode="json")).digest == found.digest


@pytest.mark.parametrize(
    ("spec", "way"),
    [
        ({"call": ["read"], "value": 0}, "entry"),
        ({"call": ["read"], "value": 3}, "modret"),
        ({"call": ["read"], "errno": "EIO", "after": True}, "return"),
    ],
)
def test_what_is_asked_filters_the_rungs(spec: dict[str, Any], way: str) -> None:
    assert step(plan(spec)).way == way


def test_a_stock_kernel_gets_the_security_hook_or_every_reason() -> None:
    found = plan({"call": ["openat"], "errno": "EACCES"}, on=STOCK)
    hook = step(found).hooks[0]
    assert (hook.lsm, hook.number, hook.functions) == ("file_open", 257, ())
    assert [r.mechanism for r in found.rejected] == ["bpf-fmod-ret", "bpf-kprobe"]
    with pytest.raises(Refused) as caught:
        plan({"call": ["fsync"], "errno": "EIO"}, on=STOCK)
    for words in ("CONFIG_FUNCTION_ERROR_INJECTION", "CONFIG_BPF_KPROBE_OVERRIDE",
                  "no security hook stands for fsync"):  # fmt: skip
        assert words in caught.value.why
    for lacking, words in (
        ({"lsm": ()}, "lsm="),
        ({"btf": False}, "BTF"),
        ({"root": False}, "root"),
    ):
        bare = STOCK.model_copy(update=lacking)
        with pytest.raises(Refused, match=words):
            plan({"call": ["openat"], "errno": "EACCES"}, on=bare)


def test_arm64_has_its_own_symbols() -> None:
    arm = facts(arch="aarch64")
    hooks = step(plan({"call": ["open-family"], "errno": "EACCES"}, on=arm)).hooks
    assert [h.functions[0] for h in hooks] == [
        "__arm64_sys_openat",
        "__arm64_sys_openat2",
        "__arm64_sys_open_by_handle_at",
    ]
    with pytest.raises(Refused, match="has none of fork"):
        plan({"call": ["fork"], "errno": "EAGAIN"}, on=arm)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"call": ["raed"], "errno": "EIO"}, "did you mean"),
        ({"call": ["read"], "errno": "EIEIO"}, "unknown errno"),
        ({"call": ["read"], "errno": "5"}, "unknown errno"),
        ({"call": ["read"], "errno": "ECHILD"}, "--force"),
        ({"call": ["read"]}, "one of errno and value"),
        ({"call": ["read"], "errno": "EIO", "value": 0}, "one of errno and value"),
        ({"call": [], "errno": "EIO"}, "call"),
        ({"call": ["read"], "errno": "EIO", "rate": "0%"}, "no call"),
        ({"call": ["read"], "errno": "EIO", "rate": "0.00001%"}, "finer"),
        ({"call": ["read"], "errno": "EIO", "rate": "30"}, "percent"),
        ({"call": ["read"], "errno": "EIO", "first": 2, "every": 3}, "ends before"),
        ({"call": ["read"], "errno": "EIO", "at_most": 0}, "at_most"),
    ],
)
def test_bad_input(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        plan(spec)


def test_force_allows_a_strange_errno() -> None:
    assert step(plan({"call": ["read"], "errno": "ECHILD", "force": True})).value == -10


def test_filters_by_file_need_an_open_file() -> None:
    spec = {"call": ["read"], "errno": "EIO", "path": ["/d/**"], "fd_type": ["regular", "socket"]}
    only = step(plan(spec))
    assert (only.way, only.paths, only.fd_types) == ("modret", ("/d/**",), 1 << 8 | 1 << 12)
    assert step(plan({**spec, "after": True})).way == "return"
    with pytest.raises(Refused, match="no open file"):
        plan({**spec, "call": ["mmap"], "errno": "ENOMEM"})
    with pytest.raises(Refused, match="is gone after it"):
        plan({**spec, "call": ["close"], "after": True})
    with pytest.raises(Refused, match="has no socket"):
        plan({"call": ["openat"], "errno": "EIO", "port": [80]})


def test_an_open_is_met_where_its_file_is_known() -> None:
    """A link, or a name from another directory, is not seen in the argument."""
    spec = {"call": ["openat"], "errno": "EACCES", "path": ["/d/**"]}
    found = plan(spec)
    assert step(found).way == "lsm"
    assert all("links lead elsewhere" in r.reason for r in found.rejected)
    assert step(plan({**spec, "after": True})).way == "return"
    assert step(plan({"call": ["openat"], "errno": "EACCES", "exe": ["/bin/*"]})).way == "modret"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"path": ["etc/x"]}, "no absolute path"),
        ({"exe": ["/a[b]"]}, "stand for other"),
        ({"path": ["/a***"]}, "in a row"),
        ({"port": [0]}, "greater than or equal to 1"),
        ({"port": [70000]}, "less than or equal to 65535"),
        ({"address": ["10.0.0.256"]}, "IPv4 or IPv6"),
        ({"address": ["example.org"]}, "IPv4 or IPv6"),
    ],
)
def test_bad_filters(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        plan({"call": ["read"], "errno": "EIO", **more})


def test_patterns_that_cannot_meet_are_told_apart() -> None:
    base = {"call": ["read"], "errno": "EIO"}
    for ours, theirs, meet in (
        (["/a/**"], ["/b/**"], False),
        (["/a/**"], ["/a/x"], True),
        (["/a/x"], ["/a/xy"], False),
        (["/a/x"], ["/a/x"], True),
        (["/a*"], ["/ab/c"], True),
        (["**.log"], ["/b"], True),
    ):
        first, second = (step(plan({**base, "path": path})) for path in (ours, theirs))
        assert first.overlaps(second) == second.overlaps(first) == meet, (ours, theirs)
    http = step(plan({**base, "port": [80, 443]}))
    assert not http.overlaps(step(plan({**base, "port": [5432]})))
    assert http.overlaps(step(plan({**base, "port": [443]})))


def test_strace_only_when_it_is_asked_for() -> None:
    tree = PROCESS.model_copy(update={"scope": PidScope(pid=42, start_ticks=1, tree=True)})
    spec = {"call": ["fsync-family"], "errno": "EIO", "tree": True}
    able = STOCK.model_copy(update={"strace": "/usr/bin/strace"})
    with pytest.raises(Refused, match="only when it is asked for: --mechanism strace"):
        plan(spec, binding=tree, on=able)
    found = plan(spec, binding=tree, on=able, mechanism="strace")
    (only,) = found.steps
    assert isinstance(only, StraceInject)
    calls = "fsync,fdatasync,syncfs,sync_file_range,msync"
    assert only.argv()[-3:] == [f"trace={calls}", "-e", f"inject={calls}:error=EIO"]
    value = plan({"call": ["read"], "value": 0, "tree": True}, binding=tree, on=able,
                 mechanism="strace").steps[0]  # fmt: skip
    assert isinstance(value, StraceInject) and value.result == "retval=0"
    for more, words in (
        ({"rate": "50%"}, "each thread apart"),
        ({"after": True}, "cannot act after"),
        ({"exe": ["/bin/*"]}, "no filter by exe"),
    ):
        with pytest.raises(Refused, match=words):
            plan({**spec, **more}, binding=tree, on=able, mechanism="strace")
    with pytest.raises(Refused, match="--tree"):
        plan(spec, on=able, mechanism="strace")
    with pytest.raises(Refused, match="not installed"):
        plan(spec, binding=tree, on=STOCK, mechanism="strace")


def test_the_nodes_own_programs_are_spared_or_a_guard_rail() -> None:
    spec = {"call": ["read"], "errno": "EIO"}
    assert step(plan(spec, binding=CGROUP)).spare_runtime
    with pytest.raises(Refused, match="guard rail"):
        plan({**spec, "runtime": True}, binding=CGROUP)
    named = plan({**spec, "runtime": True}, binding=CGROUP, acknowledge=("node-agent",))
    assert not step(named).spare_runtime
    kubelet = PROCESS.model_copy(update={"node_agents": ("kubelet (42)",)})
    with pytest.raises(Refused, match="guard rail"):
        plan(spec, binding=kubelet)


def test_two_faults_meet_only_on_one_call_of_one_target() -> None:
    read = step(plan({"call": ["read-family"], "errno": "EIO"}))
    same = step(plan({"call": ["pread64"], "errno": "EINTR"}))
    other = step(plan({"call": ["write"], "errno": "EIO"}))
    pipes = step(plan({"call": ["read"], "errno": "EIO", "fd_type": ["fifo"]}))
    files = step(plan({"call": ["read"], "errno": "EIO", "fd_type": ["regular"]}))
    assert read.key() == same.key()
    assert read.overlaps(same)
    assert not read.overlaps(other)
    assert not pipes.overlaps(files)
    assert pipes.overlaps(read)
    assert step(plan({"call": ["read"], "errno": "EIO"}, binding=CGROUP)).key() != read.key()


# --- khaos ------------------------------------------------------------------------


def test_every_name_of_khaos_is_there() -> None:
    names = {name.removeprefix("khaos:") for name in kinds() if name.startswith("khaos:")}
    assert names == {*PARTS, *STORIES, "block_read_error"}
    assert len(PARTS) == 47
    assert len(STORIES) == 8


@pytest.mark.parametrize("name", [*PARTS, *STORIES])
def test_a_preset_plans_and_says_how_it_differs(name: str) -> None:
    kind = kind_named(f"khaos:{name}")
    found = plan({}, f"khaos:{name}")
    steps = [s for s in found.steps if isinstance(s, SyscallFail)]
    assert steps
    calls = [h.call for s in steps for h in s.hooks]
    assert set(calls) <= set(table())
    assert "khaos" in kind.doc
    assert "aliases" in kind.doc
    assert not any(a.overlaps(b) for a in steps for b in steps if a is not b)
    for effect in steps:
        assert effect.rate_ppm == (300_000 if "30 %" in kind.doc else 1_000_000)
    assert all(s.rate_ppm == 500_000 for s in plan({"rate": "50%"}, f"khaos:{name}").steps)  # type: ignore[attr-defined]
    with pytest.raises(FaultError):
        plan({"rate": "0%"}, f"khaos:{name}")


def test_a_story_with_one_effect_under_three_names_is_one_step() -> None:
    assert len(plan({}, "khaos:dram_module_failure").steps) == 1
    assert len(plan({}, "khaos:storage_write_failure").steps) == 3
    assert step(plan({}, "khaos:brk_fail")).value == 0


# --- evidence ---------------------------------------------------------------------


def measured(hits: int, first: int, only: SyscallFail) -> Measured:
    stats = {"seen": 9, "hits": hits, "taken": 0, "spared": 1, "lost": 0,
             "first_ns": first, "last_ns": first + 5}  # fmt: skip
    data = {"stats": stats, "missed": 0, "calls": {"read": {"hits": hits}}, "processes": [],
            "more_processes": 0, "uncovered": ["process 42 has an io_uring"]}  # fmt: skip
    return Measured(only, data)


def test_evidence_adds_up_and_says_what_is_not_covered() -> None:
    kind = kind_named("syscall")
    only = step(plan({"call": ["read", "clock_gettime"], "errno": "EINVAL"}))
    spec = kind.spec.model_validate({"call": ["read", "clock_gettime"], "errno": "EINVAL"})
    found = kind.evidence(spec, (measured(3, 50, only), measured(2, 40, only)))
    assert (found.hits, found.first_hit_ns, found.last_hit_ns) == (5, 40, 55)
    assert found.biting
    assert found.counters["spared"] == 2
    text = " ".join(found.statements)
    for words in ("vDSO", "io_uring", "AIO", "mmap"):
        assert words in text
    nothing = kind.evidence(spec, (Measured(only, {}),))
    assert not nothing.counted


def test_where_no_list_is_seen_debugfs_may_not_be_mounted() -> None:
    with pytest.raises(Refused, match="with debugfs mounted on /sys/kernel/debug"):
        plan({"call": ["fsync"], "errno": "EIO"}, on=STOCK)
    some = facts(error_injection=("__x64_sys_write",))
    with pytest.raises(Refused) as caught:
        plan({"call": ["fsync"], "errno": "EIO"}, on=some)
    assert "debugfs" not in caught.value.why


def test_what_is_known_of_a_call() -> None:
    assert "AIO" not in " ".join(about_calls(("connect",)))
    assert "vDSO" in " ".join(about_calls(("clock_gettime",)))
    assert "file_open" in about_calls(("openat",))[0]
    assert about_calls(()) == ()
    with pytest.raises(InvalidSpec, match="nope"):
        about_calls(("nope",))
