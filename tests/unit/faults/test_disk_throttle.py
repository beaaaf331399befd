"""disk-throttle as data: throttle's io.max for one disk, named by itself or by a volume."""

from __future__ import annotations

from typing import Any

import pytest
from cgroup_kit import plan, with_values

from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.steps.cgroup import CgroupWrite


@pytest.mark.parametrize("where", [{"device": "/dev/vdb"}, {"volume": "/data"}])
def test_the_steps_are_those_of_throttle(where: dict[str, str]) -> None:
    made = plan("disk-throttle", {**where, "read_bytes": "1Mi", "write_ops": 20})
    assert [type(step) for step in made.steps] == [CgroupWrite]
    assert "254:16 rbps=1048576 wiops=20" in made.steps[0].summary()
    same = plan("throttle", {"device": "/dev/vdb", "read_bytes": "1Mi", "write_ops": 20})
    assert made.steps == same.steps


@pytest.mark.parametrize(
    "spec",
    [{"read_ops": 5}, {"device": "/dev/vdb"}, {"device": "/dev/vdb", "volume": "/d", "read_ops": 5},
     {"device": "/dev/vdb", "read_ops": 1}, {"volume": "data", "read_ops": 5}],
)  # fmt: skip
def test_one_disk_and_a_limit_are_needed(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        plan("disk-throttle", spec)


def test_a_limit_that_is_tighter_already_is_refused() -> None:
    bound = with_values(io_max="254:16 rbps=max wbps=max riops=5 wiops=max")
    with pytest.raises(Refused, match="riops of /dev/vdb is 5 already"):
        plan("disk-throttle", {"device": "/dev/vdb", "read_ops": 9}, bound)
