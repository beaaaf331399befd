"""How true latent-sector is, beside scsi_debug's medium error: every difference is a known one."""

from __future__ import annotations

import pytest

from controller.lab.fidelity import measure

DIRECT = "direct 512 B, first bad sector"


@pytest.mark.parametrize("flavour", ["full"])
def test_every_rung_differs_from_the_reference_only_for_a_stated_reason(flavour: str) -> None:
    rows = {row.name: row for row in measure(flavour, print)}
    rungs = set(rows[DIRECT].ours)
    assert rungs == {"bpf-bio", "dm-dust", "dm-delay", "dm-flakey", "dm-error"}
    for row in rows.values():
        for rung in rungs:
            same, why = row.verdict(rung)
            assert same or "unexplained" not in why, (row.name, rung, why)
    assert rows[DIRECT].reference.result == "ENODATA"
    assert {cell.result for cell in rows[DIRECT].ours.values()} == {"EIO"}
    for name in ("buffered 4 KiB", "mmap", "sequential reader with readahead"):
        wanted = rows[name].reference.result
        assert {cell.result for cell in rows[name].ours.values()} == {wanted}, name
    for name in ("direct 512 B, sector before", "direct 512 B, sector after"):
        assert all(row_same for row_same, _ in (rows[name].verdict(r) for r in rungs)), name
    healed = rows["direct write, then direct read"].ours
    assert {r: c.result.endswith("read 512 bytes") for r, c in healed.items()} == {
        rung: rung != "dm-error" for rung in rungs
    }
