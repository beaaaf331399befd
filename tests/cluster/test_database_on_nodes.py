"""A database in a StatefulSet, a bad page below its table, and an operator that moves it away.

Played as a run from a user's machine, through the API server, and judged by its oracle.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import FAULTCTL, Cluster
from nodestate import fingerprint, uninstall, untouched
from shopdb import CHECK, ROWS, SPACE, Database

from controller.recorder import read_records
from controller.records import FaultArmed
from controller.score_files import open_run

RESTARTS = 5
PAGE = "8Ki"  # of PostgreSQL


@pytest.fixture(scope="module")
def before(cluster: Cluster) -> dict[str, str]:
    return untouched(cluster)


@pytest.fixture(scope="module")
def shop(cluster: Cluster, before: dict[str, str]) -> Iterator[Database]:
    if len(cluster.nodes) < 2:
        pytest.skip("one node: nowhere to move to")
    cluster.install()
    found = Database(cluster)
    found.prepare()
    yield found
    if not found.removed:
        found.remove()
        uninstall(cluster)


def experiment(shop: Database) -> dict[str, Any]:
    """As a user would write it; on an emulated node a probe takes some seconds."""
    hold = 45
    where = {"pod": f"{SPACE}/db-0", "volume": "data", "file": shop.file()}
    ready = "has(object.status.readyReplicas) && object.status.readyReplicas == 1"
    truth = {"category": "disk", "mechanism": "latent sector errors", "service": "db",
             "scope": ["db"], "symptom_probe": "db-ready", "root_cause": "a bad page"}  # fmt: skip
    return {
        "version": 1,
        "name": "orders",
        "seed": 3,
        "duration": "60m",
        "late": "10m",
        "lease": "5m",
        "targets": {"orders": {"service": "db", "pods": where | {"offset": PAGE, "length": PAGE}}},
        "probes": {
            "db-ready": {"type": "k8s", "api_version": "apps/v1", "kind": "StatefulSet",
                         "namespace": SPACE, "name": "db", "expression": ready,
                         "interval": "3s", "timeout": "60s"},
            "volume-users": {"type": "exposure", "fault": "bad-page", "interval": "3s",
                             "timeout": "60s"},
        },
        "steady": {"for": f"{hold}s", "share": "90%", "probes": ["db-ready"]},
        "faults": {"bad-page": {"kind": "latent-sector", "target": "orders", "at": "1s",
                                "for": "55m", "truth": truth}},
        "oracles": {"repaired": {"faults": ["bad-page"], "hold": f"{hold}s", "cap": "50m",
                                 "exposure": "volume-users"}},
    }  # fmt: skip


class Play:
    """A run in a folder of its own."""

    def __init__(self, shop: Database, cwd: Path) -> None:
        self.shop, self.cwd, self.folder = shop, cwd, cwd / "run"
        (cwd / "experiment.yaml").write_text(json.dumps(experiment(shop)))
        self._env = shop.cluster.env()
        self.run = self._faultctl("run", "experiment.yaml", "--folder", str(self.folder))

    def _faultctl(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*FAULTCTL, *arguments], env=self._env, cwd=self.cwd, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip

    def fault(self) -> str:
        """The id of the armed fault, when it is."""

        def armed() -> list[FaultArmed]:
            if not self.folder.exists():
                return []
            found = read_records(self.folder, "faults.jsonl")
            return [one for one in found if isinstance(one, FaultArmed)]

        self._until(lambda: bool(armed()), 600)
        return armed()[0].fault

    def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert self.run.poll() is None, self.run.communicate()
            assert time.monotonic() < end
            time.sleep(0.5)

    def submit(self) -> None:
        told = self._faultctl("submit", "mitigation", "--run", str(self.folder))
        out, _ = told.communicate(timeout=120)
        assert told.returncode == 0, out

    def close(self) -> None:
        if self.run.poll() is None:
            self.run.terminate()
            self.run.communicate(timeout=300)


@pytest.fixture
def play(shop: Database, tmp_path: Path) -> Iterator[Play]:
    found = Play(shop, tmp_path)
    yield found
    found.close()


def exposed(shop: Database, fault: str) -> tuple[int, set[str | None]]:
    """(exit code, pods) of `faultctl exposure`."""
    done = shop.cluster.faultctl("exposure", "--cluster", fault, "-o", "json", check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, {one["pod"] for one in json.loads(done.stdout)["workloads"]}


@pytest.mark.timeout(1500)
def test_a_page_stays_bad_for_the_next_pod_with_the_same_volume(
    shop: Database, tmp_path: Path
) -> None:
    where = ("--pod", f"{SPACE}/db-0", "--volume", "data", "--file", shop.file())
    argv = ("inject", "latent-sector", *where, "--offset", PAGE, "--length", PAGE)
    said = tmp_path / "said"
    with said.open("w") as out, subprocess.Popen(
        [*FAULTCTL, *argv, "--lease", "5m", "--follow", "move", "--id", "stays"],
        env=shop.cluster.env(), stdout=out, stderr=subprocess.STDOUT,
    ) as follower:  # fmt: skip
        try:
            shop.wait("the fault is armed", lambda: "stays-1" in said.read_text(), 300)
            assert not shop.sql(CHECK)[0]
            shop.replace()
            ok, told = shop.sql(CHECK)
            assert not ok and "Input/output error" in told, "no moment to recover in"
            shop.wait("it is told", lambda: "on the same volume" in said.read_text())
        finally:
            follower.terminate()
            follower.wait(300)
    assert "stays-1: reverted" in said.read_text()
    assert shop.sql(CHECK)[1].startswith(f"{ROWS}|")
    shop.wait("db-0 is ready", shop.ready)


@pytest.mark.timeout(3000)
def test_a_bad_page_below_a_table_until_the_database_has_moved_away(
    shop: Database, play: Play
) -> None:
    fault = play.fault()
    here = shop.node().place.name
    for start in range(1 + RESTARTS):
        ok, said = shop.sql(CHECK)
        assert not ok and "could not read block" in said and "Input/output error" in said, start
        ok, said = shop.sql("select count(*) from pg_class")
        assert ok, f"the rest of the database works, start {start}: {said}"
        if start < RESTARTS:
            shop.crash()
    shop.wait("db-0 is not ready", lambda: not shop.ready())
    assert exposed(shop, fault) == (1, {f"{SPACE}/db-0"})
    shop.move(away_from=here)
    assert shop.sql(CHECK)[1].startswith(f"{ROWS}|")
    assert exposed(shop, fault) == (0, set()), "still armed, and nobody is left on that volume"
    play.submit()
    out, _ = play.run.communicate(timeout=900)
    assert play.run.returncode == 0, out
    verdict = open_run(play.folder.with_name("run.bundle.tar")).verdict
    (found,) = verdict.faults
    assert (found.verdict, found.ended_as) == ("pass", "reverted"), found


def test_after_all_of_it_uninstall_leaves_both_nodes_as_they_were(
    shop: Database, before: dict[str, str]
) -> None:
    shop.remove()
    uninstall(shop.cluster)
    for one in shop.cluster.nodes:
        assert fingerprint(one) == before[one.place.name]
