"""Every example of every kind's help is parsed, planned and journaled as it would be for real."""

from __future__ import annotations

import json

import kind_kit
import pytest
from kind_kit import ABLE, UNABLE

from nodeagent.faults import kind_named, kinds
from nodeagent.model.errors import FaultError, Refused
from nodeagent.model.plan import FaultRequest, Plan, plan_from_data
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.steps import step_from_json

EXAMPLES = kind_kit.examples()
DISK = [(name, line) for name, line in EXAMPLES if kind_named(name).family == "disk"]
"""Those that can be bound here; other families have a binding, and tests, of their own."""


def plan_of(name: str, line: str, mechanism: str | None = None) -> Plan:
    kind = kind_named(name)
    request = kind_kit.parsed(line).model_copy(update={"mechanism": mechanism})
    binding = kind_kit.bound(kind, request)
    assert binding is not None
    target, spec = parse_request(kind, request)
    return make_plan(kind, request, target, spec, binding, ABLE)


def test_every_kind_has_examples() -> None:
    assert len(EXAMPLES) >= len(kinds())
    assert {name for name, _ in EXAMPLES} == set(kinds())


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_an_example_parses_to_a_request_of_its_kind(name: str, line: str) -> None:
    request = kind_kit.parsed(line)
    assert request.kind == name
    again = FaultRequest.model_validate_json(request.model_dump_json())
    assert again == request
    target, spec = parse_request(kind_named(name), request)
    kind = kind_named(name)
    assert kind.spec.model_validate(spec.model_dump(mode="json")) == spec
    assert kind.spec.model_validate(request.spec) == spec
    assert target.label()


@pytest.mark.parametrize(("name", "line"), DISK)
def test_an_example_plans_on_a_node_that_lacks_nothing(name: str, line: str) -> None:
    plan = plan_of(name, line)
    assert plan.steps
    assert plan.collateral
    assert plan.remedies
    assert all(step.summary() and step.key() for step in plan.steps)
    assert plan.digest == plan_of(name, line).digest or "-" in plan.id


@pytest.mark.parametrize(("name", "line"), DISK)
def test_every_mechanism_plans_it_or_says_why_not(name: str, line: str) -> None:
    for rung in kind_named(name).ladder:
        try:
            plan = plan_of(name, line, rung.name)
        except Refused as exc:
            assert rung.name in exc.why
            continue
        assert plan.mechanism == rung.name
        assert any(not step.observes for step in plan.steps)


@pytest.mark.parametrize(("name", "line"), DISK)
def test_a_plan_survives_journal_and_wire(name: str, line: str) -> None:
    plan = plan_of(name, line)
    again = plan_from_data(json.loads(plan.model_dump_json()))
    assert again == plan
    assert again.digest == plan.digest
    for step in plan.steps:
        assert step_from_json(step.model_dump_json()) == step


@pytest.mark.parametrize(("name", "line"), DISK)
def test_on_a_node_that_has_nothing_every_mechanism_says_what_is_missing(
    name: str, line: str
) -> None:
    kind = kind_named(name)
    request = kind_kit.parsed(line)
    binding = kind_kit.bound(kind, request)
    assert binding is not None
    target, spec = parse_request(kind, request)
    with pytest.raises(FaultError) as caught:
        make_plan(kind, request, target, spec, binding, UNABLE)
    for rung in kind.ladder:
        assert f"{rung.name}: " in caught.value.why
    assert f"faultctl explain {name}" in caught.value.hint
