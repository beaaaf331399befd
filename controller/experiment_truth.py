"""Ground truth of faults that were drawn, not written: from their kind and target."""

from __future__ import annotations

from pydantic import ValidationError

from controller.experiment_targets import TargetEntry
from controller.records import GroundTruth
from nodeagent.faults import kinds
from nodeagent.model.target import parse_target

_FAMILIES = (
    ("disk", ("latent-sector", "disk-", "inode-")),
    ("network", ("netem", "partition", "bandwidth", "dns", "conntrack", "port-", "link-")),
    ("syscall", ("syscall",)),
    ("load", ("stress", "throttle")),
    ("kernel", ("fail", "sysctl")),
    ("time", ("clock",)),
)


def category_of(kind: str) -> str:
    """The family of a kind by its name; `process` where no other fits."""
    for family, names in _FAMILIES:
        if kind.startswith(names):
            return family
    return "process"


def drawn_truth(kind: str, entry: TargetEntry) -> GroundTruth:
    """What is true of a fault of this kind on this target."""
    known = kinds().get(kind)
    try:
        artifact = parse_target(entry.target).label()
    except ValidationError:
        artifact = str(entry.target.get("type", ""))
    what = known.summary if known else kind
    return GroundTruth(
        category=category_of(kind),
        mechanism=what,
        service=entry.service,
        scope=(entry.service,),
        artifact=f"{artifact} on {entry.node}",
        root_cause=f"{kind} on {artifact} of {entry.service} on {entry.node}: {what}",
    )
