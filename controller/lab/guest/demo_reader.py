"""An independent reader: what a file's sectors do, asked with filefrag and dd alone.

Runs in the guest and shares no code with faultctl. Input (JSON on standard input):
{"file": path, "offset": bytes, "length": bytes, "device": path}. Output: the sectors that
hold the range by filefrag, and how an O_DIRECT read by dd ends on them and on both
neighbours.
"""

import json
import re
import subprocess
import sys

BLOCK = 4096
EXTENT = re.compile(r"^\s*\d+:\s*(\d+)\.\.\s*(\d+):\s*(\d+)\.\.\s*(\d+):")


def extents(path: str) -> list[tuple[int, int, int]]:
    """(first block in the file, blocks, first block on the device) of each extent."""
    out = subprocess.run(
        ["filefrag", f"-b{BLOCK}", "-v", path], capture_output=True, text=True, check=True
    ).stdout
    found = []
    for line in out.splitlines():
        match = EXTENT.match(line)
        if match:
            first, last, physical, _ = (int(group) for group in match.groups())
            found.append((first, last - first + 1, physical))
    return found


def sectors(path: str, offset: int, length: int) -> list[list[int]]:
    """512-byte sectors of the file's device that hold the range: [start, length]."""
    first, last = offset // BLOCK, (offset + length - 1) // BLOCK
    found = []
    for start, blocks, physical in extents(path):
        low, high = max(first, start), min(last, start + blocks - 1)
        if low <= high:
            found.append([(physical + low - start) * 8, (high - low + 1) * 8])
    return found


def read(device: str, sector: int, count: int) -> str:
    """How dd ends: `ok`, or the C library's words for the errno."""
    argv = ["dd", f"if={device}", "of=/dev/null", "bs=512", f"skip={sector}", f"count={count}"]
    done = subprocess.run([*argv, "iflag=direct"], capture_output=True, text=True)
    return "ok" if done.returncode == 0 else done.stderr.splitlines()[0].rpartition(": ")[2]


def main() -> None:
    asked = json.load(sys.stdin)
    found = sectors(asked["file"], asked["offset"], asked["length"])
    start, count = found[0]
    device = asked["device"]
    json.dump(
        {
            "sectors": found,
            "inside": read(device, start, count),
            "before": read(device, start - 1, 1),
            "after": read(device, start + count, 1),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
