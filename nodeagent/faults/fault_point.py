"""fault-point: the kernel's own fault injection, for one process and its children."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from nodeagent.encode.syscalls import errno_number
from nodeagent.faults import _syscall_plan as sp
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import Need, NeedFaultPoint, NeedRoot
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Measured, Rung
from nodeagent.model.process import PidScope
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.fault_point import FaultPointSet, FunctionFail, Knob, Point, TaskFlag

MANY = (1 << 31) - 1
"""Times to fail that are never used up: counted down by the kernel, so that hits are known."""
GFP = ("failslab", "fail_page_alloc")
POINTS: tuple[Point, ...] = get_args(Point)


class Spec(FaultSpec):
    """Which fault point, and how often."""

    point: Literal[
        "failslab", "fail_page_alloc", "fail_make_request", "fail_futex", "fail_function", "nth"
    ] = Field(
        default="failslab", description="the kernel's name of it; nth: any, at the n-th chance"
    )
    probability: int = Field(default=100, ge=1, le=100, description="per cent of the chances")
    interval: int = Field(default=1, ge=1, lt=1 << 31, description="only each n-th chance")
    times: int | None = Field(default=None, ge=1, lt=MANY, description="so many times, no more")
    nth: int | None = Field(
        default=None, ge=1, lt=MANY, description="with nth: each thread's n-th chance from now on"
    )
    atomic: bool = Field(
        default=False, description="only memory requests that may not sleep (ignore-gfp-wait)"
    )
    min_order: int = Field(
        default=0, ge=0, le=10, description="with fail_page_alloc: 2^n pages at least"
    )
    on_device: str | None = Field(
        default=None, description="with fail_make_request: block device, MAJOR:MINOR or its path"
    )
    function: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$",
        description="with fail_function: a function on the kernel's error-injection list",
    )
    errno: str | None = Field(
        default=None, description="with fail_function: what it returns, such as ENOMEM"
    )

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        for point, names in (
            ("nth", ("nth",)),
            ("fail_make_request", ("on_device",)),
            ("fail_function", ("function", "errno")),
        ):
            for name in names:
                given = getattr(self, name) is not None
                if given != (self.point == point):
                    word = "needs" if self.point == point else "takes no"
                    raise ValueError(f"{self.point} {word} --{name.replace('_', '-')}")
        if self.errno is not None:
            errno_number(self.errno)
        if self.point not in (*GFP, "nth") and self.atomic:
            raise ValueError(f"{self.point} has nothing to do with --atomic")
        return self


def _needs(spec: Spec) -> tuple[Need, ...]:
    return (NeedRoot(), NeedFaultPoint("fail-nth" if spec.point == "nth" else spec.point))


def _plan(spec: Spec, context: Context) -> list[StepBase]:
    """The process's threads first, what makes anything fail last."""
    binding = sp.binding_of(context)
    assert isinstance(binding.scope, PidScope)  # noqa: S101 - no other target is taken
    if spec.point == "nth":
        assert spec.nth is not None  # noqa: S101 - a validator of the spec
        flag = TaskFlag(file="fail-nth", value=spec.nth, scope=binding.scope)
        known = [point for point in POINTS if point in context.facts.fault_points]
        return [*(FaultPointSet(point=p, knobs=_nth_knobs(p, spec)) for p in known), flag]
    steps: list[StepBase] = [TaskFlag(file="make-it-fail", value=1, scope=binding.scope)]
    if spec.function is not None and spec.errno is not None:
        steps.append(FunctionFail(function=spec.function, value=-errno_number(spec.errno)))
    steps.append(FaultPointSet(point=spec.point, knobs=_knobs(spec), device=binding.device))
    return steps


def _nth_knobs(point: Point, spec: Spec) -> tuple[tuple[Knob, str], ...]:
    """A failure by fail-nth counts `times` down as well, unless there is no end to them."""
    wide: tuple[tuple[Knob, str], ...] = (("ignore-gfp-wait", "N"),)
    return (*(wide if point in GFP and not spec.atomic else ()), ("times", "-1"))


def _knobs(spec: Spec) -> tuple[tuple[Knob, str], ...]:
    """Probability last: until then nothing fails. Not a word in the kernel's log of it."""
    found: list[tuple[Knob, str]] = [("task-filter", "Y"), ("verbose", "0"), ("space", "0")]
    if spec.point in GFP:
        found.append(("ignore-gfp-wait", "Y" if spec.atomic else "N"))
    if spec.point == "fail_page_alloc":
        found += [("ignore-gfp-highmem", "N"), ("min-order", str(spec.min_order))]
    if spec.point == "fail_futex":
        found.append(("ignore-private", "N"))
    found += [("interval", str(spec.interval)), ("times", str(spec.times or MANY))]
    return (*found, ("probability", str(spec.probability)))


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    data = [item.data for item in measured if "hits" in item.data]
    said = [f"threads that were marked: {item.data['tasks']}" for item in measured
            if "tasks" in item.data]  # fmt: skip
    if spec.point != "nth":
        said.append("the kernel counts what failed, not which task it was for")
    return Evidence(
        counted=bool(data), hits=sum(found["hits"] for found in data), statements=tuple(said)
    )


KIND = FaultKind(
    name="fault-point",
    summary="the kernel's own fault points, for a process",
    doc="""\
Requests that the kernel makes for a process fail inside of it: memory from the slab allocator
(failslab) or in pages (fail_page_alloc), block I/O of one device (fail_make_request), futexes
(fail_futex, with EFAULT), any function of its error-injection list (fail_function). What the
program sees of it is what the kernel makes of it: ENOMEM, EIO, a killed process. With `--point
nth` each thread's n-th chance to fail, of whichever sort, fails once (/proc/PID/fail-nth).

Only the process is hit: all its threads are marked (make-it-fail), and threads and children
that they start are marked from birth, as the kernel copies the mark. Children that were there
before are not. The knobs in debugfs are one set for the whole node: a fault point that is in
use, by a fault of ours or by anybody else, is refused. The mark is one for all fault points, so
that one such fault is armed at a time. Every knob returns to its prior value.

Distributions' kernels do not have them (CONFIG_FAULT_INJECTION); kernels for testing do.""",
    spec=Spec,
    targets=("pid",),
    family="process",
    ladder=(
        Rung("fault-injection", "knobs in debugfs, marks on the process's threads", _needs, _plan),
    ),
    evidence=_evidence,
    collateral=lambda spec: (
        "what a program did because it got no memory, or no I/O (a crash, a fail-over) stays done",
        "paths of the kernel that are seldom tried may have bugs of their own",
    ),
    remedies=(
        "restart the process from one that is not marked (its children inherit the mark)",
        "move the workload to another node",
    ),
    guards=sp.guards,
    react=sp.react,
    polled=True,
    no_hits_hint="the process has asked the kernel for nothing of the kind: try fail_page_alloc or "
    "failslab without --atomic, or a lower --interval",
    examples=(
        "faultctl inject fault-point --pid 4242 --point failslab --probability 5",
        "faultctl inject fault-point --pid 4242 --point nth --nth 3",
        "faultctl inject fault-point --pid 4242 --point fail_function "
        "--function __x64_sys_epoll_create1 --errno ENOMEM",
    ),
)
