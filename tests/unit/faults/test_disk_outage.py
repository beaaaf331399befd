"""disk-outage as data: which rung, which steps, which segment."""

from __future__ import annotations

import pytest
from disk_kit import FULL, OLD, PART, PLAIN, evidence, examples, ops, plan, segment

from nodeagent.faults._disk import ALWAYS_DOWN_S
from nodeagent.model.binding import Guard
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.process import CgroupScope

DOWN = {"target": "flakey", "up_s": 0, "down_s": ALWAYS_DOWN_S}


@pytest.mark.parametrize(
    ("fail", "more"),
    [("all", {}), ("reads", {"error_reads": True}), ("writes", {"error_writes": True})],
)
def test_on_a_prepared_volume_flushes_fail_with_the_writes(
    fail: str, more: dict[str, bool]
) -> None:
    made = plan("disk-outage", {"fail": fail})
    assert made.mechanism == "dm-flakey"
    assert segment(made) == DOWN | more
    assert ops(made) == ["bio_watch", "dm_overlay", "read_check"]
    assert made.steps[2].model_dump()["fails"] is (fail != "writes")


def test_an_old_flakey_without_error_reads_gives_way_to_the_split_delay() -> None:
    made = plan("disk-outage", {"fail": "reads"}, facts=OLD)
    assert made.mechanism == "dm-delay"
    assert ops(made) == ["dm_create", "bio_watch", "dm_overlay", "read_check"]
    assert segment(made) == {
        "target": "split-delay",
        "error_device": "faultctl-01234567-t-1-err",
        "delay_ms": 0,
    }
    assert made.rejected[0].mechanism == "dm-flakey"
    assert "no error_reads (Linux 6.5" in made.rejected[0].reason


def test_a_part_of_a_device_never_fails_the_flushes_of_the_rest() -> None:
    made = plan("disk-outage", {"fail": "writes"}, layers=PART)
    assert made.mechanism == "dm-delay"
    assert segment(made)["fails"] == "write"
    assert "flushes of all of it" in made.rejected[0].reason
    assert plan("disk-outage", layers=PART).mechanism == "dm-error"
    assert plan("disk-outage", {"fail": "reads"}, layers=PART).mechanism == "dm-flakey"


@pytest.mark.parametrize("fail", ["all", "reads", "writes"])
def test_a_plain_disk_needs_bpf(fail: str) -> None:
    made = plan("disk-outage", {"fail": fail}, layers=PLAIN, facts=FULL)
    assert made.mechanism == "bpf-bio"
    step = made.steps[0].model_dump()
    assert (step["reads"], step["writes"], step["heal"]) == (
        fail != "writes",
        fail != "reads",
        False,
    )
    with pytest.raises(Refused) as caught:
        plan("disk-outage", {"fail": fail}, layers=PLAIN)
    assert "volume prepare" in caught.value.why
    assert "should_fail_bio is not open" in caught.value.why


@pytest.mark.parametrize(
    ("kind", "spec"), [("disk-outage", {"fail": "reads"}), ("latent-sector", {"sectors": "8+8"})]
)
def test_one_cgroups_io_fails_by_bpf_only_and_the_agents_own_reads_are_no_check(
    kind: str, spec: dict[str, str]
) -> None:
    only = CgroupScope(id=77, level=1, path="/db")
    made = plan(kind, spec | {"cgroup": "/db"}, only=only, facts=FULL)
    assert made.mechanism == "bpf-bio"
    assert [op for op in ops(made) if op in ("bio_fail", "read_check")] == ["bio_fail"]
    fail = next(step for step in made.steps if step.model_dump()["op"] == "bio_fail")
    assert fail.model_dump()["only"] == only.model_dump()
    assert "to cgroup /db" in fail.summary()
    with pytest.raises(Refused) as caught:
        plan(kind, spec | {"cgroup": "/db"}, only=only)
    assert caught.value.why.count("fails everybody's I/O (--cgroup)") >= 2


def test_every_rung_can_be_forced_where_it_fits() -> None:
    for mechanism, fail in [("dm-error", "all"), ("dm-delay", "reads"), ("bpf-bio", "writes")]:
        assert plan("disk-outage", {"fail": fail}, facts=FULL, mechanism=mechanism)
    with pytest.raises(Refused, match="one direction only"):
        plan("disk-outage", facts=FULL, mechanism="dm-delay")
    with pytest.raises(Refused, match="fails reads and writes"):
        plan("disk-outage", {"fail": "reads"}, facts=FULL, mechanism="dm-error")


def test_root_and_swap_are_held_back_until_they_are_named() -> None:
    root = Guard(kind="root", what="/", via="mount", devices=("253:0",))
    with pytest.raises(Refused, match="guard rail") as caught:
        plan("disk-outage", guards=(root,))
    assert "--i-know root" in caught.value.hint
    assert plan("disk-outage", guards=(root,), acknowledge=["root"]).guards == ("root",)


@pytest.mark.parametrize("spec", [{"fail": "some"}, {"sectors": "0+8"}, {"fail": True}])
def test_bad_options_are_refused(spec: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec):
        plan("disk-outage", spec)


def test_files_are_no_target() -> None:
    with pytest.raises(InvalidSpec, match="device, volume"):
        plan("disk-outage", target={"type": "file", "file": "/x"})


def test_hits_are_failed_bios_and_nothing_else() -> None:
    counters = {"reads_ok": 5, "reads_failed": 2, "writes_failed": 1, "udev_hits": 9}
    found = evidence("disk-outage", {}, counters=counters)
    assert (found.counted, found.hits) == (True, 3)
    assert evidence("disk-outage", {}).counted is False


def test_writes_have_more_collateral_than_reads() -> None:
    written = plan("disk-outage").collateral
    assert any("XFS shuts down" in line or "shuts XFS down" in line for line in written)
    assert not any(
        "PostgreSQL" in line for line in plan("disk-outage", {"fail": "reads"}).collateral
    )


def test_examples_plan() -> None:
    for data in examples("disk-outage"):
        assert plan("disk-outage", **data)
