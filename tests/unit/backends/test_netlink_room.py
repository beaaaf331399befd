"""The queue length of an interface whose clsact was ours."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.backends.netlink_room import KERNELS_TXQLEN, keep_txqlen


class Link:
    def __init__(self) -> None:
        self.requests: list[bytes] = []

    def request(self, message: bytes) -> None:
        self.requests.append(message)


@pytest.mark.parametrize(
    ("before", "now", "put_back"),
    [(0, KERNELS_TXQLEN, True), (0, 500, False), (0, 0, False), (1000, 1000, False)],
)
def test_only_what_the_kernel_made_of_it_is_put_back(before: int, now: int, put_back: bool) -> None:
    """Somebody may have given it another length since: that is theirs."""
    link: Any = Link()
    keep_txqlen(link, 3, {"txqlen": before}, now)
    assert bool(link.requests) is put_back
