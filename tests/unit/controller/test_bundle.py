"""Bundles: every byte is sealed; a run folder survives torn lines and a full disk."""

from __future__ import annotations

import errno
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_sim import item, plan_of

from controller.bundle import manifest_of, open_bundle, pieces, read_manifest, seal_folder, verify
from controller.recorder import (
    BALLAST_FILE,
    Recorder,
    RecordLost,
    read_header,
    read_records,
)
from controller.recorder_lock import is_locked
from controller.records import FaultDropped, RunEvent, RunHeader
from nodeagent.model.errors import InvalidSpec, Refused

HEADER = RunHeader(
    run="r1",
    experiment="x",
    seed=1,
    noise=False,
    blind=True,
    faultctl="0",
    created="2026-01-01T00:00:00Z",
    origin_boottime_ns=0,
    boot_id="b",
)
FILES = {
    "run.json": HEADER.model_dump_json().encode(),
    "events.jsonl": b'{"x": 1}\n' * 20_000,
    "faults.jsonl": b"",
    "samples.jsonl": b"y" * 512,
}
MANIFEST = manifest_of(FILES)
RAW = b"".join(pieces(MANIFEST, FILES))


def event(name: str = "started") -> RunEvent:
    return RunEvent(t_ns=0, wall="2026-01-01T00:00:00Z", name=name)


def test_sealed_bundle_verifies_and_any_tar_reads_it() -> None:
    assert verify(RAW, MANIFEST.seal) == []
    with tarfile.open(fileobj=io.BytesIO(RAW)) as archive:
        assert archive.getnames() == ["manifest.json", *sorted(FILES)]
        for name, data in FILES.items():
            member = archive.extractfile(name)
            assert member is not None
            assert member.read() == data


@settings(max_examples=600, deadline=None)
@given(st.integers(0, len(RAW) - 1), st.integers(1, 255))
def test_any_flipped_byte_is_found(position: int, mask: int) -> None:
    raw = bytearray(RAW)
    raw[position] ^= mask
    assert verify(bytes(raw))


def test_every_byte_of_headers_and_padding_is_covered() -> None:
    """All bytes outside of long contents, one after the other."""
    _, size = read_manifest(RAW)
    end = 512 + size + 512 + 512
    for position in [*range(512), *range(512 + size, end), *range(len(RAW) - 2000, len(RAW))]:
        raw = bytearray(RAW)
        raw[position] ^= 1
        assert verify(bytes(raw)), position


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(RAW)), st.binary(min_size=1, max_size=600))
def test_any_added_bytes_are_found(position: int, added: bytes) -> None:
    raw = RAW[:position] + added + RAW[position:]
    assert raw == RAW or verify(raw)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(RAW) - 1), st.integers(1, 2000))
def test_any_missing_bytes_are_found(position: int, count: int) -> None:
    raw = RAW[:position] + RAW[position + count :]
    assert verify(raw)


def test_a_header_with_a_sound_checksum_and_names_that_are_no_text_is_no_bundle() -> None:
    raw = bytearray(RAW)
    raw[297:299] = b"\x88\x8f"  # of the group's name; then the checksum over it
    raw[148:156] = b" " * 8
    raw[148:156] = f"{sum(raw[:512]):06o}\0 ".encode()
    (damage,) = verify(bytes(raw))
    assert "no bundle" in str(damage)


def test_damage_is_named_by_file_and_place() -> None:
    raw = bytearray(RAW)
    at = RAW.index(FILES["events.jsonl"]) + 100_000
    raw[at] ^= 1
    assert [str(d) for d in verify(bytes(raw))] == [
        "events.jsonl: changed somewhere in bytes 65536 to 131071 of it"
    ]
    assert "added" in str(verify(RAW + b"\0")[0])
    assert verify(RAW, "0" * 64)[0].where == "manifest.json"


def test_bundle_of_another_version_is_refused_by_number() -> None:
    raw = RAW.replace(b'"format": 1', b'"format": 9')
    with pytest.raises(InvalidSpec, match="format 9"):
        read_manifest(raw)


@given(st.binary(max_size=3000))
def test_garbage_is_no_bundle(raw: bytes) -> None:
    assert verify(raw)


def folder_of(tmp_path: Path) -> tuple[Recorder, Path]:
    folder = tmp_path / "run"
    return Recorder.create(folder, HEADER, b"x: 1\n", plan_of(item("f1", 1, 2))), folder


def test_folder_to_bundle_and_back(tmp_path: Path) -> None:
    recorder, folder = folder_of(tmp_path)
    recorder.write(event())
    assert is_locked(folder)
    recorder.close()
    assert not is_locked(folder)
    manifest = seal_folder(folder, tmp_path / "x.tar")
    again = seal_folder(folder, tmp_path / "y.tar")
    assert (tmp_path / "x.tar").read_bytes() == (tmp_path / "y.tar").read_bytes()
    assert manifest == again
    found = open_bundle(tmp_path / "x.tar", manifest.seal)
    assert list(found.records("events.jsonl")) == [event()]
    assert list(found.records("samples.jsonl")) == []
    assert not [e for e in manifest.files if e.name.startswith(".")]


def test_run_folder_is_never_shared(tmp_path: Path) -> None:
    recorder, folder = folder_of(tmp_path)
    with pytest.raises(Refused, match="there already"):
        Recorder.create(folder, HEADER, b"", plan_of(item("f1", 1, 2)))
    with pytest.raises(Refused, match="another controller"):
        Recorder.resume(folder)
    recorder.close()


def test_line_cut_short_by_a_crash_is_left_out_and_mended(tmp_path: Path) -> None:
    recorder, folder = folder_of(tmp_path)
    recorder.write(event("a"))
    recorder.close()
    with open(folder / "events.jsonl", "ab") as file:
        file.write(b'{"v":1,"t_ns":')
    assert [r.name for r in read_records(folder, "events.jsonl")] == ["a"]  # type: ignore[union-attr]
    with Recorder.resume(folder) as recorder:
        recorder.write(event("b"))
    assert [r.name for r in read_records(folder, "events.jsonl")] == ["a", "b"]  # type: ignore[union-attr]


def test_run_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    recorder, folder = folder_of(tmp_path)
    recorder.close()
    path = folder / "run.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 7'))
    with pytest.raises(Refused, match="format 7"):
        read_header(folder)


def test_full_disk_is_told_once_and_the_ballast_lets_the_rest_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, folder = folder_of(tmp_path)
    real = Recorder._append

    def append(self: Recorder, name: str, line: bytes) -> None:
        if (folder / BALLAST_FILE).exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, name, line)

    monkeypatch.setattr(Recorder, "_append", append)
    with pytest.raises(RecordLost) as found:
        recorder.write(event("one"))
    assert found.value.exit_code == 3
    recorder.write(event("two"))
    recorder.close()
    assert [r.name for r in read_records(folder, "events.jsonl")] == ["one", "two"]  # type: ignore[union-attr]


def test_records_refuse_unknown_fields_and_versions() -> None:
    data: dict[str, Any] = {
        "t_ns": 1,
        "wall": "w",
        "fault": "x",
        "role": "fault",
        "node": "a",
        "reason": "late",
    }
    FaultDropped.model_validate(data)
    for bad in ({"v": 2}, {"more": 1}, {"reason": "bored"}):
        with pytest.raises(ValueError):
            FaultDropped.model_validate({**data, **bad})
