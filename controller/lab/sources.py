"""Where this host gets Debian packages from: its own apt sources (parsers are pure).

Both forms of sources.list(5): one-line and deb822.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from nodeagent.model.errors import Refused

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_ALIASES = {"oldoldstable", "oldstable", "stable", "testing", "sid", "unstable"}
RELEASES = _ALIASES | {"buster", "bullseye", "bookworm", "trixie", "forky", "duke"}


@dataclass(frozen=True)
class Source:
    """One enabled binary source: `deb URI SUITE COMPONENTS`."""

    uri: str
    suite: str
    components: tuple[str, ...]


@dataclass(frozen=True)
class Mirrors:
    """Base addresses of a Debian archive; `security` is None where the host has none."""

    archive: str
    security: str | None = None

    def lines(self, suite: str, keyring: Path = KEYRING) -> list[str]:
        """One-line sources for a release, its updates and its security fixes."""
        opts = f"[signed-by={keyring}] " if keyring.exists() else ""
        out = [f"deb {opts}{self.archive} {name} main" for name in (suite, f"{suite}-updates")]
        if self.security:
            out.append(f"deb {opts}{self.security} {suite}-security main")
        return out


def parse_one_line(text: str) -> Iterator[Source]:
    """Sources of a *.list file; comments and `deb-src` are left out."""
    for raw in text.splitlines():
        words = raw.split("#", 1)[0].split()
        if not words or words[0] != "deb":
            continue
        words = words[1:]
        if words and words[0].startswith("["):
            while words and not words[0].endswith("]"):
                words = words[1:]
            words = words[1:]
        if len(words) >= 2:
            yield Source(words[0], words[1], tuple(words[2:]))


def parse_deb822(text: str) -> Iterator[Source]:
    """Sources of a *.sources file: each URI with each suite of its stanza."""
    for stanza in _stanzas(text):
        if "deb" not in stanza.get("types", "deb").split():
            continue
        if stanza.get("enabled", "yes").strip().lower() in ("no", "false", "off", "0"):
            continue
        components = tuple(stanza.get("components", "").split())
        for uri in stanza.get("uris", "").split():
            for suite in stanza.get("suites", "").split():
                yield Source(uri, suite, components)


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    last = ""
    for line in [*text.splitlines(), ""]:
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, ""
        elif line.startswith("#"):
            continue
        elif line[0] in " \t":
            if last:
                fields[last] += " " + line.strip()
        elif ":" in line:
            last, value = line.split(":", 1)
            last = last.strip().lower()
            fields[last] = value.strip()


def choose(sources: list[Source]) -> Mirrors | None:
    """The Debian archive among a host's sources, or None (as on Ubuntu).

    Other vendors use Debian's release names too, so the address must have a
    path element `debian` (`debian-security`), as every mirror's has.
    """
    archive = security = None
    for source in sources:
        parts = urlsplit(source.uri).path.split("/")
        if "main" not in source.components:
            continue
        if source.suite in RELEASES and "debian" in parts:
            archive = archive or source.uri
        release = source.suite.removesuffix("-security").removesuffix("/updates")
        if release != source.suite and release in RELEASES and "debian-security" in parts:
            security = security or source.uri
    return Mirrors(archive, security) if archive else None


def read_host(etc: Path = Path("/etc/apt")) -> list[Source]:
    """All enabled sources of the host, `mirror+file:` lists resolved to their first entry."""
    found: list[Source] = []
    lists = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]
    for path in lists:
        if path.is_file():
            found += parse_one_line(path.read_text(errors="replace"))
    for path in sorted((etc / "sources.list.d").glob("*.sources")):
        found += parse_deb822(path.read_text(errors="replace"))
    return [Source(_resolve(s.uri), s.suite, s.components) for s in found]


def _resolve(uri: str) -> str:
    listing = Path(uri.removeprefix("mirror+file:"))
    if not uri.startswith("mirror+file:") or not listing.is_file():
        return uri
    for line in listing.read_text(errors="replace").splitlines():
        if line.strip() and not line.startswith("#"):
            return line.split()[0]
    return uri


def mirrors() -> Mirrors | None:
    """FAULTCTL_LAB_MIRROR ("ARCHIVE [SECURITY]"), else the host's own Debian archive.

    None means that the host is not a Debian: mmdebstrap's default is used then,
    which needs Debian's keyring. Raises Refused when that is not installed.
    """
    named = os.environ.get("FAULTCTL_LAB_MIRROR", "").split()
    if named:
        return Mirrors(*named[:2])
    found = choose(read_host())
    if found is None and not KEYRING.exists():
        raise Refused(
            "the lab cannot verify Debian packages on this host",
            f"{KEYRING} is not there",
            "sudo apt-get install debian-archive-keyring "
            "(and set FAULTCTL_LAB_MIRROR to a Debian mirror near you, if you like)",
        )
    return found
