"""The kinds of node that the lab can boot (pure data)."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.model.errors import InvalidSpec

# Tools that faults, witnesses and tests need; names are the same in Debian 12 and 13.
PACKAGES = (
    "attr",
    "blktrace",
    "bpftool",
    "btrfs-progs",
    "busybox-static",
    "cryptsetup-bin",
    "dmsetup",
    "e2fsprogs",
    "ethtool",
    "fdisk",
    "fio",
    "iperf3",
    "iproute2",
    "iptables",
    "iputils-ping",
    "kmod",
    "libbpf1",
    "lvm2",
    "nftables",
    "postgresql",
    "procps",
    "psmisc",
    "python3",
    "sg3-utils",
    "socat",
    "strace",
    "stress-ng",
    "sysstat",
    "systemd",
    "systemd-timesyncd",
    "udev",
    "util-linux",
    "xfsprogs",
)

# The second BPF loader; LLVM comes with PostgreSQL anyway. Debian 12 shows a node without it.
BCC = ("libbpfcc",)

# What `full` is for: a kernel that has all of these as built-ins serves it.
FULL_OPTIONS = (
    "CONFIG_FUNCTION_ERROR_INJECTION",
    "CONFIG_BPF_KPROBE_OVERRIDE",
    "CONFIG_FAULT_INJECTION",
    "CONFIG_FAIL_MAKE_REQUEST",
    "CONFIG_DM_DUST",
    "CONFIG_DM_DELAY",
    "CONFIG_DM_FLAKEY",
    "CONFIG_BPF_LSM",
    "CONFIG_DEBUG_INFO_BTF",
    "CONFIG_SCSI_DEBUG",
    "CONFIG_NET_SCH_NETEM",
    "CONFIG_IFB",
    "CONFIG_EXT4_FS",
    "CONFIG_XFS_FS",
    "CONFIG_OVERLAY_FS",
    "CONFIG_VIRTIO_BLK",
    "CONFIG_VIRTIO_NET",
    "CONFIG_VIRTIO_CONSOLE",
    "CONFIG_BLK_DEV_LOOP",
)


@dataclass(frozen=True)
class Flavour:
    """suite: Debian release of the root image; python: its interpreter's version;
    kernel_package: whose kernel lies in the image; own_kernel: boot the `full`
    kernel, which has everything built in, instead of the image's; more: packages
    beside those of all flavours."""

    name: str
    suite: str
    python: str
    kernel_package: str = "linux-image-cloud-amd64"
    own_kernel: bool = False
    more: tuple[str, ...] = ()


FLAVOURS = {
    flavour.name: flavour
    for flavour in (
        Flavour("debian-13", "trixie", "3.13", more=BCC),
        Flavour("debian-12", "bookworm", "3.11"),
        Flavour("full", "trixie", "3.13", own_kernel=True, more=BCC),
    )
}


def flavour(name: str) -> Flavour:
    """Look a flavour up; raises InvalidSpec that lists the known ones."""
    try:
        return FLAVOURS[name]
    except KeyError:
        raise InvalidSpec(
            f"no lab flavour {name!r}", "", f"use one of: {', '.join(FLAVOURS)}"
        ) from None
