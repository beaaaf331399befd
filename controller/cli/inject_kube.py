"""`faultctl inject` with pods or nodes of a cluster as targets."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from controller.cli.kube import ACCESS, access_options, reached
from controller.kube.admission import check_policy
from controller.kube.ways import Reached
from controller.options import option_name, spec_from, target_from
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.kind import FaultKind
from nodeagent.model.plan import Lease
from nodeagent.model.policy import namespace_of
from nodeagent.model.target import TARGET_TYPES

CHOOSING = ("pod", "namespace", "selector", "field_selector", "owner", "on_node", "node_selector",
            "zone")  # fmt: skip
PODS = ("pod", "namespace", "selector", "field_selector", "owner")
PART = ("file", "offset", "length")


def kube_options() -> list[click.Parameter]:
    """Options that choose pods or nodes of a cluster."""
    return [
        click.Option(["--pod"], multiple=True, metavar="[NS/]NAME", help="a pod of a cluster"),
        click.Option(["-n", "--namespace"], metavar="NAME",
                     help="of the pods [default: the kubeconfig's]"),
        click.Option(["-l", "--selector"], metavar="LABELS",
                     help="pods by labels: app=cart,tier!=cache,track in (a,b)"),
        click.Option(["--field-selector"], metavar="FIELDS",
                     help="pods by fields: spec.nodeName=n1"),
        click.Option(["--owner"], metavar="KIND/NAME",
                     help="pods of a deployment, statefulset, daemonset, replicaset or job"),
        click.Option(["--container"], multiple=True, metavar="NAME",
                     help="only this one [default: all but init containers and known sidecars]"),
        click.Option(["--pick"], metavar="N|N%|all",
                     help="how many of those that match; a share is rounded up"),
        click.Option(["--all", "everything"], is_flag=True, help="the same as --pick all"),
        click.Option(["--pick-seed"], metavar="SEED", help="makes the same choice again"),
        click.Option(["--on-node"], multiple=True, metavar="NAME",
                     help="pods on this node; without pods, the node itself"),
        click.Option(["--node-selector"], metavar="LABELS", help="nodes by labels"),
        click.Option(["--zone"], multiple=True, metavar="NAME",
                     help="nodes by topology.kubernetes.io/zone"),
        click.Option(["--to-pods"], metavar="-l LABELS",
                     help="network kinds: only to these pods and the services before them; "
                     "with -n NAME before -l, of another namespace"),
        click.Option(["--to-zone"], multiple=True, metavar="NAME",
                     help="network kinds: only to pods on nodes of this zone"),
        click.Option(["--zone-cap"], metavar="N|N%",
                     help="at most so many of the pods of each zone"),
        click.Option(["--follow"], type=click.Choice(["move", "stay"]), metavar="move|stay",
                     help="hold the fault, and hit pods that take the place of those hit; on "
                     "other nodes as well (move), or not (stay)"),
        click.Option(["--announce"], is_flag=True,
                     help="tell the cluster by Events and a node condition; not for blind runs"),
        click.Option(["--policy"], envvar="FAULTCTL_POLICY", type=click.Path(path_type=Path),
                     metavar="FILE", help="who may inject what; see docs/kubernetes.md"),
        click.Option(["--to-namespace"], metavar="NAME", hidden=True),
        *access_options(),
    ]  # fmt: skip


def with_peers(args: list[str]) -> list[str]:
    """`--to-pods [-n NS] -l LABELS`, as it is written, to options of one value each."""
    if "--to-pods" not in args:
        return args
    at = args.index("--to-pods")
    head, rest = args[:at], args[at + 1 :]
    if rest[:1] in (["-n"], ["--namespace"]) and len(rest) > 1:
        head, rest = [*head, "--to-namespace", rest[1]], rest[2:]
    if rest[:1] in (["-l"], ["--selector"]):
        rest = rest[1:]
    return [*head, "--to-pods", *rest]


class KindCommand(click.Command):
    """A kind's command; its `--to-pods` is followed by a selector of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_peers(args))


def is_kube(values: Mapping[str, Any]) -> bool:
    """Whether the options name something of a cluster. Raises InvalidSpec for half of it."""
    if any(values[name] for name in CHOOSING):
        return True
    about = ("container", "pick", "pick_seed", "to_pods", "to_zone", "zone_cap", "follow")
    stray = [name for name in about if values[name]]
    if stray or values["everything"]:
        raise InvalidSpec(
            f"{option_name(stray[0]) if stray else '--all'} is about pods or nodes of a cluster",
            "none are named",
            "add --pod NAME, -n NAMESPACE -l LABELS, or --on-node NAME",
        )
    return False


