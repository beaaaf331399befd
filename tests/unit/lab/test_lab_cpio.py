"""The initramfs archive: golden bytes, and reading back what was written."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.lab import cpio


def read_back(data: bytes) -> list[tuple[str, int, bytes]]:
    """A reader of its own, by the kernel's description of the format."""
    found: list[tuple[str, int, bytes]] = []
    at = 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, namesize = fields[1], fields[6], fields[11]
        name = data[at + 110 : at + 110 + namesize - 1].decode()
        assert data[at + 110 + namesize - 1] == 0
        at = (at + 110 + namesize + 3) & ~3
        body = data[at : at + size]
        at = (at + size + 3) & ~3
        if name == "TRAILER!!!":
            assert not data[at:].strip(b"\0")
            return found
        found.append((name, mode, body))


def test_golden() -> None:
    got = cpio.archive([cpio.file("a", b"hi\n", 0o755)])
    head = (
        b"070701" b"00000001" b"000081ED" b"00000000" b"00000000" b"00000001" b"00000000"
        b"00000003" b"00000000" b"00000000" b"00000000" b"00000000" b"00000002" b"00000000"
        b"a\0"
    )  # fmt: skip
    end = (
        b"070701" b"00000000" b"00000000" b"00000000" b"00000000" b"00000001" b"00000000"
        b"00000000" b"00000000" b"00000000" b"00000000" b"00000000" b"0000000B" b"00000000"
        b"TRAILER!!!\0"
    )  # fmt: skip
    want = head + b"hi\n\0" + end
    want += bytes(-len(want) % 4)
    assert got == want + bytes(-len(want) % 512)


def test_parents_come_first_and_once() -> None:
    data = cpio.archive([cpio.file("a/b/c", b"1"), cpio.file("a/b/d", b"2"), cpio.directory("a")])
    assert [name for name, _, _ in read_back(data)] == ["a", "a/b", "a/b/c", "a/b/d"]


def test_links_and_folders_keep_their_type() -> None:
    data = cpio.archive([cpio.directory("d", 0o700), cpio.symlink("l", "d/x")])
    (_, folder, _), (_, link, target) = read_back(data)
    assert stat.S_ISDIR(folder) and folder & 0o777 == 0o700
    assert stat.S_ISLNK(link) and target == b"d/x"


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "."])
def test_paths_outside_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a path inside"):
        cpio.archive([cpio.file(path, b"")])


def test_the_same_path_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        cpio.archive([cpio.file("a", b"1"), cpio.file("a", b"2")])


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(names.filter(lambda n: n not in (".", "..", "TRAILER!!!")), st.binary()))
def test_round_trip(files: dict[str, bytes]) -> None:
    data = cpio.archive(cpio.file(f"top/{name}", body) for name, body in files.items())
    got = {name: body for name, mode, body in read_back(data) if stat.S_ISREG(mode)}
    assert got == {f"top/{name}": body for name, body in files.items()}
    assert len(data) % 512 == 0
