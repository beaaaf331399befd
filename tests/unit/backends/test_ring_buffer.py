"""The ring buffer's reader comes back, however fast samples come."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import pytest

from nodeagent.backends import bpf_object
from nodeagent.backends.bpf_object import MAX_SAMPLES, RingBuffer
from nodeagent.backends.libbpf import BpfMap

MOST = 3 * MAX_SAMPLES


class Library:
    """ring_buffer__consume as in tools/lib/bpf/ringbuf.c: until nothing is left, or an error."""

    def __init__(self, there: int) -> None:
        self.there = there
        self.taken = 0
        self.error = 0
        self._callback: Any = None

    def ring_buffer__new(self, fd: int, callback: Any, *more: None) -> int:
        self._callback = callback
        return 1

    def ring_buffer__consume(self, pointer: int) -> int:
        if self.error:
            return -self.error
        sample, done = ctypes.create_string_buffer(b"abcd", 4), 0
        while self.taken < self.there:
            assert done < MOST, "it never comes back"
            self.taken, done = self.taken + 1, done + 1
            result = int(self._callback(None, ctypes.addressof(sample), 4))
            if result < 0:
                ctypes.set_errno(-result)
                return result
        return done


def on(library: Library, monkeypatch: pytest.MonkeyPatch) -> RingBuffer:
    monkeypatch.setattr(bpf_object, "lib", lambda: library)
    return RingBuffer(BpfMap(-1, "fc_events", 4, 4))


def test_a_flood_is_read_in_parts_and_nothing_of_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Library(there=10 * MAX_SAMPLES + 5)
    ring = on(library, monkeypatch)
    found = [len(ring.consume()) for _ in range(12)]
    assert found == [MAX_SAMPLES] * 10 + [5, 0]


def test_an_error_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(there=1)
    library.error = errno.EFAULT
    with pytest.raises(OSError, match="read the ring buffer"):
        on(library, monkeypatch).consume()
