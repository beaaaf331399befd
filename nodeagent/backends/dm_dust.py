"""dm-dust's lists of bad blocks: they live in the targets, not in the table, and a reload
loses them (drivers/md/dm-dust.c)."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.backends import Peer
from nodeagent.backends.dmctl import DmControl
from nodeagent.encode.dm import DevNum
from nodeagent.model.ranges import Range, Ranges, normalise
from nodeagent.model.steps.block import DmOverlay, DustSegment


class KeptLists:
    """The lists of the faults that stay: asked before a swap and set again after it."""

    def __init__(self, control: DmControl, dev: DevNum, peers: Sequence[Peer]) -> None:
        self._control = control
        self._dev = dev
        self._bad = [
            (p.step, read_list(control, dev, p.step))
            for p in peers
            if isinstance(p.step, DmOverlay) and isinstance(p.step.segment, DustSegment)
        ]

    def restore(self) -> None:
        """Set the lists again, without what has healed meanwhile."""
        for step, bad in self._bad:
            _send_list(self._control, self._dev, step, bad)


def set_list(control: DmControl, dev: DevNum, step: DmOverlay) -> None:
    """Fill and enable the dust segments of a step that has just become live."""
    if isinstance(step.segment, DustSegment):
        _send_list(control, dev, step, step.segment.bad)


def _send_list(control: DmControl, dev: DevNum, step: DmOverlay, bad: Ranges) -> None:
    """Fill and enable the dust segments; blocks are counted on the device below (dm-dust.c)."""
    segment = step.segment
    if not isinstance(segment, DustSegment):
        return
    unit = segment.block_size // 512
    for item, below in _dust_places(control, dev, step):
        have = set(_listed(control, dev, item.start))
        want = {
            block
            for r in bad
            for first in [max(r.start, item.start)]
            for last in [min(r.end, item.end)]
            for block in range(
                (below + first - item.start) // unit, (below + last - item.start) // unit
            )
        }
        for block in sorted(want - have):
            control.message(dev, item.start, f"addbadblock {block}")
        for block in sorted(have - want):
            control.message(dev, item.start, f"removebadblock {block}")
        text = next(s.text for s in control.status(dev) if s.start == item.start)
        if "bypass" in text or "fail_read_on_bad_block" not in text:
            control.message(dev, item.start, "enable")
        if "quiet" not in text:
            control.message(dev, item.start, "quiet")


def _dust_places(control: DmControl, dev: DevNum, step: DmOverlay) -> list[tuple[Range, int]]:
    """The live dust segments of a step, each with its first sector on the device below."""
    live = control.table(dev)
    if live is None:
        return []
    return [
        (Range(start=s.start, length=s.length), int(s.args[1]))
        for s in live.segments
        if s.target == "dust"
        and any(r.start <= s.start and s.start + s.length <= r.end for r in step.ranges)
    ]


def _listed(control: DmControl, dev: DevNum, sector: int) -> list[int]:
    answer = control.message(dev, sector, "listbadblocks")
    return [int(word) for word in answer.split() if word.isdigit()]


def read_list(control: DmControl, dev: DevNum, step: DmOverlay) -> Ranges:
    """Sectors of the device that dm-dust still holds as bad."""
    if not isinstance(step.segment, DustSegment):
        return ()
    unit = step.segment.block_size // 512
    return normalise(
        Range(start=item.start + block * unit - below, length=unit)
        for item, below in _dust_places(control, dev, step)
        for block in _listed(control, dev, item.start)
    )
