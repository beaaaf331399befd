"""Comparing a table that was loaded with the one that the kernel prints back.

Targets print their arguments in their own order and number: the status methods
of drivers/md/dm-*.c, Linux 6.1 and 6.12.
"""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.encode.dm_table import Segment, Table

Args = tuple[str, ...]
_ARITY = {
    "corrupt_bio_byte": 4,
    "random_read_corrupt": 1,
    "random_write_corrupt": 1,
    "error_reads": 0,
    "drop_writes": 0,
    "error_writes": 0,
}


def equal(first: Table, second: Table) -> bool:
    """True when both tables mean the same to the kernel, segment by segment.

    Targets without a rule here (crypt among them) must agree word by word.
    """
    return first == second or [normal(segment) for segment in first.segments] == [
        normal(segment) for segment in second.segments
    ]


def normal(segment: Segment) -> Segment:
    """The segment with its arguments in one canonical form.

    Arguments that make no sense for the target are left alone: the kernel would
    have refused them, so they equal only themselves.
    """
    rule = _RULES.get(segment.target)
    if rule is None:
        return segment
    try:
        args = rule(segment.args)
    except (ValueError, IndexError):
        return segment
    return Segment(segment.start, segment.length, segment.target, args)


def _numbers(args: Args) -> Args:
    """Leading zeroes gone; device numbers hold a colon and are words already."""
    return tuple(word if ":" in word else str(int(word)) for word in args)


def _delay(args: Args) -> Args:
    """Always the nine-word form: read, write, flush."""
    if len(args) not in (3, 6, 9):
        raise ValueError(args)
    read, write = args[:3], args[3:6] or args[:3]
    return _numbers(read + write + (args[6:9] or write))


def _flakey(args: Args) -> Args:
    """Features sorted; none at all is what 6.5 and later print as both error features."""
    head, count, words = args[:4], int(args[4]) if len(args) > 4 else 0, list(args[5:])
    if len(head) != 4 or count != len(words):
        raise ValueError(args)
    features: list[Args] = []
    while words:
        word = words.pop(0).lower()
        arity = _ARITY.get(word)
        if arity is None or arity > len(words):
            raise ValueError(args)
        features.append((word, *words[:arity]))
        del words[:arity]
    if not features:
        features = [("error_reads",), ("error_writes",)]
    return _numbers(head) + tuple(word for feature in sorted(features) for word in feature)


_RULES: dict[str, Callable[[Args], Args]] = {
    "linear": _numbers,
    "striped": _numbers,
    "dust": _numbers,
    "delay": _delay,
    "flakey": _flakey,
}
