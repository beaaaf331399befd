"""What a configuration may hold, and the QEMU command line that it becomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.lab.config import Disk, Machine, NodeConfig, kernel_words, mac, qemu_argv
from nodeagent.model.errors import InvalidSpec

MACHINE = Machine(Path("/s/n1"), Path("/c/vmlinux"), Path("/c/root"), Path("/c/lib"))


def test_golden_command_line() -> None:
    config = NodeConfig(name="n1", disks=(Disk("data", 1 << 20, 4096),), forward=(80, 7443))
    ports = [
        word
        for i in range(4)
        for word in (
            "-chardev",
            f"socket,id=c{i},path=/s/n1/p{i}.sock,server=on,wait=off",
            "-device",
            f"virtserialport,chardev=c{i},name=faultctl.{i}",
        )
    ]
    assert qemu_argv(config, MACHINE) == [
        "qemu-system-x86_64", "-name", "n1",
        "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
        "-M", "q35", "-m", "1536M", "-nodefaults", "-no-user-config",
        "-display", "none", "-rtc", "base=utc",
        "-chardev", "file,id=con,path=/s/n1/console.log,append=on", "-serial", "chardev:con",
        "-kernel", "/c/vmlinux", "-initrd", "/s/n1/initrd",
        "-append", " ".join(kernel_words(config, MACHINE)),
        "-drive", "if=none,id=root,file=/c/root,format=raw,cache=unsafe,discard=unmap,readonly=on",
        "-device", "virtio-blk-pci,drive=root,serial=lab-root",
        "-drive", "if=none,id=lib,file=/c/lib,format=raw,cache=unsafe,discard=unmap,readonly=on",
        "-device", "virtio-blk-pci,drive=lib,serial=lab-lib",
        "-drive", "if=none,id=d0,file=/s/n1/disks/data.raw,format=raw,cache=unsafe,discard=unmap",
        "-device",
        "virtio-blk-pci,drive=d0,serial=data,logical_block_size=4096,physical_block_size=4096",
        "-netdev",
        "user,id=n0,restrict=on,ipv6=off,"
        "hostfwd=tcp:127.0.0.1:0-:7443,hostfwd=tcp:127.0.0.1:0-:80",
        "-device", f"virtio-net-pci,netdev=n0,romfile=,mac={mac('n1', 0)}",
        "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
        *ports,
        "-qmp", "unix:/s/n1/qmp.sock,server=on,wait=off",
    ]  # fmt: skip


def test_kernel_command_line() -> None:
    config = NodeConfig(name="n1", udev=True, append=("scsi_debug.opts=2",))
    words = kernel_words(config, replace(MACHINE, address="10.77.0.2/24"))
    assert "lab.host=n1" in words and "lab.ip1=10.77.0.2/24" in words and "lab.udev=1" in words
    assert words[-1] == "scsi_debug.opts=2", "what the user adds comes last, so that it wins"
    assert not any(
        word.startswith(("lab.ip1", "lab.udev")) for word in kernel_words(NodeConfig(), MACHINE)
    )


def test_only_forwarded_ports_and_loopback() -> None:
    """Nothing of the guest may reach another machine, and nobody else the guest."""
    argv = qemu_argv(NodeConfig(forward=(1, 2)), MACHINE)
    netdev = argv[argv.index("-netdev") + 1]
    assert "restrict=on" in netdev
    assert netdev.count("hostfwd=") == netdev.count("hostfwd=tcp:127.0.0.1:") == 3


def test_icount_takes_one_cpu_and_the_counting_clock() -> None:
    argv = qemu_argv(NodeConfig(clock="icount", cpus=4), MACHINE)
    assert argv[argv.index("-icount") + 1] == "shift=0,sleep=off"
    assert argv[argv.index("-accel") + 1] == "tcg,thread=single"
    assert argv[argv.index("-smp") + 1] == "1"


def test_kvm_when_told() -> None:
    argv = qemu_argv(NodeConfig(), replace(MACHINE, accel="kvm"))
    assert argv[argv.index("-accel") + 1] == "kvm" and argv[argv.index("-cpu") + 1] == "host"


def test_a_shared_network_adds_one_interface() -> None:
    argv = qemu_argv(NodeConfig(network="pair"), MACHINE)
    assert argv.count("-netdev") == 2 and any("@TAP_FD@" in word for word in argv)


def test_commas_in_a_folder_do_not_become_options() -> None:
    machine = Machine(Path("/a,readonly=off"), Path("/k"), Path("/r,x"), Path("/l"))
    argv = qemu_argv(NodeConfig(disks=(Disk("d", 512),)), machine)
    for word in argv:
        if "/a," in word or "/r," in word:
            assert "/a,,readonly" in word or "/r,,x" in word or word == "/a,readonly=off/initrd"


def test_addresses_differ_by_node_and_interface() -> None:
    seen = {mac(name, index) for name in ("a", "b") for index in (0, 1)}
    assert len(seen) == 4 and mac("a", 0) in seen
    assert all(address.startswith("52:54:00:") for address in seen)


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": "Upper"},
        {"name": "-a"},
        {"name": "a/../b"},
        {"name": "a" * 33},
        {"flavour": "debian-1"},
        {"memory": 1 << 20},
        {"cpus": 0},
        {"network": "toolongname"},
        {"network": "a b"},
        {"forward": (0,)},
        {"forward": (65536,)},
        {"disks": (Disk("a", 512), Disk("a", 512))},
    ],
)
def test_bad_configurations(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        NodeConfig(**bad)


@pytest.mark.parametrize(
    ("name", "size", "block"),
    [("", 512, 512), ("lab-root", 512, 512), ("a,b", 512, 512), ("x" * 21, 512, 512),
     ("d", 0, 512), ("d", -512, 512), ("d", 513, 512), ("d", 512, 4096), ("d", 4096, 1024)],
)  # fmt: skip
def test_bad_disks(name: str, size: int, block: Any) -> None:
    with pytest.raises(InvalidSpec):
        Disk(name, size, block)
