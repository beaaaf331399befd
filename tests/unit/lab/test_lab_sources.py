"""apt's sources in both forms, and which of them are a Debian archive."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.lab import sources
from controller.lab.sources import Mirrors, Source
from nodeagent.model.errors import Refused

DEB822 = """\
Types: deb
# an address in a comment: http://old.example/debian
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 URIs: http://not.example/debian
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb-src
URIs: http://source.example/debian
Suites: sid
Components: main

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: trixie
Components: main
"""
ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/a/b.gpg] http://mirror.example/debian bookworm main # why
deb http://mirror.example/debian-security bookworm-security main
deb-src http://mirror.example/debian bookworm main
deb
deb http://short.example
"""
FOREIGN = [
    Source("https://apt.vendor.example", "bookworm", ("main",)),
    Source("https://docker.example/linux/debian", "bookworm", ("stable",)),
    Source("https://pg.example/pub/repos/apt", "bookworm-pgdg", ("main",)),
    Source("http://archive.example/ubuntu", "noble", ("main", "universe")),
]


def test_deb822() -> None:
    assert list(sources.parse_deb822(DEB822)) == [
        Source("http://mirror.example/debian", "bookworm", ("main", "contrib")),
        Source("http://mirror.example/debian", "bookworm-updates", ("main", "contrib")),
        Source("http://mirror.example/debian-security", "bookworm-security", ("main",)),
    ]


def test_one_line() -> None:
    assert list(sources.parse_one_line(ONE_LINE)) == [
        Source("http://mirror.example/debian", "bookworm", ("main",)),
        Source("http://mirror.example/debian-security", "bookworm-security", ("main",)),
    ]


@pytest.mark.parametrize("text", [DEB822, ONE_LINE])
def test_both_forms_give_the_same_mirrors(text: str) -> None:
    parse = sources.parse_deb822 if "URIs" in text else sources.parse_one_line
    found = sources.choose([*FOREIGN, *parse(text)])
    assert found == Mirrors("http://mirror.example/debian", "http://mirror.example/debian-security")


def test_other_vendors_are_no_debian_archive() -> None:
    assert sources.choose(FOREIGN) is None


def test_lines_for_another_release(tmp_path: Path) -> None:
    key = tmp_path / "key.gpg"
    key.touch()
    mirrors = Mirrors("http://m.example/debian", "http://m.example/debian-security")
    assert mirrors.lines("trixie", key) == [
        f"deb [signed-by={key}] http://m.example/debian trixie main",
        f"deb [signed-by={key}] http://m.example/debian trixie-updates main",
        f"deb [signed-by={key}] http://m.example/debian-security trixie-security main",
    ]
    assert Mirrors("http://m.example/debian").lines("trixie", tmp_path / "none") == [
        "deb http://m.example/debian trixie main",
        "deb http://m.example/debian trixie-updates main",
    ]


def test_mirror_lists_of_cloud_images(tmp_path: Path) -> None:
    listing = tmp_path / "debian.list"
    listing.write_text("# first is best\nhttp://near.example/debian priority:1\n")
    (tmp_path / "sources.list.d").mkdir()
    text = f"Types: deb\nURIs: mirror+file:{listing}\nSuites: trixie\nComponents: main\n"
    (tmp_path / "sources.list.d/debian.sources").write_text(text)
    (tmp_path / "sources.list").write_text("deb http://later.example/debian trixie main\n")
    found = sources.read_host(tmp_path)
    assert [source.uri for source in found] == [
        "http://later.example/debian",
        "http://near.example/debian",
    ]


def test_a_named_mirror_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTCTL_LAB_MIRROR", "http://a.example/debian http://b.example/sec")
    assert sources.mirrors() == Mirrors("http://a.example/debian", "http://b.example/sec")


def test_without_debians_keyring_the_hint_names_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FAULTCTL_LAB_MIRROR", raising=False)
    monkeypatch.setattr(sources, "read_host", lambda: FOREIGN)
    monkeypatch.setattr(sources, "KEYRING", tmp_path / "none.gpg")
    with pytest.raises(Refused) as caught:
        sources.mirrors()
    assert "debian-archive-keyring" in caught.value.hint
    (tmp_path / "none.gpg").touch()
    assert sources.mirrors() is None


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    for source in [*sources.parse_one_line(text), *sources.parse_deb822(text)]:
        assert source.uri and source.suite


@given(st.lists(st.from_regex(r"[a-z][a-z0-9.+-]{0,9}", fullmatch=True), min_size=3, max_size=6))
def test_one_line_keeps_every_word(words: list[str]) -> None:
    got = list(sources.parse_one_line("deb " + " ".join(words)))
    assert got == [Source(words[0], words[1], tuple(words[2:]))]
