"""What the packages of no extra are enough for: the agent, and every verb but the lab's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from controller.cli.main import EXTRAS, VERBS

# The modules of all optional dependencies in pyproject.toml are not there.
WITHOUT = """if True:
    import importlib.abc, sys

    class Block(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name.partition(".")[0] in {
                "aiohttp", "celpy", "cryptography", "filelock", "grpc_reflection", "httpx",
                "jinja2", "kubernetes", "platformdirs", "prometheus_client", "psycopg", "pymysql",
            }:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Block())
"""


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip


def test_agent_and_verbs_are_there() -> None:
    places = [verb.place.partition(":")[0] for name, verb in VERBS.items() if name not in EXTRAS]
    imports = "".join(f"    import {place}\n" for place in ("nodeagent.main", *places))
    done = without_extras(imports)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [("lab ls", "lab"), ("ls --cluster", "kube"), ("deploy status", "kube"),
     ("inject netem -n shop --all --delay 1s", "kube"),
     ("inject pod-kill -n shop --all", "kube")],
)  # fmt: skip
def test_what_needs_an_extra_names_it(words: str, extra: str) -> None:
    code = f"    from controller.cli.main import run\n    sys.exit(run({words.split()!r}))\n"
    done = without_extras(code)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'faultctl[{extra}]'" in done.stderr
