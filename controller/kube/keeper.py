"""The keeper of one fault on a cluster's objects: it ends the fault with its lease.

A process of its own, started by `faultctl inject`, that outlives it. It holds nothing: when it
dies, the ledger still says what is armed, and `faultctl revert --cluster` takes it back.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from controller.kube.act import look, revert
from controller.kube.client import Cluster
from controller.kube.ledger import Entry, Ledger
from nodeagent.model.errors import FaultError

LOOK_S = 5.0
TICK_S = 0.5
AGAIN_S = 5.0


def start(ledger: Ledger, entry: Entry) -> subprocess.Popen[bytes]:
    """A keeper in a session of its own, without a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "controller.kube.keeper", str(ledger.home), entry.id],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def open_cluster(entry: Entry) -> Cluster:
    """The cluster that a fault is on. Raises InvalidSpec when the kubeconfig leads elsewhere."""
    cluster = Cluster(Path(entry.kubeconfig) if entry.kubeconfig else None, entry.context)
    if cluster.server != entry.server:
        raise FaultError(
            f"{entry.id} is on another cluster",
            f"it was armed at {entry.server}, the kubeconfig leads to {cluster.server}",
            "name its kubeconfig: --kubeconfig FILE",
        )
    return cluster


def keep(ledger: Ledger, fault_id: str) -> None:
    """Until the fault has ended: look whether it holds, and end it with its lease.

    One that is still an intent then belongs to a process that died while it made the changes:
    as long as that lives it has the fault's lock. One keeper is enough: another leaves at once.
    """
    with ledger.kept(fault_id) as alone:
        if alone:
            _keep(ledger, fault_id)


def _keep(ledger: Ledger, fault_id: str) -> None:
    looked = time.monotonic()
    while True:
        entry = ledger.find(fault_id)
        if entry is None or entry.state == "ended":
            return
        if time.time() >= entry.end:
            if _end(ledger, entry):
                return
            time.sleep(AGAIN_S)
        elif entry.state == "armed" and time.monotonic() - looked >= LOOK_S:
            looked = time.monotonic()
            _look(ledger, entry)
        time.sleep(TICK_S)


def _end(ledger: Ledger, entry: Entry) -> bool:
    try:
        return revert(open_cluster(entry), ledger, entry.id, "expired", due=True).state == "ended"
    except FaultError as exc:
        _note(ledger, entry.id, f"not taken back yet: {exc}")
        return False


def _look(ledger: Ledger, entry: Entry) -> None:
    try:
        look(open_cluster(entry), ledger, entry.id, ends=False)
    except FaultError as exc:
        _note(ledger, entry.id, f"could not look: {exc}")


def _note(ledger: Ledger, fault_id: str, line: str) -> None:
    """An event, once."""
    with ledger.held(fault_id):
        entry = ledger.get(fault_id)
        if entry.note("note", line):
            ledger.write(entry)


if __name__ == "__main__":
    keep(Ledger(Path(sys.argv[1])), sys.argv[2])
