"""A small /sys, /proc and /dev in a folder: what the readers would find on a node."""

from __future__ import annotations

from pathlib import Path

from nodeagent.bind.node import Node


class FakeNode:
    """Builds sysfs trees as Linux 6.12 lays them out."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.tables: dict[str, tuple[str, ...]] = {}
        for name in ("sys/dev/block", "sys/block", "proc/self", "dev"):
            (base / name).mkdir(parents=True)
        self.mountinfo("")

    def mountinfo(self, text: str) -> None:
        (self.base / "proc/self/mountinfo").write_text(text)

    def swaps(self, *lines: str) -> None:
        head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
        (self.base / "proc/swaps").write_text(head + "".join(f"{line}\n" for line in lines))

    def disk(self, name: str, dev: str, size: int, block: int = 512) -> Path:
        path = self.base / "sys/devices" / name
        self._common(path, dev, size)
        self._write(path / "queue/logical_block_size", block)
        self._write(path / "queue/physical_block_size", max(block, 4096))
        self._write(path / "diskseq", 7)
        (self.base / "sys/block" / name).symlink_to(path)
        return path

    def partition(self, disk: Path, name: str, dev: str, start: int, size: int) -> Path:
        path = disk / name
        self._common(path, dev, size)
        self._write(path / "partition", 1)
        self._write(path / "start", start)
        return path

    def dm(self, name: str, dev: str, size: int, dm_name: str, *table: str) -> Path:
        path = self.disk(name, dev, size)
        self._write(path / "dm/name", dm_name)
        self._write(path / "dm/uuid", f"LVM-{name}")
        self._write(path / "dm/suspended", 0)
        self.tables[dev] = table
        return path

    def stack(self, upper: Path, lower: Path) -> None:
        (upper / "slaves").mkdir(exist_ok=True)
        (lower / "holders").mkdir(exist_ok=True)
        (upper / "slaves" / lower.name).symlink_to(lower)
        (lower / "holders" / upper.name).symlink_to(upper)

    @property
    def node(self) -> Node:
        return Node(
            sys=self.base / "sys",
            proc=self.base / "proc",
            dev=self.base / "dev",
            dm_table=lambda major, minor: self.tables[f"{major}:{minor}"],
        )

    def _common(self, path: Path, dev: str, size: int) -> None:
        self._write(path / "dev", dev)
        self._write(path / "size", size)
        self._write(path / "ro", 0)
        self._write(path / "uevent", f"MAJOR=1\nDEVNAME={path.name}\nDEVTYPE=disk")
        (self.base / "sys/dev/block" / dev).symlink_to(path)

    @staticmethod
    def _write(path: Path, value: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
