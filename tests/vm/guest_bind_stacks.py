"""Partitions, loop devices and device-mapper stacks, against what the kernel really reads."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from guest_bind_kit import (
    EXT4,
    NODE,
    WORK,
    XFS,
    Skip,
    check,
    direct,
    dm,
    holds,
    kinds,
    loop,
    mounted,
    need_dm,
    sh,
)

from nodeagent.bind.resolve import resolve_device, resolve_file
from nodeagent.bind.usage import guards
from nodeagent.model.ranges import Range, parse_ranges


@check
def partition_offsets() -> str:
    with loop(96, "-P") as device:
        script = "label: gpt\nstart=2048,size=16384\nstart=40960,size=131072\n"
        if shutil.which("sfdisk") is None:
            raise Skip("no sfdisk")
        subprocess.run(["sfdisk", "-q", device], input=script, text=True, check=True, timeout=60)
        for _ in range(50):
            if Path(f"{device}p2").exists():
                break
            sh("partx", "-u", device, ok=False)
            time.sleep(0.1)
        with mounted(f"{device}p2", *EXT4) as mnt:
            data = os.urandom(40_000)
            (mnt / "f").write_bytes(data)
            found = resolve_file(NODE, str(mnt / "f"))
            top, disk = found.layers[:2]
            assert top.layer.kind == "partition" and disk.layer.name == device
            assert disk.ranges[0].start == top.ranges[0].start + 40960
            holds(found, data)
            seen = kinds(guards(NODE, resolve_device(NODE, device, parse_ranges("2048+8"))))
            assert seen["mounted", str(mnt)].hit is False
            seen = kinds(guards(NODE, resolve_device(NODE, device, parse_ranges("40960+8"))))
            assert seen["mounted", str(mnt)].hit is True
    return ""


@check
def loop_over_a_file() -> str:
    with loop(320) as outer, mounted(outer, *XFS, at="outer") as below:
        image = below / "image"
        with loop(64, "-o", "1048576", path=image) as inner, mounted(inner, *EXT4) as mnt:
            data = os.urandom(30_000)
            (mnt / "f").write_bytes(data)
            found = resolve_file(NODE, str(mnt / "f"))
            names = [item.layer.name for item in found.layers]
            assert names[:2] == [inner, outer], names
            holds(found, data)
            assert any("page cache" in note for note in found.notes)
            seen = kinds(guards(NODE, resolve_device(NODE, outer), [str(below)]))
            assert ("mounted", str(mnt)) in seen, "a mount over a loop over a file is not seen"
            whole = resolve_device(NODE, inner)
            assert any("hole" in end.reason for end in whole.ends)
            image.rename(below / "moved")
            assert resolve_device(NODE, inner).layers[1].layer.name == outer
            (below / "moved").rename(image)
    return ""


@check
def block_size_4096() -> str:
    with loop(64, "--sector-size", "4096") as device:
        found = resolve_device(NODE, device, parse_ranges("9+1"))
        assert found.ranges == parse_ranges("8+8") and found.top.logical_block == 4096
        with mounted(device, *EXT4) as mnt:
            data = os.urandom(20_000)
            (mnt / "f").write_bytes(data)
            part = resolve_file(NODE, str(mnt / "f"), 4097, 1)
            assert part.file is not None and (part.file.offset, part.file.length) == (4096, 4096)
            holds(part, data)
    return ""


@check
def dm_linear_over_two_devices() -> str:
    with loop(64) as one, loop(64) as two:
        need_dm()
        lines = f"0 40000 linear {one} 2048\n40000 60000 linear {two} 4096\n"
        with dm("bind-linear", lines) as device, mounted(device, *EXT4) as mnt:
            return each_layer(mnt, device, {one, two})


def each_layer(mnt: Path, device: str, wanted: set[str]) -> str:
    """Files all over the volume, until one was seen on each of the devices below."""
    data = os.urandom(20_000)
    seen: set[str] = set()
    for number in range(80):
        path = mnt / str(number)
        path.write_bytes(data)
        found = resolve_file(NODE, str(path))
        holds(found, data)
        assert found.top.name == device, found.top
        seen |= {item.layer.name for item in found.layers}
        if wanted <= seen:
            return f"{number + 1} files on {' '.join(sorted(seen))}"
        with (mnt / f"{number}.fill").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 3 << 20)
    raise AssertionError(f"only {seen} were seen of {wanted}")


@check
def lvm_volume() -> str:
    need_dm()
    with loop(128) as one, loop(128) as two:
        sh("pvcreate", "-qq", one, two)
        sh("vgcreate", "-qq", "bindvg", one, two)
        try:
            sh("lvcreate", "-qq", "-an", "-Zn", "-Wn", "-l", "100%FREE", "-n", "data", "bindvg")
            sh("lvchange", "-qq", "-ay", "--noudevsync", "bindvg/data")
            sh("vgmknodes", "-qq", ok=False)
            with mounted("/dev/mapper/bindvg-data", *EXT4) as mnt:
                names = each_layer(mnt, "/dev/mapper/bindvg-data", {one, two})
                found = kinds(guards(NODE, resolve_device(NODE, one)))
                assert found["held", "/dev/mapper/bindvg-data"].hit is True
                assert ("mounted", str(mnt)) in found
                return names
        finally:
            sh("vgchange", "-qq", "-an", "--noudevsync", "bindvg", ok=False)
            sh("vgremove", "-qqff", "bindvg", ok=False)


def open_crypt(device: str, key: Path) -> None:
    """Plain dm-crypt, 4096 sectors in, with the first cipher that the kernel has."""
    for cipher in ("aes-xts-plain64", "aes-cbc-plain64"):
        size = "512" if "xts" in cipher else "256"
        argv = ["--type", "plain", "--cipher", cipher, "--key-size", size, "--key-file", str(key)]
        sh("cryptsetup", "open", *argv, "--offset", "4096", device, "bind-crypt", ok=False)
        if Path("/dev/mapper/bind-crypt").exists():
            return
    raise Skip("kernel without AES in XTS or CBC mode")


@check
def crypt_offsets() -> str:
    need_dm()
    with loop(64) as device:
        key = Path(WORK / "key")
        key.write_bytes(os.urandom(64))
        open_crypt(device, key)
        try:
            found = resolve_device(NODE, "/dev/mapper/bind-crypt", parse_ranges("1000+2"))
            below = found.layers[1]
            assert below.layer.name == device and below.ranges == parse_ranges("5096+2")
            assert key.read_bytes()[:32].hex() not in found.model_dump_json()
            before = [direct(device, s, 1) for s in range(5090, 5104)]
            fd = os.open("/dev/mapper/bind-crypt", os.O_WRONLY)
            os.pwrite(fd, os.urandom(1024), 1000 * 512)
            os.fsync(fd)
            os.close(fd)
            after = [direct(device, s, 1) for s in range(5090, 5104)]
            changed = [5090 + i for i in range(14) if before[i] != after[i]]
            # Buffered: the kernel writes the 4096-byte page around the two sectors.
            assert {5096, 5097} <= set(changed) <= set(range(5096, 5104)), changed
            return str(changed)
        finally:
            sh("cryptsetup", "close", "bind-crypt")


@check
def striped_by_the_kernel() -> str:
    need_dm()
    with loop(64) as one, loop(64) as two:
        line = f"0 65536 striped 2 16 {one} 128 {two} 256\n"
        with dm("bind-striped", line) as device:
            data = os.urandom(64 * 512)
            fd = os.open(device, os.O_WRONLY)
            os.pwrite(fd, data, 1000 * 512)
            os.fsync(fd)
            os.close(fd)
            for sector in range(1000, 1064):
                bound = resolve_device(NODE, device, (Range(start=sector, length=1),))
                low = bound.layers[1]
                at = (sector - 1000) * 512
                assert direct(low.layer.name, low.ranges[0].start, 1) == data[at : at + 512]
    return ""
