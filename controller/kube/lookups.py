"""What following a workload has to ask the API server about a pod: whose it is, and what of it
outlives it. Asked once for each pod, before any decision is made with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.kube.answers import ApiPath
from controller.kube.client import Cluster
from controller.kube.discover import APPS
from controller.kube.objects import Pod
from controller.kube.volumes import claim_of, volume_place
from nodeagent.model.errors import Refused


@dataclass
class Lookups:
    """volume: the one that is hit, if the fault is on one."""

    cluster: Cluster
    volume: str | None = None
    _owners: dict[str, str] = field(default_factory=dict)
    _places: dict[str, str] = field(default_factory=dict)

    def learn(self, pod: Pod) -> None:
        """So that what follows needs no answer any more. Raises Refused, Unreachable."""
        self.owner_of(pod)
        self.place_of(pod)

    def owner_of(self, pod: Pod) -> str:
        """The UID of its controller; for a ReplicaSet that of its own, so that a rollout is
        followed. Empty without one. Raises Refused, Unreachable."""
        if pod.owner is None:
            return ""
        uid = pod.owner.uid
        if pod.owner.kind == "ReplicaSet" and uid not in self._owners:
            found = self.cluster.get(ApiPath("replicasets", pod.namespace, pod.owner.name, APPS))
            above = [o["uid"] for o in (found or {}).get("metadata", {}).get("ownerReferences", ())
                     if o.get("controller")]  # fmt: skip
            self._owners[uid] = above[0] if above else uid
        return self._owners.get(uid, uid)

    def place_of(self, pod: Pod) -> str:
        """The volume that is hit, if it outlives the pod; else empty. A claim that was made anew
        is another volume. Raises Unreachable."""
        if self.volume is None or not pod.node:
            return ""
        if pod.uid not in self._places:
            self._places[pod.uid] = volume_place(pod, self.volume, self._bound(pod, self.volume))
        return self._places[pod.uid]

    def _bound(self, pod: Pod, volume: str) -> str:
        claim = claim_of(pod, volume)
        if not claim:
            return ""
        try:
            found = self.cluster.get(ApiPath("persistentvolumeclaims", pod.namespace, claim))
        except Refused:
            return ""  # without the right to read claims, their names have to do
        return str((found or {}).get("spec", {}).get("volumeName", ""))
