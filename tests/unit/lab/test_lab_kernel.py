"""Kernel images and configurations: what is inside, what is lacking, which one is taken."""

from __future__ import annotations

import gzip
import lzma
import struct
from pathlib import Path

import pytest

from controller.lab import bzimage, kernel, kernel_config
from controller.lab.flavours import FULL_OPTIONS


def bz(payload: bytes, version: bytes = b"6.12.1+deb13 (x@y) #1\0") -> bytes:
    """A kernel image as the boot protocol has it: two setup sectors, then the payload."""
    head = bytearray(3 * 512)
    head[0x1F1] = 2
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x20E, 0x100)
    head[0x300 : 0x300 + len(version)] = version
    struct.pack_into("<II", head, 0x248, 16, len(payload))
    return bytes(head) + bytes(16) + payload + b"after"


ELF = b"\x7fELF" + b"kernel" * 100


def test_kernel_images() -> None:
    assert bzimage.release(bz(b"")) == "6.12.1+deb13"
    assert bzimage.unpack(bz(gzip.compress(ELF) + b"size")) == ELF
    assert bzimage.unpack(bz(lzma.compress(ELF) + b"size")) == ELF
    assert bzimage.unpack(bz(b"\x02\x21\x4c\x18 lz4 is not known")) is None
    assert bzimage.unpack(bz(gzip.compress(b"not an ELF"))) is None
    assert bzimage.unpack(bz(lzma.compress(ELF)[:-40])) is None
    with pytest.raises(ValueError, match="not an x86"):
        bzimage.release(bytes(4096))
    note = struct.pack("<III4sQ", 4, 8, 18, b"Xen\0", 0x1000000)
    assert bzimage.has_pvh_note(ELF + note) and not bzimage.has_pvh_note(ELF)


def test_fast_falls_back_to_the_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAULTCTL_CACHE", str(tmp_path))
    path = tmp_path / "vmlinuz"
    path.write_bytes(bz(gzip.compress(ELF) + b"size"))  # no PVH note
    assert bzimage.fast(path) == path == bzimage.fast(path)
    elf = ELF + struct.pack("<III4sI", 4, 4, 18, b"Xen\0", 1)
    path.write_bytes(bz(gzip.compress(elf) + b"size"))
    assert bzimage.fast(path).read_bytes() == elf


def test_kernel_configurations() -> None:
    text = 'CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=m\nCONFIG_D="x"\n'
    assert kernel_config.parse(text) == {
        "CONFIG_A": "y", "CONFIG_B": "n", "CONFIG_C": "m", "CONFIG_D": '"x"'
    }  # fmt: skip
    wanted = ["CONFIG_A", "CONFIG_B", "CONFIG_C", "CONFIG_E"]
    assert kernel_config.lacking(text, wanted) == ["CONFIG_B", "CONFIG_C", "CONFIG_E"]


def test_our_fragment_asks_for_all_that_the_flavour_needs() -> None:
    fragment = kernel.FRAGMENT.read_text()
    assert kernel_config.lacking(fragment, FULL_OPTIONS) == []
    assert kernel_config.parse(fragment)["CONFIG_MODULES"] == "n"


def test_prebuilt_kernel_only_with_a_fitting_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAULTCTL_LAB_KERNEL_DIR", str(tmp_path))
    said: list[str] = []
    assert kernel.prebuilt(said.append) is None
    (tmp_path / "vmlinuz-full-6.12").touch()
    assert kernel.prebuilt(said.append) is None and "config-full-6.12.gz" in said[-1]
    whole = "".join(f"{name}=y\n" for name in FULL_OPTIONS)
    config = tmp_path / "config-full-6.12.gz"
    config.write_bytes(gzip.compress(whole.replace("CONFIG_DM_DUST=y", "").encode()))
    assert kernel.prebuilt(said.append) is None and "CONFIG_DM_DUST" in said[-1]
    config.write_bytes(gzip.compress(whole.encode()))
    assert kernel.prebuilt(said.append) == tmp_path / "vmlinuz-full-6.12"
