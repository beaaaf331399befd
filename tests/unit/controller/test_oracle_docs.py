"""Every example of the documentation is read by what it documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.cli.main import VERBS
from controller.diagnosis import QUESTIONS, RULES
from controller.load.spec import parse_load
from controller.oracle_spec import Condition, parse_oracle
from controller.probes.spec import Probe, parse_probe

DOC = Path(__file__).parents[3] / "docs" / "judging.md"
TEXT = DOC.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


def tags(union: Any) -> set[str]:
    return {str(one.model_fields["type"].default) for one in union.__origin__.__args__}


def test_examples() -> None:
    load, oracles = (yaml.safe_load(block) for block in BLOCKS)
    assert len(parse_load(load).stages) == 3
    (oracle,) = oracles["oracles"].values()
    assert len(parse_oracle(oracle).require.of) == 5  # type: ignore[union-attr]


def test_all_probes_conditions_rules_and_questions_are_named() -> None:
    for name in tags(Probe) | tags(Condition) | set(RULES) | {q.id for q in QUESTIONS}:
        assert f"`{name}`" in TEXT, name


def test_commands_exist() -> None:
    for verb in re.findall(r"^faultctl (\w+)", TEXT, re.MULTILINE):
        assert verb in VERBS, verb


@pytest.mark.parametrize("kind", sorted(tags(Probe)))
def test_types_in_the_table_are_parsed(kind: str) -> None:
    with pytest.raises(ValueError, match=r"Field required|give (url or host|path or fault)|needed"):
        parse_probe({"type": kind})
