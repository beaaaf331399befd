"""Watches the pods that faults of a run follow, each entry's in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from controller.experiment import Experiment
from controller.kube.answers import ApiPath, Expired
from controller.kube.asked import asked
from controller.kube.client import Cluster
from controller.kube.lookups import Lookups
from controller.kube.objects import Pod, pod_from
from controller.run_plan import RunPlan
from controller.run_slots import Heard
from nodeagent.model.errors import FaultError, Unreachable

AGAIN_S = 1.0
SORTS: dict[str, Any] = {"ADDED": "seen", "MODIFIED": "seen", "DELETED": "gone"}


@dataclass(frozen=True)
class Watched:
    """The pods of one entry, and of what can take their place. volume: that is hit, if one is."""

    target: str
    namespace: str
    labels: str = ""
    fields: str = ""
    volume: str | None = None


class PodWatch:
    """Says all that happens to the pods, from `start` to `stop`; reads the cluster only."""

    def __init__(
        self, cluster: Cluster, watched: Iterable[Watched], tell: Callable[[Heard], None]
    ) -> None:
        self._cluster, self._watched, self._tell = cluster, tuple(watched), tell
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin."""
        for one in self._watched:
            # A watch may hang for minutes on a server that is gone: nobody waits for its thread.
            threading.Thread(
                target=self._run, args=(one,), name=f"watch {one.target}", daemon=True
            ).start()

    def stop(self) -> None:
        """Say no more."""
        self._stop.set()

    def _run(self, one: Watched) -> None:
        path = ApiPath("pods", one.namespace)
        lookups = Lookups(self._cluster, one.volume)
        while not self._stop.is_set():
            try:
                items, version = self._cluster.listed(path, one.labels, one.fields)
                self._say(one, lookups, "sync", [pod_from(item) for item in items])
                for event in self._cluster.watch(path, version, one.labels, one.fields):
                    if self._stop.is_set():
                        return
                    if event["type"] in SORTS:
                        self._say(one, lookups, SORTS[event["type"]], [pod_from(event["object"])])
            except (Expired, Unreachable) as exc:
                self._put(Heard(one.target, "lost", why=str(exc)))
                self._stop.wait(AGAIN_S)
            except FaultError as exc:
                self._put(Heard(one.target, "failed", why=str(exc)))
                return

    def _say(self, one: Watched, lookups: Lookups, sort: Any, pods: Sequence[Pod]) -> None:
        """With all that the decisions need of the API server. Raises Refused, Unreachable."""
        owners = {pod.uid: lookups.owner_of(pod) for pod in pods}
        volumes = {pod.uid: lookups.place_of(pod) for pod in pods}
        self._put(Heard(one.target, sort, tuple(pods), owners, volumes))

    def _put(self, heard: Heard) -> None:
        if not self._stop.is_set():
            self._tell(heard)


@contextmanager
def watching(
    cluster: Cluster, experiment: Experiment, plan: RunPlan, tell: Callable[[Heard], None]
) -> Iterator[None]:
    """All that happens to pods that a run follows, and to what can take their place."""
    watched = []
    for found in plan.pods:
        entry = experiment.targets[found.target].pods
        if found.follow and entry is not None:
            query, ask = asked(found.namespace, entry.options(""))
            watched.append(Watched(found.target, found.namespace, query.labels, query.fields,
                                   ask.volume))  # fmt: skip
    watch = PodWatch(cluster, watched, tell)
    watch.start()
    try:
        yield
    finally:
        watch.stop()
