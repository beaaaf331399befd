"""Asking a kernel's headers where structures have their members."""

from __future__ import annotations

import re
import struct

import pytest

from nodeagent.encode import kernel_probe as k
from nodeagent.encode.btf_layout import Layout

WANTED = {
    "file": ("f_path", "f_path", "unused"),
    "pt_regs": ("di", "regs"),
    "mount": ("mnt", "mnt_parent"),
}
# What clang 14 and clang 19 say.
LOG = """\
/virtual/main.c:7:67: error: no member named 'regs' in 'struct pt_regs'
/virtual/main.c:9:48: error: no member named 'gone' in 'file'
2 errors generated.
"""


def returns(value: int) -> bytes:
    return struct.pack("=BBhi", 0xB7, 0, 0, value) + struct.pack("=BBhi", 0x95, 0, 0, 0)


def test_each_member_is_asked_for_once_and_private_structures_never() -> None:
    text = k.probe_source(WANTED)
    asked = re.findall(r"int (\w+)\(void \*ctx\)", text)
    assert asked == [
        "size_of_file",
        "offset_file_in_f_path",
        "size_of_pt_regs",
        "offset_pt_regs_in_di",
        "offset_pt_regs_in_regs",
    ]
    assert "#include <linux/sched.h>" in text
    assert "struct mount" not in text


def test_what_is_missing_is_left_out_of_the_second_go() -> None:
    missing = k.missing_members(LOG)
    assert missing == {("pt_regs", "regs"), ("file", "gone")}
    left = k.without(WANTED, missing)
    assert left["pt_regs"] == ("di",)
    assert left["file"] == WANTED["file"]
    assert k.missing_members("error: 'linux/sched.h' file not found") == frozenset()


def test_the_answers_are_read_from_the_instructions() -> None:
    left = k.without(WANTED, k.missing_members(LOG))
    programs = {
        "size_of_file": returns(184),
        "offset_file_in_f_path": returns(64),
        "size_of_pt_regs": returns(168),
        "offset_pt_regs_in_di": returns(112),
    }
    assert k.read_layouts(left, programs) == {
        "file": Layout(184, {"f_path": 64}),
        "pt_regs": Layout(168, {"di": 112}),
    }
    with pytest.raises(KeyError):
        k.read_layouts(left, {})
