"""What kinds on cgroups share: the need for v2, missing controllers, guards. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodeagent.model.cgroup import CgroupBinding
from nodeagent.model.facts import Facts, NeedRoot
from nodeagent.model.kind import Context, Guard
from nodeagent.model.podcgroup import pod_uid


@dataclass(frozen=True)
class NeedCgroup2:
    """The unified hierarchy at /sys/fs/cgroup."""

    def missing(self, facts: Facts) -> str | None:
        if facts.cgroup == "v2":
            return None
        return f"the cgroup hierarchy is {facts.cgroup or 'missing'}, v2 is needed"


NEEDS = (NeedRoot(), NeedCgroup2())


def binding_of(context: Context) -> CgroupBinding:
    """The context's binding by its type."""
    found: CgroupBinding = context.binding
    return found


def no_file(binding: CgroupBinding, file: str) -> str | None:
    """Why an interface file is not there; None if it is."""
    if file in binding.values:
        return None
    controller = file.partition(".")[0]
    above = binding.scope.path.rpartition("/")[0]
    return (
        f"{binding.scope.path} has no {file}: the controller {controller} is not enabled in its "
        f"parent (echo +{controller} > /sys/fs/cgroup{above}/cgroup.subtree_control), or not in "
        "the kernel"
    )


def guards(spec: Any, context: Context, sandbox: bool = False) -> tuple[Guard, ...]:
    """A kubelet or container runtime in the target is a guard rail.

    The pause process of a pod that is meant as a whole is none: it only holds the pod's
    namespaces, and a limit or a stop is the same to it. sandbox: it counts all the same.
    """
    found = getattr(context.binding, "node_agents", ())
    path = getattr(context.binding.scope, "path", "")
    if not sandbox and pod_uid(path.rpartition("/")[2]) is not None:
        found = tuple(name for name in found if name.partition(" ")[0] != "pause")
    named = ", ".join(found[:4])
    if not named:
        return ()
    return (Guard("node-agent", f"the target is what keeps the node's containers going: {named}"),)
