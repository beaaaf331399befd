"""Following a workload for real: a watch, and the agents; the decisions are in follow.py."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controller.kube.answers import ApiPath, Expired
from controller.kube.client import Cluster
from controller.kube.discover import Query, find_pods
from controller.kube.follow import Action, Arm, End, Following, Keep
from controller.kube.group import Clients, Failure, renew_group, revert_group
from controller.kube.hearer import Hearer
from controller.kube.lookups import Lookups
from controller.kube.objects import Pod, pod_from
from controller.kube.resolve import Resolved, Wanted
from controller.kube.select import next_pod
from controller.kube.targets import Item, items_of
from nodeagent.model.errors import BackendError, FaultError, InvalidSpec, Refused, Unreachable
from nodeagent.model.plan import Lease

TRY_S = 0.1
"""Between two looks for a new pod's cgroup: it is there before its first container."""
GIVE_UP_S = 120.0
AGAIN_S = 1.0
Say = Callable[[str], None]


@dataclass
class _Chase:
    """A pod that is to be hit as soon as it can be."""

    slot: int
    pod: Pod
    why: str
    until: float
    last: str = ""
    not_before: float = 0.0
    ids: dict[str, str] = field(default_factory=dict)
    """By target, the id that it is tried under."""
    sent: dict[str, str] = field(default_factory=dict)
    """By target, the digest of a plan that was sent and got no answer: it may be armed."""
    done: set[str] = field(default_factory=set)
    """Targets that are armed: another of the pod may not be yet."""


