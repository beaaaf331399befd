"""Places where the kill tests end the process, between any two effects.

With FAULTD_CRASHPOINT=N in the environment the process kills itself with SIGKILL
at the N-th place it passes; FAULTD_CRASHPOINT_SIGNAL is another signal's number
(SIGSTOP: it hangs there). FAULTD_CRASHPOINT_LOG is a file that gets a line a place.
Without them a place costs one comparison.
"""

from __future__ import annotations

import os
import signal

_at = int(os.environ.get("FAULTD_CRASHPOINT", "0"))
_log = os.environ.get("FAULTD_CRASHPOINT_LOG", "")
_signal = int(os.environ.get("FAULTD_CRASHPOINT_SIGNAL", str(int(signal.SIGKILL))))
_passed = 0


def arm(at: int, log: str = "", signum: int = signal.SIGKILL) -> None:
    """Count anew from here, for tests that start counting in mid-life. 0 and no log: never."""
    global _at, _log, _signal, _passed
    _at, _log, _signal, _passed = at, log, signum, 0


def crashpoint(place: str) -> None:
    """Mark a place; dies here if the environment asks for it."""
    global _passed
    if not _at and not _log:
        return
    _passed += 1
    if _log:
        with open(_log, "a", encoding="utf-8") as log:
            log.write(f"{_passed} {place}\n")
    if _at and _passed == _at:  # another thread may have called arm(0) just now
        os.kill(os.getpid(), _signal)
