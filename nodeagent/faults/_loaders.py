"""Which mechanism works with which BPF loader on a node. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.faults import _syscall_plan as sp
from nodeagent.faults._disk import needs_bio_fail
from nodeagent.model.bpf import LOADERS
from nodeagent.model.facts import (
    Facts,
    Need,
    NeedBpf,
    NeedRoot,
    first_missing,
)

BLOCK: dict[str, tuple[Need, ...]] = {
    "bpf-bio": needs_bio_fail(None),
    "evidence of bios": (NeedRoot(), NeedBpf("bio_trace")),
}
"""What the block layer's programs serve; they come by libbpf, whatever the loader is."""


def matrix(facts: Facts) -> Mapping[str, Mapping[str, str | None]]:
    """Loader -> mechanism -> what is missing for it, None where it works."""
    found: dict[str, dict[str, str | None]] = {}
    for loader in LOADERS:
        seen = facts.model_copy(update={"bpf_loader": loader})
        needs = {rung.name: rung.needs(None) for rung in sp.LADDER if rung.name.startswith("bpf-")}
        found[loader] = {name: first_missing(need, seen) for name, need in needs.items()}
    found["libbpf"] |= {name: first_missing(need, facts) for name, need in BLOCK.items()}
    return found


def summary(mechanisms: Mapping[str, str | None]) -> str:
    """One line: what works, and why the rest does not, each reason once."""
    works = [name for name, reason in mechanisms.items() if reason is None]
    reasons: dict[str, list[str]] = {}
    for name, reason in mechanisms.items():
        if reason is not None:
            reasons.setdefault(reason, []).append(name)
    lacks = [f"not {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return "; ".join((", ".join(works) or "nothing", *lacks))
