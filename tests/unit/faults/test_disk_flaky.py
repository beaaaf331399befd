"""disk-flaky as data: intervals in whole seconds, what fails while down."""

from __future__ import annotations

import pytest
from disk_kit import OLD, PART, PLAIN, evidence, examples, ops, plan, segment
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.errors import InvalidSpec, Refused


def test_intervals_and_features() -> None:
    made = plan("disk-flaky", {"up": "1m30s", "down": "2s"})
    assert segment(made) == {"target": "flakey", "up_s": 90, "down_s": 2}
    assert ops(made) == ["bio_watch", "dm_overlay"]
    reads = segment(plan("disk-flaky", {"fail": "reads"}))
    assert reads == {"target": "flakey", "up_s": 10, "down_s": 5, "error_reads": True}
    assert segment(plan("disk-flaky", {"fail": "writes"}))["error_writes"] is True


@given(st.integers(1, 86_400), st.integers(1, 86_400))
def test_whole_seconds_of_a_day_are_kept_exactly(up: int, down: int) -> None:
    found = segment(plan("disk-flaky", {"up": f"{up}s", "down": f"{down}s"}))
    assert (found["up_s"], found["down_s"]) == (up, down)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"up": "500ms"}, "whole seconds"),
        ({"up": "1500ms"}, "whole seconds"),
        ({"down": "0s"}, "1s or more"),
        ({"up": "2d"}, "at most 1d"),
        ({"up": "10"}, "no unit"),
        ({"up": "-1s"}, "not a duration"),
        ({"jitter": "1s"}, "jitter"),
    ],
)
def test_bad_options_are_refused(spec: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        plan("disk-flaky", spec)


def test_reads_alone_need_a_newer_flakey() -> None:
    with pytest.raises(Refused, match="no error_reads"):
        plan("disk-flaky", {"fail": "reads"}, facts=OLD)
    assert plan("disk-flaky", facts=OLD).mechanism == "dm-flakey"


def test_a_plain_disk_is_refused_with_the_way_out() -> None:
    with pytest.raises(Refused, match="volume prepare"):
        plan("disk-flaky", layers=PLAIN)


def test_a_part_of_a_device_takes_failing_reads_only() -> None:
    with pytest.raises(Refused, match="flushes of all of it"):
        plan("disk-flaky", layers=PART)
    assert segment(plan("disk-flaky", {"fail": "reads"}, layers=PART))["error_reads"]


def test_evidence_says_the_clock() -> None:
    found = evidence("disk-flaky", {"up": "3s"}, counters={"reads_failed": 4, "reads_ok": 9})
    assert found.hits == 4
    assert "up for 3s, then down for 5s" in found.statements[0]


def test_examples_plan() -> None:
    for data in examples("disk-flaky"):
        assert plan("disk-flaky", **data)