def strip(values: dict[str, Any]) -> dict[str, Any]:
    """The options without those of a cluster."""
    gone = {str(option.name) for option in kube_options()}
    return {name: value for name, value in values.items() if name not in gone}


def run_inject_kube(
    kind: FaultKind, values: dict[str, Any], base: dict[str, Any], lease: Lease
) -> None:
    """Select, plan everywhere, then arm everywhere or nowhere. base: fields of each request."""
    from controller.cli import group_show as show
    from controller.cli.announced import Announced
    from controller.kube.group import apply_group, plan_group
    from controller.kube.targets import group_id

    group = values["fault_id"] or group_id(kind.name, secrets.token_hex(3))
    with reached({name: values[name] for name in ACCESS}) as there:
        wanted, found = _resolved(there, kind, group, values, base)
        targets = [namespace_of(item.request.target) for item in found.items]
        check_policy(there.cluster, values["policy"],
                     [(kind.name, name, lease.hard_end) for name in targets])  # fmt: skip
        planned = plan_group(there.clients, found.items)
        if values["plan_only"]:
            show.plan(group, found, planned, values["output"])
            return
        if values["output"] == "table":
            show.selection(group, found)
        outcome = apply_group(there.clients, planned, lease)
        show.armed(group, found, planned, outcome, values["output"])
        said = Announced(there, kind.name, group, found, values["announce"])
        said.armed(lease)
        if not values["follow"] and not values["hold"]:
            said.leave(values["kubeconfig"], values["context"])
            return
        try:
            if values["follow"]:
                show.follow(there, wanted, found, lease, values["follow"] == "move", said)
            else:
                show.hold(there.clients, found, lease)
        finally:
            said.settle()
        said.ended()


def _resolved(
    there: Reached, kind: FaultKind, group: str, values: dict[str, Any], base: dict[str, Any]
) -> tuple[Any, Any]:
    """(what is wanted, what it comes to)."""
    from controller.kube.discover import Query
    from controller.kube.resolve import Wanted, resolve_nodes, resolve_pods

    query, ask = _asked(there, values)
    base = {**base, "spec": spec_from(kind.spec, values)}
    part = {name: values[name] for name in PART if values.get(name) is not None}
    wanted = Wanted(group, kind, query, ask, part, base, agent_namespace=values["agent_namespace"])
    if values["to_pods"] or values["to_zone"]:
        peers = Query(values["to_namespace"] or query.namespace, labels=values["to_pods"] or "")
        wanted = replace(wanted, peers=peers, peer_zones=tuple(values["to_zone"]))
    if any(values[name] for name in PODS):
        _no_node_target(kind, values)
        return wanted, resolve_pods(there.cluster, wanted)
    if any(values[name] for name in ("to_pods", "to_zone", "zone_cap", "container", "follow")):
        raise InvalidSpec(
            "--to-pods, --container and --follow are about pods", "only nodes are named"
        )
    target = target_from(kind, values)
    return wanted, resolve_nodes(there.cluster, wanted, target, tuple(values["on_node"]))


def _asked(there: Reached, values: Mapping[str, Any]) -> tuple[Any, Any]:
    """The query to the API server, and the ask that decides over its answer."""
    from controller.kube.asked import asked

    query, ask = asked(there.cluster.namespace, values)
    if ask.names and (ask.how_many or values["pick_seed"]):
        raise InvalidSpec("--pod names pods by themselves", "--pick, --all choose among many")
    return query, ask


def _no_node_target(kind: FaultKind, values: Mapping[str, Any]) -> None:
    """A target of the node itself cannot go with pods. Raises InvalidSpec."""
    fields = {f for name in kind.targets for f in TARGET_TYPES[name].model_fields}
    stray = [f for f in sorted(fields - {"type", "volume", *PART}) if values.get(f)]
    if stray:
        raise InvalidSpec(f"{option_name(stray[0])} names something of one node", "pods are named")
    volume = values.get("volume")
    if volume and Path(volume).is_absolute():
        raise InvalidSpec(
            f"--volume {volume} is a mount point of a node",
            "a pod's volume is named as in its spec.volumes",
        )