@dataclass
class Pursuit:
    """One group that follows its workload, until `stop`."""

    cluster: Cluster
    clients: Clients
    wanted: Wanted
    lease: Lease
    say: Say
    moves: bool = True
    hearer: Hearer = field(default_factory=Hearer)
    ids: dict[str, str] = field(default_factory=dict)
    """Active faults: id to node."""
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._of: dict[tuple[int, str], list[str]] = {}
        self._chases: dict[int, _Chase] = {}
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._number = 0
        self._lookups = Lookups(self.cluster, self.wanted.ask.volume)
        self._following = Following(
            self._lookups.owner_of, self.moves, place_of=self._lookups.place_of
        )

    def begin(self, found: Resolved) -> None:
        """From what is armed: {pod: its faults}; all other pods of the query are left alone."""
        pods = {pod.full_name: pod for pod in self._all()}
        hit: list[Pod] = []
        for item in found.items:
            self.ids[item.request.id] = item.node
            if item.pod in pods and pods[item.pod] not in hit:
                hit.append(pods[item.pod])
            bound = item.request.target.get("container_id") is not None
            self._following.restarts |= bound and item.request.target["type"] == "pod"
        self._following.begin(hit, pods.values())
        for item in found.items:
            slots = [n for n, pod in enumerate(hit) if pod.full_name == item.pod]
            if slots:
                self._of.setdefault((slots[0], hit[slots[0]].uid), []).append(item.request.id)
        self._number = len(found.items)

    def _query(self) -> Query:
        """What can bring replacements: a pod that was named may come back under its name only."""
        return replace(self.wanted.query, names=())

    def _all(self) -> list[Pod]:
        return find_pods(self.cluster, self._query())

    def run(self) -> None:
        """Follow until `stop` is set; renews the leases meanwhile. Raises what cannot pass."""
        for work in (self._watch, self._renew):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        try:
            while not self.stop.is_set():
                try:
                    sort, what = self._events.get(timeout=TRY_S)
                except queue.Empty:
                    pass
                else:
                    self._event(sort, what)
                self._chase()
        finally:
            self.stop.set()

    # --- the watch ----------------------------------------------------------------

    def _watch(self) -> None:
        path = ApiPath("pods", self.wanted.query.namespace)
        labels, fields = self.wanted.query.labels, self.wanted.query.fields
        while not self.stop.is_set():
            try:
                items, version = self.cluster.listed(path, labels, fields)
                self._events.put(("sync", [pod_from(one) for one in items]))
                for event in self.cluster.watch(path, version, labels, fields):
                    if event["type"] != "BOOKMARK":
                        self._events.put((event["type"], pod_from(event["object"])))
            except (Expired, Unreachable) as exc:
                self._events.put(("lost", exc))
                self.stop.wait(AGAIN_S)
            except FaultError as exc:
                self._events.put(("failed", exc))
                return

    def _event(self, sort: str, what: Any) -> None:
        if sort == "failed":
            raise what
        if sort == "lost":
            self.say(f"the watch is begun anew: {what}")
        elif sort == "unrenewed":
            self._unrenewed(what)
        elif sort == "sync":
            for pod in what:
                self._learn(pod)
            self._act(self._following.sync(what))
        elif sort == "DELETED":
            self._act(self._following.gone(what.uid))
        else:
            self._learn(what)
            for chase in self._chases.values():
                if chase.pod.uid == what.uid:
                    chase.pod = what
            self._act(self._following.seen(what))

    def _learn(self, pod: Pod) -> None:
        """All that the decisions about a pod need of the API server: they cannot fail half-way."""
        while not self.stop.is_set() and pod.uid not in self._following.before:
            try:
                self._lookups.learn(pod)
            except Unreachable as exc:
                self.say(f"{pod.full_name} is looked up again: {exc}")
                self.stop.wait(AGAIN_S)
            else:
                break

    # --- the agents ---------------------------------------------------------------

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Keep):
                self._keep(action)
            elif isinstance(action, Arm):
                self._begin_chase(action)
            elif isinstance(action, End):
                self._end(action)
            else:
                self.say(action.why)

    def _begin_chase(self, wanted: Arm | Keep) -> None:
        until = time.monotonic() + GIVE_UP_S
        self._chases[wanted.slot] = _Chase(wanted.slot, wanted.pod, wanted.why, until)

    def _keep(self, action: Keep) -> None:
        """What is armed on the volume is in the next pod's way already, if anything is."""
        ids = self._of.pop((action.slot, action.uid), [])
        if not set(ids) & set(self.ids):
            self._begin_chase(action)
            return
        self._of[action.slot, action.pod.uid] = ids
        self.say(f"{', '.join(ids)}: {action.pod.full_name} {action.why}, on the same volume")
        self.hearer.kept_for(ids, action.pod)

    def _end(self, action: End) -> None:
        gone = {i: self.ids[i] for i in self._of.pop((action.slot, action.uid), ())
                if i in self.ids}  # fmt: skip
        chase = self._chases.get(action.slot)
        if chase is not None and chase.pod.uid == action.uid:
            del self._chases[action.slot]
            gone |= {chase.ids[target]: action.node for target in chase.sent}
        outcome = revert_group(self.clients, gone)
        for fault_id, node in gone.items():
            self.ids.pop(fault_id, None)
            self.say(f"{fault_id} on {node} ended: {action.why}")
        for node in set(gone.values()):
            self.hearer.ended_on(node, [i for i, where in gone.items() if where == node])
        for failure in outcome.failed:
            self.say(f"{failure.fault} on {failure.node} was not taken back: {failure.error}")

    def _chase(self) -> None:
        for slot, chase in list(self._chases.items()):
            if time.monotonic() < chase.not_before:
                continue
            try:
                self._arm(chase)
            except InvalidSpec as exc:
                self.say(f"{chase.pod.full_name} is not hit: {exc}")
            except (Refused, Unreachable, BackendError) as exc:
                # BackendError: the pod went, or a container came, while it was being armed.
                chase.last = str(exc)
                chase.not_before = time.monotonic() + self._pause(exc)
                if time.monotonic() < chase.until:
                    continue
                self.say(f"{chase.pod.full_name} is not hit, given up: {chase.last}")
            del self._chases[slot]

    def _arm(self, chase: _Chase) -> None:
        """Raises Refused as long as the pod has no cgroup, or no container that is needed."""
        wanted = self.wanted
        early, ask = next_pod(chase.pod, wanted.ask)
        made = items_of(wanted.group, wanted.kind, [early], ask, wanted.part, wanted.base)
        for item in made:
            self._arm_one(chase, item)

    @staticmethod
    def _pause(exc: FaultError) -> float:
        """The node's journal has a line for each that was begun: not ten of them a second."""
        return AGAIN_S if isinstance(exc, BackendError) else 0.0

    def _arm_one(self, chase: _Chase, item: Item) -> None:
        target = json.dumps(item.request.target, sort_keys=True)
        if target in chase.done:
            return
        if target not in chase.ids:
            self._number += 1
            chase.ids[target] = f"{self.wanted.group}-{self._number}"
        request = item.request.model_copy(update={"id": chase.ids[target]})
        try:
            agent = self.clients.of(item.node)
            digest = chase.sent.get(target) or agent.plan(request)[1]
            chase.sent[target] = digest
            agent.apply(request, self.lease, digest)
        except Unreachable:
            # What was sent may have arrived: it is asked for again by the same id and digest.
            self.clients.drop(item.node)
            raise
        except FaultError:
            if chase.sent.pop(target, ""):
                del chase.ids[target]
            raise
        del chase.sent[target]
        chase.done.add(target)
        self.ids[request.id] = item.node
        self._of.setdefault((chase.slot, chase.pod.uid), []).append(request.id)
        self.say(f"{request.id} armed on {item.node}: {item.pod} {chase.why}")
        self.hearer.armed_on(replace(item, request=request))

    def _renew(self) -> None:
        """In a thread of its own: a node that died holds up what is done to it for minutes, and
        the others' leases would end meanwhile."""
        try:
            while not self.stop.wait(self.lease.duration.total_seconds() / 3):
                for failure in renew_group(self.clients, dict(self.ids)).failed:
                    self._events.put(("unrenewed", failure))
        finally:
            if not self.stop.is_set():
                self._events.put(("failed", FaultError("a bug in faultctl", "no lease is renewed")))

    def _unrenewed(self, failure: Failure) -> None:
        if failure.fault and failure.fault not in self.ids:
            return  # it was taken back meanwhile
        self.say(f"{failure.fault or failure.node}: {failure.error}")
        if not isinstance(failure.error, Unreachable):
            self.ids.pop(failure.fault, None)
