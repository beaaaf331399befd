"""Kernel log lines as evidence: of the device that is meant, and of no other."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.kmsg import KernelLog, about_device, message

LINES = {
    "I/O error, dev dm-0, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2": "dm-0",
    "blk_update_request: I/O error, dev vdb, sector 8 op 0x0:(READ)": "vdb",
    "Buffer I/O error on dev dm-0, logical block 256, async page read": "dm-0",
    "EXT4-fs error (device dm-0): ext4_find_entry:1684: comm ls: reading directory": "dm-0",
    'XFS (dm-0): metadata I/O error in "xfs_da_read_buf" at daddr 0x80 len 8 error 5': "dm-0",
    "EXT4-fs (vdb1): I/O error while writing superblock": "vdb1",
    "JBD2: Error -5 detected when updating journal superblock for dm-0-8.": "dm-0",
    "critical medium error, dev nvme0n1p2, sector 1 op 0x0:(READ)": "nvme0n1p2",
}


@pytest.mark.parametrize(("line", "name"), LINES.items())
def test_a_line_about_an_error_of_the_device_is_found(line: str, name: str) -> None:
    assert about_device(line, [name])
    assert about_device(line, ["sdz", name])


@pytest.mark.parametrize(("line", "name"), LINES.items())
def test_it_is_not_taken_for_another_device(line: str, name: str) -> None:
    for other in (f"{name}0", f"x{name}", name[:-1], f"{name}-x", "sda", "0"):
        assert not about_device(line, [other]), other
    assert not about_device(line, [])


@pytest.mark.parametrize(
    "line",
    [
        "EXT4-fs (dm-0): mounted filesystem with ordered data mode",
        "dm-0: detected capacity change from 0 to 4096",
        "I/O error, dev dm-10, sector 1",
        "I/O error, dev dm-01, sector 1",
        "I/O error, dev vdm-0, sector 1",
        "",
    ],
)
def test_lines_that_prove_nothing_about_it(line: str) -> None:
    assert not about_device(line, ["dm-0"])


@pytest.mark.parametrize("name", ["a.b", "a+b", "a(b", "[x]", "a*", "c\\d", "x|y", "data-vol"])
def test_names_with_odd_letters_are_names_and_no_patterns(name: str) -> None:
    assert about_device(f"I/O error, dev {name}, sector 1", [name])
    assert not about_device("I/O error, dev zzz, sector 1", [name])


def test_a_record_is_its_text_without_head_and_continuation() -> None:
    record = (
        "3,1234,98765,-;I/O error, dev dm-0, sector 1; really\n SUBSYSTEM=block\n DEVICE=b253:0\n"
    )
    assert message(record) == "I/O error, dev dm-0, sector 1; really"
    assert message("no head") == "no head"
    assert message("") == ""


@given(st.text(), st.lists(st.text(min_size=1), max_size=3))
def test_any_line_and_any_name_are_taken(line: str, names: list[str]) -> None:
    assert about_device(line, names) in (True, False)
    assert "\n" not in message(f"1,2,3,-;{line}")


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="no kernel log here")
def test_only_what_comes_later_is_read() -> None:
    try:
        log = KernelLog()
        log.read_new()
    except OSError:
        pytest.skip("the kernel log cannot be read here")
    assert all(isinstance(line, str) for line in log.read_new())
    log.close()
