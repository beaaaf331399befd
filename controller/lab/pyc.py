"""Byte code for the guest's Python, made on the host.

Compiling a few hundred sources under emulation at each boot would take longer
than the boot. The guest's own interpreter, run through its own dynamic loader,
does it here; results are cached by content, unchecked (PEP 552), since the
guest's copy of the sources never changes apart from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from controller.lab import cache, proc
from controller.lab.image import Image

_SCRIPT = """
import json, py_compile, sys
for source, target, shown in json.load(sys.stdin):
    try:
        py_compile.compile(source, target, dfile=shown, doraise=True, quiet=1,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    except (py_compile.PyCompileError, ValueError):
        open(target, "wb").close()
"""


def _interpreter(image: Image, python: str) -> list[str]:
    so = image.python / "so"
    loader = so / "ld-linux-x86-64.so.2"
    return [str(loader), "--library-path", str(so), str(image.python / "bin" / f"python{python}")]


def compile_all(image: Image, python: str, sources: Mapping[str, Path]) -> dict[str, bytes]:
    """Byte code by guest path, for sources by guest path.

    A source that does not compile for this Python is left out: the guest then
    reports its SyntaxError itself when it is imported.
    """
    home = cache.cache_dir() / "pyc" / python
    home.mkdir(parents=True, exist_ok=True)
    targets: dict[str, Path] = {}
    jobs: list[tuple[str, str, str]] = []
    for shown, source in sources.items():
        name = hashlib.sha256(shown.encode() + b"\0" + source.read_bytes()).hexdigest()
        targets[shown] = home / f"{name}.pyc"
        if not targets[shown].exists():
            jobs.append((str(source), str(targets[shown]), shown))
    if jobs:
        argv = [*_interpreter(image, python), "-S", "-E", "-s", "-c", _SCRIPT]
        env = {"PYTHONHOME": str(image.python)}
        # -E would hide PYTHONHOME, without which the standard library is not found.
        argv.remove("-E")
        proc.run(argv, timeout=300, env=env, stdin=json.dumps(jobs).encode())
    code = {shown: path.read_bytes() for shown, path in targets.items()}
    return {shown: data for shown, data in code.items() if data}


def pyc_path(source: str, python: str) -> str:
    """Where Python looks for a source's byte code (PEP 3147)."""
    path = Path(source)
    tag = f"cpython-{python.replace('.', '')}"
    return str(path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc")
