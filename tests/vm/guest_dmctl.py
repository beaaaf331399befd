"""Runs inside a lab node as root: the device-mapper library against dmsetup and dd.

Prints one JSON line a check: {"check", "ok", "detail"}. Uses loop devices on
memory files, so that it needs no disk of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from nodeagent.backends import dm_nodes
from nodeagent.backends.dm_swap import Point, recover, swap
from nodeagent.backends.dmctl import ByName, ByUuid, DeviceBusy, DmControl
from nodeagent.encode import dm
from nodeagent.encode.dm import DevNum, Segment, Table
from nodeagent.model.errors import BackendError, ForeignState, Refused

WORK = Path("/tmp/dmctl")
SIZE = 131072  # sectors: 64 MiB
LOOPS: list[str] = []
CHECKS: list[Callable[[], object]] = []
Check = Callable[[], object]


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def sh(*argv: str, ok: bool = True) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if ok and done.returncode:
        raise AssertionError(f"{argv}: rc {done.returncode}: {done.stderr}")
    return done.stdout


def loop(name: str, block: int = 512) -> DevNum:
    path = WORK / name
    with path.open("wb") as file:
        file.truncate(SIZE * 512)
    node = sh("losetup", "--find", "--show", "--sector-size", str(block), str(path)).strip()
    LOOPS.append(node)
    found = os.stat(node).st_rdev
    return DevNum(os.major(found), os.minor(found))


def table(*segments: tuple[int, int, dm.Target]) -> Table:
    return Table(tuple(Segment(start, length, *target) for start, length, target in segments))


def dmsetup_table(name: str, *more: str) -> Table:
    return dm.parse_table(sh("dmsetup", "table", *more, name))


def witness(name: str) -> tuple[str, str]:
    """State and table slots as dmsetup sees them."""
    text = sh("dmsetup", "info", name)
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return lines["State"].strip(), lines["Tables present"].strip()


def dd(name: str, sector: int, write: bool = False, block: int = 512, how: str = "direct") -> bool:
    """One block by O_DIRECT; how="direct,sync" adds a flush of the whole device."""
    with dm_nodes.private_node(DM.info(ByName(name)).dev) as node:
        argv = ["dd", f"bs={block}", "count=1", "status=none"]
        at = sector * 512 // block
        if write:
            argv += ["if=/dev/zero", f"of={node}", f"seek={at}", f"oflag={how}"]
        else:
            argv += [f"if={node}", "of=/dev/null", f"skip={at}", "iflag=direct"]
        return subprocess.run(argv, capture_output=True, timeout=60).returncode == 0


class Device:
    """A dm device for one check, gone afterwards whatever state it is in."""

    def __init__(self, name: str, content: Table) -> None:
        self.name, self.content = name, content

    def __enter__(self) -> DevNum:
        return DM.create_active(self.name, f"FAULTCTL-test-{self.name}", self.content)

    def __exit__(self, *_: object) -> None:
        sh("dmsetup", "resume", self.name, ok=False)
        sh("dmsetup", "remove", "--retry", self.name, ok=False)
        assert self.name not in [one.name for one in DM.list_devices()], "still there"


@check
def interface() -> object:
    listed = sh("dmsetup", "targets")
    flakey = DM.target_version("flakey")
    assert flakey is not None
    listed = dict(line.split() for line in sh("dmsetup", "targets").splitlines())
    ours = {name: "v" + ".".join(map(str, got)) for name, got in DM.targets().items()}
    assert ours == listed, (ours, listed)
    assert DM.target_version("nonsense") is None
    before = DM.list_devices()
    features = sorted(DM.flakey_features())
    assert DM.list_devices() == before
    for feature in ("error_reads", "random_read_corrupt 1"):
        with Device("feat", BASE):
            words = f"0 {SIZE} flakey {A} 0 0 1 {len(feature.split())} {feature}"
            run = subprocess.run(["dmsetup", "load", "feat", "--table", words], capture_output=True)
            assert (run.returncode == 0) == (feature.split()[0] in features), feature
    return {"version": DM.version(), "targets": DM.targets(), "flakey": features}


def golden_targets() -> dict[str, dm.Target]:
    feats = dm.FlakeyFeatures
    found = {
        "linear": dm.linear(A, 8),
        "error": dm.error(),
        "zero": dm.zero(),
        "delay3": dm.delay(dm.DelayClass(A, 0, 5)),
        "delay6": dm.delay(dm.DelayClass(A, 0, 5), dm.DelayClass(B, 8, 7)),
        "delay9": dm.delay(*(dm.DelayClass(A, 0, ms) for ms in (1, 2, 3))),
        "flakey": dm.flakey(A, 0, 5, 1),
        "flakey-drop": dm.flakey(A, 0, 0, 1, feats(drop_writes=True)),
        "flakey-errw": dm.flakey(A, 0, 0, 1, feats(error_writes=True)),
        "flakey-byte": dm.flakey(A, 8, 1, 9, feats(corrupt=dm.CorruptByte(32, "r", 1))),
        "flakey-byte-drop": dm.flakey(
            A, 8, 1, 9, feats(drop_writes=True, corrupt=dm.CorruptByte(32, "r", 255, 2))
        ),
        "striped": dm.Target("striped", ("2", "8", str(A), "0", str(B), "0")),
    }
    if "error_reads" in DM.flakey_features():
        found["flakey-errr"] = dm.flakey(A, 0, 0, 1, feats(error_reads=True))
        found["flakey-both"] = dm.flakey(A, 0, 0, 1, feats(error_reads=True, error_writes=True))
    if "random_read_corrupt" in DM.flakey_features():
        found["flakey-random"] = dm.flakey(
            A, 0, 0, 1, feats(random_read=1, random_write=1_000_000_000)
        )
    if DM.target_version("dust") is not None:
        found["dust"] = dm.dust(A, 8, 512)
    return found


@check
def golden_round_trip() -> object:
    printed = {}
    for name, target in golden_targets().items():
        asked = table((0, 4096, target), (4096, 4096, dm.linear(B, 0)))
        with Device("golden", asked) as dev:
            live = DM.table(dev)
            assert live is not None and dm.equal(live, asked), (name, str(live))
            assert dmsetup_table("golden") == live, name
            DM.load(dev, live)  # what the kernel prints must load again
            again = DM.table(dev, inactive=True)
            assert again == live, (name, str(again))
            printed[name] = " ".join(live.segments[0].args)
            if name == "dust":
                assert DM.deps(dev) == sorted({A, B}) or set(DM.deps(dev)) == {A, B}
    assert not dm.equal(table((0, 8, dm.flakey(A, 0, 5, 1))), table((0, 8, dm.flakey(A, 0, 5, 2))))
    return printed


@check
def fail_reads_only() -> object:
    with Device("err", table((0, SIZE, dm.error()))) as err:
        faults = [dm.Overlay(40000, 8, dm.FailReads(err, 20))]
        with Device("vol", BASE) as dev:
            assert all(dd("vol", at) for at in (39999, 40000, 40007, 40008))
            assert swap(DM, dev, dm.overlay(BASE, faults), BASE)
            reads = {at: dd("vol", at) for at in (39999, 40000, 40007, 40008)}
            assert reads == {39999: True, 40000: False, 40007: False, 40008: True}, reads
            assert dd("vol", 40000, write=True) and not dd("vol", 40000)
            assert swap(DM, dev, BASE, dm.overlay(BASE, faults))
            assert sh("dmsetup", "table", "vol") == f"{BASE}\n" and dd("vol", 40000, block=4096)
            # idempotent: nothing to do the second time
            assert not swap(DM, dev, BASE, dm.overlay(BASE, faults))
    return None


@check
def overlay_effects() -> object:
    """What a fault on 16 sectors does there, and to a flush of the whole device."""
    feats = dm.FlakeyFeatures
    with Device("err", table((0, SIZE, dm.error()))) as err:
        cases = {  # effect, reads pass, writes pass, flushes of the device pass
            "fail": (dm.Fail(), False, False, True),
            "fail-writes": (dm.FailWrites(err, 10), True, False, True),
            "fail-reads": (dm.FailReads(err, 10), False, True, True),
            "flakey": (dm.Flakey(0, 1), False, False, False),
            "flakey-errw": (dm.Flakey(0, 1, feats(error_writes=True)), True, False, False),
            "flakey-drop": (dm.Flakey(0, 1, feats(drop_writes=True)), True, True, True),
            "delay": (dm.Delay(3, 4), True, True, True),
        }
        if "error_reads" in DM.flakey_features():
            only_reads = dm.Flakey(0, 1, feats(error_reads=True))
            cases["flakey-errr"] = (only_reads, False, True, True)
        for name, (effect, *expect) in cases.items():
            with Device("vol", BASE) as dev:
                swap(DM, dev, dm.overlay(BASE, [dm.Overlay(800, 16, effect)]), BASE)
                got = [dd("vol", 808), dd("vol", 808, write=True)]
                got.append(dd("vol", 0, write=True, how="direct,sync"))
                assert got == expect, (name, got)
                assert dd("vol", 799) and dd("vol", 816) and dd("vol", 816, write=True), name
    return sorted(cases)


@check
def swap_under_ext4_and_fio() -> object:
    mount = WORK / "mnt"
    mount.mkdir(exist_ok=True)
    spare = (60000, 64)  # a range in the middle; ext4 may use it: only harmless effects there
    effects = [dm.Delay(5, 5), dm.Flakey(1000, 1), dm.Delay(0, 20, 0)]
    with Device("vol", BASE) as dev, dm_nodes.private_node(dev) as node:
        sh("mkfs.ext4", "-q", str(node))
        sh("mount", "-t", "ext4", str(node), str(mount))
        try:
            job = ["fio", "--name=v", f"--directory={mount}", "--size=16m", "--rw=randrw"]
            job += ["--bs=4k", "--verify=crc32c", "--do_verify=1", "--time_based", "--runtime=12"]
            job += ["--verify_backlog=64", "--fsync=32", "--output-format=json", "--direct=1"]
            fio = subprocess.Popen(job, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(3)
            times, count = [], 0
            while fio.poll() is None and count < 30:
                faulty = dm.overlay(BASE, [dm.Overlay(*spare, effects[count % 3])])
                for new, old in ((faulty, BASE), (BASE, faulty)):
                    began = time.monotonic()
                    assert swap(DM, dev, new, old)
                    times.append(time.monotonic() - began)
                    assert witness("vol") == ("ACTIVE", "LIVE")
                count += 1
                time.sleep(0.2)
            out, err = fio.communicate(timeout=240)
            assert fio.returncode == 0, err[-500:]
            report = json.loads(out[out.index("{") :])["jobs"][0]
            assert report["error"] == 0 and report["read"]["total_ios"] > 100 and count >= 5
        finally:
            sh("umount", str(mount))
        sh("e2fsck", "-fn", str(node))
        assert sh("dmsetup", "table", "vol") == f"{BASE}\n"
    times.sort()
    return {"swaps": len(times), "p50_ms": times[len(times) // 2] * 1e3, "max_ms": times[-1] * 1e3,
            "fio_ios": report["read"]["total_ios"] + report["write"]["total_ios"]}  # fmt: skip


def refusal(kind: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except kind as refused:
        return str(refused)
    raise AssertionError(f"no {kind.__name__}")


@check
def failing_load() -> object:
    broken = table((0, SIZE, dm.linear(DevNum(4000, 1), 0)))
    with Device("vol", BASE) as dev:
        said = refusal(BackendError, lambda: swap(DM, dev, broken, BASE))
        assert witness("vol") == ("ACTIVE", "LIVE") and dd("vol", 0)
        assert dmsetup_table("vol") == BASE
    return said


@check
def failing_swap_is_unwound() -> object:
    """A cut inside a 4096-byte block loads, but the swap fails and leaves it suspended."""
    big = loop("big", 4096)
    base = table((0, SIZE, dm.linear(big, 0)))
    cut = dm.overlay(base, [dm.Overlay(9, 3, dm.Delay(1, 1))])
    assert refusal(Exception, lambda: dm.overlay(base, [dm.Overlay(9, 3, dm.Fail())], 8))
    with Device("vol", base) as dev:
        assert dm_nodes.logical_block_sectors(dev) == 8
        # What the kernel does by itself, so that the unwinding is known to be needed.
        DM.load(dev, cut)
        refusal(OSError, lambda: DM.resume(dev))
        bare = witness("vol")
        assert bare[0] == "SUSPENDED", bare
        assert recover(DM, dev, [cut]) and witness("vol") == ("ACTIVE", "LIVE")
        said = refusal(BackendError, lambda: swap(DM, dev, cut, base))
        assert witness("vol") == ("ACTIVE", "LIVE") and dmsetup_table("vol") == base
        assert dd("vol", 8, block=4096)
    return [bare, said]


@check
def foreign_state() -> object:
    other = table((0, SIZE, dm.linear(B, 0)))
    fault = dm.overlay(BASE, [dm.Overlay(8, 8, dm.Fail())])
    said = []
    with Device("vol", BASE) as dev:
        DM.load(dev, other)
        said.append(refusal(ForeignState, lambda: swap(DM, dev, fault, BASE)))
        said.append(refusal(ForeignState, lambda: recover(DM, dev, [fault])))
        assert dmsetup_table("vol", "--inactive") == other and dmsetup_table("vol") == BASE
        sh("dmsetup", "suspend", "vol")
        said.append(refusal(ForeignState, lambda: recover(DM, dev, [fault])))
        assert witness("vol") == ("SUSPENDED", "LIVE & INACTIVE")
        sh("dmsetup", "clear", "vol")
        said.append(refusal(Refused, lambda: swap(DM, dev, fault, BASE)))
        assert recover(DM, dev, [fault]) and witness("vol") == ("ACTIVE", "LIVE")
        assert not recover(DM, dev, [fault])
        said.append(refusal(ForeignState, lambda: swap(DM, dev, fault, other)))
        said.append(refusal(ForeignState, lambda: swap(DM, dev, fault, BASE, uuid="LVM-x")))
        assert dmsetup_table("vol") == BASE

        def intrude(point: Point) -> None:
            if point is Point.LOADED:
                sh("dmsetup", "load", "vol", "--table", str(other))

        said.append(refusal(ForeignState, lambda: swap(DM, dev, fault, BASE, hook=intrude)))
        assert dmsetup_table("vol", "--inactive") == other and witness("vol")[0] == "ACTIVE"
    return said


@check
def size_mismatch() -> object:
    smaller = table((0, SIZE // 2, dm.linear(A, 0)))
    with Device("vol", BASE) as dev:
        said = refusal(Refused, lambda: swap(DM, dev, smaller, BASE))
        # lvextend between plan and apply, and between load and resume
        fault = dm.overlay(smaller, [dm.Overlay(8, 8, dm.Fail())])

        def extend(point: Point) -> None:
            if point is Point.LOADED:
                sh("dmsetup", "load", "vol", "--table", str(BASE))
                sh("dmsetup", "resume", "vol")

        sh("dmsetup", "load", "vol", "--table", str(smaller))
        sh("dmsetup", "resume", "vol")
        refusal(ForeignState, lambda: swap(DM, dev, fault, smaller, hook=extend))
        assert dmsetup_table("vol") == BASE and witness("vol") == ("ACTIVE", "LIVE")
    return said


@check
def killed_at_every_point() -> object:
    fault = dm.overlay(BASE, [dm.Overlay(8, 8, dm.Fail())])
    after: dict[str, object] = {}
    for point in Point:
        for boom in ("kill", "raise"):
            with Device("vol", BASE) as dev:

                def stop(at: Point, point: Point = point, boom: str = boom) -> None:
                    if at is point and boom == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    if at is point:
                        raise RuntimeError("stopped")

                child = os.fork()
                if child == 0:
                    try:
                        swap(DM, dev, fault, BASE, hook=stop)
                    except RuntimeError:
                        os._exit(3)
                    os._exit(4)
                rc = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                assert rc == (-signal.SIGKILL if boom == "kill" else 3), rc
                if boom == "raise":
                    assert witness("vol") == ("ACTIVE", "LIVE"), point
                left = witness("vol")
                did = recover(DM, dev, [fault])
                assert witness("vol") == ("ACTIVE", "LIVE")
                live = dmsetup_table("vol")
                assert live in (BASE, fault)
                expect = fault if point in (Point.RESUMED, Point.DONE) else BASE
                assert live == expect, (point, boom, str(live))
                after[f"{point.value}/{boom}"] = [*left, did]
                swap(DM, dev, BASE, expect)
                assert dmsetup_table("vol") == BASE
    return after


@check
def killed_at_random() -> object:
    """SIGKILL while the resume ioctl waits for I/O in flight, or anywhere else."""
    fault = dm.overlay(BASE, [dm.Overlay(8, 8, dm.Delay(40, 40))])
    ends: dict[str, int] = {}
    with Device("vol", BASE) as dev, dm_nodes.private_node(dev) as node:
        reader = subprocess.Popen(
            ["fio", "--name=r", f"--filename={node}", "--rw=randread", "--size=64k", "--direct=1",
             "--ioengine=libaio", "--thread", "--iodepth=16", "--time_based", "--runtime=600"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            time.sleep(2)
            for turn in range(40):
                live = dmsetup_table("vol")
                old, new = (BASE, fault) if live == BASE else (fault, BASE)
                child = os.fork()
                if child == 0:
                    swap(DM, dev, new, old)
                    os._exit(0)
                time.sleep(0.004 * turn)
                os.kill(child, signal.SIGKILL)
                rc = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                left = "/".join(witness("vol"))
                recover(DM, dev, [new])
                assert witness("vol") == ("ACTIVE", "LIVE")
                end = dmsetup_table("vol")
                assert end in (old, new), str(end)
                what = f"rc {rc}, left {left}, {'new' if end == new else 'old'} live"
                ends[what] = ends.get(what, 0) + 1
            assert reader.poll() is None
        finally:
            reader.kill()
            reader.wait()
    assert any("rc -9" in what for what in ends)
    return ends


@check
def removal() -> object:
    with Device("vol", BASE) as dev, dm_nodes.private_node(dev) as node:
        held = os.open(node, os.O_RDONLY)
        began = time.monotonic()
        try:
            DM.remove(dev, patience=0.3)
            raise AssertionError("removed an open device")
        except DeviceBusy as busy:
            said = busy.holders
        assert any(f"process {os.getpid()} " in holder for holder in said), said
        assert time.monotonic() - began < 5
        upper = DM.create_active("upper", "FAULTCTL-test-upper", table((0, 8, dm.linear(dev, 0))))
        assert any(h.startswith("device dm-") for h in dm_nodes.holders(dev))
        assert DM.remove(upper)
        assert DM.remove(ByUuid("FAULTCTL-test-vol"), deferred=True, patience=0.1) is False
        info = DM.info(dev)
        assert info.deferred_remove and info.open_count == 1
        os.close(held)
        deadline = time.monotonic() + 10
        while DM.find(dev) is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert DM.find(dev) is None and DM.find(ByName("vol")) is None
    gone = refusal(OSError, lambda: DM.remove(ByUuid("FAULTCTL-test-vol")))
    assert "REMOVE" in gone
    return [said, gone]


@check
def failed_creation_leaves_nothing() -> object:
    broken = table((0, 8, dm.linear(DevNum(4000, 1), 0)))
    before = sh("dmsetup", "ls")
    refusal(OSError, lambda: DM.create_active("nope", "FAULTCTL-nope", broken))
    assert sh("dmsetup", "ls") == before
    return None


@check
def control_node_missing() -> object:
    node = Path("/dev/mapper/control")
    aside = Path("/dev/mapper/aside")
    before = sorted(os.listdir("/dev"))
    node.rename(aside)
    try:
        with DmControl() as other:
            assert other.version() == DM.version()
    finally:
        aside.rename(node)
    assert sorted(os.listdir("/dev")) == before
    return None


@check
def udev_is_told() -> object:
    listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)  # NETLINK_KOBJECT_UEVENT
    listener.bind((0, 1))
    listener.settimeout(10)
    with Device("quiet", table((0, 8, dm.zero()))) as dev:
        while True:
            event = listener.recv(65536).decode(errors="replace").split("\0")
            if "ACTION=change" in event and f"MAJOR={dev.major}" in event:
                break
    cookie = next(line for line in event if line.startswith("DM_COOKIE="))
    flags = sh("dmsetup", "udevflags", cookie.removeprefix("DM_COOKIE=")).split()
    for want in ("DISABLE_DISK_RULES", "DISABLE_OTHER_RULES", "DISABLE_SUBSYSTEM_RULES"):
        assert f"DM_UDEV_{want}_FLAG='1'" in flags, flags
    return [cookie, flags]


@check
def odd_names_and_long_tables() -> object:
    name = "a b\\c\u00e9"
    dev = DM.create_active(name, "FAULTCTL-odd name", table((0, 8, dm.zero())))
    try:
        one = next(one for one in DM.list_devices() if one.name == name)
        assert (one.dev, one.uuid) == (dev, "FAULTCTL-odd name"), one
        assert DM.info(ByName(name)).dev == dev == DM.info(ByUuid("FAULTCTL-odd name")).dev
        raw = sh("dmsetup", "info", "--manglename", "none", "-c", "--noheadings", "-o", "name",
                 "-j", str(dev.major), "-m", str(dev.minor)).removesuffix("\n")  # fmt: skip
        assert raw == name, raw
    finally:
        DM.remove(dev)
    with Device("vol", BASE) as dev:
        many = dm.overlay(BASE, [dm.Overlay(at, 1, dm.Fail()) for at in range(1, 40000, 4)])
        began = time.monotonic()
        swap(DM, dev, many, BASE)
        took = time.monotonic() - began
        assert dmsetup_table("vol") == many and len(many.segments) == 20001
        assert dd("vol", 0) and not dd("vol", 1) and dd("vol", 2)
    return {"segments": len(many.segments), "swap_s": round(took, 3)}


@check
def dust_messages() -> object:
    if DM.target_version("dust") is None:
        return "no dm-dust here"
    faulty = dm.overlay(BASE, [dm.Overlay(800, 80, dm.Dust(512))])
    with Device("vol", BASE) as dev:
        swap(DM, dev, faulty, BASE)
        DM.message(dev, 800, "quiet")
        DM.message(dev, 800, "addbadblock 808")
        assert dd("vol", 808)
        DM.message(dev, 800, "enable")
        assert not dd("vol", 808) and dd("vol", 807) and dd("vol", 809)
        listed = DM.message(dev, 800, "listbadblocks")
        assert listed.split() == ["808"], listed
        status = DM.status(dev)[1]
        assert dd("vol", 808, write=True) and dd("vol", 808)
        error = refusal(OSError, lambda: DM.message(dev, 800, "nonsense"))
    return [status.text, error]


@check
def faster_than_dmsetup() -> object:
    fault = dm.overlay(BASE, [dm.Overlay(8, 8, dm.Fail())])
    ours, theirs = [], []
    with Device("vol", BASE) as dev:
        for new, old in [(fault, BASE), (BASE, fault)] * 5:
            began = time.monotonic()
            swap(DM, dev, new, old)
            ours.append(time.monotonic() - began)
            began = time.monotonic()
            sh("dmsetup", "load", "vol", "--table", str(old))
            sh("dmsetup", "resume", "--noflush", "--nolockfs", "vol")
            theirs.append(time.monotonic() - began)
            swap(DM, dev, new, old)
    middle = [sorted(side)[len(side) // 2] * 1e3 for side in (ours, theirs)]
    assert middle[0] < middle[1], middle
    return {"swap_p50_ms": middle[0], "dmsetup_load_resume_p50_ms": middle[1]}


def main() -> int:
    failed = 0
    for function in [one for one in CHECKS if one.__name__ in (sys.argv[1:] or [one.__name__])]:
        began = time.monotonic()
        try:
            detail: object = function()
            ok = True
        except Exception:  # noqa: BLE001 - the check's verdict, printed
            detail, ok = traceback.format_exc(), False
        failed += not ok
        took = round(time.monotonic() - began, 2)
        line = {"check": function.__name__, "ok": ok, "s": took, "detail": detail}
        print(json.dumps(line, default=str), flush=True)
    print(json.dumps({"check": "all", "ok": failed == 0, "detail": len(CHECKS)}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    subprocess.run(["modprobe", "-a", "loop", "dm_mod"], check=False, capture_output=True)
    WORK.mkdir(exist_ok=True)
    A, B = loop("a"), loop("b")
    BASE = table((0, SIZE, dm.linear(A, 0)))
    DM = DmControl()
    code = main()
    for node in LOOPS:
        sh("losetup", "--detach", node)
    shutil.rmtree(WORK)
    sys.exit(code)
