"""What a node shall be (frozen), and the QEMU command line for it (pure)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from controller.lab.flavours import flavour
from nodeagent.model.errors import InvalidSpec

MIB = 1 << 20
PORTS = 4  # result channels: the owner's, and three for `exec` and `shell` beside it
GUEST_IP = "10.0.2.15"  # QEMU's user-mode network, see qemu(1) -netdev user
GUEST_GW = "10.0.2.2"
AGENT_PORT = 7443
TAP_FD = "@TAP_FD@"  # replaced by the supervisor, which opens the tap
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_SERIAL = re.compile(r"[A-Za-z0-9_.-]{1,20}")  # virtio-blk keeps 20 bytes


@dataclass(frozen=True)
class Disk:
    """A scratch disk: `/dev/disk/by-id/virtio-NAME` in the guest, a sparse file here.

    size: bytes, a multiple of block_size. block_size: logical sector size, 512 or 4096.
    source: a raw file of this host that it starts as a copy of, or empty.
    """

    name: str
    size: int
    block_size: Literal[512, 4096] = 512
    source: str = ""

    def __post_init__(self) -> None:
        if not _SERIAL.fullmatch(self.name) or self.name.startswith("lab-"):
            raise InvalidSpec(f"bad disk name {self.name!r}", "1 to 20 letters, digits, _ . -")
        if self.block_size not in (512, 4096):
            raise InvalidSpec(f"bad block size {self.block_size}", "512 or 4096")
        if self.size <= 0 or self.size % self.block_size:
            raise InvalidSpec(
                f"bad size {self.size} of disk {self.name}",
                f"not a positive multiple of {self.block_size}",
            )

    @property
    def path(self) -> str:
        return f"/dev/disk/by-id/virtio-{self.name}"


@dataclass(frozen=True)
class NodeConfig:
    """What to boot.

    memory: bytes. clock: `real`, or `icount`, where guest time advances one
    nanosecond an instruction (one CPU, slow, repeatable). network: name of a
    bridge that nodes share, or None for the user-mode network alone. forward:
    further guest TCP ports to reach on this host's loopback. append: more words
    for the kernel's command line. udev: run systemd-udevd in the guest. init: process
    1: a shell that only reaps, or systemd with no other unit than the guest service.
    """

    flavour: str = "debian-13"
    name: str = "node"
    memory: int = 1536 * MIB
    cpus: int = 2
    disks: tuple[Disk, ...] = ()
    clock: Literal["real", "icount"] = "real"
    network: str | None = None
    forward: tuple[int, ...] = ()
    append: tuple[str, ...] = ()
    udev: bool = False
    init: Literal["shell", "systemd"] = "shell"

    def __post_init__(self) -> None:
        flavour(self.flavour)
        if not _NAME.fullmatch(self.name):
            raise InvalidSpec(
                f"bad node name {self.name!r}", "1 to 32 of a-z, 0-9 and -, as a host name"
            )
        if self.network is not None and not re.fullmatch(r"[a-z0-9]{1,8}", self.network):
            raise InvalidSpec(f"bad network name {self.network!r}", "1 to 8 of a-z and 0-9")
        names = [disk.name for disk in self.disks]
        if len(set(names)) != len(names):
            raise InvalidSpec("two disks have the same name", ", ".join(names))
        if self.memory < 256 * MIB or self.cpus < 1:
            raise InvalidSpec("a node needs 256 MiB of memory and one CPU at least")
        for port in (*self.forward, AGENT_PORT):
            if not 0 < port < 65536:
                raise InvalidSpec(f"bad port {port}", "1 to 65535")


@dataclass(frozen=True)
class Machine:
    """Host paths and settings that a configuration is turned into a command line with."""

    home: Path  # the node's folder: sockets, console log, disks
    kernel: Path
    root: Path
    lib: Path
    accel: Literal["kvm", "tcg"] = "tcg"
    address: str | None = None  # on the shared bridge, "10.77.0.2/24"
    qemu: str = "qemu-system-x86_64"
    extra: Sequence[str] = field(default=())


def mac(name: str, index: int) -> str:
    """A locally administered address that is the same for the same node name."""
    tail = hashlib.sha256(f"{name}/{index}".encode()).digest()[:3]
    return "52:54:00:" + ":".join(f"{byte:02x}" for byte in tail)


def kernel_words(config: NodeConfig, machine: Machine) -> list[str]:
    """The kernel's command line.

    loglevel=5 keeps the emulated UART, slow as it is, for warnings and worse
    (a panic raises it by itself); a hung or slow host must not be taken for a
    soft lockup, hence nowatchdog.
    """
    words = ["console=ttyS0", "loglevel=5", "nowatchdog", "random.trust_cpu=on", "panic=0"]
    words.append("cryptomgr.notests")  # the ciphers' self tests: a twentieth of a boot
    words += [f"lab.host={config.name}", f"lab.ip={GUEST_IP}/24", f"lab.gw={GUEST_GW}"]
    if machine.address:
        words.append(f"lab.ip1={machine.address}")
    if config.udev:
        words.append("lab.udev=1")
    if config.init != "shell":
        words.append(f"lab.init={config.init}")
    return [*words, *config.append]


def _accel(config: NodeConfig, machine: Machine) -> list[str]:
    if config.clock == "icount":
        return ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-cpu", "max",
                "-smp", "1"]  # fmt: skip
    if machine.accel == "kvm":
        return ["-accel", "kvm", "-cpu", "host", "-smp", str(config.cpus)]
    return ["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(config.cpus)]


def _drive(ident: str, path: Path, serial: str, *, ro: bool, block: int = 512) -> list[str]:
    # cache=unsafe: a power cut of the node is the end of QEMU, not of this host,
    # and what QEMU wrote outlives it in the host's page cache.
    text = str(path).replace(",", ",,")
    drive = f"if=none,id={ident},file={text},format=raw,cache=unsafe,discard=unmap"
    device = f"virtio-blk-pci,drive={ident},serial={serial}"
    if block != 512:
        device += f",logical_block_size={block},physical_block_size={block}"
    return ["-drive", drive + (",readonly=on" if ro else ""), "-device", device]


def _socket(path: Path) -> str:
    return f"path={str(path).replace(',', ',,')},server=on,wait=off"


def _network(config: NodeConfig) -> list[str]:
    # restrict=on: the guest reaches nothing, only what is forwarded reaches it.
    ports = dict.fromkeys((AGENT_PORT, *config.forward))
    forwards = "".join(f",hostfwd=tcp:127.0.0.1:0-:{port}" for port in ports)
    argv = ["-netdev", f"user,id=n0,restrict=on,ipv6=off{forwards}"]
    argv += ["-device", f"virtio-net-pci,netdev=n0,romfile=,mac={mac(config.name, 0)}"]
    if config.network is not None:
        argv += ["-netdev", f"tap,id=n1,fd={TAP_FD}"]
        argv += ["-device", f"virtio-net-pci,netdev=n1,romfile=,mac={mac(config.name, 1)}"]
    return argv


def qemu_argv(config: NodeConfig, machine: Machine) -> list[str]:
    """The whole command line: a headless PC with virtio devices and no firmware menus."""
    home = machine.home
    argv = [machine.qemu, "-name", config.name, *_accel(config, machine)]
    argv += ["-M", "q35", "-m", f"{config.memory // MIB}M", "-nodefaults", "-no-user-config"]
    argv += ["-display", "none", "-rtc", "base=utc"]
    console = str(home / "console.log").replace(",", ",,")
    argv += ["-chardev", f"file,id=con,path={console},append=on", "-serial", "chardev:con"]
    argv += ["-kernel", str(machine.kernel), "-initrd", str(home / "initrd")]
    argv += ["-append", " ".join(kernel_words(config, machine))]
    argv += _drive("root", machine.root, "lab-root", ro=True)
    argv += _drive("lib", machine.lib, "lab-lib", ro=True)
    for index, disk in enumerate(config.disks):
        path = home / "disks" / f"{disk.name}.raw"
        argv += _drive(f"d{index}", path, disk.name, ro=False, block=disk.block_size)
    argv += _network(config)
    argv += ["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]
    for index in range(PORTS):
        argv += ["-chardev", f"socket,id=c{index},{_socket(home / f'p{index}.sock')}"]
        argv += ["-device", f"virtserialport,chardev=c{index},name=faultctl.{index}"]
    argv += ["-qmp", f"unix:{_socket(home / 'qmp.sock').removeprefix('path=')}"]
    return [*argv, *machine.extra]
