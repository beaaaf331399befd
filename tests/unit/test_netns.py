"""A net namespace that cannot be looked at is not gone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from nodeagent import netns
from nodeagent.model.steps.net import NetnsRef

OWN = "/proc/self/ns/net"
SCARCE = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN]


def ref() -> NetnsRef:
    return NetnsRef(cookie=1, inode=os.stat(OWN).st_ino, path=OWN)


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: Any, **more: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", SCARCE)
def test_with_no_descriptor_or_memory_left_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Called gone, a fault in it ends as reverted and stays in the kernel."""
    monkeypatch.setattr(netns, "open_netlink", failing(code))
    with pytest.raises(OSError, match=os.strerror(code)), netns.entered(ref()):
        pass
    monkeypatch.setattr(netns.os, "open", failing(code))
    with pytest.raises(OSError, match=os.strerror(code)):
        netns.within(ref(), lambda: 1)


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESRCH, errno.EINVAL])
def test_one_that_ended_while_it_was_looked_for_is_gone(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(netns, "open_netlink", failing(code))
    with netns.entered(ref()) as link:
        assert link is None
    monkeypatch.setattr(netns.os, "open", failing(code))
    assert netns.within(ref(), lambda: 1) is None


def test_the_error_of_the_work_is_its_own() -> None:
    """That a file is missing in a namespace does not mean that the namespace is."""
    with netns.open_netlink(OWN) as link:
        own = ref().model_copy(update={"cookie": link.cookie()})
    with pytest.raises(FileNotFoundError):
        netns.within(own, failing(errno.ENOENT))


def test_descriptors_are_looked_through_or_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns.os, "listdir", failing(errno.EMFILE))
    with pytest.raises(OSError, match="Too many"):
        list(netns._held_by("self", 1))
