"""Prints what the agent needs at run time, from pyproject.toml, one requirement a line."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
print("\n".join(project["dependencies"]))
