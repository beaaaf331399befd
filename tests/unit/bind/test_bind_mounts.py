"""Mount tables and swap areas, recorded and hostile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bind_fakes import FakeNode
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.bind import mounts as mt
from nodeagent.bind.node import Node
from nodeagent.bind.overlay import layers
from nodeagent.model.errors import Refused

RECORDED = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard,resuid=65534
43 27 7:0 / /mnt/with\040space\012and\134 rw - xfs /dev/loop0 rw,inode64,logdev=/dev/a\054b
44 27 7:0 /sub /mnt/bind ro,nosuid - xfs /dev/loop0 rw
45 27 0:40 / /ov rw - overlay overlay rw,lowerdir=/l\0721:/l2,upperdir=/u,workdir=/w
46 27 0:41 / /tagged rw unbindable - fuse.sshfs host:/x rw
47 27 0:42 / /empty rw - tmpfs  rw
"""


def test_recorded_table() -> None:
    table = {m.mount_id: m for m in mt.parse_mountinfo(RECORDED)}
    assert table[27].source == "/dev/vda" and table[27].dev == "254:0"
    assert table[43].mount_point == "/mnt/with space\nand\\"
    assert table[44].root == "/sub" and table[44].read_only and not table[43].read_only
    assert table[46].fs_type == "fuse.sshfs"
    assert table[47].source == ""


def escape(text: str) -> str:
    return "".join(rf"\{ord(c):03o}" if c in " \t\n\\#" else c for c in text)


paths = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30).map(
    lambda text: "/" + text
)


@given(paths, paths, st.lists(st.sampled_from(["shared:1", "master:3", "unbindable"])))
def test_any_name_round_trips(root: str, point: str, tags: list[str]) -> None:
    fields = ["9", "1", "8:1", escape(root), escape(point), "rw", *tags, "-", "ext4"]
    (mount,) = mt.parse_mountinfo(" ".join([*fields, "/dev/sda1", "rw"]) + "\n")
    assert (mount.root, mount.mount_point, mount.fs_type) == (root, point, "ext4")


@pytest.mark.parametrize(
    "line", ["x", "1 2 8:1 / /", "a 1 8:1 / / rw - ext4 d rw", "1 1 8:1 / / rw"]
)
def test_bad_line_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="no mountinfo line"):
        mt.parse_mountinfo(line + "\n")


def test_longest_prefix_knows_path_boundaries_and_overmounts() -> None:
    text = "".join(
        f"{i} 1 8:{i} / {point} rw - ext4 d{i} rw\n"
        for i, point in enumerate(["/", "/a", "/a/b", "/a", "/ab"], 1)
    )
    table = mt.parse_mountinfo(text)

    def at(path: str) -> int:
        found = mt.longest_prefix(table, path)
        assert found is not None
        return found.mount_id

    assert [at(p) for p in ("/", "/a", "/a/x", "/a/b/c", "/ab", "/abc")] == [1, 4, 4, 3, 5, 1]
    assert mt.longest_prefix((), "/") is None


@pytest.mark.parametrize(
    ("fs_type", "says"),
    [("btrfs", "space of its own"), ("nfs4", "another machine"), ("tmpfs", "memory"),
     ("fuse.x", "user space"), ("zfs", "pool"), ("f2fs", "not known|no mapping"),
     ("9p", "another machine")],
)  # fmt: skip
def test_other_file_systems_are_refused_with_the_reason(fs_type: str, says: str) -> None:
    (mount,) = mt.parse_mountinfo(f"1 1 0:5 / /x rw - {fs_type} none rw\n")
    with pytest.raises(Refused, match=says) as caught:
        mt.identity(mount)
    assert fs_type in caught.value.why and caught.value.hint


def test_identity_names_other_devices() -> None:
    mount = next(m for m in mt.parse_mountinfo(RECORDED) if m.mount_id == 43)
    volume = mt.identity(mount)
    assert (volume.major, volume.minor) == (7, 0)
    assert volume.more_devices == ("/dev/a,b",)


def test_overlay_layers() -> None:
    mount = next(m for m in mt.parse_mountinfo(RECORDED) if m.mount_id == 45)
    assert layers(mount.super_options) == ("/u", "/l", "1", "/l2")
    assert layers(r"ro,lowerdir=/a\134:b:/c::/data") == ("/a:b", "/c", "/data")
    assert layers("rw,lowerdir+=/a,lowerdir+=/b,datadir+=/d,upperdir=/u") == (
        "/u", "/a", "/b", "/d",
    )  # fmt: skip
    assert layers("rw") == ()


def test_swaps(fake: FakeNode) -> None:
    assert mt.read_swaps(fake.node) == ()
    fake.swaps(
        r"/dev/dm-1                               partition	1048572		0		-2",
        r"/swap\040file\040(deleted)              file		524284		0		-3",
    )
    assert mt.read_swaps(fake.node) == (
        mt.Swap("/dev/dm-1", False),
        mt.Swap("/swap file (deleted)", True),
    )


def test_a_directory_is_not_its_volume(tmp_path: Path) -> None:
    node = Node()
    table = mt.read_mounts(node)
    plain = tmp_path / "not a mount"
    plain.mkdir()
    with pytest.raises(Refused, match="not a mount point") as caught:
        mt.resolve_mount_point(node, str(plain), table)
    assert "it lies on" in caught.value.why
    for wrong in (str(tmp_path / "gone"), "/dev/null", str(tmp_path / "nul\0")):
        with pytest.raises(Refused, match="cannot open"):
            mt.resolve_mount_point(node, wrong, table)
    link = tmp_path / "link"
    link.symlink_to("/proc")
    assert mt.resolve_mount_point(node, str(link), table).fs_type == "proc"


def test_mount_of_fd_is_what_stat_says(tmp_path: Path) -> None:
    node = Node()
    fd = os.open(tmp_path, os.O_PATH)
    try:
        mount = mt.mount_of_fd(node, fd, mt.read_mounts(node))
        with pytest.raises(Refused, match="cannot be seen"):
            mt.mount_of_fd(node, fd, ())
    finally:
        os.close(fd)
    dev = tmp_path.stat().st_dev
    assert mount.fs_type == "btrfs" or mount.dev == f"{os.major(dev)}:{os.minor(dev)}"
