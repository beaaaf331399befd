"""The node's fingerprint: what it leaves out, and that nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent import fingerprint as fp
from nodeagent import kubelet_fingerprint
from nodeagent.backends.dm_probes import is_orphan

LINE = "{id} {parent} {dev} / /mnt/a\\040b rw,relatime {tags}- ext4 /dev/vda rw,errors=remount-ro"
small = st.integers(min_value=0, max_value=1 << 20)


@given(ident=small, parent=small, major=small, minor=small, group=small)
def test_mount_ids_device_numbers_and_peer_groups_are_left_out(
    ident: int, parent: int, major: int, minor: int, group: int
) -> None:
    values = {"id": ident, "parent": parent, "dev": f"{major}:{minor}", "tags": f"shared:{group} "}
    line = LINE.format(**values)
    assert fp.mounts(line + "\n") == [
        r"/ /mnt/a\040b rw,relatime shared - ext4 /dev/vda rw,errors=remount-ro"
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rw,relatime", "ro,relatime"),
        ("/mnt/a", "/mnt/b"),
        ("/dev/vda", "/dev/vdb"),
        ("rw,errors", "ro,errors"),
        (" / ", " /sub "),
        ("shared:1 ", ""),
    ],
)
def test_everything_else_of_a_mount_counts(old: str, new: str) -> None:
    line = LINE.format(id=1, parent=2, dev="8:1", tags="shared:1 ")
    assert fp.mounts(line) != fp.mounts(line.replace(old, new))


def test_two_mounts_on_one_place_are_two() -> None:
    line = LINE.format(id=1, parent=2, dev="8:1", tags="")
    assert len(fp.mounts(f"{line}\n{line}\n")) == 2


def test_device_mapper_devices_go_by_name_and_others_by_number() -> None:
    names = {(253, 1): "data", (253, 11): "other"}
    line = "0 8 delay 253:1 0 5 253:11 0 7"
    assert fp.by_name(line, names) == "0 8 delay dm:data 0 5 dm:other 0 7"
    assert fp.by_name("0 8 linear 253:2 0", names) == "0 8 linear 253:2 0"
    assert fp.by_name("0 8 linear 8:253:1 0", names) == "0 8 linear 8:253:1 0"


def test_the_text_is_canonical() -> None:
    one = fp.text({"b": [1], "a": {"d": "\u00e9", "c": None}})
    assert one == fp.text(dict(reversed(list(json.loads(one).items()))))
    assert one.isascii()


@pytest.mark.parametrize("name", ["faultd", "/usr/local/bin/faultd"])
def test_a_process_of_ours_is_seen_while_it_lives(name: str) -> None:
    before = sorted(fp.processes())
    child = subprocess.Popen([name, "-c", "input()"], executable=sys.executable, stdin=-1)
    try:
        end = time.monotonic() + 10
        while sorted(fp.processes()) != sorted([*before, "faultd"]):
            assert time.monotonic() < end, list(fp.processes())
            time.sleep(0.01)
    finally:
        child.communicate(b"\n")
    assert sorted(fp.processes()) == before


def test_names_types_and_modes_of_files_count(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    (tmp_path / "d" / "f").write_text("")
    os.chmod(tmp_path / "d" / "f", 0o600)
    (tmp_path / "l").symlink_to("nowhere")
    assert fp.tree(tmp_path) == ["d drwx------", "d/f -rw-------", "l lrwxrwxrwx"]
    assert fp.tree(tmp_path / "none") == []


# --- probe devices ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "uuid", "orphan"),
    [
        ("faultctl-probe-7", "FAULTCTL-faultctl-probe-7", True),
        ("faultctl-probe-7-zero", "FAULTCTL-faultctl-probe-7-zero", True),
        ("faultctl-probe-8", "FAULTCTL-faultctl-probe-8", False),  # its maker lives
        ("faultctl-probe-7", "", False),
        ("faultctl-probe-7", "FAULTCTL-faultctl-probe-8", False),
        ("faultctl-probe-7x", "FAULTCTL-faultctl-probe-7x", False),
        ("xfaultctl-probe-7", "FAULTCTL-xfaultctl-probe-7", False),
        ("data", "FAULTCTL-VOL-12345678-data", False),
    ],
)
def test_a_probe_without_a_maker(tmp_path: Path, name: str, uuid: str, orphan: bool) -> None:
    (tmp_path / "8").mkdir()
    assert is_orphan(name, uuid, tmp_path) is orphan


def test_a_probe_with_our_own_number_is_from_somebody_who_had_it_before() -> None:
    name = f"faultctl-probe-{os.getpid()}"
    assert is_orphan(name, f"FAULTCTL-{name}")


def test_the_kubelets_notes_on_its_pods_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_fingerprint, "_KUBELET", tmp_path)
    for name in ("config.yaml", "cpu_manager_state", "allocated_pods_state"):
        (tmp_path / name).write_text("x")
    (found,) = kubelet_fingerprint.kubelet_files()
    assert found.startswith("config.yaml -rw")
