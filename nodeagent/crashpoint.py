"""Places where the kill tests end the process, between any two effects.

With FAULTD_CRASHPOINT=N in the environment the process kills itself with SIGKILL
at the N-th place it passes. Without it a place costs one comparison.
"""

from __future__ import annotations

import os
import signal

_at = int(os.environ.get("FAULTD_CRASHPOINT", "0"))
_log = os.environ.get("FAULTD_CRASHPOINT_LOG", "")
_passed = 0


def crashpoint(place: str) -> None:
    """Mark a place; dies here if the environment asks for it."""
    global _passed
    if not _at and not _log:
        return
    _passed += 1
    if _log:
        with open(_log, "a", encoding="utf-8") as log:
            log.write(f"{_passed} {place}\n")
    if _passed == _at:
        os.kill(os.getpid(), signal.SIGKILL)
