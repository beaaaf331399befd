"""Reads a node's console log as it grows and notices when the kernel has died."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

PANIC = re.compile(r"Kernel panic - not syncing: (.*)")
# A lockup is what a starved emulator looks like from inside, not a death.
OOPS = re.compile(
    r"(BUG: (?!.*lockup).*|Oops: .*|general protection fault.*"
    r"|Unable to handle kernel .*|kernel BUG at .*|invalid opcode: .*)"
)
DEATH_LINES = 100
_STAMP = re.compile(r"^\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? ?")


class Console:
    """`panic`: the panic's reason, if there was one; `oopses`: other deaths in the kernel.

    What the kernel said of the first of them (where it was, who called) is kept whole.
    """

    def __init__(self, path: Path, keep: int = 400) -> None:
        self.path = path
        self.panic: str | None = None
        self.oopses: list[str] = []
        self._lines: deque[str] = deque(maxlen=keep)
        self._death: list[str] = []
        self._offset = 0
        self._rest = b""

    def poll(self) -> None:
        """Take in what has been added since the last time."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for raw in lines:
            self.feed(raw.decode(errors="replace").rstrip("\r"))

    def feed(self, line: str) -> None:
        self._lines.append(line)
        text = _STAMP.sub("", line)
        if panic := PANIC.search(text):
            self.panic = self.panic or panic[1]
        elif oops := OOPS.match(text):
            self.oopses.append(oops[1])
        if (self.panic or self.oopses) and len(self._death) < DEATH_LINES:
            self._death.append(line)

    @property
    def stale_breakpoint(self) -> bool:
        """Whether the first death was a breakpoint that nobody had set (exc_int3)."""
        return bool(self.oopses) and self.oopses[0].startswith("Oops: int3")

    def restart(self) -> None:
        """The node boots again: what died with the last boot is over."""
        self.poll()
        self.panic = None
        self.oopses.clear()
        self._death.clear()

    def tail(self, count: int = 12) -> str:
        """The last lines; of a kernel that died those of its death."""
        self.poll()
        if self.panic is not None and len(self._death) > count:
            return "\n".join(self._death)
        rest = self._rest.decode(errors="replace").strip()
        lines = [*self._lines, *([rest] if rest else [])]
        return "\n".join(line for line in lines[-count:])
