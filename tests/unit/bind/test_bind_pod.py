"""Pods and their volumes on a node, over made-up cgroup trees, /proc and mount tables."""

from __future__ import annotations

import os
import string
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.bind import pod, podvolume
from nodeagent.bind.node import Node
from nodeagent.faults import kind_named
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.podcgroup import container_id, pod_uid
from nodeagent.model.target import (
    CgroupTarget,
    DeviceTarget,
    FileTarget,
    NetnsTarget,
    PodTarget,
    PodVolumeTarget,
    VolumeTarget,
    accepts,
)

UID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"
STATIC = "0123456789abcdef0123456789abcdef"
APP, SIDE, PAUSE = (c * 64 for c in "abc")
HEX = st.text(alphabet="0123456789abcdef", min_size=64, max_size=64)
OTHER = UID.replace("0b1c", "ffff")


@given(st.uuids().map(str), st.sampled_from(["", "kubepods-", "kubelet-kubepods-burstable-"]))
def test_both_drivers_names_give_the_uid(uid: str, head: str) -> None:
    assert pod_uid(f"pod{uid}") == uid
    assert pod_uid(f"{head}pod{uid.replace('-', '_')}.slice") == uid


@given(HEX, st.sampled_from(["{}", "cri-containerd-{}.scope", "crio-{}.scope", "crio-{}"]))
def test_each_runtimes_names_give_the_container(found: str, form: str) -> None:
    assert container_id(form.format(found)) == found
    assert container_id(f"crio-conmon-{found}.scope") is None


@given(st.text(alphabet=string.printable, max_size=80))
def test_other_names_are_no_pods(name: str) -> None:
    assert pod_uid(name) is None or "pod" in name
    assert container_id(name) is None


class Tree:
    """A cgroup mount with processes; what each process is lies in a /proc beside it."""

    def __init__(self, base: Path) -> None:
        self.cgroups = base / "cgroup"
        self.proc = base / "proc"
        self.base = base
        for name in ("1/ns", "self"):
            (self.proc / name).mkdir(parents=True)
        (self.proc / "1/ns/net").write_text("host")
        self.node = Node(proc=self.proc, sys=base / "sys", dev=base / "dev")
        self.node_mounts = ""

    def v2(self) -> Tree:
        self.cgroups.mkdir(exist_ok=True)
        (self.cgroups / "cgroup.controllers").write_text("cpu memory")
        (self.cgroups / "cgroup.procs").write_text("")
        return self

    def group(self, path: str, *pids: int) -> Path:
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        for one in (folder, *folder.parents):
            if one == self.cgroups.parent:
                break
            if not (one / "cgroup.procs").exists():
                (one / "cgroup.procs").write_text("")
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return folder

    def process(self, pid: int, comm: str, start: int, netns: str = "pod") -> None:
        home = self.proc / str(pid)
        (home / "ns").mkdir(parents=True)
        (home / "comm").write_text(f"{comm}\n")
        fields = " ".join(["S", "1", *["0"] * 17, str(start), "0"])
        (home / "stat").write_text(f"{pid} ({comm}) {fields}\n")
        space = self.base / f"net-{netns}"
        if netns != "host":
            space.touch()
        os.link(self.proc / "1/ns/net" if netns == "host" else space, home / "ns/net")

    def pod(self, head: str, app: str = APP, netns: str = "pod") -> None:
        for pid, comm, start in ((50, "pause", 90), (40, "sh", 100), (41, "postgres", 110)):
            self.process(pid, comm, start, netns)
        self.group(f"{head}/{PAUSE}", 50)
        self.group(f"{head}/{app}", 40, 41)

    def place(self, kind: str, target: PodTarget | PodVolumeTarget) -> tuple[object, str]:
        if isinstance(target, PodTarget):
            placed = pod.place(self.node, kind_named(kind), target, self.cgroups)
        else:
            placed = podvolume.place(self.node, kind_named(kind), target, self.cgroups)
        return placed.target, " ".join(placed.notes)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def target(**more: str) -> PodTarget:
    return PodTarget.model_validate({"pod": "shop/db-0", "uid": UID, **more})


