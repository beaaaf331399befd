"""SIGTERM reaches a process with many threads in every state that it can be in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

CHILD = """
import sys, threading, time
from nodeagent.stop_signal import StopSignal

stop = StopSignal()
for _ in range(40):
    threading.Thread(target=lambda: [time.sleep(0.0005) for _ in range(10**9)], daemon=True).start()
print("ready", flush=True)
if sys.argv[1] == "late":
    sys.stdin.readline()
stop.wait()
print("stopped", flush=True)
"""


def child(when: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, when],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ends(process: subprocess.Popen[str]) -> bool:
    try:
        out, _ = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    return process.returncode == 0 and out.endswith("stopped\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_one_that_was_stopped_when_the_signal_came(number: signal.Signals) -> None:
    """As systemd-shutdown does it. Any thread may take the signal then: some rounds."""
    for _ in range(5):
        process = child("now")
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(process.pid, number)
        os.kill(process.pid, signal.SIGCONT)
        assert ends(process)


def test_one_that_came_before_is_not_lost() -> None:
    process = child("late")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    assert ends(process)
