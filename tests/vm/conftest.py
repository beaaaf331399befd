"""Lab nodes for tests: booted when first asked for, shared by many tests.

    def test_a(node):                 # shared debian-13 node by calling it
        assert node("debian-13").sh("uname -r")

    @pytest.mark.vm("debian-13", "full")
    def test_b(vm_node):              # once per flavour of the mark, shared node
        vm_node.run(["true"])

    def test_c(fresh_node):           # a node of its own, ended with the test
        with_disk = fresh_node(NodeConfig(disks=(Disk("data", 1 << 28),)))

    @pytest.mark.vm("debian-13+systemd")
    def test_d(vm_node):              # the flavour with systemd as process 1
        vm_node.sh("systemctl start systemd-timesyncd")

A shared node has disks `d0`, `d1` (512-byte sectors) and `k4` (4096): leave
them without holders behind. FAULTCTL_VM_FLAVOURS limits a run to some flavours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Literal

import expect
import pytest
from agentkit import Bench, Benches
from net_kit import Net, Nets

from controller.lab import FLAVOURS, Disk, Node, NodeConfig, launch, prepare, unique

HERE = Path(__file__).parent
LIVE = 1  # shared nodes at once; each takes a host CPU and its memory
TIMEOUT = 900.0  # seconds a test, its boot included; images are made before the tests
SHARED_DISKS = (Disk("d0", 1 << 30), Disk("d1", 1 << 28), Disk("k4", 1 << 28, 4096))
DEFAULT = ("debian-13",)


def _allowed() -> list[str]:
    named = os.environ.get("FAULTCTL_VM_FLAVOURS", ",".join(FLAVOURS)).split(",")
    unknown = [name for name in named if name not in FLAVOURS]
    if unknown:
        raise pytest.UsageError(f"FAULTCTL_VM_FLAVOURS: no flavour {unknown}")
    return named


def base(name: str) -> str:
    """The lab's flavour of a name with `+systemd`."""
    return name.partition("+")[0]


def _flavours(item: pytest.Item) -> list[str]:
    """Flavours that a collected test boots."""
    spec = getattr(item, "callspec", None)
    for name in ("vm_node", "flavour"):
        if spec is not None and name in spec.params:
            return [str(spec.params[name])]
    mark = item.get_closest_marker("vm")
    return list(mark.args) if mark and mark.args else list(DEFAULT)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "vm_node" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("vm")
        names = list(mark.args) if mark and mark.args else list(DEFAULT)
        metafunc.parametrize("vm_node", names, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring tests of one flavour together, so that few nodes live at a time."""
    mine = [item for item in items if HERE in item.path.parents]
    allowed = _allowed()
    dropped = [i for i in mine if not {base(name) for name in _flavours(i)} <= set(allowed)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    for item in mine:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))
        item.add_marker(pytest.mark.xdist_group(_flavours(item)[0]))
    kept = [item for item in mine if item not in dropped]
    order = list(FLAVOURS)
    kept.sort(key=lambda item: (order.index(base(_flavours(item)[0])), _flavours(item)))  # stable
    items[:] = [item for item in items if item not in mine] + kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the selected tests need before any of them is on the clock."""
    mine = [item for item in session.items if HERE in item.path.parents]
    if not mine or session.config.option.collectonly or session.config.option.setupplan:
        return
    writer = session.config.get_terminal_writer()
    for name in sorted({base(name) for item in mine for name in _flavours(item)}):
        prepare(FLAVOURS[name], lambda line: writer.line(f"lab: {line}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip (or an xfail) that expect.py does not know is a failure."""
    report = yield
    if report.skipped and HERE in item.path.parents:
        test = f"{item.path.name}::{getattr(item, 'originalname', item.name)}"
        flavours = _flavours(item)
        if expect.skip_reason(test, flavours[0]) is None:
            report.outcome = "failed"
            report.longrepr = f"{test} may not be skipped on {flavours[0]}: {report.longrepr}"
            if hasattr(report, "wasxfail"):
                del report.wasxfail
    return report


class Pool:
    """Shared nodes by flavour; the oldest ends when there are too many."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def get(self, flavour: str) -> Node:
        if flavour in self.nodes and self.nodes[flavour].entry.supervisor is None:
            self.nodes.pop(flavour).close()  # a test has lost it: the next one gets another
        if flavour not in self.nodes:
            while len(self.nodes) >= LIVE:
                self.nodes.pop(next(iter(self.nodes))).close()
            init: Literal["shell", "systemd"] = "systemd" if "+" in flavour else "shell"
            config = NodeConfig(flavour=base(flavour), disks=SHARED_DISKS, init=init)
            self.nodes[flavour] = launch(unique(config))
        return self.nodes[flavour]

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
        self.nodes.clear()


@pytest.fixture(scope="session")
def _pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


def _assert_sound(node: Node) -> None:
    """No test may leave an oops behind unseen."""
    node.console.poll()
    seen, node.console.oopses = node.console.oopses, []
    assert not seen, f"the kernel of {node.name} complained: {seen}\n{node.console.tail(40)}"


@pytest.fixture
def node(_pool: Pool) -> Iterator[Callable[[str], Node]]:
    """`node(flavour)`: the shared node of a flavour."""
    used: list[Node] = []

    def get(flavour: str = "debian-13") -> Node:
        used.append(_pool.get(flavour))
        return used[-1]

    yield get
    for one in used:
        _assert_sound(one)


@pytest.fixture
def vm_node(_pool: Pool, request: pytest.FixtureRequest) -> Iterator[Node]:
    """The shared node of the flavour that this instance of the test is for."""
    shared = _pool.get(request.param)
    yield shared
    _assert_sound(shared)


@pytest.fixture
def fresh_node(_pool: Pool) -> Iterator[Callable[[NodeConfig], Node]]:
    """`fresh_node(config)`: a node of the test's own; the shared ones make room."""
    made: list[Node] = []

    def make(config: NodeConfig) -> Node:
        _pool.close()
        made.append(launch(unique(config)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def benches(_pool: Pool) -> Iterator[Benches]:
    yield Benches()
    Benches.close_all()


@pytest.fixture
def bench(vm_node: Node, benches: Benches) -> Bench:
    """An agent in the shared node, started once; tests take back what they inject."""
    return benches.of(vm_node)


@pytest.fixture(scope="module")
def nets() -> Iterator[Nets]:
    """Three namespaces in each node: a, b and c (net_kit.py)."""
    found = Nets()
    yield found
    found.close()


@pytest.fixture
def net(bench: Bench, nets: Nets) -> Iterator[Net]:
    """The namespaces of the node of this test; its faults end with the test."""
    found = nets.of(bench)
    yield found
    found.revert_all()