HEADS = (
    f"kubepods/pod{UID}",
    f"kubepods/besteffort/pod{UID}",
    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice".format(
        UID.replace("-", "_")
    ),
    "system.slice/docker-{}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{}.slice"
    "".format("d" * 64, UID.replace("-", "_")),
    f"docker/{'d' * 64}/kubelet/kubepods/burstable/pod{UID}",
)


@pytest.mark.parametrize("head", HEADS)
def test_a_pod_is_found_under_every_driver_and_in_nested_nodes(tree: Tree, head: str) -> None:
    tree.v2().pod(head)
    tree.group(f"kubepods/pod{OTHER}/{'e' * 64}", 99)
    assert tree.place("stress", target())[0] == CgroupTarget(cgroup=f"/{head}")
    one = tree.place("stress", target(container="app", container_id=APP))
    assert one[0] == CgroupTarget(cgroup=f"/{head}/{APP}")
    assert "restart" in one[1]


@pytest.mark.parametrize("form", ["cri-containerd-{}.scope", "crio-{}.scope", "crio-{}"])
def test_containers_of_each_runtime(tree: Tree, form: str) -> None:
    tree.v2().pod(HEADS[2], app=form.format(APP))
    tree.group(f"{HEADS[2]}/crio-conmon-{APP}.scope", 77)
    found = tree.place("throttle", target(container="app", container_id=APP))[0]
    assert found == CgroupTarget(cgroup=f"/{HEADS[2]}/{form.format(APP)}")


def test_the_sandbox_gives_the_net_namespace_not_an_app_process(tree: Tree) -> None:
    tree.v2().pod(HEADS[0])
    placed, notes = tree.place("netem", target())
    assert placed == NetnsTarget(netns=f"{tree.proc}/50/ns/net")
    assert f"/{HEADS[0]}" in notes
    (tree.proc / "50/comm").write_text("python\n")  # CRI-O without an infra container
    assert tree.place("netem", target())[0] == placed, "the oldest process"


def test_a_pod_on_the_hosts_network_is_refused(tree: Tree) -> None:
    tree.v2().pod(HEADS[0], netns="host")
    with pytest.raises(Refused, match="own network"):
        tree.place("partition", target())
    assert tree.place("stress", target())[0] == CgroupTarget(cgroup=f"/{HEADS[0]}")


def test_network_kinds_take_whole_pods_and_disk_kinds_take_volumes(tree: Tree) -> None:
    tree.v2().pod(HEADS[0])
    with pytest.raises(InvalidSpec, match="as a whole"):
        tree.place("netem", target(container="app", container_id=APP))
    with pytest.raises(InvalidSpec, match="does not take a pod"):
        tree.place("latent-sector", target())
    assert accepts(("file",), volume()) and not accepts(("pid",), volume())
    assert accepts(("cgroup", "pid"), target()) and not accepts(("file", "volume"), target())


def test_hybrid_and_v1_nodes(tree: Tree) -> None:
    for name in ("memory", "pids", "unified"):
        (tree.cgroups / name).mkdir(parents=True)
        (tree.cgroups / name / "cgroup.procs").write_text("")
    (tree.cgroups / "unified/cgroup.controllers").write_text("")
    (tree.cgroups / "cpu").symlink_to(tree.cgroups / "memory")  # one hierarchy, two names
    assert len(pod.hierarchies(tree.cgroups)) == 3
    tree.pod(f"memory/kubepods/pod{UID}")  # pids has nothing of it: not every controller is needed
    found = pod.locate(UID, "x", tree.cgroups)
    assert (found.unified, found.path) == (False, f"/kubepods/pod{UID}")
    assert tree.place("netem", target())[0] == NetnsTarget(netns=f"{tree.proc}/50/ns/net")


