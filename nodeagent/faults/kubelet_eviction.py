"""kubelet-eviction: the kubelet reports pressure, by a threshold above what the node has free."""

from __future__ import annotations

from pydantic import Field, model_validator

from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import NeedRoot
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.kubelet import CONDITIONS, MEASURED, KubeletBinding, Signal
from nodeagent.model.steps.kubelet import KubeletThreshold
from nodeagent.model.units import Percent, Size, format_percent


class Spec(FaultSpec):
    """Which signal, and below what it counts as pressure."""

    signal: Signal = Field(
        default="nodefs.available", description="what the kubelet is to miss, by its own name"
    )
    percent: Percent | None = Field(
        default=None, description="threshold as a share; by default 10 points above what is free"
    )
    amount: Size | None = Field(
        default=None, ge=1, description="threshold in bytes, or of inodes or pids in number"
    )

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        if self.percent is not None and self.amount is not None:
            raise ValueError("percent and amount cannot go together")
        if self.percent is not None and not 0 < self.percent < 100:
            raise ValueError("percent: the kubelet takes 0% and 100% for no threshold at all")
        if self.percent is None and self.amount is None and self.signal not in MEASURED:
            raise ValueError(f"how much of {self.signal} is free is not known: percent or amount")
        return self

    @property
    def threshold(self) -> str:
        """As the kubelet reads it; empty: above what is free then."""
        if self.percent is not None:
            return format_percent(self.percent)
        return "" if self.amount is None else str(self.amount)


def _supports(spec: Spec, context: Context) -> str | None:
    binding: KubeletBinding = context.binding
    if binding.overridden:
        return f"it was started with {binding.overridden}, which wins over its configuration file"
    return None


def _plan(spec: Spec, context: Context) -> list[KubeletThreshold]:
    binding: KubeletBinding = context.binding
    return [
        KubeletThreshold(
            fault=context.fault_id,
            config=binding.config,
            named=binding.named,
            root_dir=binding.root_dir,
            unit=binding.unit,
            signal=spec.signal,
            threshold=spec.threshold,
        )
    ]


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    condition = CONDITIONS[spec.signal]
    return (
        Guard("evicts-pods", f"under {condition} the kubelet evicts pods and takes no new ones"),
    )


def evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    """What the kubelet runs with. That it reports pressure, the API server tells, not the node."""
    found = next((item.data for item in measured if "threshold" in item.data), None)
    if found is None:
        return Evidence(counted=False)
    said = []
    if not found["there"]:
        said.append("its configuration file is not as the fault left it: somebody has changed it")
    if found["pid"] is None:
        said.append("no kubelet runs now")
    if found["free_percent"] is not None:
        said.append(f"{found['free_percent']:g}% of {spec.signal} is free, the threshold is "
                    f"{found['threshold']}")  # fmt: skip
    return Evidence(counted=False, statements=tuple(said), details=dict(found))


KIND = FaultKind(
    name="kubelet-eviction",
    summary="the kubelet reports pressure and evicts pods, though the node has enough",
    doc="""\
An entry of evictionHard in the kubelet's configuration file (--config of its process) is raised
above what is free, and the kubelet restarted: by its systemd unit, or by SIGTERM where something
else starts it again. Where the file had no evictionHard, the kubelet's defaults are written beside
it, since one entry would turn the others off.

The file itself waits beside the new one as .faultctl-ID.kept and gets its name back at the revert:
the same inode with its mode, owner, times and attributes; then the kubelet is restarted again. If
somebody has edited the file meanwhile, it is left, and the revert says so. Where a process cannot
be found that runs as `kubelet --config FILE`, or --eviction-hard is on its command line, it is
refused. This works across a reboot: the agent puts the file back when it starts.""",
    spec=Spec,
    targets=("node",),
    family="kubelet",
    ladder=(
        Rung(
            "config-file",
            "its configuration file, and a restart",
            lambda spec: (NeedRoot(),),
            _plan,
            _supports,
        ),
    ),
    evidence=evidence,
    collateral=lambda spec: (
        "pods that were evicted are not brought back by the revert, their controllers make others",
        "images and dead containers that the kubelet has removed to gain space are gone",
        "the node's condition stays for evictionPressureTransitionPeriod (5 minutes by default)",
    ),
    remedies=(
        "put evictionHard right in the kubelet's configuration and restart it",
        "drain the node",
    ),
    guards=_guards,
    no_hits_hint="the node's conditions are with the API server: kubectl describe node",
    examples=(
        "faultctl inject kubelet-eviction --node --i-know evicts-pods",
        "faultctl inject kubelet-eviction --node --signal memory.available --percent 95% "
        "--i-know evicts-pods",
    ),
)
