"""One value out of a kernel's BTF (Documentation/bpf/btf.rst), without walking all of it.

CO-RE finds enumerators by the name of their enum, so members of an anonymous enum, such
as BIO_REMAPPED (include/linux/blk_types.h), are looked up here instead.
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct("=HBBIIIII")  # struct btf_header
_MEMBER = struct.Struct("=Ii")  # struct btf_enum
MAGIC = 0xEB9F


def enumerator(btf: bytes, name: str) -> int | None:
    """Value of an enumerator by its name, None where the kernel has none.

    Raises ValueError when the bytes are no BTF of this machine's byte order.
    """
    types, strings = sections(btf)
    at = strings.find(b"\0" + name.encode() + b"\0")
    return None if at < 0 else _find_member(types, strings, at + 1, name.split("_")[0])


def sections(btf: bytes) -> tuple[bytes, bytes]:
    """(types, strings). Raises ValueError for what is no BTF of this machine's byte order."""
    if len(btf) < _HEADER.size:
        raise ValueError("the BTF is shorter than its header")
    magic, _, _, hdr_len, type_off, type_len, str_off, str_len = _HEADER.unpack_from(btf)
    if magic != MAGIC:
        raise ValueError(f"BTF starts with {magic:#x}, not {MAGIC:#x}")
    strings = btf[hdr_len + str_off : hdr_len + str_off + str_len]
    return btf[hdr_len + type_off : hdr_len + type_off + type_len], strings


def _find_member(types: bytes, strings: bytes, offset: int, prefix: str) -> int | None:
    """The member with this name offset whose neighbour's name has the same prefix."""
    want = struct.pack("=I", offset)
    at = types.find(want)
    while at >= 0:
        if at % 4 == 0 and at >= _MEMBER.size and at + _MEMBER.size <= len(types):
            before, _ = _MEMBER.unpack_from(types, at - _MEMBER.size)
            if strings.startswith(prefix.encode() + b"_", before):
                value: int = _MEMBER.unpack_from(types, at)[1]
                return value
        at = types.find(want, at + 1)
    return None
