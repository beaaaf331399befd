"""Who hears where the faults of a group that follows its workload come and go."""

from __future__ import annotations

from collections.abc import Collection

from controller.kube.objects import Pod
from controller.kube.targets import Item


class Hearer:
    """Hears, and tells nobody."""

    def armed_on(self, item: Item) -> None:
        """A fault has been armed on a pod that takes another's place."""

    def kept_for(self, ids: Collection[str], pod: Pod) -> None:
        """Faults on a volume stay, and are in the way of its next pod now."""

    def ended_on(self, node: str, ids: Collection[str]) -> None:
        """Faults on a node have been taken back, since their pod has gone."""
