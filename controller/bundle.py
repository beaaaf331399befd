"""Sealed bundles: a run folder as one deterministic tar file that tells every changed byte.

Layout: an uncompressed POSIX ustar archive (tar(5)): `manifest.json` first, then the files
in order of names; owner 0, mode 0644, time 0, two zero blocks at the end and nothing after.
The manifest has, for each file, size, SHA-256 and the SHA-256 of each 64 KiB, and a chain:
chain[i] = SHA-256(chain[i-1] + name + NUL + size + NUL + sha256). The last link and the
header of the run make the seal. Whoever keeps the seal elsewhere can tell a bundle that
was made anew from the original.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from controller.recorder import header_from, records_in
from controller.records import FORMAT_VERSION, HEADER_FILE, RUN_FILES, AnyRecord, RunHeader
from nodeagent.model.errors import InvalidSpec, Refused

MANIFEST = "manifest.json"
CHUNK = 64 * 1024
BLOCK = 512
SUFFIX = ".bundle.tar"
EVIDENCE = "evidence"
MAX_MANIFEST = 64 << 20


class Entry(BaseModel):
    """One file of a bundle."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: int
    sha256: str
    chunks: tuple[str, ...]
    chain: str


class Manifest(BaseModel):
    """What a bundle holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT_VERSION
    run: str
    files: tuple[Entry, ...]
    seal: str

    def text(self) -> bytes:
        """The manifest's one byte form."""
        return (json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n").encode()


@dataclass(frozen=True)
class Damage:
    """Something in a bundle that is not as it was sealed."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


# --- sealing ----------------------------------------------------------------------


def seal_folder(folder: Path, bundle: Path) -> Manifest:
    """Write the bundle of a run folder. Raises Refused if it cannot be read or written, or
    if the bundle is there already."""
    if bundle.exists():
        raise Refused(f"{bundle} is there already", "a bundle is written once")
    try:
        files = {name: (folder / name).read_bytes() for name in _names(folder)}
        manifest = manifest_of(files)
        part = bundle.with_name(f".{bundle.name}.part")
        with open(part, "wb") as file:
            for piece in pieces(manifest, files):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, bundle)
    except OSError as exc:
        raise Refused(f"{bundle} cannot be written", exc.strerror or str(exc)) from exc
    return manifest


def _names(folder: Path) -> list[str]:
    found = [name for name in RUN_FILES if (folder / name).is_file()]
    evidence = folder / EVIDENCE
    if evidence.is_dir():
        found += [f"{EVIDENCE}/{p.name}" for p in evidence.iterdir() if p.is_file()]
    return sorted(found)


def manifest_of(files: Mapping[str, bytes]) -> Manifest:
    """The manifest of files by name. Raises InvalidSpec if they are no run."""
    header = header_from(files.get(HEADER_FILE, b""), "the run folder")
    chain = hashlib.sha256(f"{FORMAT_VERSION}/{header.run}".encode()).hexdigest()
    entries: list[Entry] = []
    for name, data in sorted(files.items()):
        digest = hashlib.sha256(data).hexdigest()
        chain = _link(chain, name, len(data), digest)
        chunks = tuple(
            hashlib.sha256(data[i : i + CHUNK]).hexdigest()[:16] for i in range(0, len(data), CHUNK)
        )
        entries.append(Entry(name=name, size=len(data), sha256=digest, chunks=chunks, chain=chain))
    return Manifest(run=header.run, files=tuple(entries), seal=_seal(chain, entries))


def _link(chain: str, name: str, size: int, digest: str) -> str:
    return hashlib.sha256(f"{chain}{name}\0{size}\0{digest}".encode()).hexdigest()


def _seal(chain: str, entries: list[Entry]) -> str:
    chunks = "".join(part for entry in entries for part in entry.chunks)
    return hashlib.sha256(f"seal/{chain}/{chunks}".encode()).hexdigest()


def pieces(manifest: Manifest, files: Mapping[str, bytes]) -> Iterator[bytes]:
    """The bundle's bytes in order."""
    text = manifest.text()
    yield tar_header(MANIFEST, len(text))
    yield _padded(text)
    for entry in manifest.files:
        yield tar_header(entry.name, entry.size)
        yield _padded(files[entry.name])
    yield bytes(2 * BLOCK)


def tar_header(name: str, size: int) -> bytes:
    """The 512 bytes before a member (POSIX ustar, tar(5)); all fields but name and size are
    fixed. Written here, since a library may set the free fields otherwise one day, and a
    bundle's bytes must never change."""
    if not 0 <= size < 8**11 or len(name.encode("ascii")) > 99:
        raise Refused(f"{name} does not fit in a bundle", f"{size} bytes")
    fields = (
        name.encode("ascii").ljust(100, b"\0"),
        b"0000644\0" + b"0000000\0" * 2,
        b"%011o\0" % size + b"00000000000\0",
    )
    head, tail = b"".join(fields), b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    checksum = sum(head) + 8 * ord(" ") + sum(tail)
    return head + b"%06o\0 " % checksum + tail


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


# --- verifying ----------------------------------------------------------------------


def verify(raw: bytes, seal: str = "") -> list[Damage]:
    """Everything in a bundle that differs from what was sealed, named by file and byte.

    Each byte is covered: contents by their hashes, and headers, padding and the end because
    they can only be one way. `seal` is one that was kept elsewhere.
    """
    try:
        manifest, size = read_manifest(raw)
    except InvalidSpec as exc:
        return [Damage(MANIFEST, str(exc))]
    damage: list[Damage] = []
    if seal and seal != manifest.seal:
        damage.append(Damage(MANIFEST, f"its seal is {manifest.seal}, not {seal}"))
    damage += _exact(raw, 0, tar_header(MANIFEST, size), MANIFEST, "header")
    position = BLOCK + size
    damage += _exact(raw, position, bytes(-size % BLOCK), MANIFEST, "padding")
    position += -size % BLOCK
    for entry in manifest.files:
        damage += _exact(raw, position, tar_header(entry.name, entry.size), entry.name, "header")
        position += BLOCK
        damage += _content(raw[position : position + entry.size], entry)
        position += entry.size
        padding = bytes(-entry.size % BLOCK)
        damage += _exact(raw, position, padding, entry.name, "padding")
        position += len(padding)
    damage += _exact(raw, position, bytes(2 * BLOCK), "end of the archive", "")
    position += 2 * BLOCK
    if len(raw) > position:
        extra = len(raw) - position
        damage.append(Damage("after the end", f"{extra} bytes were added at byte {position}"))
    return damage


def _exact(raw: bytes, start: int, wanted: bytes, name: str, part: str) -> list[Damage]:
    found = raw[start : start + len(wanted)]
    if found == wanted:
        return []
    words = f"{part} " if part else ""
    missing = len(wanted) - len(found)
    for offset, (a, b) in enumerate(zip(found, wanted, strict=False)):
        if a != b:
            return [Damage(name, f"{words}changed at byte {start + offset} of the bundle")]
    return [Damage(name, f"{words}is {missing} bytes short from byte {start + len(found)}")]


def _content(data: bytes, entry: Entry) -> list[Damage]:
    if len(data) < entry.size:
        missing = entry.size - len(data)
        return [Damage(entry.name, f"{missing} bytes are missing from byte {len(data)} of it")]
    if hashlib.sha256(data).hexdigest() == entry.sha256:
        return []
    for number, wanted in enumerate(entry.chunks):
        start = number * CHUNK
        if hashlib.sha256(data[start : start + CHUNK]).hexdigest()[:16] != wanted:
            end = min(start + CHUNK, entry.size)
            return [Damage(entry.name, f"changed somewhere in bytes {start} to {end - 1} of it")]
    return [Damage(entry.name, "changed")]


def read_manifest(raw: bytes) -> tuple[Manifest, int]:
    """The manifest of a bundle and its size. Raises InvalidSpec: no bundle, or not as sealed."""
    try:
        info = tarfile.TarInfo.frombuf(raw[:BLOCK], "ascii", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as exc:
        raise InvalidSpec("this is no bundle", str(exc)) from exc
    if info.name != MANIFEST or not 0 < info.size <= MAX_MANIFEST:
        raise InvalidSpec("this is no bundle", f"it begins with {info.name!r}")
    text = raw[BLOCK : BLOCK + info.size]
    try:
        data: Any = json.loads(text)
        if isinstance(data, dict) and data.get("format") != FORMAT_VERSION:
            raise InvalidSpec(
                f"the bundle has format {data.get('format')!r}",
                f"this faultctl reads format {FORMAT_VERSION}",
            )
        manifest = Manifest.model_validate(data)
    except (ValueError, RecursionError, ValidationError) as exc:
        raise InvalidSpec("its manifest was changed", " ".join(str(exc).split())[:200]) from exc
    chain = hashlib.sha256(f"{FORMAT_VERSION}/{manifest.run}".encode()).hexdigest()
    for entry in manifest.files:
        chain = _link(chain, entry.name, entry.size, entry.sha256)
        if chain != entry.chain:
            raise InvalidSpec("its manifest was changed", f"the chain breaks at {entry.name}")
    if manifest.text() != text or _seal(chain, list(manifest.files)) != manifest.seal:
        raise InvalidSpec("its manifest was changed", "it does not fit its own seal")
    return manifest, info.size


# --- reading ----------------------------------------------------------------------


@dataclass(frozen=True)
class Bundle:
    """A verified bundle in memory."""

    manifest: Manifest
    header: RunHeader
    files: Mapping[str, bytes]

    def records(self, name: str) -> Iterator[AnyRecord]:
        """The records of one of its files, none if it has no such file."""
        return records_in(self.files.get(name, b""), name)


def open_bundle(path: Path, seal: str = "") -> Bundle:
    """A bundle, after it was verified. Raises Refused naming the damage."""
    try:
        raw = path.read_bytes()
    except OSError as exc:
        raise Refused(f"{path} cannot be read", exc.strerror or str(exc)) from exc
    damage = verify(raw, seal)
    if damage:
        more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
        raise Refused(f"{path} is not as it was sealed", f"{damage[0]}{more}")
    manifest, _ = read_manifest(raw)
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
        for entry in manifest.files:
            member = archive.extractfile(entry.name)
            files[entry.name] = member.read() if member else b""
    return Bundle(manifest, header_from(files[HEADER_FILE], str(path)), files)
