"""The agent's own word on each flavour, held against the table of what must run where."""

from __future__ import annotations

import pytest
from agentkit import Bench
from kinds_table import FLAKEY, FLAVOURS, KINDS, runs_on

from controller.lab import Node
from nodeagent.faults import kinds


@pytest.mark.vm(*FLAVOURS)
def test_each_kind_offers_what_the_table_says(vm_node: Node, bench: Bench) -> None:
    flavour = vm_node.config.flavour
    reply, _ = bench.client.describe()
    said = {
        support.kind: {rung.mechanism: rung.missing for rung in support.rungs}
        for support in reply.kinds
        if not kinds()[support.kind].preset_of
    }
    presets = {kind: said.pop(kind) for kind in sorted(said) if ":" in kind}
    assert set(said) == set(KINDS)
    if flavour == "full":
        assert [k for k, rungs in presets.items() if all(rungs.values())] == []
    for kind, rungs in said.items():
        assert list(rungs) == list(KINDS[kind]), kind
        for rung, missing in rungs.items():
            word = KINDS[kind][rung].get(flavour, "")
            assert bool(missing) is bool(word), (kind, rung, missing)
            assert word in missing, (kind, rung)
        assert any(not missing for missing in rungs.values()) is runs_on(kind, flavour)


@pytest.mark.vm(*FLAVOURS)
def test_features_that_no_version_tells(vm_node: Node, bench: Bench) -> None:
    flavour = vm_node.config.flavour
    _, facts = bench.client.describe()
    must = {name for name, flavours in FLAKEY.items() if flavour in flavours}
    assert set(facts.dm_features) == must
    # the trial of them leaves no device behind
    assert "probe" not in bench.node.sh("dmsetup ls; ls -a /dev | grep faultctl || true")
