"""Path patterns: the automaton that reads backwards against a regular expression."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode.globs import MAX_STATES, compile_globs, takes


def says(pattern: str, path: str) -> bool:
    return takes(compile_globs((pattern,)), path.encode(errors="surrogateescape"))


@pytest.mark.parametrize(
    ("pattern", "hit", "missed"),
    [
        ("/mnt/x", ["/mnt/x"], ["/mnt/xy", "/mnt", "/a/mnt/x", "/", "/mnt/x/y"]),
        ("/mnt/x/**", ["/mnt/x", "/mnt/x/y", "/mnt/x/y/z"], ["/mnt/xy", "/mnt", "/mnt/xy/z"]),
        ("/mnt/*", ["/mnt/x", "/mnt/"], ["/mnt", "/mnt/x/y"]),
        ("/mnt/?", ["/mnt/x", "/mnt/\u00e9", "/mnt/\U0001f600"], ["/mnt/xy", "/mnt//", "/mnt/"]),
        ("**.wal", ["/a/b.wal", "/.wal"], ["/a/b.wal2", "/a/b.wal/c"]),
        ("/data/**/base/*", ["/data/a/b/base/1"], ["/data/base/1", "/data/a/base/1/2"]),
        ("/var/lib/*/pg_wal/**", ["/var/lib/a/pg_wal/0", "/var/lib/a/pg_wal"], ["/var/lib/pg_wal"]),
        ("/**", ["/", "/a", "/a/b"], []),
        ("**", ["/", "/a"], []),
        ("/", ["/"], ["/a"]),
        ("/a*b?c", ["/abxc", "/axxbbxc"], ["/abc", "/a/bxc"]),
    ],
)
def test_patterns(pattern: str, hit: list[str], missed: list[str]) -> None:
    assert [path for path in hit if not says(pattern, path)] == []
    assert [path for path in missed if says(pattern, path)] == []


def regex(pattern: str) -> re.Pattern[str]:
    """The same by another way, forwards."""
    found = re.escape(pattern).replace(r"\*\*", "\0").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    if found.endswith("/\0") and found != "/\0":
        found = found[:-2] + "(/\0)?"
    return re.compile(found.replace("\0", ".*"), re.DOTALL)


PIECES = st.sampled_from(["a", "b", "/", "*", "?", "**", "ab", "/a", "/b/"])
PATTERN = st.lists(PIECES, min_size=1, max_size=8).map(lambda p: "/" + "".join(p))
PATH = st.lists(st.sampled_from(["a", "b", "/", "\u00e9"]), max_size=10).map(
    lambda p: "/" + "".join(p)
)


@given(st.lists(PATTERN.filter(lambda p: "***" not in p), min_size=1, max_size=3), PATH)
def test_it_takes_what_a_regular_expression_takes(patterns: list[str], path: str) -> None:
    wanted = any(regex(pattern).fullmatch(path) for pattern in patterns)
    assert takes(compile_globs(patterns), path.encode()) == wanted


@pytest.mark.parametrize("bad", ["relative/x", "", "/a[bc]", "/a{b,c}", "/a\\*", "/a***b", "*/x"])
def test_what_is_no_pattern_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match=r"path|stand|stars"):
        compile_globs((bad,))


def test_too_much_is_refused_and_the_usual_is_small() -> None:
    assert len(compile_globs(("/var/lib/postgresql/*/main/pg_wal/**",))) < 64
    with pytest.raises(ValueError, match=str(MAX_STATES)):
        compile_globs(["/???????????b**"])
    rows = compile_globs([f"/data/{n:03}/**" for n in range(16)])
    assert takes(rows, b"/data/007/x") and not takes(rows, b"/data/016/x")
