"""Pressure stall information: what the kernel writes, what is not there, what is not known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import psi

TEXT = """some avg10=1.50 avg60=0.10 avg300=0.00 total=1500903
full avg10=0.00 avg60=0.00 avg300=0.00 total=7
"""


def test_the_kernels_text() -> None:
    assert psi.parse(TEXT) == {"some": 1500903, "full": 7}
    assert psi.parse("some avg10=0.00 total=3 new=9\nother total=1\n") == {"some": 3}


@given(st.text(max_size=200))
def test_any_text_is_read_or_left_out(text: str) -> None:
    assert all(value >= 0 for value in psi.parse(text).values())


def test_what_was_added_and_what_one_of_the_two_lacks() -> None:
    now = {"cpu": {"some": 5, "full": 2}, "io": {"some": 1}}
    assert psi.since(now, {"cpu": {"some": 3}}) == {"cpu": {"some": 2}}
    assert psi.since({}, now) == {}


@pytest.mark.parametrize(("stalls", "said"), [({"cpu": {"some": 2_500_000}}, "cpu 2.50 s"),
                                              ({"cpu": {"some": 0}}, ""), ({}, "")])  # fmt: skip
def test_one_line(stalls: dict[str, dict[str, int]], said: str) -> None:
    assert said in psi.told(stalls, 10)
    assert bool(psi.told(stalls, 10)) is bool(said)
