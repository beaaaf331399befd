"""Who stands for the cluster's own objects in a run, and whose journal it is."""

from __future__ import annotations

from typing import Any

from controller.kube.ledger import own_ledger
from controller.kube.objects_port import ObjectsPort
from controller.kube.ways import Ways
from controller.run_plan import RunPlan
from nodeagent.model.errors import Refused


def acts_on_objects(plan: RunPlan) -> bool:
    """Whether a fault or noise of a plan is on the cluster's own objects."""
    return any(item.on_objects for item in plan.items)


def with_ledger(plan: RunPlan) -> RunPlan:
    """The plan with the journal of its faults on objects: only who has it can go on with them."""
    if not acts_on_objects(plan):
        return plan
    return plan.model_copy(update={"ledger": own_ledger().identity})


def objects_port(cluster: Any, plan: RunPlan, ways: Ways) -> ObjectsPort:
    """Who makes the changes. Raises Refused when the journal of the run is not here."""
    ledger = own_ledger()
    if plan.ledger and plan.ledger != ledger.identity:
        raise Refused(
            "the journal of this run's faults on objects is not here",
            "it lies in the state folder of the user who started the run, on their machine",
            "go on there; what is armed ends by itself with its lease",
        )
    return ObjectsPort(cluster, ledger, ways)
