"""Steps on device-mapper: private devices, and overlays on live tables.

The live table of a device is always its base table (as it was before the first fault)
with the overlays of all faults on it, so that any of them can go first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Residue, Runtime
from nodeagent.backends.dm_dust import KeptLists, set_list
from nodeagent.backends.dm_nodes import logical_block_sectors
from nodeagent.backends.dm_swap import recover, swap
from nodeagent.backends.dmctl import ByName, DmControl, DmInfo
from nodeagent.encode.dm import DevNum, Table, equal, format_table, parse_table
from nodeagent.encode.dm_segment import compose
from nodeagent.model.errors import ForeignState, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.block import DmCreate, DmOverlay


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backends of this module."""
    return {DmCreate: DmCreateBackend(), DmOverlay: DmOverlayBackend()}


class DmCreateBackend:
    """A private device; its uuid tells that it is ours."""

    def observe(self, fault_id: str, step: DmCreate, peers: Sequence[Peer]) -> Prior:
        """The name must be free. Raises Refused."""
        with DmControl() as control:
            if control.find(ByName(step.name)) is not None:
                raise Refused(
                    f"the device {step.name} exists already",
                    "an earlier fault may have left it",
                    "faultctl doctor --purge removes what no fault claims",
                )
        return {}

    def status(self, step: DmCreate, prior: Prior, peers: Sequence[Peer]) -> Status:
        """OURS even if it is half made: then an undo removes it."""
        with DmControl() as control:
            info = control.find(ByName(step.name))
        if info is None:
            return Status.PRIOR
        return Status.OURS if info.uuid == step.uuid else Status.FOREIGN

    def apply(self, fault_id: str, step: DmCreate, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Create it with its table."""
        with DmControl() as control:
            info = control.find(ByName(step.name))
            if info is not None and info.active_present:
                return {"device": str(info.dev)}
            if info is not None:
                control.remove(info.dev)
            return {
                "device": str(control.create_active(step.name, step.uuid, parse_table(step.table)))
            }

    def undo(self, fault_id: str, step: DmCreate, prior: Prior, peers: Sequence[Peer]) -> None:
        """Remove it; waits a moment for short-lived holders such as blkid."""
        with DmControl() as control:
            info = control.find(ByName(step.name))
            if info is not None:
                control.remove(info.dev)

    def measure(self, fault_id: str, step: DmCreate, prior: Prior) -> dict[str, Any]:
        """Nothing is counted here."""
        return {}


class DmOverlayBackend:
    """Overlays on the live table of a device that stays in use."""

    def observe(self, fault_id: str, step: DmOverlay, peers: Sequence[Peer]) -> Prior:
        """The base table, and what tells this device from another with its number.

        Raises Refused when the device is not as it was planned, ForeignState when
        somebody has changed it under the faults that are on it.
        """
        dev = DevNum(step.major, step.minor)
        with DmControl() as control:
            info = control.find(dev)
            live = control.table(dev) if info is not None else None
            if info is None or live is None:
                raise Refused(f"{step.name} has no live device-mapper table", f"device {dev}")
            if info.suspended or info.inactive_present:
                raise Refused(
                    f"{step.name} is being changed by somebody else",
                    "it is suspended" if info.suspended else "a table is loaded and waits",
                    f"see: dmsetup info {step.name}",
                )
            if "crypt" in live.targets:
                raise Refused(f"{step.name} is a dm-crypt device", "its key is in its table")
            base = live
            if peers:
                base = parse_table(peers[0].prior["base"])
                if not equal(live, _composed(control, base, peers)):
                    raise ForeignState(
                        f"the table of {step.name} is not the one that faultctl left",
                        "somebody changed it under the faults that are on it",
                    )
            if base.length != step.size:
                raise Refused(f"{step.name} has another size than it was planned for", "plan again")
            return {
                "base": format_table(base).splitlines(),
                "name": info.name,
                "uuid": info.uuid,
            }

    def status(self, step: DmOverlay, prior: Prior, peers: Sequence[Peer]) -> Status:
        """Compares the live table with what it would be with and without this overlay.

        A peer that was cut short may be there or not; a table of ours that is loaded
        but not live counts as ours, so that an undo drops it.
        """
        dev = DevNum(step.major, step.minor)
        with DmControl() as control:
            info = control.find(dev)
            if info is None:
                return Status.GONE
            live = control.table(dev)
            inactive = control.table(dev, inactive=True) if info.inactive_present else None
            with_it, without = _tables(control, step, prior, peers)
        ours = live is not None and any(equal(live, table) for table in with_it)
        if not ours and not _is_it(info, prior):
            return Status.GONE
        if live is None:
            return Status.FOREIGN
        if inactive is not None and not any(equal(inactive, t) for t in (*with_it, *without)):
            return Status.FOREIGN
        if ours:
            return Status.OURS
        if any(equal(live, table) for table in without):
            half_done = inactive is not None or info.suspended
            return Status.OURS if half_done else Status.PRIOR
        return Status.FOREIGN

    def apply(self, fault_id: str, step: DmOverlay, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Swap in the table with this overlay on top of what is live."""
        dev = DevNum(step.major, step.minor)
        with DmControl() as control:
            live = control.table(dev)
            if live is None:
                raise Refused(f"{step.name} has no live device-mapper table")
            base = parse_table(prior["base"])
            lists = KeptLists(control, dev, peers)
            new = _composed(control, base, peers, step, logical_block_sectors(dev))
            swap(control, dev, new, live, uuid=prior["uuid"])
            lists.restore()
            set_list(control, dev, step)
        return {}

    def undo(self, fault_id: str, step: DmOverlay, prior: Prior, peers: Sequence[Peer]) -> None:
        """Swap in the table without this overlay. Never over a table that is not ours."""
        dev = DevNum(step.major, step.minor)
        with DmControl() as control:
            with_it, without = _tables(control, step, prior, peers)
            recover(control, dev, (*with_it, *without))
            live = control.table(dev)
            if live is None or any(equal(live, table) for table in without):
                return
            target = _without(control, live, step, prior, peers)
            lists = KeptLists(control, dev, peers)
            swap(control, dev, target, live, uuid=prior["uuid"])
            lists.restore()

    def unwind(self, old: Any, new: Any, prior: Prior, peers: Sequence[Peer]) -> None:
        """Drop the table of either form that was loaded and did not become live."""
        dev = DevNum(old.major, old.minor)
        with DmControl() as control:
            info = control.find(dev)
            if info is None or not _is_it(info, prior):
                return
            pairs = [_tables(control, form, prior, peers) for form in (old, new)]
            recover(control, dev, [table for pair in pairs for side in pair for table in side])

    def measure(self, fault_id: str, step: DmOverlay, prior: Prior) -> dict[str, Any]:
        """No dm target counts its hits (DM_MAPIO_KILL is in no statistics)."""
        return {}


def residue(node_id: str, claimed: Sequence[StepBase]) -> list[Residue]:
    """Private devices of this node that no fault claims."""
    try:
        control = DmControl()
    except Refused:
        return []
    names = {step.name for step in claimed if isinstance(step, DmCreate)}
    mark = f"FAULTCTL-{node_id.replace('-', '')[:8].upper()}-"
    found = []
    with control:
        for item in control.list_devices():
            info = control.find(item.dev)
            if info is None or info.name in names or not info.uuid.startswith(mark):
                continue
            found.append(
                Residue(
                    f"device-mapper device {info.name}",
                    f"{info.dev}, {info.open_count} user(s)",
                    partial(_remove_device, info.dev, info.uuid),
                )
            )
    return found


def _remove_device(dev: DevNum, uuid: str) -> None:
    with DmControl() as control:
        info = control.find(dev)
        if info is not None and info.uuid == uuid:
            control.remove(dev)


def _resolve(control: DmControl, name: str) -> DevNum:
    info = control.find(ByName(name))
    if info is None:
        raise KeyError(name)
    return info.dev


def _is_it(info: DmInfo, prior: Prior) -> bool:
    """Whether this is the device and no later one with its number; it may have a new name."""
    return info.uuid == prior["uuid"] and bool(info.uuid or info.name == prior["name"])


def _forms(peer: Peer) -> list[DmOverlay | None]:
    """What of a peer the kernel may show: None is nothing."""
    steps = [s for s in (peer.step, peer.next_step) if isinstance(s, DmOverlay)]
    return list(steps) if peer.certain else [*steps, None]


def _composed(
    control: DmControl,
    base: Table,
    peers: Sequence[Peer],
    step: DmOverlay | None = None,
    block_sectors: int = 1,
) -> Table:
    steps = [peer.step for peer in peers if isinstance(peer.step, DmOverlay)]
    if step is not None:
        steps.append(step)
    return compose(base, steps, lambda name: _resolve(control, name), block_sectors)


def _tables(
    control: DmControl, step: DmOverlay, prior: Prior, peers: Sequence[Peer]
) -> tuple[list[Table], list[Table]]:
    """Every table that the device may have with this overlay, and without it."""
    pairs = list(_possible(control, step, prior, peers))
    return [w for w, _ in pairs if w is not None], [o for _, o in pairs if o is not None]


def _possible(
    control: DmControl, step: DmOverlay, prior: Prior, peers: Sequence[Peer]
) -> Iterator[tuple[Table | None, Table | None]]:
    """(with this overlay, without it) for every way in which the peers may be there.

    None for a table that cannot be live, as its private device is not there.
    """
    base = parse_table(prior["base"])

    def build(steps: Sequence[DmOverlay | None]) -> Table | None:
        try:
            present = [s for s in steps if s is not None]
            return compose(base, present, lambda name: _resolve(control, name))
        except KeyError:
            return None

    for forms in product(*(_forms(peer) for peer in peers)):
        yield build([*forms, step]), build(forms)


def _without(
    control: DmControl, live: Table, step: DmOverlay, prior: Prior, peers: Sequence[Peer]
) -> Table:
    """The live table without this overlay, and with no other change.

    A peer that was cut short stays as it is, there or not: to put it there would arm it.
    Raises ForeignState if the live table is none that these faults can have left.
    """
    for with_it, without in _possible(control, step, prior, peers):
        if with_it is not None and without is not None and equal(live, with_it):
            return without
    raise ForeignState(
        f"the table of {step.name} is not the one that faultctl left",
        "somebody changed it under the faults that are on it",
    )
