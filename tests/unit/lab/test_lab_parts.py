"""Small pure parts: recipes, module order, kernel images and configurations, console, monitor."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import filelock
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.lab import (
    accel,
    cache,
    console,
    image,
    network,
    pace,
    proc,
    pyc,
    qmp,
    store,
)
from controller.lab.errors import CommandFailed
from controller.lab.flavours import FLAVOURS, flavour
from nodeagent.model.errors import InvalidSpec, Refused


def test_digest_knows_content_not_order() -> None:
    assert cache.digest({"a": 1, "b": [1, 2]}) == cache.digest({"b": [1, 2], "a": 1})
    assert cache.digest({"a": 1}) != cache.digest({"a": "1"}) != cache.digest({"a": 2})
    # Golden: a change of the scheme would throw away every cache there is.
    assert cache.digest({}) == "44136fa355b3678a1146"


def test_recipes_differ_by_release_only_where_they_must() -> None:
    one, two, full = (image.recipe(FLAVOURS[n]) for n in ("debian-12", "debian-13", "full"))
    assert one != two
    assert two == full, "`full` shares the root image of debian-13"


def test_unknown_flavour_lists_the_known() -> None:
    with pytest.raises(InvalidSpec) as caught:
        flavour("debian-99")
    assert "debian-13" in caught.value.hint


def test_build_once_builds_once_and_leaves_nothing_half(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAULTCTL_CACHE", str(tmp_path))
    built: list[int] = []
    said: list[str] = []

    def slow(out: Path) -> None:
        built.append(1)
        time.sleep(0.3)
        (out / "x").write_text("done")

    def one() -> None:
        assert (cache.build_once("k", "v", slow, said.append) / "x").read_text() == "done"

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert any("waiting" in line for line in said)


def test_a_failed_build_leaves_no_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAULTCTL_CACHE", str(tmp_path))

    def fails(out: Path) -> None:
        (out / "half").touch()
        raise Refused("no")

    with pytest.raises(Refused):
        cache.build_once("k", "v", fails, print)
    (tmp_path / "k/.v.part").mkdir()  # as a killed builder leaves it
    (tmp_path / "k/.v.part/half").touch()
    done = cache.build_once("k", "v", lambda out: (out / "whole").touch(), print)
    assert [path.name for path in done.iterdir()] == ["whole"]


def test_leftovers_of_killed_builders_are_swept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAULTCTL_CACHE", str(tmp_path))
    for key in ("dead", "busy"):
        (tmp_path / f"k/.{key}.part/x").mkdir(parents=True)
    with filelock.FileLock(tmp_path / "k/.busy.lock"):
        cache.build_once("k", "v", lambda out: None, print)
    assert not (tmp_path / "k/.dead.part").exists(), "nobody builds it"
    assert (tmp_path / "k/.busy.part/x").exists(), "somebody does"


def test_host_programs_have_a_deadline_with_all_their_children() -> None:
    begin = time.monotonic()
    with pytest.raises(CommandFailed, match="within"):
        proc.run(["sh", "-c", "sleep 300 & sleep 300"], timeout=0.5)
    assert time.monotonic() - begin < 10
    with pytest.raises(CommandFailed, match="ended with 3") as caught:
        proc.run(["sh", "-c", "echo why >&2; exit 3"], timeout=10)
    assert "why" in caught.value.why
    with pytest.raises(CommandFailed, match="could not be started"):
        proc.run(["/no/such/tool"], timeout=10)
    assert proc.run(["cat"], timeout=10, stdin=b"x" * 100_000) == "x" * 100_000


def test_missing_programs_are_named_by_package() -> None:
    with pytest.raises(Refused) as caught:
        proc.require("sh", "no-such-tool-1")
    assert "no-such-tool-1" in caught.value.why and "apt-get install" in caught.value.hint


def test_modules_come_after_what_they_need() -> None:
    dep = (
        "kernel/fs/overlayfs/overlay.ko.xz:\n"
        "kernel/net/net_failover.ko.xz: kernel/net/failover.ko.xz\n"
        "kernel/net/failover.ko.xz:\n"
        "kernel/net/virtio_net.ko.xz: kernel/net/net_failover.ko.xz kernel/net/failover.ko.xz\n"
        "kernel/md/dm-mod.ko:\n"
    )
    order = image.load_order(dep, ("virtio_net", "dm_mod", "ext4", "overlay"))
    assert order == [
        "kernel/net/failover.ko.xz",
        "kernel/net/net_failover.ko.xz",
        "kernel/net/virtio_net.ko.xz",
        "kernel/md/dm-mod.ko",
        "kernel/fs/overlayfs/overlay.ko.xz",
    ]


CONSOLE = """\
[    0.000000] Linux version 6.12.118+deb13-cloud-amd64
[    1.000000] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [swapper]
[    2.000000] BUG: workqueue lockup - pool cpus=0 node=0
[   10.000000] BUG: kernel NULL pointer dereference, address: 0000000000000000
[   10.000001] Oops: Oops: 0002 [#1] PREEMPT SMP NOPTI
[   30.000000][  T12] general protection fault, probably for non-canonical address 0x1
[   31.019445] Kernel panic - not syncing: sysrq triggered crash
"""


def test_console_tells_deaths_from_noise(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    seen = console.Console(log)
    seen.poll()  # not there yet
    quiet = CONSOLE.index("[   10.0")
    log.write_bytes(CONSOLE[:quiet].encode())
    seen.poll()
    assert seen.panic is None and not seen.oopses
    assert seen.tail(1) == CONSOLE[:quiet].splitlines()[-1]
    with log.open("ab") as file:
        file.write(CONSOLE[quiet:].encode())
    seen.poll()
    assert seen.panic == "sysrq triggered crash"
    assert [line.split(",")[0].split(":")[0] for line in seen.oopses] == [
        "BUG",
        "Oops",
        "general protection fault",
    ]
    assert seen.tail(1) == CONSOLE[quiet:].rstrip("\n"), "where it died, however long that is"
    seen.restart()
    assert seen.panic is None and not seen.oopses


def test_console_line_torn_between_two_reads(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    seen = console.Console(log)
    log.write_bytes(b"Kernel pan")
    seen.poll()
    assert seen.panic is None and seen.tail() == "Kernel pan"
    log.write_bytes(b"Kernel panic - not syncing: x\r\n")
    seen.poll()
    assert seen.panic == "x"


USERNET = """\
Hub -1 (n0):
  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ
  TCP[HOST_FORWARD]  24       127.0.0.1 41153       10.0.2.15    80     0     0
  TCP[HOST_FORWARD]  23       127.0.0.1 35605               * 7443     0     0
  TCP[ESTABLISHED]   25       127.0.0.1 51834       10.0.2.15  7443     0     0
"""


def test_forwarded_ports_as_the_monitor_tells_them() -> None:
    assert qmp.parse_forwards(USERNET) == {80: 41153, 7443: 35605}
    assert qmp.parse_forwards("") == {}


def test_pace() -> None:
    assert pace.factor(100_000) == 1.0, "a faster machine does not shorten deadlines"
    assert pace.factor(5_000_000) == 10.0
    assert pace.factor(1 << 40) == pace.SLOWEST
    assert pace.load_factor(0.1, 2) == 1.0 and pace.load_factor(6, 2) == 3.0
    assert pace.load_factor(1e6, 1) == pace.BUSIEST


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "1e9", "nan"])
def test_bad_scale(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTCTL_LAB_SCALE", text)
    with pytest.raises(InvalidSpec):
        pace.Pace()


@given(st.sets(st.integers(2, 254)))
def test_addresses_on_a_shared_network(taken: set[int]) -> None:
    used = {f"10.77.0.{last}" for last in taken}
    if len(taken) == 253:
        with pytest.raises(Refused):
            network.free_address(used)
        return
    address = network.free_address(used)
    assert address not in used and 2 <= int(address.rsplit(".", 1)[1]) <= 254


def test_where_python_looks_for_byte_code() -> None:
    assert pyc.pyc_path("/a/b/c.py", "3.13") == "/a/b/__pycache__/c.cpython-313.pyc"


def test_accelerator_without_kvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAULTCTL_LAB_ACCEL", raising=False)
    monkeypatch.setattr(accel, "KVM", tmp_path / "none")
    chosen = accel.choose(tmp_path / "kernel")
    assert chosen.name == "tcg" and "none" in chosen.why
    monkeypatch.setenv("FAULTCTL_LAB_ACCEL", "xen")
    with pytest.raises(InvalidSpec):
        accel.choose(tmp_path / "kernel")


def test_state_folder_too_long_for_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAULTCTL_STATE", str(tmp_path / ("x" * 100)))
    with pytest.raises(Refused) as caught:
        store.nodes_dir()
    assert "FAULTCTL_STATE" in caught.value.hint
