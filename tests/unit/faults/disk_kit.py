"""A prepared volume bound by hand, so that plans of disk kinds can be tested as data."""

from __future__ import annotations

import shlex
from typing import Any

from nodeagent.faults import kind_named
from nodeagent.model.binding import BlockBinding, BlockLayer, Guard, LayerRanges
from nodeagent.model.disk import DiskBinding
from nodeagent.model.facts import Facts
from nodeagent.model.kind import Measured
from nodeagent.model.plan import FaultRequest, Plan
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.process import CgroupScope
from nodeagent.model.ranges import Range
from nodeagent.model.steps.block import BioWatch

SECTORS = 1 << 21

STOCK = Facts(
    node_id="0123456789abcdef",
    kernel_release="6.12.118+deb13",
    arch="x86_64",
    boot_id="b",
    root=True,
    btf=True,
    libbpf="libbpf.so.1",
    bpf_objects=("bio_fail", "bio_trace"),
    dm_version="4.48.0",
    dm_targets={
        "linear": (1, 5, 0),
        "error": (1, 7, 0),
        "delay": (1, 4, 0),
        "flakey": (1, 5, 0),
    },
    dm_features=(
        "flakey:corrupts_reads",
        "flakey:corrupts_writes",
        "flakey:error_reads",
        "flakey:random_read_corrupt",
        "flakey:random_write_corrupt",
        "flakey:tried",
    ),
)
FULL = STOCK.model_copy(update={"error_injection": ("should_fail_bio",)})
OLD = STOCK.model_copy(update={"dm_features": ("flakey:tried",), "kernel_release": "6.1.0-57"})


def disk_layer(**changes: Any) -> BlockLayer:
    """A virtio disk."""
    known = {
        "major": 254,
        "minor": 16,
        "name": "/dev/vdb",
        "kernel_name": "vdb",
        "kind": "disk",
        "size_sectors": SECTORS,
        "logical_block": 512,
        "physical_block": 4096,
    }
    return BlockLayer.model_validate(known | changes)


def dm_layer(*table: str, **changes: Any) -> BlockLayer:
    """A device-mapper device over it."""
    known = {
        "major": 253,
        "minor": 0,
        "name": "/dev/mapper/data",
        "kernel_name": "dm-0",
        "kind": "dm",
        "dm_name": "data",
        "table": table or (f"0 {SECTORS} linear 254:16 0",),
    }
    return disk_layer(**(known | changes))


def bound(layer: BlockLayer, start: int = 0, length: int = SECTORS, depth: int = 0) -> LayerRanges:
    return LayerRanges(layer=layer, ranges=(Range(start=start, length=length),), depth=depth)


PREPARED = (bound(dm_layer()), bound(disk_layer(), depth=1))
PLAIN = (bound(disk_layer()),)
# An encrypted volume over the second half of a prepared one.
PART = (
    bound(
        dm_layer(
            f"0 {SECTORS // 2} crypt aes-xts-plain64 00 0 253:0 {SECTORS // 2}",
            minor=1,
            name="/dev/mapper/secret",
            dm_name="secret",
            size_sectors=SECTORS // 2,
        ),
        length=SECTORS // 2,
    ),
    bound(dm_layer(), start=SECTORS // 2, length=SECTORS // 2, depth=1),
)


def plan(
    kind_name: str,
    spec: dict[str, Any] | None = None,
    *,
    layers: tuple[LayerRanges, ...] = PREPARED,
    facts: Facts = STOCK,
    guards: tuple[Guard, ...] = (),
    only: CgroupScope | None = None,
    **more: Any,
) -> Plan:
    """The plan of a request on such a volume. Raises as make_plan does."""
    kind = kind_named(kind_name)
    request = FaultRequest.model_validate(
        {
            "id": "t-1",
            "kind": kind_name,
            "target": {"type": "device", "device": layers[0].layer.name},
            "spec": spec or {},
            **more,
        }
    )
    target, parsed = parse_request(kind, request)
    block = BlockBinding(target=target.label(), layers=layers, ends=(), whole=True)
    binding = DiskBinding(block=block, guards=guards, only=only)
    return make_plan(kind, request, target, parsed, binding, facts)


def ops(made: Plan) -> list[str]:
    return [str(step.model_dump()["op"]) for step in made.steps]


def segment(made: Plan) -> dict[str, Any]:
    """The segment of the plan's one overlay, without what is left at its default."""
    found = [step for step in made.steps if step.model_dump()["op"] == "dm_overlay"]
    assert len(found) == 1
    dumped: dict[str, Any] = found[0].model_dump(exclude_defaults=True)["segment"]
    return dumped | {"target": found[0].model_dump()["segment"]["target"]}


def evidence(kind_name: str, spec: dict[str, Any], **data: Any) -> Any:
    """A kind's evidence from what one watch measured."""
    kind = kind_named(kind_name)
    watch = BioWatch(major=253, minor=0, name="data", ranges=(Range(start=0, length=8),))
    return kind.evidence(kind.spec.model_validate(spec), (Measured(watch, data),))


def examples(kind_name: str) -> list[dict[str, Any]]:
    """A kind's examples as request data: target, spec and what is acknowledged."""
    kind = kind_named(kind_name)
    found = []
    for line in kind.examples:
        words = shlex.split(line)
        assert words[:3] == ["faultctl", "inject", kind_name]
        pairs = dict(zip(words[3::2], words[4::2], strict=True))
        known = pairs.pop("--i-know", None)
        pairs.pop("--lease", None)
        name = next(n for n in kind.targets if f"--{n}" in pairs)
        target = {"type": name, name: pairs.pop(f"--{name}")}
        spec = {key[2:].replace("-", "_"): value for key, value in pairs.items()}
        found.append({"target": target, "spec": spec, "acknowledge": [known] if known else []})
    return found
