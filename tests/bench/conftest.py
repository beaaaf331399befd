"""Benchmarks use the lab's fixtures; they print ratios and assert nothing about time."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "vm"))
