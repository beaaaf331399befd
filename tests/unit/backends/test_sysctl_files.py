"""The files of /proc/sys, laid out in a folder: what is read back decides, followers come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeagent.backends.sysctl import SysctlBackend
from nodeagent.bind import procsys
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status
from nodeagent.model.steps.sysctl import SysctlWrite

FORWARD = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/forwarding": "1",
    "net/ipv4/conf/all/accept_redirects": "0",
    "net/ipv4/conf/eth0/forwarding": "1",
    "net/ipv4/conf/eth1/forwarding": "0",
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(procsys, "ROOT", tmp_path)
    monkeypatch.setattr(procsys, "viewed", lambda netns, work: work())
    for path, value in {**FORWARD, "vm/swappiness": "60", "kernel/words": "a\tb"}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{value}\n")
    return tmp_path


def put(files: Path, **values: str) -> None:
    """As a person, or the kernel, would: by the last two parts of the path."""
    for name, value in values.items():
        (files / name.replace("__", "/")).write_text(f"{value}\n")


def state(files: Path) -> dict[str, str]:
    return {path: (files / path).read_text().strip() for path in FORWARD}


def test_set_read_back_and_put_back_twice(files: Path) -> None:
    backend, step = SysctlBackend(), SysctlWrite(path="vm/swappiness", value="99")
    prior = backend.observe("t", step, ())
    assert backend.status(step, prior, ()) is Status.PRIOR
    backend.apply("t", step, prior, ())
    backend.apply("t", step, prior, ())
    assert (files / "vm/swappiness").read_text() == "99\n"
    assert backend.status(step, prior, ()) is Status.OURS
    with pytest.raises(Refused, match="already"):
        backend.observe("t", step, ())
    put(files, vm__swappiness="12")
    assert backend.status(step, prior, ()) is Status.FOREIGN
    assert backend.measure("t", step, prior)["now"] == "12"
    backend.undo("t", step, prior, ())
    backend.undo("t", step, prior, ())
    assert backend.status(step, prior, ()) is Status.PRIOR
    (files / "vm/swappiness").unlink()
    assert backend.status(step, prior, ()) is Status.GONE
    backend.undo("t", step, prior, ())
    assert not (files / "vm/swappiness").exists(), "a file was made"


def test_the_prior_value_comes_back_as_it_was_written(files: Path) -> None:
    backend, step = SysctlBackend(), SysctlWrite(path="kernel/words", value="c d")
    prior = backend.observe("t", step, ())
    backend.apply("t", step, prior, ())
    backend.undo("t", step, prior, ())
    assert (files / "kernel/words").read_text() == "a\tb\n"


def test_a_value_that_the_kernel_changes_is_put_back_at_once(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write: Callable[[str, str], None] = procsys.write
    monkeypatch.setattr(procsys, "write", lambda p, v: write(p, "98" if v == "99" else v))
    backend, step = SysctlBackend(), SysctlWrite(path="vm/swappiness", value="99")
    prior = backend.observe("t", step, ())
    with pytest.raises(BackendError, match="made '98' of it"):
        backend.apply("t", step, prior, ())
    assert (files / "vm/swappiness").read_text() == "60\n"


def step_and_prior(files: Path) -> tuple[SysctlBackend, SysctlWrite, dict[str, Any]]:
    backend, step = SysctlBackend(), SysctlWrite(path="net/ipv4/ip_forward", value="0")
    prior = backend.observe("t", step, ())
    backend.apply("t", step, prior, ())
    # As inet_forward_change (net/ipv4/devinet.c) does with the write:
    put(files, net__ipv4__conf__all__forwarding="0", net__ipv4__conf__eth0__forwarding="0",
        net__ipv4__conf__all__accept_redirects="1")  # fmt: skip
    assert backend.status(step, prior, ()) is Status.OURS
    return backend, step, prior


def test_what_followed_comes_back_wherever_it_was_cut_short(files: Path) -> None:
    backend, step, prior = step_and_prior(files)
    # The write that puts it back has reached all, then the agent was killed.
    put(files, net__ipv4__ip_forward="1", net__ipv4__conf__eth0__forwarding="1",
        net__ipv4__conf__eth1__forwarding="1", net__ipv4__conf__all__forwarding="1",
        net__ipv4__conf__all__accept_redirects="0")  # fmt: skip
    assert backend.status(step, prior, ()) is Status.OURS
    backend.undo("t", step, prior, ())
    assert state(files) == FORWARD
    assert backend.status(step, prior, ()) is Status.PRIOR


def test_a_follower_that_somebody_set_otherwise_is_left(files: Path) -> None:
    backend, step, prior = step_and_prior(files)
    put(files, net__ipv4__conf__eth0__forwarding="2")
    backend.undo("t", step, prior, ())
    assert state(files) == FORWARD | {"net/ipv4/conf/eth0/forwarding": "2"}
    assert backend.status(step, prior, ()) is Status.PRIOR
