"""Targets: a workload or device as the user names it, before it is bound to the kernel's names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

from nodeagent.model.units import Size


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"{value!r} is not an absolute path")
    if "\0" in value:
        raise ValueError("a path cannot contain a NUL byte")
    if len(value) > 4095:
        raise ValueError("a path cannot be longer than 4095 bytes")
    return value


AbsolutePath = Annotated[
    str, AfterValidator(_absolute), Field(json_schema_extra={"metavar": "PATH"})
]


class TargetBase(BaseModel):
    """What all targets share: immutable, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def label(self) -> str:
        """How a person would name it in one word group."""
        raise NotImplementedError


class DeviceTarget(TargetBase):
    """A block device by any of its paths, such as /dev/vdb1 or /dev/disk/by-id/..."""

    type: Literal["device"] = "device"
    device: AbsolutePath = Field(description="block device, by any of its paths")

    def label(self) -> str:
        return self.device


class VolumeTarget(TargetBase):
    """The block device below a mounted file system."""

    type: Literal["volume"] = "volume"
    volume: AbsolutePath = Field(description="mount point of a file system on a block device")

    def label(self) -> str:
        return f"volume {self.volume}"


class FileTarget(TargetBase):
    """A byte range of a regular file, mapped to the sectors that hold it now."""

    type: Literal["file"] = "file"
    file: AbsolutePath = Field(description="regular file; a symbolic link is followed and reported")
    offset: Size = Field(default=0, description="first byte of the range in the file")
    length: Size | None = Field(
        default=None, description="length of the range; without it, to the end of the file"
    )

    def label(self) -> str:
        return f"file {self.file}"


class ProcessTarget(TargetBase):
    """A process with all its threads; its start time becomes part of the binding."""

    type: Literal["pid"] = "pid"
    pid: int = Field(ge=1, le=1 << 22, description="process id as the node sees it")

    def label(self) -> str:
        return f"process {self.pid}"


class CgroupTarget(TargetBase):
    """A cgroup with everything below it, such as a pod's or a unit's."""

    type: Literal["cgroup"] = "cgroup"
    cgroup: AbsolutePath = Field(
        description="cgroup: a path below /sys/fs/cgroup, or as in /proc/PID/cgroup"
    )

    def label(self) -> str:
        return f"cgroup {self.cgroup}"


class NetnsTarget(TargetBase):
    """A net namespace by a path that leads to it, such as /run/netns/NAME."""

    type: Literal["netns"] = "netns"
    netns: AbsolutePath = Field(description="file of a net namespace, such as /run/netns/NAME")

    def label(self) -> str:
        return f"net namespace {self.netns}"


def _this_one(value: bool) -> bool:
    if not value:
        raise ValueError("the node is named or not: leave it out")
    return value


class NodeTarget(TargetBase):
    """The node itself, as a whole."""

    type: Literal["node"] = "node"
    node: Annotated[bool, AfterValidator(_this_one)] = Field(
        default=True, description="the node as a whole", json_schema_extra={"flag": True}
    )

    def label(self) -> str:
        return "the node"


UNIT = r"^[A-Za-z0-9@:_.\\-]{1,247}$"
"""Letters of a unit's name (systemd.unit(5))."""


class UnitTarget(TargetBase):
    """A service of systemd."""

    type: Literal["unit"] = "unit"
    unit: str = Field(pattern=UNIT, description="systemd service, such as chrony or kubelet")

    def label(self) -> str:
        return f"unit {self.unit}"


POD_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
POD_UID = r"^([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$"
CONTAINER_ID = r"^[0-9a-f]{64}$"


class PodTarget(TargetBase):
    """A pod by its UID, or one of its containers: what a node's cgroups are named after.

    The UID of a static pod is the hash of its file (annotation kubernetes.io/config.hash),
    not the one of its mirror at the API server.
    """

    type: Literal["pod"] = "pod"
    pod: str = Field(pattern=POD_NAME, description="NAMESPACE/NAME")
    uid: str = Field(pattern=POD_UID, description="as the kubelet names the pod's cgroup")
    container: str = Field(default="", description="name of the container; empty for the pod")
    container_id: str | None = Field(
        default=None, pattern=CONTAINER_ID, description="of the runtime; none for the whole pod"
    )

    def label(self) -> str:
        return f"pod {self.pod}" + (f" container {self.container}" if self.container else "")


class PodVolumeTarget(TargetBase):
    """A pod's volume, or a file on it, as one of its running containers sees it."""

    type: Literal["pod-volume"] = "pod-volume"
    pod: str = Field(pattern=POD_NAME, description="NAMESPACE/NAME")
    uid: str = Field(pattern=POD_UID, description="as the kubelet names the pod's cgroup")
    volume: str = Field(min_length=1, description="name of the volume in the pod")
    container: str = Field(default="", description="name of the container that is looked into")
    container_id: str = Field(pattern=CONTAINER_ID, description="of the runtime")
    path: AbsolutePath = Field(description="mountPath, or devicePath of a raw block volume")
    sub_path: str = Field(default="", description="subPath of the mount")
    block: bool = Field(default=False, description="a raw block volume (volumeDevices)")
    file: str | None = Field(default=None, description="regular file, relative to `path`")
    offset: Size = Field(default=0, description="first byte of the range in the file")
    length: Size | None = Field(default=None, description="bytes; without it, to the file's end")

    def label(self) -> str:
        return f"volume {self.volume} of pod {self.pod}" + (f": {self.file}" if self.file else "")


Target = Annotated[
    DeviceTarget
    | VolumeTarget
    | FileTarget
    | ProcessTarget
    | CgroupTarget
    | NetnsTarget
    | NodeTarget
    | UnitTarget
    | PodTarget
    | PodVolumeTarget,
    Field(discriminator="type"),
]
TARGET_TYPES: dict[str, type[TargetBase]] = {
    "device": DeviceTarget,
    "volume": VolumeTarget,
    "file": FileTarget,
    "pid": ProcessTarget,
    "cgroup": CgroupTarget,
    "netns": NetnsTarget,
    "node": NodeTarget,
    "unit": UnitTarget,
    "pod": PodTarget,
    "pod-volume": PodVolumeTarget,
}
STANDS_FOR: dict[str, tuple[str, ...]] = {
    "pod": ("netns", "cgroup"),
    "pod-volume": ("file", "volume", "device"),
}
"""What the agent makes of a pod, so that each kind that takes one of these takes pods too."""
_ADAPTER: TypeAdapter[TargetBase] = TypeAdapter(Target)


def parse_target(data: Any) -> TargetBase:
    """A target from decoded JSON or YAML. Raises pydantic.ValidationError."""
    return _ADAPTER.validate_python(data)


def accepts(taken: tuple[str, ...], target: TargetBase) -> bool:
    """Whether a kind that takes these types of target can be asked to hit this one."""
    name = getattr(target, "type", "")
    return name in taken or any(kind in taken for kind in STANDS_FOR.get(name, ()))
