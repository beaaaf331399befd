"""A small kernel in a file, and steps, backends and a kind on it, for tests of the real core.

The kernel is a set of named objects that outlives every process that changes it, as a real
one does; links live as long as the process that holds them. Backends compare what is there
with what was and with what they would leave, and so can tell PRIOR, OURS, FOREIGN and GONE.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator

from nodeagent.backends import Outcome, Peer, Prior, Registry
from nodeagent.crashpoint import crashpoint
from nodeagent.executor import Executor
from nodeagent.executor_parts import Node
from nodeagent.faults import kinds
from nodeagent.journal import Journal
from nodeagent.model.errors import Refused
from nodeagent.model.evidence import Evidence, FileEvent, IoRecord, NodeEvent
from nodeagent.model.facts import Facts
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Reaction, Rung
from nodeagent.model.plan import FaultRequest, Lease
from nodeagent.model.planner import Placed
from nodeagent.model.record import FaultRow
from nodeagent.model.steps import Status, StepBase, step_from_data, step_types
from nodeagent.model.target import TargetBase
from nodeagent.revert import Reverter
from nodeagent.statedir import MutationLock, open_state_dir

FACTS = Facts(node_id="n0", kernel_release="6.12.0", arch="x86_64", boot_id="b0", root=True)


# --- the kernel -------------------------------------------------------------------


def _alive(pid: int, start: str) -> bool:
    return _start_time(pid) == start


def _start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat, proc(5); empty for a process that is gone or a zombie."""
    try:
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if rest[0] in "ZX" else rest[19]


