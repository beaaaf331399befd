"""Steps are data: versioned, read back to their own class, with keys that tell objects apart."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.backends import Peer, Runtime, devmapper, load_backends
from nodeagent.encode.dm import DevNum, equal, parse_table
from nodeagent.encode.dm_segment import compose
from nodeagent.model.errors import BackendError, ForeignState
from nodeagent.model.ranges import Range, overlaps
from nodeagent.model.steps import StepBase, step_from_data, step_from_json, step_types
from nodeagent.model.steps.block import (
    BioFail,
    BioWatch,
    CacheDrop,
    DmCreate,
    DmOverlay,
    DustSegment,
    ErrorSegment,
    FileWatch,
    ReadCheck,
)

R = (Range(start=8, length=8),)
DEVICE: dict[str, Any] = {"major": 253, "minor": 0, "name": "data"}
SAMPLES: list[StepBase] = [
    DmCreate(name="n", uuid="u", table=("0 8 error",)),
    DmOverlay(**DEVICE, size=100, ranges=R, segment=ErrorSegment()),
    DmOverlay(**DEVICE, size=100, ranges=R, segment=DustSegment(block_size=512, bad=R)),
    BioFail(**DEVICE, ranges=R),
    BioWatch(**DEVICE, ranges=R),
    ReadCheck(**DEVICE, sector=8, sectors=1),
    FileWatch(path="/a b", inode=1, extents=((0, 4096, 4096),)),
    CacheDrop(path="/a\nb", ranges=((0, 4096),)),
]


def test_every_step_has_a_name_a_version_and_a_class() -> None:
    for op, cls in step_types().items():
        assert cls.model_fields["op"].default == op
        assert cls.model_fields["v"].default == 1
        assert cls.model_config["frozen"] and cls.model_config["extra"] == "forbid"
        assert cls.__doc__


@pytest.mark.parametrize("step", SAMPLES, ids=lambda s: type(s).__name__)
def test_a_step_reads_back_as_itself(step: StepBase) -> None:
    again = step_from_json(step.model_dump_json())
    assert again == step
    assert type(again) is type(step)
    assert again.key() == step.key()
    assert step.summary()


@pytest.mark.parametrize("step", SAMPLES, ids=lambda s: type(s).__name__)
def test_a_step_of_another_version_or_with_more_is_not_guessed(step: StepBase) -> None:
    data = step.model_dump(mode="json")
    for change in ({"v": 2}, {"v": None}, {"more": 1}, {"op": "from_the_future"}):
        with pytest.raises(ValueError):
            step_from_data({**data, **change})


@settings(max_examples=25)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_anything_else_is_a_value_error(data: Any) -> None:
    with pytest.raises(ValueError):
        step_from_data(data)
    with pytest.raises(ValueError):
        step_from_json(json.dumps(data))


def test_different_kinds_of_steps_never_share_a_key() -> None:
    for one, two in combinations(SAMPLES, 2):
        if type(one) is not type(two):
            assert one.key() != two.key()


def test_whatever_only_watches_composes_and_dies_with_the_agent_or_holds_nothing() -> None:
    for cls in step_types().values():
        if cls.observes:
            assert cls.composes
        assert not (cls.ephemeral and cls.survives_boot)


def test_every_step_of_the_agent_has_a_backend(tmp_path: Any) -> None:
    backends = load_backends(Runtime(tmp_path, "n0"))
    for step in SAMPLES:
        found = backends.of(step)
        for method in ("observe", "status", "apply", "undo", "measure"):
            assert callable(getattr(found, method))


def test_every_class_of_steps_has_a_backend(tmp_path: Any) -> None:
    known = set(load_backends(Runtime(tmp_path, "n0"))._backends)
    assert known == set(step_types().values())


def test_a_step_without_a_backend_is_an_error_with_words(tmp_path: Any) -> None:
    class Orphan(DmCreate):
        pass

    with pytest.raises(BackendError, match="no backend"):
        load_backends(Runtime(tmp_path, "n0")).of(Orphan(name="n", uuid="u", table=()))


RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=3).map(
    lambda pairs: tuple(Range(start=s, length=n) for s, n in pairs)
)


@given(RANGES, RANGES)
def test_overlays_overlap_where_a_sector_is_in_both(one: Any, two: Any) -> None:
    def sectors(ranges: Any) -> set[int]:
        return {n for r in ranges for n in range(r.start, r.end)}

    expected = bool(sectors(one) & sectors(two))
    assert overlaps(one, two) == expected
    a = DmOverlay(**DEVICE, size=100, ranges=one, segment=ErrorSegment())
    b = DmOverlay(**DEVICE, size=100, ranges=two, segment=ErrorSegment())
    assert a.overlaps(b) == b.overlaps(a) == expected
    assert BioFail(**DEVICE, ranges=one).overlaps(BioFail(**DEVICE, ranges=two)) == expected


# --- overlays in the journal and in the kernel -------------------------------------------

BASE = "0 1000 linear 8:16 0"
PRIOR = {"base": [BASE], "name": "data", "uuid": "u"}


def over(start: int) -> DmOverlay:
    ranges = (Range(start=start, length=8),)
    return DmOverlay(**DEVICE, size=1000, ranges=ranges, segment=ErrorSegment())


def peer(step: DmOverlay, *, certain: bool) -> Peer:
    return Peer("f-peer", 1, step, None, PRIOR, certain)


def live_with(*steps: DmOverlay) -> Any:
    return compose(parse_table([BASE]), steps, lambda name: DevNum(0, 0))


@pytest.mark.parametrize("certain", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_an_undo_takes_its_own_overlay_and_never_arms_a_peer(certain: bool, there: bool) -> None:
    """A peer whose own change was cut short may be in the kernel or not; it stays as it is."""
    mine, other = over(100), over(500)
    peers = [peer(other, certain=certain)]
    live = live_with(mine, other) if there else live_with(mine)
    if certain and not there:
        with pytest.raises(ForeignState):
            devmapper._without(NO_CONTROL, live, mine, PRIOR, peers)
        return
    after = devmapper._without(NO_CONTROL, live, mine, PRIOR, peers)
    assert equal(after, live_with(other) if there else parse_table([BASE]))


def test_an_undo_never_overwrites_a_table_of_somebody_else() -> None:
    foreign = parse_table(["0 1000 linear 8:32 0"])
    with pytest.raises(ForeignState):
        devmapper._without(NO_CONTROL, foreign, over(100), PRIOR, [])


NO_CONTROL: Any = None  # no private device has to be looked up here
