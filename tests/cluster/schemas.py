"""Strict decoders of Kubernetes objects, one for each version: small Go programs, built once."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from controller.lab import cache, proc

HERE = Path(__file__).parent / "schemas"
VERSIONS = tuple(sorted(path.name for path in HERE.glob("v*")))
BUILD_TIMEOUT = 1800.0  # seconds


def decoder(version: str, progress: proc.Progress = proc.quiet) -> Path:
    """The program for a version of the API's types, built when the cache has none."""
    sources = [HERE / "main.go", HERE / version / "go.mod", HERE / version / "go.sum"]

    def build(out: Path) -> None:
        proc.require("go")
        for path in sources:
            shutil.copy(path, out / path.name)
        argv = ["nice", "go", "build", "-trimpath", "-o", str(out / "decoder"), "."]
        env = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
        proc.run(argv, timeout=BUILD_TIMEOUT, progress=progress, env=env, cwd=out)

    key = cache.digest({path.name: path.read_text() for path in sources})
    return cache.build_once("kubernetes-schemas", f"{version}-{key}", build, progress) / "decoder"


def decode(version: str, objects: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Exit status 0 when a version knows every field of every object."""
    text = json.dumps(objects)
    return subprocess.run(
        [str(decoder(version))], input=text, capture_output=True, text=True, check=False
    )
