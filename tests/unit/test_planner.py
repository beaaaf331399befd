"""The planner: pure, the highest rung that fits, precise refusals, digests that tell apart."""

from __future__ import annotations

import builtins
import json
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
import core_kit
import kind_kit
import pytest
from core_kit import FACTS, AddPart, SetValue, request
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from nodeagent.faults import kind_named
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.facts import (
    Facts,
    NeedBpf,
    NeedDmFeature,
    NeedDmTarget,
    NeedErrorInjection,
    NeedRoot,
    first_missing,
)
from nodeagent.model.kind import Context, FaultKind, Guard, Rung
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import explain, make_plan, parse_request
from nodeagent.model.steps import StepBase

pytestmark = pytest.mark.usefixtures("registered")


class Missing(BaseModel):
    """A need that nobody meets."""

    what: str

    def missing(self, facts: Facts) -> str | None:
        return self.what


def rung(name: str, missing: str = "", unfit: str = "") -> Rung:
    def plan(spec: Any, context: Context) -> Sequence[StepBase]:
        return [SetValue(name="a", value=name)]

    return Rung(
        name,
        f"by {name}",
        lambda spec: (Missing(what=missing),) if missing else (),
        plan,
        lambda spec, context: unfit or None,
    )


def kind(*rungs: Rung, **more: Any) -> FaultKind:
    return replace(core_kit.KIND, ladder=rungs, **more)


def plan(of: FaultKind, **more: Any) -> Plan:
    asked = request("f-1", SetValue(name="a", value="x"), **more)
    target, spec = parse_request(of, asked)
    return make_plan(of, asked, target, spec, core_kit.Bound(), FACTS)


def test_the_best_rung_that_fits_is_taken_and_the_others_are_told_why_not() -> None:
    found = plan(
        kind(
            rung("one", missing="no one here"),
            rung("two", unfit="cannot heal"),
            rung("three"),
            rung("four"),
        )
    )
    assert found.mechanism == "three"
    assert [(r.mechanism, r.reason) for r in found.rejected] == [
        ("one", "no one here"),
        ("two", "cannot heal"),
    ]


def test_where_no_rung_fits_every_reason_is_given() -> None:
    with pytest.raises(Refused) as caught:
        plan(kind(rung("one", missing="no one here"), rung("two", unfit="cannot heal")))
    assert "one: no one here; two: cannot heal" in caught.value.why
    assert caught.value.hint == "see: faultctl explain t-steps"


def test_a_forced_rung_is_taken_or_refused_for_its_own_reason() -> None:
    ladder = kind(rung("one"), rung("two"), rung("three", missing="not here"))
    assert plan(ladder, mechanism="two").mechanism == "two"
    with pytest.raises(Refused) as caught:
        plan(ladder, mechanism="three")
    assert caught.value.why == "three: not here"
    with pytest.raises(InvalidSpec, match="'four'") as wrong:
        plan(ladder, mechanism="four")
    assert "one, two, three" in wrong.value.why


def test_guards_are_named_all_at_once_and_crossed_one_by_one() -> None:
    guarded = kind(
        rung("one"), guards=lambda spec, context: (Guard("root", "a"), Guard("swap", "b"))
    )
    with pytest.raises(Refused) as caught:
        plan(guarded)
    assert caught.value.why == "a; b"
    assert "--i-know root --i-know swap" in caught.value.hint
    with pytest.raises(Refused) as one:
        plan(guarded, acknowledge=("root", "nonsense"))
    assert one.value.why == "b"
    assert plan(guarded, acknowledge=("swap", "root")).guards == ("root", "swap")


def test_one_object_is_changed_once_unless_its_steps_compose() -> None:
    def twice(step: StepBase) -> FaultKind:
        again = Rung("one", "", lambda spec: (), lambda spec, context: [step, step])
        return kind(again)

    with pytest.raises(FaultError, match="twice"):
        plan(twice(SetValue(name="a", value="x")))
    assert plan(twice(AddPart(name="a", part=1))).steps


# --- digests ----------------------------------------------------------------------


