"""Sysctls: written, read back, put back, with what follows them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.bind import procsys
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.sysctl import SysctlWrite
from nodeagent.model.sysctl import followers, name_of, words

FORWARDING = ("net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding")
REDIRECTS = "net/ipv4/conf/all/accept_redirects"

T = TypeVar("T")


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {SysctlWrite: SysctlBackend()}


class SysctlBackend:
    """One file of /proc/sys, seen from the namespace that it belongs to."""

    def observe(self, fault_id: str, step: SysctlWrite, peers: Sequence[Peer]) -> Prior:
        now = self._in(step, lambda: procsys.read(step.path))
        what = f"{name_of(step.path)} cannot be set"
        if now is None:
            raise Refused(what, "it is gone, or its net namespace is")
        if words(now) == step.value:
            raise Refused(what, f"it is {step.value!r} already")
        return {"value": now, "followers": self._in(step, lambda: _followers(step, now)) or {}}

    @staticmethod
    def _in(step: SysctlWrite, work: Callable[[], T]) -> T | None:
        return procsys.viewed(step.netns, work)

    def status(self, step: SysctlWrite, prior: Prior, peers: Sequence[Peer]) -> Status:
        return self._in(step, lambda: _status(step, prior)) or Status.GONE

    def apply(
        self, fault_id: str, step: SysctlWrite, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        done = self._in(step, lambda: self._apply(step, prior))
        if done is None:
            raise BackendError(f"{name_of(step.path)} was not set", "its net namespace is gone")
        return {}

    @staticmethod
    def _apply(step: SysctlWrite, prior: Prior) -> bool:
        what = f"{name_of(step.path)} was not set to {step.value!r}"
        try:
            procsys.write(step.path, step.value)
        except OSError as exc:
            raise BackendError(what, f"the kernel does not take it: {exc.strerror}") from exc
        now = procsys.read(step.path)
        if now is not None and words(now) != step.value:
            # Put back here: neither value would be known to whoever comes after us.
            _put_back(step, prior)
            raise BackendError(what, f"the kernel made {words(now)!r} of it", "ask for that")
        return True

    def undo(self, fault_id: str, step: SysctlWrite, prior: Prior, peers: Sequence[Peer]) -> None:
        self._in(step, lambda: _put_back(step, prior))

    def measure(self, fault_id: str, step: SysctlWrite, prior: Prior) -> dict[str, Any]:
        now = self._in(step, lambda: procsys.read(step.path))
        return {
            "sysctl": name_of(step.path),
            "asked": step.value,
            "prior": words(prior["value"]),
            "now": None if now is None else words(now),
        }


def _followers(step: SysctlWrite, now: str) -> dict[str, list[str]]:
    """What a write changes beside the file: path -> [value now, values that our writes give it].

    The write that puts the file back reaches them as well, those too that had the asked
    value before.
    """
    pattern, found = followers(step.path), {}
    for path in procsys.matching(pattern) if pattern else ():
        value = procsys.read(path) if path != step.path else None
        if value is not None:
            found[path] = [value, step.value, words(now)]
    if step.path in FORWARDING:
        # Routers take no redirects, hosts do (inet_forward_change, net/ipv4/devinet.c).
        found[REDIRECTS] = [procsys.read(REDIRECTS) or "", "0", "1"]
    return found


def _status(step: SysctlWrite, prior: Prior) -> Status:
    text = procsys.read(step.path)
    if text is None:
        return Status.GONE
    now = words(text)
    if now == step.value:
        return Status.OURS
    if now != words(prior["value"]):
        return Status.FOREIGN
    return Status.OURS if _still_following(prior) else Status.PRIOR


def _still_following(prior: Prior) -> list[str]:
    """Followers that a write of ours has reached and nobody has put back."""
    found = []
    for path, (before, *ours) in prior["followers"].items():
        now = procsys.read(path)  # its interface may be gone
        if now is not None and words(now) != words(before) and words(now) in ours:
            found.append(path)
    return found


def _put_back(step: SysctlWrite, prior: Prior) -> None:
    try:
        procsys.write(step.path, prior["value"])
    except OSError as exc:
        if exc.errno == errno.ENOENT:
            return
        raise BackendError(
            f"{name_of(step.path)} was not put back",
            f"the kernel does not take {prior['value']!r}: {exc.strerror}",
        ) from exc
    for path in _still_following(prior):
        with suppress(FileNotFoundError):
            procsys.write(path, prior["followers"][path][0])