def test_what_was_looked_at_is_said(tree: Tree) -> None:
    tree.v2().group(f"kubepods/pod{OTHER}/{APP}", 7)
    with pytest.raises(Refused) as none:
        tree.place("stress", target())
    assert UID in str(none.value) and str(tree.cgroups) in str(none.value)
    tree.group(f"kubepods/pod{UID}/{APP}")
    with pytest.raises(Refused, match="no process"):
        tree.place("stress", target())


def test_an_old_container_id_names_what_is_there(tree: Tree) -> None:
    tree.v2().pod(HEADS[0])
    with pytest.raises(Refused, match=APP[:12]):
        tree.place("stress", target(container="app", container_id=SIDE))


def test_one_uid_in_two_places_is_for_a_person(tree: Tree) -> None:
    tree.v2().pod(HEADS[0])
    tree.group(f"other/kubepods/pod{UID}/{APP}", 41)
    with pytest.raises(Refused, match="2 cgroups"):
        tree.place("stress", target())


def test_a_static_pods_hash_is_its_uid(tree: Tree) -> None:
    tree.v2().pod(f"kubepods/pod{STATIC}")
    found = tree.place("stress", target().model_copy(update={"uid": STATIC}))[0]
    assert found == CgroupTarget(cgroup=f"/kubepods/pod{STATIC}")


# --- volumes ----------------------------------------------------------------------


def volume(**more: object) -> PodVolumeTarget:
    base = {"pod": "shop/db-0", "uid": UID, "volume": "data", "container": "app"}
    return PodVolumeTarget.model_validate(
        {**base, "container_id": APP, "path": "/var/lib/pg", **more}
    )