def test_the_digest_is_over_what_would_be_done_and_not_over_what_was_seen() -> None:
    one = plan(kind(rung("one")))
    assert one.digest == plan(kind(rung("one"))).digest
    other = one.model_copy(
        update={"binding": {"x": 1}, "why": "?", "notes": ("n",), "rejected": ()}
    )
    assert other.digest == one.digest


@pytest.mark.parametrize(
    "change",
    [
        {"id": "f-2"},
        {"kind": "other"},
        {"target": {"type": "device", "device": "/dev/u"}},
        {"spec": {"steps": []}},
        {"mechanism": "two"},
        {"steps": (SetValue(name="a", value="y"),)},
        {"steps": ()},
        {"guards": ("root",)},
        {"collateral": ("more",)},
        {"remedies": ("other",)},
    ],
)
def test_every_other_thing_that_would_be_done_has_another_digest(change: dict[str, Any]) -> None:
    one = plan(kind(rung("one")))
    assert one.model_copy(update=change).digest != one.digest


def test_the_order_of_keys_does_not_change_a_digest() -> None:
    one = plan(kind(rung("one")))
    turned = dict(reversed(one.target.items()))
    assert one.model_copy(update={"target": turned}).digest == one.digest


# --- requests ---------------------------------------------------------------------


def test_a_target_of_the_wrong_type_lists_the_right_ones() -> None:
    asked = request("f-1").model_copy(update={"target": {"type": "file", "file": "/x"}})
    with pytest.raises(InvalidSpec) as caught:
        parse_request(core_kit.KIND, asked)
    assert "device" in caught.value.why


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"type": "nope"},
        {"type": "file"},
        {"type": "file", "file": "/x", "y": 1},
        {"type": ["file"]},
    ],
)
def test_a_target_that_is_none_is_refused(target: dict[str, Any]) -> None:
    asked = request("f-1").model_copy(update={"target": target})
    with pytest.raises(InvalidSpec):
        parse_request(kind_named("latent-sector"), asked)


@pytest.mark.parametrize("fault_id", ["abc", "a-b", "0-9", "a" * 32])
def test_ids_that_are_taken(fault_id: str) -> None:
    assert FaultRequest(id=fault_id, kind="k", target={}).id == fault_id


@given(st.text(max_size=40))
def test_no_id_can_leave_its_place_in_a_kernel_name(fault_id: str) -> None:
    try:
        found = FaultRequest(id=fault_id, kind="k", target={}).id
    except ValidationError:
        return
    assert 3 <= len(found) <= 32
    assert set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not found.startswith("-")


def test_an_error_of_pydantic_becomes_one_line_of_bounded_length() -> None:
    with pytest.raises(ValidationError) as caught:
        FaultRequest.model_validate({"id": "?", **{f"k{n}" * 50: n for n in range(1000)}})
    text = explain(caught.value)
    assert "id: " in text
    assert "more" in text
    assert "\n" not in text
    assert len(text) < 2000


# --- needs ------------------------------------------------------------------------

NEEDS: list[tuple[Any, str]] = [
    (NeedRoot(), "root"),
    (NeedDmTarget("dust"), "device-mapper"),
    (NeedDmFeature("flakey:error_reads", "6.5"), "6.5"),
    (NeedBpf("bio_fail"), "BTF"),
    (NeedErrorInjection("should_fail_bio"), "should_fail_bio"),
]


@pytest.mark.parametrize(("need", "word"), NEEDS, ids=lambda n: type(n).__name__)
def test_a_need_is_met_or_says_in_a_sentence_what_is_missing(need: Any, word: str) -> None:
    assert need.missing(kind_kit.ABLE) is None
    said = need.missing(kind_kit.UNABLE)
    assert word in said
    assert first_missing((need,), kind_kit.UNABLE) == said


