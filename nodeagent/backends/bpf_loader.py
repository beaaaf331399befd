"""Loading the programs of system calls, by libbpf or by bcc: descriptors, on one set of maps."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from nodeagent.backends.bpf_object import BpfObject
from nodeagent.backends.libbpf import BpfMap, check, lib

Kind = Literal["raw_tp", "kprobe", "fmod_ret", "lsm"]


@dataclass(frozen=True)
class Want:
    """One program of an object.

    function: what an fmod_ret or LSM program is attached to, fixed when it is loaded; presets:
    its numbers, in the order in which the source declares them.
    """

    object: str
    program: str
    kind: Kind
    function: str = ""
    presets: tuple[int, ...] = ()


class Loader(Protocol):
    """One way from a source to a loaded program."""

    name: str

    def load(self, want: Want) -> int:
        """A descriptor of the program. Raises Refused, VerifierRejected, OSError."""

    def prepare(self) -> None:
        """Do now what takes long, without loading anything."""

    def compile(self, name: str) -> None:
        """As prepare() for one object; safe from any thread. Raises as load()."""


class LibbpfLoader:
    """CO-RE objects, compiled when the package was built."""

    name = "libbpf"

    def __init__(self, maps: Mapping[str, BpfMap]) -> None:
        self._maps = maps

    def prepare(self) -> None:
        """Nothing: it is compiled already."""

    def compile(self, name: str) -> None:
        """Nothing, as above."""

    def load(self, want: Want) -> int:
        """See Loader."""
        with SharedObject(want.object) as loaded:
            loaded.share(self._maps)
            loaded.only(want.program)
            if want.presets:
                loaded.preset(".rodata.fc", struct.pack(f"={len(want.presets)}I", *want.presets))
            if want.function:
                loaded.aim(want.program, want.function)
            loaded.load()
            return os.dup(lib().bpf_program__fd(loaded.program(want.program)))


class SharedObject(BpfObject):
    """An object that uses the maps of another one."""

    def share(self, maps: Mapping[str, BpfMap]) -> None:
        """Use these maps instead of own ones; before load. Raises OSError."""
        for name, shared in maps.items():
            found = lib().bpf_object__find_map_by_name(self._handle(), name.encode())
            if found:
                check(lib().bpf_map__reuse_fd(found, shared.fd), f"share {name}")

    def only(self, program: str) -> None:
        """Load this program and no other one; before load."""
        wanted, at = self.program(program), None
        while at := lib().bpf_object__next_program(self._handle(), at):
            lib().bpf_program__set_autoload(at, at == wanted)

    def aim(self, program: str, function: str) -> None:
        """Set what a program is attached to; before load. Raises OSError."""
        handle, name = self.program(program), function.encode()
        check(lib().bpf_program__set_attach_target(handle, 0, name), f"aim at {function}")

    def maps(self) -> dict[str, BpfMap]:
        """All maps of its own, by name; after load."""
        found, at = [], None
        while at := lib().bpf_object__next_map(self._handle(), at):
            found.append(lib().bpf_map__name(at).decode())
        return {name: self.map(name) for name in found if not name.startswith(".")}
