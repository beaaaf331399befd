"""A smaller schedule benchmark in the suite; the full one: python tests/bench/bench_schedule.py."""

from __future__ import annotations

import json

import pytest
from bench_schedule import measure


@pytest.mark.timeout(300)
@pytest.mark.parametrize("servers", [0, 4])
def test_start_error(servers: int) -> None:
    found = measure(faults=1000, agents=200, seconds=20, servers=servers)
    print(f"\nschedule, {'gRPC' if servers else 'simulated agents'}: {json.dumps(found)}")
    assert found["events"] == 2000
