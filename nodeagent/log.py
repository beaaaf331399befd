"""Lines on stderr, of faultd, its guardian and faultd-pod: for people, or one JSON object each.

Whoever may read the logs of the agent's pod may read them, an operator under test perhaps.
So what names a fault (kind, target, errors, which name its objects) is in a record's `details`,
and `details` are left out unless names are asked for. A line never holds up its writer: a pipe
that nobody reads, or a disk that is full, costs lines, and their number is said afterwards.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import time
import traceback
from types import TracebackType
from typing import Any

from nodeagent.model.errors import FaultError

FORMS = ("text", "json")
FAULTS = ("none", "ids", "names")
"""What lines say of single faults: nothing, their ids and how they go, or all."""
MAX_LINE = 4096
"""PIPE_BUF of pipe(7): with POLLOUT set a pipe takes so much at once, without waiting."""
_EXTRA = ("fault", "event", "reason", "why", "hint", "details")


def about(fault: str, details: str = "", **more: str) -> dict[str, str]:
    """`extra` of a line about one fault; `event` and `reason` are words of our own, no names."""
    return {"fault": fault, "details": details, **more}


def say_error(logger: logging.Logger, exc: FaultError) -> None:
    """An error that ends the process: what, why, hint."""
    logger.error(exc.what, extra={"why": exc.why, "hint": exc.hint})


class _Form(logging.Formatter):
    def __init__(self, component: str, names: bool) -> None:
        super().__init__()
        self._component, self._names = component, names

    def parts(self, record: logging.LogRecord) -> dict[str, str]:
        """The parts of a line, in their order, without those that are empty."""
        found = {name: str(getattr(record, name, "")) for name in _EXTRA}
        if not self._names:
            del found["details"]
        if record.exc_info and record.exc_info[0]:
            found["exception"] = self._exception(record.exc_info[0], record.exc_info)
        said = {"message": _message(record), **found}
        return {name: text for name, text in said.items() if text}

    def _exception(self, kind: type[BaseException], info: Any) -> str:
        """With its own words only where names may be said: they tell what it was about."""
        if self._names:
            return "".join(traceback.format_exception(*info)).strip()
        return "".join([*traceback.format_tb(info[2]), kind.__qualname__])


class TextForm(_Form):
    """`COMPONENT: FAULT: message: details`, with why, hint and a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        parts = self.parts(record)
        head = [self._component, *(parts.get(name, "") for name in ("fault", "message", "details"))]
        lines = [": ".join(" ".join(word.split()) for word in head if word)]
        lines += [f"  {parts[name]}" for name in ("why", "hint") if name in parts]
        if "exception" in parts:  # its end says most
            lines.append(parts["exception"][-MAX_LINE // 2 :])
        raw = "\n".join(lines).encode("utf-8", "backslashreplace")
        return raw[: MAX_LINE - 1].decode("utf-8", "ignore")


class JsonForm(_Form):
    """One object a line: time (RFC 3339), level, component, message, and what else there is."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = {
            "time": f"{stamp}.{int(record.created % 1 * 1000):03d}Z",
            "level": record.levelname.lower(),
            "component": self._component,
        }
        parts = self.parts(record)
        while len(line := json.dumps({**head, **parts})) >= MAX_LINE:
            longest = max(parts, key=lambda name: len(json.dumps(parts[name])))
            text = parts[longest]
            half = text[-(len(text) // 2) :] if longest == "exception" else text[: len(text) // 2]
            parts[longest] = half
        return line


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # a library's, with arguments that do not fit
        return str(record.msg)


class Lines(logging.Handler):
    """Writes whole lines to a descriptor, and never waits for it."""

    def __init__(self, fd: int, about_faults: bool = True) -> None:
        super().__init__()
        self._fd, self._about_faults = fd, about_faults
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it as lost."""
        if not self._about_faults and hasattr(record, "fault"):
            return
        if self._lost:
            said = logging.LogRecord(
                __name__, logging.WARNING, "", 0, "%d lines were lost", (self._lost,), None
            )
            if self._written(self.format(said)):
                self._lost = 0
        if not self._written(self.format(record)):
            self._lost += 1

    def _written(self, line: str) -> bool:
        data = line.encode() + b"\n"
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        try:
            if not any(events & select.POLLOUT for _, events in poller.poll(0)):
                return False
            return os.write(self._fd, data) == len(data)
        except OSError:  # nobody reads it, or the disk is full
            return False


def configure(component: str, form: str = "text", faults: str = "ids", fd: int = 2) -> None:
    """Send this process's lines to `fd`: the package's own from INFO, libraries' from WARNING."""
    made = (JsonForm if form == "json" else TextForm)(component, faults == "names")
    handler = Lines(fd, faults != "none")
    handler.setFormatter(made)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("nodeagent").setLevel(logging.INFO)
    logging.captureWarnings(True)
    if form == "json":
        # Its C core writes text of its own; its errors reach us as exceptions too.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.excepthook = _uncaught


def _uncaught(
    kind: type[BaseException], exc: BaseException, frames: TracebackType | None
) -> None:  # fmt: skip
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger(__name__).critical(
        "the process ends of a bug", exc_info=(kind, exc, frames)
    )  # fmt: skip
