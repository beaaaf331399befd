"""The x86 kernel image format (Documentation/arch/x86/boot.rst): version and payload."""

from __future__ import annotations

import hashlib
import lzma
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

from controller.lab import cache

_ELF = b"\x7fELF"


def release(image: bytes) -> str:
    """What `uname -r` will say: the first word of the version string, at 0x20e + 0x200."""
    if image[0x202:0x206] != b"HdrS":
        raise ValueError("not an x86 kernel image")
    start = struct.unpack_from("<H", image, 0x20E)[0] + 0x200
    return image[start : image.index(b"\0", start)].decode().split()[0]


def payload(image: bytes) -> bytes:
    """The compressed kernel inside (setup_sects at 0x1f1, payload_offset/length at 0x248)."""
    if image[0x202:0x206] != b"HdrS":
        raise ValueError("not an x86 kernel image")
    start = (image[0x1F1] + 1) * 512
    offset, length = struct.unpack_from("<II", image, 0x248)
    return image[start + offset : start + offset + length]


def unpack(image: bytes) -> bytes | None:
    """The ELF kernel, or None where its compression is not known here.

    Unless it is gzip, the kernel's build appends the unpacked size, four bytes.
    """
    data = payload(image)
    try:
        if data.startswith(b"\x1f\x8b"):
            out = zlib.decompressobj(wbits=31).decompress(data)
        elif data.startswith(b"\xfd7zXZ\0"):
            out = lzma.decompress(data[:-4])
        elif data.startswith(b"\x28\xb5\x2f\xfd"):
            out = _zstd(data[:-4])
        else:
            return None
    except (ValueError, OSError, EOFError, lzma.LZMAError, zlib.error):
        return None
    return out if out.startswith(_ELF) else None


def _zstd(data: bytes) -> bytes:
    tool = shutil.which("zstd")  # the standard library has it from Python 3.14 on
    if tool is None:
        raise ValueError("no zstd on this host")
    done = subprocess.run([tool, "-dc"], input=data, capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.decode(errors="replace"))
    return done.stdout


def has_pvh_note(elf: bytes) -> bool:
    """Whether QEMU can start the kernel directly: it has the note XEN_ELFNOTE_PHYS32_ENTRY.

    An ELF note: name size 4, descriptor size 4 or 8, type 18, name "Xen\\0".
    """
    return any(struct.pack("<III4s", 4, size, 18, b"Xen\0") in elf for size in (4, 8))


def fast(image: Path) -> Path:
    """The same kernel unpacked, so that no emulated CPU has to do it; else `image` itself.

    A quarter of a boot's CPU time under emulation is saved by it. Kept in the
    cache by the image's content.
    """
    data = image.read_bytes()
    key = hashlib.sha256(data).hexdigest()[:20]
    home = cache.cache_dir() / "vmlinux"
    target, useless = home / f"{key}.elf", home / f"{key}.none"
    if target.exists():
        return target
    if useless.exists():
        return image
    elf = unpack(data)
    if elf is None or not has_pvh_note(elf):
        cache.publish(useless, b"")
        return image
    cache.publish(target, elf)
    return target