class Disk:
    """The tree's pod with a volume: `real` is the file system's own root directory."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree.v2()
        tree.pod(HEADS[0])
        (tree.proc / "40/comm").write_text("runc:[2:INIT]\n")  # older, and not the workload
        self.real = tree.base / "disk"
        self.inside = tree.base / "rootfs"
        (self.inside / "var/lib").mkdir(parents=True)
        (self.real / "sub/base").mkdir(parents=True)
        (self.real / "sub/base/16384").write_text("heap")
        (tree.proc / "41/root").symlink_to(self.inside)
        status = self.real.stat()
        self.dev = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"

    def mounted(self, root: str, fs: str = "ext4", dev: str = "") -> Disk:
        # A symbolic link stands for the mount: both sides then see one inode.
        os.rename(self.real / root.strip("/"), self.inside / "var/lib/pg")
        os.symlink(self.inside / "var/lib/pg", self.real / root.strip("/"))
        line = f"30 20 {dev or self.dev} {root} /var/lib/pg rw - {fs} /dev/vdb rw\n"
        (self.tree.proc / "41/mountinfo").write_text(
            f"20 1 0:50 / / rw - overlay overlay rw\n{line}"
        )
        return self

    def node_has(self, *mounts: tuple[str, Path]) -> Disk:
        lines = (f"3{n} 1 {self.dev} {r} {p} rw - ext4 x rw\n" for n, (r, p) in enumerate(mounts))
        (self.tree.proc / "self/mountinfo").write_text("".join(lines))
        return self


@pytest.fixture
def disk(tree: Tree) -> Disk:
    return Disk(tree)


def test_a_file_of_a_volume_is_the_same_inode_on_the_node(disk: Disk) -> None:
    hidden = disk.tree.base / "hidden"
    (hidden / "sub/base").mkdir(parents=True)
    (hidden / "sub/base/16384").write_text("another file below an over-mounted place")
    disk.mounted("/sub").node_has(("/", hidden), ("/", disk.real))
    placed, notes = disk.tree.place(
        "latent-sector", volume(file="base/16384", offset="8Ki", sub_path="sub")
    )
    assert placed == FileTarget.model_validate(
        {"file": f"{disk.real}/sub/base/16384", "offset": "8Ki"}
    )
    assert "/var/lib/pg/base/16384" in notes
    same = disk.tree.place("latent-sector", volume(file="/var/lib/pg/base/16384"))
    assert same[0] == FileTarget(file=f"{disk.real}/sub/base/16384")


def test_a_file_that_leads_out_of_the_volume_is_refused(disk: Disk) -> None:
    disk.mounted("/sub").node_has(("/", disk.real))
    (disk.inside / "etc").mkdir()
    (disk.inside / "etc/passwd").write_text("x")
    (disk.inside / "var/lib/pg/out").symlink_to("/etc/passwd")
    with pytest.raises(Refused, match="another mount"):
        disk.tree.place("latent-sector", volume(file="out"))
    with pytest.raises(InvalidSpec, match="leads out"):
        disk.tree.place("latent-sector", volume(file="../../../etc/passwd"))
    with pytest.raises(Refused, match="No such file"):
        disk.tree.place("latent-sector", volume(file="none"))


def test_without_a_mount_that_faultd_sees_it_is_said(disk: Disk) -> None:
    disk.mounted("/sub").node_has()
    with pytest.raises(Refused, match="no mount that faultd sees"):
        disk.tree.place("latent-sector", volume(file="base/16384"))


@pytest.mark.parametrize(
    ("fs", "why"), [("nfs4", "another machine"), ("tmpfs", "memory"), ("fuse.s3fs", "user space")]
)
def test_volumes_without_a_device_are_refused_with_the_reason(
    disk: Disk, fs: str, why: str
) -> None:
    disk.mounted("/sub", fs)
    with pytest.raises(Refused, match=why):
        disk.tree.place("latent-sector", volume(file="base/16384"))


def test_a_directory_of_a_larger_file_system_is_no_whole_volume(disk: Disk) -> None:
    disk.mounted("/sub").node_has(("/", disk.real))
    with pytest.raises(Refused, match="larger file system"):
        disk.tree.place("disk-outage", volume())
    placed = disk.tree.place("disk-outage", volume(sub_path="sub"))[0]
    assert placed == VolumeTarget(volume=str(disk.real))


def test_the_mount_has_to_be_there(disk: Disk) -> None:
    disk.mounted("/sub")
    with pytest.raises(Refused, match="nothing is mounted"):
        disk.tree.place("latent-sector", volume(path="/data", file="x"))


def test_offsets_need_a_file_and_each_kind_its_own_sort(disk: Disk) -> None:
    disk.mounted("/sub")
    with pytest.raises(InvalidSpec, match="parts of a file"):
        disk.tree.place("latent-sector", volume(offset="4Ki"))
    with pytest.raises(InvalidSpec, match="whole volume"):
        disk.tree.place("netem", volume())
    with pytest.raises(InvalidSpec, match="does not take a pod's file"):
        disk.tree.place("disk-outage", volume(file="x"))


def test_a_container_that_only_starts_is_not_looked_into(disk: Disk) -> None:
    disk.mounted("/sub")
    (disk.tree.proc / "41/comm").write_text("runc:[1:CHILD]\n")
    with pytest.raises(Refused, match="still starting"):
        disk.tree.place("latent-sector", volume(file="x"))


def test_a_raw_block_volume_is_its_device(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.mounted("/sub")
    with pytest.raises(Refused, match="no block device"):
        disk.tree.place("latent-sector", volume(block=True))
    home = disk.tree.base / "sys/dev/block/253:7"
    home.mkdir(parents=True)
    (home / "uevent").write_text("MAJOR=253\nMINOR=7\nDEVNAME=dm-7\n")
    real = os.fstat
    status = type("S", (), {"st_mode": 0o060600, "st_rdev": os.makedev(253, 7)})
    monkeypatch.setattr(podvolume.os, "fstat", lambda fd: status)
    placed = disk.tree.place("latent-sector", volume(block=True))[0]
    monkeypatch.setattr(podvolume.os, "fstat", real)
    assert placed == DeviceTarget(device=f"{replace(disk.tree.node).dev}/dm-7")
