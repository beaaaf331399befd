"""Effects: one backend for each type of step, found by walking this package.

A backend observes (captures the prior state), applies, tells the status by reading
back, undoes, and measures. Only the executor and the reverter call it, with the
mutation lock held; `status`, `observe` and `measure` change nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from nodeagent.model.errors import BackendError
from nodeagent.model.evidence import NodeEvent
from nodeagent.model.steps import Status, StepBase

Prior = dict[str, Any]
Outcome = dict[str, Any]
S_contra = TypeVar("S_contra", bound=StepBase, contravariant=True)


@dataclass(frozen=True)
class Peer:
    """Another fault's step on the same key that is not reverted.

    When it is not `certain`, its own change was cut short: the kernel may show it or not.
    """

    fault_id: str
    seq: int
    step: StepBase
    next_step: StepBase | None
    prior: Prior
    certain: bool


@dataclass(frozen=True)
class Runtime:
    """What backends get from the process they run in."""

    state_dir: Path
    node_id: str
    on_event: Callable[[str, NodeEvent], None] | None = None
    """Called from a backend's own thread for everything a watch sees; None in the guardian."""

    bpf_loader: str = "auto"
    """What loads the programs that both loaders take: auto, libbpf or bcc."""


class Backend(Protocol[S_contra]):
    """How one type of step becomes true, is read back, and is taken back."""

    def observe(self, fault_id: str, step: S_contra, peers: Sequence[Peer]) -> Prior:
        """The prior state that an undo returns to, as JSON data. Raises Refused."""

    def status(self, step: S_contra, prior: Prior, peers: Sequence[Peer]) -> Status:
        """What the kernel shows now."""

    def apply(self, fault_id: str, step: S_contra, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Make it true; applying twice is the same as once. Raises FaultError or OSError."""

    def undo(self, fault_id: str, step: S_contra, prior: Prior, peers: Sequence[Peer]) -> None:
        """Return to the prior state; only called when the status is OURS."""

    def measure(self, fault_id: str, step: S_contra, prior: Prior) -> dict[str, Any]:
        """Counters and records of an applied step; empty where nothing is counted."""


@runtime_checkable
class Unwinds(Protocol):
    """A backend whose change of an applied step can be cut short between the two forms."""

    def unwind(self, old: Any, new: Any, prior: Prior, peers: Sequence[Peer]) -> None:
        """End such a change, so that `status` of the one form or the other tells what is there.

        Raises ForeignState for what is neither's, and touches nothing then.
        """


@runtime_checkable
class Prepares(Protocol):
    """A backend with work before `observe` that may take minutes and changes nothing.

    It is done without the mutation lock: leases end and faults are reverted meanwhile.
    """

    def is_slow(self) -> bool:
        """Whether there may be such work on this node at all."""

    def prepare(self, step: Any) -> None:
        """Do it for one step. Raises FaultError, OSError."""


AnyBackend = Backend[Any]


class Registry:
    """All backends by the class of their step."""

    def __init__(self, backends: Mapping[type[StepBase], AnyBackend]) -> None:
        self._backends = dict(backends)

    def of(self, step: StepBase) -> AnyBackend:
        """The backend of a step. Raises BackendError for a step that has none."""
        found = self._backends.get(type(step))
        if found is None:
            raise BackendError(f"no backend knows the step {step.key()}", type(step).__name__)
        return found

    def slow(self) -> bool:
        """Whether some backend has to prepare what takes long."""
        return any(isinstance(b, Prepares) and b.is_slow() for b in self._backends.values())

    def prepare(self, steps: Sequence[StepBase]) -> None:
        """Have that done for these steps. Raises FaultError, OSError."""
        for step in steps:
            backend = self.of(step)
            if isinstance(backend, Prepares):
                backend.prepare(step)


@dataclass(frozen=True)
class Residue:
    """Something of ours in the kernel that no fault claims, and how to take it away."""

    what: str
    detail: str
    remove: Callable[[], None]


Scavenger = Callable[[str, Sequence[StepBase]], list[Residue]]
"""(node id, steps that faults claim) -> what carries our mark though none of them explains it."""


def load_scavengers() -> list[Scavenger]:
    """The `residue` function of every backend module that has one."""
    found: list[Scavenger] = []
    for info in pkgutil.iter_modules(__path__):
        offer = getattr(importlib.import_module(f"{__name__}.{info.name}"), "residue", None)
        if offer is not None:
            found.append(offer)
    return found


def load_backends(runtime: Runtime) -> Registry:
    """Import every backend module and collect what its `backends(runtime)` offers."""
    found: dict[type[StepBase], AnyBackend] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        offer = getattr(module, "backends", None)
        if offer is not None:
            found.update(offer(runtime))
    return Registry(found)
