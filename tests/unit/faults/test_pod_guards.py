"""A pod's sandbox process in a target: no guard rail for a limit, one for what would end it."""

from __future__ import annotations

import cgroup_kit
import pytest

from nodeagent.model.errors import Refused
from nodeagent.model.process import CgroupScope

UID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"
POD = cgroup_kit.VICTIM.model_copy(
    update={
        "scope": CgroupScope(id=7, level=2, path=f"/kubepods/pod{UID}"),
        "node_agents": ("pause",),
    }
)


def test_a_limit_of_a_whole_pod_needs_no_word_for_its_pause_process() -> None:
    assert cgroup_kit.plan("throttle", {"cpu": "0.5"}, POD).guards == ()
    with pytest.raises(Refused, match="pause"):
        cgroup_kit.plan("kill", {}, POD)
    other = POD.model_copy(update={"scope": CgroupScope(id=7, level=1, path="/x")})
    with pytest.raises(Refused, match="pause"):
        cgroup_kit.plan("throttle", {"cpu": "0.5"}, other)
    both = POD.model_copy(update={"node_agents": ("pause", "kubelet")})
    with pytest.raises(Refused, match="kubelet"):
        cgroup_kit.plan("throttle", {"cpu": "0.5"}, both)
