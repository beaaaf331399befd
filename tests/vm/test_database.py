"""The same workload on a database under a latent sector and on one without: the same in the end."""

from __future__ import annotations

import pytest
from agentkit import Bench, prepared_volume

from controller.lab import Node
from controller.lab.demo_db import Database

STATEMENTS = [
    f"UPDATE orders SET item = md5(item || '{n}') WHERE id % 97 = {n};"
    f"DELETE FROM orders WHERE id % 101 = {n};"
    f"INSERT INTO orders SELECT 100000 + {n} * 100 + i, md5('{n}-' || i)"
    "  FROM generate_series(1, 50) i;"
    for n in range(6)
]


def play(database: Database, statements: list[str]) -> None:
    for statement in statements:
        done = database.query(f"BEGIN; {statement} COMMIT; CHECKPOINT")
        assert done.ok, done.text


@pytest.mark.vm("debian-13")
def test_after_a_revert_the_database_is_as_one_that_never_had_the_fault(
    vm_node: Node, bench: Bench
) -> None:
    node = vm_node
    node.sh(
        "mkfs.ext4 -q -F /dev/disk/by-id/virtio-d1 && mkdir -p /mnt/plain /run/plain && "
        "mount /dev/disk/by-id/virtio-d1 /mnt/plain && chown postgres /run/plain",
        timeout=60,
    )
    with prepared_volume(bench) as mount:
        ours = Database(node, f"{mount}/db")
        plain = Database(node, "/mnt/plain/db", "/run/plain")
        for database in (ours, plain):
            database.create()
            play(database, STATEMENTS[:3])
        file = ours.heap_file("customers")
        fault = bench.inject(
            "latent-sector",
            {"type": "file", "file": file, "offset": "64Ki", "length": "8Ki"},
            spec={"on_write": "keep"},
        )
        ours.evict("customers")
        broken = ours.fingerprint("customers")
        assert not broken.ok
        assert "Input/output error" in broken.text
        for database in (ours, plain):
            play(database, STATEMENTS[3:])
        bench.client.revert(fault.id)
        for table in ("orders", "customers"):
            assert ours.fingerprint(table) == plain.fingerprint(table)
        for database in (ours, plain):
            database.stop()
        node.sh("umount /mnt/plain")
        node.sh(
            f"umount {mount} && e2fsck -f -n /dev/mapper/data && mount /dev/mapper/data {mount}",
            timeout=60,
        )
    assert bench.residue() == []
