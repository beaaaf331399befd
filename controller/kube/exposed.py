"""Which pods the processes belong to that a fault can still hit; pure.

A process is told by its cgroup on the node, a pod by its UID in the names there. So what the
API says of pods need not be right for the fault's own workload: who is hit is who runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.kube.objects import Pod
from nodeagent.model.exposure import Exposure, Workload
from nodeagent.model.podcgroup import pod_uid


@dataclass(frozen=True)
class Exposed:
    """What one agent says of one fault; `found` is None when the fault has ended.

    namespace: of the fault's own pod. Only there pods are looked up by name, since who breaks
    pods of one namespace need not have rights in others.
    """

    node: str
    fault: str
    namespace: str
    found: Exposure | None

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Who it can still hit, as far as that is known."""
        return self.found.workloads if self.found else ()

    @property
    def nobody(self) -> bool:
        """It is known of all processes that the fault cannot hit them."""
        return self.found is None or self.found.nobody


def pod_of(workload: Workload, pods: Iterable[Pod]) -> str:
    """NAMESPACE/NAME of the pod that a process runs in; its UID when the API has no such pod (any
    more) or it is in another namespace, and empty when it runs in none."""
    uid = next(filter(None, map(pod_uid, workload.cgroup.split("/"))), None)
    if uid is None:
        return ""
    return next((pod.full_name for pod in pods if pod.cgroup_uid == uid), uid)
