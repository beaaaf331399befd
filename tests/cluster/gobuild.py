"""Go programs of the tests: each built once from its module, and cached by the module's content."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.lab import cache, proc
from nodeagent.model.errors import Refused

BUILD_TIMEOUT = 3600.0  # seconds; about 6 minutes were measured on two cores beside other work
ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
SOURCES = ("go.mod", "go.sum", "main.go")


def no_more(folder: Path) -> None:
    """Nothing is left to do in a folder after the build."""


@dataclass(frozen=True)
class Module:
    """One program.

    sources: go.mod, go.sum and main.go, which may lie in different folders; kind: of the cache;
    what: what is built, for people; finish: what is done in the folder when the program is in it.
    """

    kind: str
    version: str
    program: str
    sources: Sequence[Path]
    what: str
    flags: str = ""
    finish: Callable[[Path], None] = no_more

    def ensure(self, progress: proc.Progress = proc.quiet) -> Path:
        """The folder with the program in it, built when the cache has none."""
        recipe = {path.name: path.read_text() for path in self.sources}
        flags: Mapping[str, str] = {"flags": self.flags} if self.flags else {}
        key = f"{self.version}-{cache.digest({**recipe, **flags})}"
        return cache.build_once(self.kind, key, lambda out: self._build(out, progress), progress)

    def _build(self, out: Path, progress: proc.Progress) -> None:
        if proc.find("go") is None:
            raise Refused(
                "the test cluster needs Go", f"{self.what} is built", "install Go 1.26 or newer"
            )
        progress(f"building {self.what}")
        for path in self.sources:
            shutil.copy(path, out / path.name)
        argv = ["nice", "go", "build", "-trimpath", f"-ldflags={self.flags}"]
        argv += ["-o", str(out / self.program), "."]
        proc.run(argv, timeout=BUILD_TIMEOUT, progress=progress, env=ENV, cwd=out)
        self.finish(out)