@pytest.mark.parametrize(
    ("have", "words"),
    [
        ({}, "no dm-delay"),
        ({"delay": (1, 2, 0)}, "dm-delay is 1.2.0, 1.2.1 is needed for x"),
        ({"delay": (1, 2, 1)}, None),
        ({"delay": (1, 10, 0)}, None),
        ({"delay": (2, 0, 0)}, None),
    ],
)
def test_versions_of_targets_are_compared_as_numbers(
    have: dict[str, Any], words: str | None
) -> None:
    facts = kind_kit.UNABLE.model_copy(update={"dm_version": "4.48.0", "dm_targets": have})
    said = NeedDmTarget("delay", (1, 2, 1), "x").missing(facts)
    assert said is None if words is None else words in str(said)


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"btf": True}, "libbpf"),
        ({"btf": True, "libbpf": "1"}, "make bpf"),
        (
            {"btf": True, "libbpf": "1", "bpf_objects": ("x",), "lockdown": "confidentiality"},
            "lockdown",
        ),
        ({"btf": True, "libbpf": "1", "bpf_objects": ("x",), "lockdown": "integrity"}, None),
    ],
)
def test_what_bpf_needs_is_asked_in_turn(facts: dict[str, Any], word: str | None) -> None:
    said = NeedBpf("x").missing(kind_kit.UNABLE.model_copy(update=facts))
    assert said is None if word is None else word in str(said)


# --- latent-sector ------------------------------------------------------------------

LATENT = kind_named("latent-sector")


def latent(line: str, **facts: Any) -> Plan:
    asked = kind_kit.parsed(f"faultctl inject latent-sector {line}")
    binding = kind_kit.bound(LATENT, asked)
    assert binding is not None
    target, spec = parse_request(LATENT, asked)
    able = kind_kit.ABLE.model_copy(update=facts)
    return make_plan(LATENT, asked, target, spec, binding, able)


@pytest.mark.parametrize(
    ("line", "mechanism"),
    [
        ("--device /dev/x --sectors 8+8", "bpf-bio"),
        ("--device /dev/x --sectors 8+8 --retry-delay 1s", "dm-delay"),
        ("--device /dev/x --sectors 8+8 --mechanism dm-dust", "dm-dust"),
        ("--device /dev/x --sectors 8+8 --on-write fail --mechanism dm-error", "dm-error"),
    ],
)
def test_the_options_choose_the_rung(line: str, mechanism: str) -> None:
    assert latent(line).mechanism == mechanism


@pytest.mark.parametrize("delay", ["1us", "1500us", "11m"])
def test_a_retry_delay_that_no_rung_could_keep_is_refused(delay: str) -> None:
    with pytest.raises(InvalidSpec):
        latent(f"--device /dev/x --sectors 8+8 --retry-delay {delay}")


def test_the_same_seed_chooses_the_same_sectors() -> None:
    line = "--device /dev/x --count 20 --seed 5 --id same-id"
    one, two = latent(line), latent(line)
    assert one.digest == two.digest
    assert latent("--device /dev/x --count 20 --seed 6 --id same-id").digest != one.digest


@pytest.mark.parametrize(
    "line",
    [
        "--sectors 8+8 --count 3",
        "--used",
        "--count 0",
        "--count -1",
        "--sectors 8+0",
        "--sectors -8",
        "--sectors 8+8,12+8",
        "--sectors ''",
        "--sectors 16777216+8",
        "--sectors 9-8",
        "--seed -1 --count 3",
        "--on-write never",
        "--count 3 --seed x",
    ],
)
def test_bad_choices_of_sectors_are_refused(line: str) -> None:
    with pytest.raises((InvalidSpec, click.UsageError)):
        latent(f"--device /dev/x {line}")


def test_plans_are_data() -> None:
    found = latent("--file /x --length 4Ki")
    assert json.loads(found.model_dump_json())["steps"]


def test_planning_is_pure() -> None:
    """No file is opened and no process started: a plan is computed from what it is given."""

    def no(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"a plan touches the node: {args}")

    targets: list[tuple[Any, str]] = [
        (builtins, "open"),
        (os, "open"),
        (socket, "socket"),
        (subprocess, "Popen"),
    ]
    latent("--file /x")  # everything is imported now
    with pytest.MonkeyPatch.context() as patch:
        for module, name in targets:
            patch.setattr(module, name, no)
        found = latent("--file /x")
    assert found.steps
