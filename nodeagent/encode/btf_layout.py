"""Where a kernel's structures have their members, from its BTF. Pure.

Documentation/bpf/btf.rst. libbpf does the same for CO-RE objects; this is for programs that
are compiled on the node.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nodeagent.encode.btf import sections

_TYPE = struct.Struct("=III")  # struct btf_type
_MEMBER = struct.Struct("=III")  # struct btf_member
_STRUCT, _UNION = 4, 5
_EACH = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
"""Bytes that follow for each of vlen: struct, union, enum, func_proto, datasec, enum64."""
_ONCE = {1: 4, 3: 12, 14: 4, 17: 4}
"""Bytes that follow once: int, array, var, decl_tag."""
_MODIFIERS = frozenset((8, 9, 10, 11, 18))  # typedef, volatile, const, restrict, type_tag
_LAST_KIND = 19


@dataclass(frozen=True)
class Layout:
    """One structure: its size and its members' offsets, in bytes."""

    size: int
    offsets: Mapping[str, int]


def layouts(btf: bytes, wanted: Mapping[str, Sequence[str]]) -> dict[str, Layout]:
    """Those of the wanted structures that the kernel has, with those of their members.

    Members of anonymous structures and unions inside count as the outer one's own. A member
    that is no whole number of bytes in is left out. Raises ValueError for what is no BTF.
    """
    walk = _Walk(btf)
    found: dict[str, Layout] = {}
    for name, members in wanted.items():
        at = walk.named(name)
        if at is None:
            continue
        known = dict(walk.members(at))
        offsets = {m: known[m] // 8 for m in members if m in known and not known[m] % 8}
        found[name] = Layout(walk.size(at), offsets)
    return found


class _Walk:
    """The types of one BTF, by their place."""

    def __init__(self, btf: bytes) -> None:
        self._types, self._strings = sections(btf)
        self._places = array("I", (0,))  # by type id; 0 is void
        self._structs: dict[int, int] = {}  # by place of the name
        self._index()

    def _index(self) -> None:
        types, at, end = self._types, 0, len(self._types)
        places, structs, unpack = self._places, self._structs, _TYPE.unpack_from
        while at + _TYPE.size <= end:
            name, info, _ = unpack(types, at)
            kind, vlen = info >> 24 & 0x1F, info & 0xFFFF
            if not kind or kind > _LAST_KIND:
                raise ValueError(f"BTF has a type of the unknown kind {kind}")
            places.append(at)
            if kind == _STRUCT and name:
                structs.setdefault(name, at)
            at += _TYPE.size + _ONCE.get(kind, 0) + vlen * _EACH.get(kind, 0)
        if at != end:
            raise ValueError("the BTF's types end in the middle of one")

    def named(self, name: str) -> int | None:
        """Place of a structure."""
        want = b"\0" + name.encode() + b"\0"
        at = self._strings.find(want)
        return self._structs.get(at + 1) if at >= 0 else None

    def size(self, at: int) -> int:
        size: int = _TYPE.unpack_from(self._types, at)[2]
        return size

    def _name(self, offset: int) -> str:
        end = self._strings.index(b"\0", offset)
        return self._strings[offset:end].decode(errors="replace")

    def members(self, at: int, base: int = 0) -> Iterator[tuple[str, int]]:
        """(name, offset in bits), those of anonymous parts too."""
        _, info, _ = _TYPE.unpack_from(self._types, at)
        for number in range(info & 0xFFFF):
            place = at + _TYPE.size + number * _MEMBER.size
            name, kind, offset = _MEMBER.unpack_from(self._types, place)
            if info >> 31:  # kind_flag: the upper 8 bits are a bitfield's size
                if offset >> 24:
                    continue
                offset &= 0xFFFFFF
            if name:
                yield self._name(name), base + offset
                continue
            inner = self._composite(kind)
            if inner is not None:
                yield from self.members(inner, base + offset)

    def _composite(self, type_id: int) -> int | None:
        """Place of the structure or union that a type id stands for."""
        for _ in range(16):
            if not 0 < type_id < len(self._places):
                return None
            at = self._places[type_id]
            _, info, target = _TYPE.unpack_from(self._types, at)
            kind = info >> 24 & 0x1F
            if kind in (_STRUCT, _UNION):
                return at
            if kind not in _MODIFIERS:
                return None
            type_id = target
        return None
