"""stress-ng's command line and version, as data (stress-ng(1)). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

MIN_VERSION = (0, 15, 0)
"""Debian 12 has 0.15.06; --no-oom-adjust is in it."""
_VERSION = re.compile(r"stress-ng, version (\d+)\.(\d+)(?:\.(\d+))?")
SLICE_MS = 10
"""How long a CPU worker is busy at a time: well below the 100 ms of a usual quota's period."""
STRESSOR = re.compile(r"[a-z][a-z0-9-]{0,31}=[1-9][0-9]{0,3}", re.ASCII)
"""A stressor by stress-ng's own name with its number of workers: `matrix=2`."""


def parse_version(text: str) -> tuple[int, int, int] | None:
    """The version from what `stress-ng --version` prints; None if it is not understood."""
    found = _VERSION.search(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


@dataclass(frozen=True)
class CpuLoad:
    """Workers that are each busy for `load` percent of the time."""

    workers: int
    load: int

    @property
    def cpus(self) -> Fraction:
        """What they use in all."""
        return Fraction(self.workers * self.load, 100)


def cpu_load(cpus: Fraction, max_workers: int) -> CpuLoad:
    """The fewest workers that use so many CPUs, and their load in whole percent.

    Whole percents are what --cpu-load takes; the error is at most half a percent of a CPU
    for each worker. Raises ValueError when it is nothing, or more than the workers can use.
    """
    workers = max(1, ceil(cpus))
    if workers > max_workers:
        raise ValueError(f"{float(cpus):g} CPUs need {workers} workers, {max_workers} are allowed")
    load = round(cpus * 100 / workers)
    if load < 1:
        raise ValueError(f"{float(cpus):g} CPUs are less than stress-ng can aim at (1% of one)")
    return CpuLoad(workers, min(load, 100))


def cpu_args(load: CpuLoad, method: str) -> list[str]:
    """Options for CPU workers."""
    args = ["--cpu", str(load.workers), "--cpu-method", method]
    if load.load < 100:
        args += ["--cpu-load", str(load.load), "--cpu-load-slice", str(SLICE_MS)]
    return args


def memory_args(size: int) -> list[str]:
    """One worker that touches so many bytes once and then holds them."""
    return ["--vm", "1", "--vm-bytes", f"{size}B", "--vm-method", "write64",
            "--vm-keep", "--vm-hang", "0"]  # fmt: skip


def with_memory(args: tuple[str, ...], size: int) -> tuple[str, ...]:
    """The same run with another size of its memory worker."""
    at = args.index("--vm-bytes") + 1
    return (*args[:at], f"{size}B", *args[at + 1 :])


def hdd_args(workers: int, size: int) -> list[str]:
    """Workers that write, read and remove a file of so many bytes each."""
    return ["--hdd", str(workers), "--hdd-bytes", f"{size * workers}B"]


def named_args(stressors: tuple[str, ...]) -> list[str]:
    """`matrix=2` as `--matrix 2`. Raises ValueError for what is no stressor's name."""
    args = []
    for one in stressors:
        if not STRESSOR.fullmatch(one):
            raise ValueError(f"{one!r} is not NAME=WORKERS, such as matrix=2")
        name, _, workers = one.partition("=")
        args += [f"--{name}", workers]
    return args


def common_args(restart: bool) -> list[str]:
    """Options of every run: no end of its own, no OOM score of its own choice."""
    args = ["--timeout", "0", "--quiet", "--no-oom-adjust"]
    return args if restart else [*args, "--oomable"]
