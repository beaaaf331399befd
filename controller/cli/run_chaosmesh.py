"""`faultctl run` of Chaos Mesh's objects: each as our fault, held for its duration, taken back."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from controller import render
from controller.cli.kube import reached
from controller.kube import act, keeper
from controller.kube.admission import check_policy
from controller.kube.chaosmesh import Mapped, Unmapped, parse
from controller.kube.collect import choose
from controller.kube.group import apply_group, plan_group, renew_group, revert_group
from controller.kube.kinds import cluster_kinds
from controller.kube.ledger import Entry, own_ledger
from controller.kube.resolve import Wanted, resolve_pods
from controller.kube.targets import group_id
from controller.kube.ways import Reached
from controller.options import checked
from nodeagent.faults import kind_named
from nodeagent.model.errors import FaultError, Refused
from nodeagent.model.plan import Lease
from nodeagent.model.policy import NODE, namespace_of

LEASE_S = 60.0
TICK_S = 0.2


def mapping_data(found: list[Mapped | Unmapped]) -> list[dict[str, Any]]:
    """What becomes of each object."""
    rows: list[dict[str, Any]] = []
    for one in found:
        if isinstance(one, Unmapped):
            rows.append({"object": one.source, "kind": None, "spec": None, "reason": one.reason})
            continue
        rows.append({"object": one.source, "kind": one.kind, "spec": dict(one.spec),
                     "namespace": one.query.namespace, "selector": one.query.labels,
                     "pick": str(one.ask.how_many or "all"), "notes": list(one.notes),
                     "duration_s": one.duration.total_seconds() if one.duration else None,
                     "every_s": _wait_s(one) or None,
                     "reason": None})  # fmt: skip
    return rows


def run_file(
    raw: bytes, access: Mapping[str, Any], *, plan_only: bool, partly: bool, seed: int | None,
    output: str, policy: Path | None = None,
) -> None:  # fmt: skip
    """Maps, shows, and plays what maps. Raises Refused when something does not, unless `partly`."""
    found = parse(raw)
    _show(found, output)
    mapped = [_validated(one) for one in found if isinstance(one, Mapped)]
    if plan_only:
        return
    left = [one for one in found if isinstance(one, Unmapped)]
    if left and not partly:
        raise Refused(
            f"{len(left)} of {len(found)} objects have no equal here",
            f"{left[0].source}: {left[0].reason}",
            "to run the others all the same: --allow-refused",
        )
    if not mapped:
        raise Refused("nothing of the file can be run", "a run without a fault is none")
    with reached(access) as there:
        Play(there, mapped, seed, say=_line, policy=policy, access=access).run()


def _wait_s(one: Mapped) -> float:
    """Before the first time and between two, as Chaos Mesh does (controllers/schedule/cron)."""
    return one.every.total_seconds() if one.every else 0.0


def _validated(one: Mapped) -> Mapped:
    """With a spec that its kind takes. Raises InvalidSpec."""
    own = cluster_kinds().get(one.kind)
    checked(own.spec if own else kind_named(one.kind).spec, dict(one.spec))
    return one


def _show(found: list[Mapped | Unmapped], output: str) -> None:
    rows = mapping_data(found)
    if output != "table":
        render.data(rows, output)
        return
    render.table(
        ("OBJECT", "BECOMES", "WITH"),
        [
            (row["object"], row["kind"] or "NOT MAPPED",
             row["reason"] or " ".join(f"{k}={v}" for k, v in row["spec"].items()))
            for row in rows
        ],
    )  # fmt: skip
    for row in rows:
        for note in row.get("notes", ()):
            render.out().print(f"  {row['object']}: {note}", markup=False)


def _line(text: str) -> None:
    print(render.printable(text), flush=True)


@dataclass
class _Live:
    """One object while it runs."""

    one: Mapped
    until: float
    ids: dict[str, str] = field(default_factory=dict)
    entry: Entry | None = None


@dataclass
class Play:
    """All objects of a file at once, each for its duration; without one, until stopped."""

    there: Reached
    mapped: list[Mapped]
    seed: int | None
    say: Any
    stop: threading.Event = field(default_factory=threading.Event)
    policy: Path | None = None
    access: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Blocks until all have ended. Whatever happens, all is taken back."""
        live: list[_Live] = []
        begun = time.monotonic()
        starts = [(begun + _wait_s(one), one) for one in self.mapped]
        renewed = begun
        try:
            while (starts or live) and not self.stop.is_set():
                now = time.monotonic()
                for start, one in [item for item in starts if item[0] <= now]:
                    starts.remove((start, one))
                    live.append(self._begin(one, now))
                    if one.every is not None:
                        starts.append((start + _wait_s(one), one))
                for state in [s for s in live if s.until <= now]:
                    live.remove(state)
                    self._end(state, "its duration is over")
                if now - renewed > LEASE_S / 3:
                    renewed = now
                    self._renew(live)
                self.stop.wait(TICK_S)
        except KeyboardInterrupt:
            self.say("stopped")
        finally:
            self._end_all(live)

    def _end_all(self, live: list[_Live]) -> None:
        errors = []
        for state in live:
            try:
                self._end(state, "the run is over")
            except FaultError as exc:
                errors.append(exc)
        if errors:
            raise errors[0]

    def _seed(self, one: Mapped) -> str:
        return secrets.token_hex(4) if self.seed is None else f"{self.seed} {one.source}"

    def _begin(self, one: Mapped, now: float) -> _Live:
        long = one.duration.total_seconds() if one.duration else float("inf")
        state = _Live(one, now + long)
        ask = replace(one.ask, seed=self._seed(one))
        group = group_id(one.kind, secrets.token_hex(3))
        if one.kind in cluster_kinds():
            self._object(state, group, ask)
        else:
            self._pods(state, group, ask)
        return state

    def _pods(self, state: _Live, group: str, ask: Any) -> None:
        one, kind = state.one, kind_named(state.one.kind)
        base = {"spec": dict(one.spec), "owner": f"faultctl run: {one.source}"[:256]}
        wanted = Wanted(group, kind, one.query, ask, one.part, base, one.peers)
        found = resolve_pods(self.there.cluster, wanted)
        lease = Lease(duration=timedelta(seconds=LEASE_S))
        spaces = [namespace_of(item.request.target) for item in found.items]
        self._allowed(kind.name, spaces, lease.hard_end)
        planned = plan_group(self.there.clients, found.items)
        apply_group(self.there.clients, planned, lease)
        state.ids = {item.request.id: item.node for item in found.items}
        pods = ", ".join(dict.fromkeys(item.pod for item in found.items))
        self.say(f"{one.source}: {one.kind} on {pods} (seed {ask.seed})")

    def _object(self, state: _Live, group: str, ask: Any) -> None:
        one, kind = state.one, cluster_kinds()[state.one.kind]
        spec = kind.spec.model_validate(dict(one.spec))
        found = choose(self.there.cluster, kind, spec, one.query, ask, ())
        now = time.time()
        hard = now + (one.duration.total_seconds() + LEASE_S if one.duration else 7 * 86400)
        named = self.access.get("kubeconfig")
        entry = Entry(id=group, kind=kind.name, server=self.there.cluster.server, created=now,
                      kubeconfig=str(named.resolve()) if named else None,
                      context=self.access.get("context"), lease_s=LEASE_S, until=now + LEASE_S,
                      hard_end=hard, patched=found.work.patched,
                      removed=found.work.removed)  # fmt: skip
        spaces = [place.namespace or NODE for place in entry.places]
        self._allowed(kind.name, spaces, timedelta(seconds=hard - now))
        book = own_ledger()
        begun = partial(keeper.start, book, entry)
        state.entry = act.arm(self.there.cluster, book, entry, begun)
        places = ", ".join(place.shown for place in entry.places)
        self.say(f"{one.source}: {one.kind} on {places} (seed {ask.seed})")
        if state.entry.state == "ended":
            state.until = min(state.until, time.monotonic())

    def _allowed(self, kind: str, spaces: Iterable[str], hard_end: timedelta) -> None:
        asked = [(kind, space, hard_end) for space in spaces]
        check_policy(self.there.cluster, self.policy, asked)

    def _end(self, state: _Live, why: str) -> None:
        if state.entry is not None:
            act.revert(self.there.cluster, own_ledger(), state.entry.id, "reverted")
        outcome = revert_group(self.there.clients, state.ids)
        self.say(f"{state.one.source}: ended, {why}")
        if outcome.failed:
            raise outcome.failed[0].error

    def _renew(self, live: list[_Live]) -> None:
        for state in live:
            if state.entry is not None:
                own_ledger().renew(state.entry.id)
            for failure in renew_group(self.there.clients, state.ids).failed:
                self.say(f"{failure.fault or failure.node}: {failure.error}")
                if failure.error.code != "unreachable":
                    state.ids.pop(failure.fault, None)  # it has ended
