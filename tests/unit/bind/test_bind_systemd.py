"""Whether systemd takes the node down, and who looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.backends import kubelet as backend
from nodeagent.bind import systemd
from nodeagent.model.steps.kubelet import KubeletThreshold


@pytest.mark.parametrize(
    ("runs", "state", "handed_over", "stopping"),
    [
        (True, "running", False, False),
        (True, "degraded", False, False),
        (True, "stopping", False, True),
        (True, "", True, True),  # nobody answers systemctl any more
        (False, "", False, False),
    ],
)
def test_a_node_that_goes_down(
    runs: bool, state: str, handed_over: bool, stopping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def systemctl(*words: str) -> str:
        assert runs and not handed_over
        assert words == ("show", "--property=SystemState", "--value")
        return f"{state}\n"

    monkeypatch.setattr(systemd, "is_running", lambda: runs)
    monkeypatch.setattr(systemd, "has_handed_over", lambda: handed_over)
    monkeypatch.setattr(systemd, "systemctl", systemctl)
    assert systemd.is_stopping() is stopping


@pytest.mark.parametrize("stopping", [True, False])
def test_a_kubelet_is_not_started_again_on_a_node_that_goes_down(
    stopping: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file comes back in any case."""
    config = tmp_path / "config.yaml"
    config.write_text("evictionHard: {}\n")
    step = KubeletThreshold(
        fault="f-1", config=str(config), signal="memory.available", root_dir=str(tmp_path),
        named="kubelet", unit="kubelet.service", threshold="",
    )  # fmt: skip
    lives = iter([(1, 10), (2, 20)])
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(backend, "running", lambda _node, _named: next(lives))
    monkeypatch.setattr(backend, "is_stopping", lambda: stopping)
    monkeypatch.setattr(backend, "systemctl", lambda *words, timeout: asked.append(words))
    found = backend.ThresholdBackend()
    prior = backend._kept(step).observe()
    backend._kept(step).replace(b"evictionHard: {memory.available: 99%}\n", prior)
    found.undo("f-1", step, prior, ())
    assert config.read_text() == "evictionHard: {}\n"
    assert asked == ([] if stopping else [("try-restart", "--", "kubelet.service")])
