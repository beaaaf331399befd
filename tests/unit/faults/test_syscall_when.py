"""syscall --when, as data: into the step, out of the spec with one error."""

from __future__ import annotations

import pytest
from test_syscall import PROCESS, STOCK, facts, plan, step

from nodeagent.backends.syscall_places import places, slot_value
from nodeagent.encode.syscall_maps import CallFlag
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.plan import plan_from_data

WHEN = "count >= 4096 && fd > 2"
READ = {"call": ["read"], "errno": "EIO"}


def test_a_predicate_goes_into_the_step_and_its_slot() -> None:
    found = plan({**READ, "when": WHEN})
    only = step(found)
    assert only.when == WHEN
    assert f"where {WHEN}" in only.summary()
    assert CallFlag.WHEN in slot_value(only, 1).flags
    assert CallFlag.WHEN not in slot_value(step(plan(READ)), 1).flags
    assert plan_from_data(found.model_dump(mode="json")).digest == found.digest


def test_32_bit_calls_have_their_arguments_elsewhere_and_are_left_out() -> None:
    with_them, without = step(plan(READ)), step(plan({**READ, "when": WHEN}))
    assert {p.function for p in places(without)} == {"__x64_sys_read"}
    assert len(places(with_them)) > 1


@pytest.mark.parametrize(
    ("more", "way"),
    [({}, "modret"), ({"errno": None, "value": 0}, "entry"), ({"after": True}, "return")],
)
def test_every_way_of_hooking_takes_it(more: dict[str, object], way: str) -> None:
    only = step(plan({**READ, "when": WHEN, **more}))
    assert (only.way, only.when) == (way, WHEN)
    assert step(plan({**READ, "when": WHEN}, on=STOCK)).way == "lsm"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({**READ, "when": "cuont > 1"}, r"when: .*cuont is no argument of read .*fd, buf, count"),
        ({**READ, "when": "count >"}, "a value is missing here"),
        ({**READ, "call": ["read-family"], "when": WHEN}, "count is no argument of readv"),
        ({"call": ["fork"], "errno": "EAGAIN", "when": "fd > 1"}, "it has none"),
    ],
)
def test_one_error_for_a_bad_one(spec: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words) as caught:
        plan(spec)
    assert "^" in str(caught.value)
    with pytest.raises(InvalidSpec, match="at most 1000 characters"):
        plan({**READ, "when": "(" * 600 + "fd" + ")" * 600})


def test_paths_need_btf() -> None:
    bare = facts(btf=False, bpf_loader="bcc", bcc="libbcc.so.0", kernel_headers="/h")
    assert step(plan({**READ, "when": WHEN}, on=bare)).way == "entry"
    for more in ({"path": ["/etc/**"]}, {"exe": ["/bin/*"]}):
        with pytest.raises(Refused, match="struct mount is in no kernel header"):
            plan({**READ, **more}, on=bare, binding=PROCESS)
