"""What a fault of a run would do to a cluster's objects, chosen now, as steps of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from controller.experiment_objects import options_of
from controller.kube.asked import asked
from controller.kube.client import Cluster
from controller.kube.collect import Chosen, choose
from controller.kube.kinds import ClusterKind, Work, lines_of
from controller.kube.ledger import Place, places_of
from nodeagent.model.steps import StepBase


class ObjectStep(StepBase):
    """One change of one object. what: the field or `pod`, whose change is not its own way back."""

    op: Literal["object"] = "object"
    uid: str
    place: str
    what: str
    line: str
    data: dict[str, Any]

    def key(self) -> str:
        """See StepBase."""
        return f"{self.place} {self.what}"

    def summary(self) -> str:
        """See StepBase."""
        return self.line


@dataclass(frozen=True)
class ChosenFor:
    """What a request would do."""

    found: Chosen
    namespace: str

    @property
    def places(self) -> list[Place]:
        """All objects that would be changed or removed."""
        return places_of(self.found.work.patched, self.found.work.removed)


def chosen_for(
    cluster: Cluster, kind: ClusterKind, target: Mapping[str, Any], spec: Mapping[str, Any],
    known: tuple[str, ...],
) -> ChosenFor:  # fmt: skip
    """What a kind would do to a target of a plan. Raises FaultError classes; changes nothing."""
    query, ask = asked(cluster.namespace, options_of(target))
    query.check()
    found = choose(cluster, kind, kind.spec.model_validate(dict(spec)), query, ask, known)
    return ChosenFor(found, query.namespace)


def steps_of(work: Work) -> tuple[ObjectStep, ...]:
    """The work as steps of a plan, in their order."""
    fields = [(one, change) for one in work.patched for change in one.changes]
    lines = iter(lines_of(work))
    changed = [
        ObjectStep(uid=one.uid, place=one.place.shown, what=change.pointer, line=next(lines),
                   data={**change.model_dump(mode="json"), "manager": one.manager})
        for one, change in fields
    ]  # fmt: skip
    removed = [
        ObjectStep(uid=one.uid, place=one.place.shown, what=f"pod {one.uid}", line=next(lines),
                   data={"grace_s": one.grace_s, "evict": one.evict})
        for one in work.removed
    ]  # fmt: skip
    return (*changed, *removed)
