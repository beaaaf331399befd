"""The rules of the house, read from the source: who may import whom, who may touch the kernel."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("protos/faultd_pb2.py", "protos/faultd_pb2_grpc.py")
MAX_LINES = 300
MAX_FUNCTION = 40


def tracked() -> list[Path]:
    """Python files of the checkout: what git knows, so that nobody's scratch file counts."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode or not done.stdout:  # a source archive has no git
        found = [p for d in ("controller", "nodeagent", "tests") for p in (ROOT / d).rglob("*.py")]
    else:
        found = [ROOT / name for name in done.stdout.split("\0") if name]
    return sorted(p for p in found if p.exists() and name_of(p) not in GENERATED)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


FILES = tracked()
CODE = [p for p in FILES if name_of(p).split("/")[0] in ("controller", "nodeagent")]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def package_of(path: Path) -> str:
    """`nodeagent.model` for nodeagent/model/units.py."""
    return ".".join(path.relative_to(ROOT).parent.parts)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, anywhere in it, and each `from x import y` as x.y too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package_of(path).split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            yield base, node.lineno
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def below(module: str, *roots: str) -> bool:
    return any(module == root or module.startswith(f"{root}.") for root in roots)


EFFECTS = (
    "asyncio",
    "ctypes",
    "fcntl",
    "grpc",
    "httpx",
    "http",
    "io",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "psutil",
    "pyroute2",
    "requests",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib.request",
    "concurrent",
    "nodeagent.backends",
    "nodeagent.bind",
    "nodeagent.journal",
    "nodeagent.executor",
    "controller",
    "protos",
)
PURE = ("nodeagent.model", "nodeagent.faults", "nodeagent.encode")
EFFECT_CALLS = {"open", "exec", "eval", "input", "__import__", "print"}


def within(*roots: str) -> list[Path]:
    return [p for p in CODE if below(package_of(p), *roots)]


def bad_imports(
    paths: list[Path], bad: tuple[str, ...], allowed: tuple[str, ...] = ()
) -> list[str]:
    """file:line: module, of imports that are not allowed."""
    return [
        f"{name_of(path)}:{line}: {name}"
        for path in paths
        for name, line in imports(path)
        if below(name, *bad) and not below(name, *allowed) and not (allowed and name in bad)
    ]


def test_model_faults_and_encode_import_no_effects() -> None:
    assert bad_imports(within(*PURE), EFFECTS) == []


def test_model_faults_and_encode_call_no_effects() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}: {node.func.id}()"
        for path in within(*PURE)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in EFFECT_CALLS
    ]
    assert found == []


def test_importing_the_pure_packages_loads_no_effects() -> None:
    """The whole chain, seen by the interpreter itself."""
    script = (
        "import sys, pydantic, typing, random\n"
        "before = set(sys.modules)\n"
        "import nodeagent.faults as f, nodeagent.encode, nodeagent.model.planner\n"
        "f.kinds()\n"
        "effects = 'grpc', 'sqlite3', 'ctypes', 'fcntl', 'subprocess', 'pyroute2', 'psutil'\n"
        "print(*[m for m in effects if m in sys.modules and m not in before])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_the_controller_imports_only_model_and_faults_of_the_agent() -> None:
    allowed = ("nodeagent.model", "nodeagent.faults", "nodeagent.__version__")
    assert bad_imports(within("controller"), ("nodeagent",), allowed) == []


def test_nothing_imports_the_command_line() -> None:
    """But for the reference pages, which are made of the command line's own options."""
    outside = [p for p in CODE if not below(package_of(p), "controller.cli")]
    outside = [p for p in outside if name_of(p) != "controller/docs.py"]
    assert bad_imports(outside, ("controller.cli",)) == []


def test_the_agent_knows_neither_kubernetes_nor_the_controller() -> None:
    assert bad_imports(within("nodeagent"), ("kubernetes", "controller", "tests")) == []


ASKS_BACKENDS = {"nodeagent/executor.py", "nodeagent/revert.py", "nodeagent/watcher.py"}


def test_only_executor_reverter_and_watcher_ask_backends_for_a_step() -> None:
    """`Registry.of` is the only way to the backend of a step."""
    found = {
        name_of(path)
        for path in CODE
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and node.attr == "of"
        and "backends" in ast.unparse(node.value)
    }
    assert found == ASKS_BACKENDS


def test_every_write_to_a_step_goes_through_the_reverter_or_the_executor() -> None:
    """No module calls apply or undo on something that it got from the backends package."""
    makers = {"load_backends", "Registry"}
    users = {
        name_of(path)
        for path in CODE
        for name, _ in imports(path)
        if name.startswith("nodeagent.backends.") and name.rpartition(".")[2] in makers
    }
    hands_on = {"nodeagent/agent.py", "nodeagent/guardian.py", "nodeagent/executor_parts.py"}
    assert users <= ASKS_BACKENDS | hands_on


# --- errors -----------------------------------------------------------------------

OUTERMOST = {
    "controller/load/driver.py",  # carried out of a thread, and raised where it is joined
    "controller/probes/measure.py",  # likewise
    "controller/cli/main.py",  # the command line
    "nodeagent/rpc.py",  # the agent's interface
    "nodeagent/guardian.py",  # nobody else is left to take the faults back
    "nodeagent/revert.py",  # a bug in one step must not keep the others in the kernel
    "nodeagent/agent.py",  # nor one in what counts its hits
}


def broad_handlers(path: Path) -> Iterator[int]:
    """Lines of handlers that take any exception and do not raise it again."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = (
            {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {""}
        )
        if names & {"", "Exception", "BaseException"}:
            last = node.body[-1]
            if not (isinstance(last, ast.Raise) and last.exc is None):
                yield node.lineno


def test_any_exception_is_taken_only_at_an_outermost_edge() -> None:
    found = [f"{name_of(p)}:{line}" for p in CODE for line in broad_handlers(p)]
    assert [place for place in found if place.partition(":")[0] not in OUTERMOST] == []


def test_the_list_of_edges_has_no_leftovers() -> None:
    assert {name_of(p) for p in CODE if list(broad_handlers(p))} >= OUTERMOST


def test_no_error_is_swallowed_whole() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in CODE
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("suppress")
        and {ast.unparse(arg) for arg in node.args} & {"Exception", "BaseException"}
    ]
    assert found == []


# --- size -------------------------------------------------------------------------


def test_no_file_has_more_than_300_lines() -> None:
    sizes = {name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in CODE}
    assert {name: size for name, size in sizes.items() if size > MAX_LINES} == {}


def test_no_function_has_more_than_40_lines() -> None:
    sizes = {
        f"{name_of(path)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in CODE
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION} == {}


def test_no_file_says_where_it_was_written() -> None:
    """No path of one machine and no host of a package registry is committed."""
    words = ["/wo" + "rk/", "/ro" + "ot/", "pypi." + "org", "files.python" + "hosted"]
    bad = [
        f"{name_of(path)}: {word}"
        for path in FILES
        for word in words
        if word in path.read_text(encoding="utf-8")
    ]
    assert bad == []
