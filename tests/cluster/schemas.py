"""Strict decoders of Kubernetes objects, one for each version: small Go programs, built once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from gobuild import Module

from controller.lab import proc

HERE = Path(__file__).parent / "schemas"
VERSIONS = tuple(sorted(path.name for path in HERE.glob("v*")))


def decoder(version: str, progress: proc.Progress = proc.quiet) -> Path:
    """The program for a version of the API's types, built when the cache has none."""
    sources = [HERE / "main.go", HERE / version / "go.mod", HERE / version / "go.sum"]
    what = f"a decoder of Kubernetes {version}"
    module = Module("kubernetes-schemas", version, "decoder", sources, what)
    return module.ensure(progress) / "decoder"


def decode(version: str, objects: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Exit status 0 when a version knows every field of every object."""
    text = json.dumps(objects)
    return subprocess.run(
        [str(decoder(version))], input=text, capture_output=True, text=True, check=False
    )