class FakeKernel:
    """Named objects with values, in one file; `fail` makes the next operations end with errors."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fail: dict[str, list[BaseException]] = {}
        self.calls: list[str] = []
        if not path.exists():
            self._store({"objects": {}, "links": {}})

    def _load(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._path.read_text())
        return found

    def _store(self, state: dict[str, Any]) -> None:
        new = self._path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(state, sort_keys=True))
        new.rename(self._path)

    def step(self, what: str) -> None:
        """Note an operation, and fail if it was asked to."""
        self.calls.append(what)
        waiting = self.fail.get(what)
        if waiting:
            raise waiting.pop(0)

    def fingerprint(self) -> str:
        """All that is in the kernel, without links of dead processes, as bytes would compare."""
        state = self._load()
        links = {k: v["value"] for k, v in state["links"].items() if self.link(k) is not None}
        return json.dumps({"objects": state["objects"], "links": links}, sort_keys=True)

    def get(self, name: str) -> Any:
        return self._load()["objects"].get(name)

    def put(self, name: str, value: Any) -> None:
        state = self._load()
        if value is None:
            state["objects"].pop(name, None)
        else:
            state["objects"][name] = value
        self._store(state)

    def link(self, name: str) -> Any:
        found = self._load()["links"].get(name)
        return found["value"] if found and _alive(found["pid"], found["start"]) else None

    def put_link(self, name: str, value: Any) -> None:
        state = self._load()
        if value is None:
            state["links"].pop(name, None)
        else:
            pid = os.getpid()
            state["links"][name] = {"pid": pid, "start": _start_time(pid), "value": value}
        self._store(state)

    def drop_links(self) -> None:
        """What the kernel does when the process that holds them dies."""
        self._store({**self._load(), "links": {}})


# --- steps ------------------------------------------------------------------------


class SetValue(StepBase):
    """One object gets one value; nobody else may hold it."""

    op: Literal["t_set"] = "t_set"
    name: str
    value: str

    def key(self) -> str:
        return f"t-set:{self.name}"

    def summary(self) -> str:
        return f"set {self.name} {self.value}"


class SetOnDisk(SetValue):
    """As SetValue, but a reboot does not take it back."""

    survives_boot: ClassVar[bool] = True
    op: Literal["t_disk"] = "t_disk"  # type: ignore[assignment]


class SetSlowly(SetValue):
    """As SetValue, but it may take a minute."""

    patience_s: ClassVar[int] = 60
    op: Literal["t_slow"] = "t_slow"  # type: ignore[assignment]


class AddPart(StepBase):
    """A part is laid over an object; several faults may lay different parts over it."""

    composes: ClassVar[bool] = True
    op: Literal["t_part"] = "t_part"
    name: str
    part: int
    form: str = "x"

    def key(self) -> str:
        return f"t-part:{self.name}"

    def summary(self) -> str:
        return f"lay {self.part} over {self.name}"

    def overlaps(self, other: StepBase) -> bool:
        return isinstance(other, AddPart) and other.part == self.part


class HoldLink(StepBase):
    """A link that lives as long as the process that made it."""

    ephemeral: ClassVar[bool] = True
    op: Literal["t_link"] = "t_link"
    name: str

    def key(self) -> str:
        return f"t-link:{self.name}"

    def summary(self) -> str:
        return f"link {self.name}"


class Look(StepBase):
    """Looks, and changes nothing."""

    ephemeral: ClassVar[bool] = True
    composes: ClassVar[bool] = True
    observes: ClassVar[bool] = True
    op: Literal["t_look"] = "t_look"
    name: str

    def key(self) -> str:
        return f"t-look:{self.name}"

    def summary(self) -> str:
        return f"look at {self.name}"

    def overlaps(self, other: StepBase) -> bool:
        return False


STEPS: tuple[type[StepBase], ...] = (SetValue, SetOnDisk, SetSlowly, AddPart, HoldLink, Look)


# --- backends ---------------------------------------------------------------------


class _Base:
    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel

    def measure(self, fault_id: str, step: Any, prior: Prior) -> dict[str, Any]:
        self.kernel.step(f"measure:{step.name}")
        return {}


class SetBackend(_Base):
    def observe(self, fault_id: str, step: SetValue, peers: Sequence[Peer]) -> Prior:
        self.kernel.step(f"observe:{step.name}")
        value = self.kernel.get(step.name)
        if value is None:
            raise Refused(f"there is no object {step.name}")
        return {"value": value}

    def status(self, step: SetValue, prior: Prior, peers: Sequence[Peer]) -> Status:
        self.kernel.step(f"status:{step.name}")
        value = self.kernel.get(step.name)
        if value is None:
            return Status.GONE
        if value == step.value:
            return Status.OURS
        return Status.PRIOR if value == prior["value"] else Status.FOREIGN

    def apply(self, fault_id: str, step: SetValue, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        self.kernel.step(f"apply:{step.name}")
        self.kernel.put(step.name, step.value)
        crashpoint("kernel:set")
        self.kernel.step(f"applied:{step.name}")
        return {"was": prior["value"]}

    def undo(self, fault_id: str, step: SetValue, prior: Prior, peers: Sequence[Peer]) -> None:
        self.kernel.step(f"undo:{step.name}")
        self.kernel.put(step.name, prior["value"])
        crashpoint("kernel:unset")


class PartBackend(_Base):
    """An object's value is its base with the parts of all faults on it."""

    def observe(self, fault_id: str, step: AddPart, peers: Sequence[Peer]) -> Prior:
        self.kernel.step(f"observe:{step.name}")
        if peers:
            return {"base": peers[0].prior["base"]}
        return {"base": self.kernel.get(step.name)}

    def status(self, step: AddPart, prior: Prior, peers: Sequence[Peer]) -> Status:
        self.kernel.step(f"status:{step.name}")
        live = self.kernel.get(step.name)
        if live is None:
            return Status.GONE
        for parts in self._possible(peers):
            if live == _laid(prior["base"], [*parts, step]):
                return Status.OURS
        for parts in self._possible(peers):
            if live == _laid(prior["base"], parts):
                return Status.PRIOR
        return Status.FOREIGN

    def apply(self, fault_id: str, step: AddPart, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        self.kernel.step(f"apply:{step.name}")
        parts = [p.step for p in peers if p.certain]
        self.kernel.put(step.name, _laid(prior["base"], [*parts, step]))
        crashpoint("kernel:lay")
        return {}

    def undo(self, fault_id: str, step: AddPart, prior: Prior, peers: Sequence[Peer]) -> None:
        self.kernel.step(f"undo:{step.name}")
        live = self.kernel.get(step.name)
        for parts in self._possible(peers):
            if live == _laid(prior["base"], [*parts, step]):
                self.kernel.put(step.name, _laid(prior["base"], parts))
                crashpoint("kernel:take")
                return

    @staticmethod
    def _possible(peers: Sequence[Peer]) -> Iterator[list[StepBase]]:
        forms = [
            [peer.step] if peer.certain else [peer.step, peer.next_step, None] for peer in peers
        ]
        for chosen in product(*forms):
            yield [part for part in chosen if part is not None]


def _laid(base: str, parts: Sequence[Any]) -> str:
    return base + "".join(f"+{p.part}{p.form}" for p in sorted(parts, key=lambda p: p.part))


class LinkBackend(_Base):
    def observe(self, fault_id: str, step: HoldLink, peers: Sequence[Peer]) -> Prior:
        return {}

    def status(self, step: HoldLink, prior: Prior, peers: Sequence[Peer]) -> Status:
        return Status.PRIOR if self.kernel.link(step.name) is None else Status.OURS

    def apply(self, fault_id: str, step: HoldLink, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        self.kernel.put_link(step.name, fault_id)
        crashpoint("kernel:link")
        return {}

    def undo(self, fault_id: str, step: HoldLink, prior: Prior, peers: Sequence[Peer]) -> None:
        self.kernel.put_link(step.name, None)
        crashpoint("kernel:unlink")


class LookBackend(_Base):
    def observe(self, fault_id: str, step: Look, peers: Sequence[Peer]) -> Prior:
        return {}

    def status(self, step: Look, prior: Prior, peers: Sequence[Peer]) -> Status:
        return Status.PRIOR

    def apply(self, fault_id: str, step: Look, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        self.kernel.step(f"apply:{step.name}")
        return {"statements": [f"{step.name} is {self.kernel.get(step.name)}"]}

    def undo(self, fault_id: str, step: Look, prior: Prior, peers: Sequence[Peer]) -> None:
        raise AssertionError("a look is never undone")

    def measure(self, fault_id: str, step: Look, prior: Prior) -> dict[str, Any]:
        self.kernel.step(f"measure:{step.name}")
        return {"hits": 0}


def registry(kernel: FakeKernel) -> Registry:
    """The backends of all test steps."""
    values = SetBackend(kernel)
    return Registry(
        {
            SetValue: values,
            SetOnDisk: values,
            SetSlowly: values,
            AddPart: PartBackend(kernel),
            HoldLink: LinkBackend(kernel),
            Look: LookBackend(kernel),
        }
    )


# --- the kind ---------------------------------------------------------------------


class Spec(FaultSpec):
    """The steps themselves."""

    steps: tuple[dict[str, Any], ...] = ()
    guarded: bool = False

    @field_validator("steps")
    @classmethod
    def _known(cls, steps: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for step in steps:
            step_from_data(step)
        return steps


class Bound(BaseModel):
    """Nothing has to be found out."""

    name: str = "t"


def _plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    return [step_from_data(step) for step in spec.steps]


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    said = [line for m in measured for line in m.data.get("statements", ())]
    counted = any("hits" in m.data for m in measured)
    return Evidence(counted=counted, statements=tuple(said))


def _react(spec: Spec, steps: tuple[StepBase, ...], event: NodeEvent) -> Reaction | None:
    """A write of sector N changes the form of part N; a file that is gone ends the fault."""
    if isinstance(event, FileEvent):
        return Reaction(remedied=f"{event.path} is {event.what}")
    if not isinstance(event, IoRecord) or event.op != "write":
        return None
    for index, step in enumerate(steps):
        if isinstance(step, AddPart) and step.part == event.sector:
            return Reaction(replace=(index, step.model_copy(update={"form": "y"})))
    return None


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    return (Guard("root", "the root is on it"),) if spec.guarded else ()


KIND = FaultKind(
    name="t-steps",
    summary="steps of a test",
    doc="Steps of a test.",
    spec=Spec,
    targets=("device",),
    ladder=(Rung("t", "the only one", lambda spec: (), _plan),),
    evidence=_evidence,
    collateral=lambda spec: ("nothing",),
    remedies=("end the test",),
    guards=_guards,
    react=_react,
    no_hits_hint="nobody looked",
)


class SetSpec(FaultSpec):
    """Which object gets which value."""

    name: str = Field(description="the object")
    value: str = Field(default="x", description="its new value")
    link: bool = Field(default=False, description="hold a link too")


def _set_plan(spec: SetSpec, context: Context) -> Sequence[StepBase]:
    held = [HoldLink(name=spec.name)] if spec.link else []
    return [SetValue(name=spec.name, value=spec.value), Look(name=spec.name), *held]


SET_KIND = replace(
    KIND,
    name="t-set",
    summary="an object gets a value",
    spec=SetSpec,
    ladder=(Rung("t", "the only one", lambda spec: (), _set_plan),),
    guards=lambda spec, context: (),
    examples=("faultctl inject t-set --device /dev/t --name a",),
)


@contextmanager
def registered() -> Iterator[None]:
    """The test's kinds and steps are known to this process."""
    kinds().update({KIND.name: KIND, SET_KIND.name: SET_KIND})
    step_types().update({str(cls.model_fields["op"].default): cls for cls in STEPS})
    try:
        yield
    finally:
        del kinds()[KIND.name], kinds()[SET_KIND.name]
        for cls in STEPS:
            del step_types()[str(cls.model_fields["op"].default)]


def request(fault_id: str, *steps: StepBase, **more: Any) -> FaultRequest:
    """A request that asks for these steps."""
    spec = {"steps": [step.model_dump(mode="json") for step in steps], **more.pop("spec", {})}
    target = {"type": "device", "device": "/dev/t"}
    return FaultRequest.model_validate(
        {"id": fault_id, "kind": KIND.name, "target": target, "spec": spec, **more}
    )


def bind(*args: Any) -> Bound:
    """Every target is bound."""
    return Bound()


def place(kind: Any, target: TargetBase) -> Placed:
    """Every target stands for itself."""
    return Placed(target)


class Core:
    """One agent's core on one state directory and one kernel; its epoch is the newest."""

    def __init__(self, home: Path, kernel: FakeKernel | None = None) -> None:
        self.home = home
        self.kernel = kernel or FakeKernel(home / "kernel.json")
        self.state_dir = open_state_dir(home / "state")
        self.journal = Journal(self.state_dir)
        self.lock = MutationLock(self.state_dir)
        with self.lock.held():
            self.epoch = self.journal.next_epoch()
        self.backends = registry(self.kernel)
        node = Node(self.journal, self.lock, self.backends, bind, lambda: FACTS, self.epoch)
        self.executor = Executor(node)

    def apply(self, fault_id: str, *steps: StepBase, lease: str = "5m", **more: Any) -> FaultRow:
        """Plan and apply."""
        asked = request(fault_id, *steps, **more)
        plan = self.executor.plan(asked)
        return self.executor.apply(asked, Lease.model_validate({"duration": lease}), plan.digest)

    def guardian(self) -> Reverter:
        """The reverter as the guardian has it: nothing ephemeral is left."""
        return Reverter(self.journal, self.backends, live_epoch=None)

    def state(self, fault_id: str) -> str:
        return str(self.journal.fault(fault_id).state)

    def close(self) -> None:
        self.journal.close()
        self.lock.close()
