"""`faultctl deploy`: the agents on the nodes of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from controller import render
from controller.cli.common import duration_of, output_option
from nodeagent.model.errors import InvalidSpec

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Access:
    """Which cluster."""

    kubeconfig: Path | None
    context: str | None

    def cluster(self) -> Any:
        """Raises InvalidSpec when none is known."""
        from controller.kube.client import Cluster

        return Cluster(self.kubeconfig, self.context)

    def deployment(self, timeout: str) -> Any:
        """With lines of progress on standard error."""
        from controller.kube.deploy import Deployment

        console = render.err()
        return Deployment(
            self.cluster(),
            lambda line: console.print(f"  {line}", markup=False),
            duration_of("--timeout", timeout).total_seconds(),
        )


@click.group()
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="of the cluster [default: KUBECONFIG, ~/.kube/config, in the cluster]",
)
@click.option("--context", metavar="NAME", help="a context of the kubeconfig")
@click.pass_context
def deploy(ctx: click.Context, kubeconfig: Path | None, context: str | None) -> None:
    """Put the agents on a Kubernetes cluster's nodes, and take them off again."""
    ctx.obj = Access(kubeconfig, context)


def image_options(function: F) -> F:
    """What install and upgrade may choose."""
    options = (
        click.option("--image", default="", metavar="NAME", help="the agent's image"),
        click.option("--pull-policy", type=click.Choice(["Always", "IfNotPresent", "Never"])),
        click.option(
            "--capabilities",
            is_flag=True,
            help="named capabilities instead of a privileged container; no device-mapper then",
        ),
        click.option(
            "--node-label",
            "labels",
            multiple=True,
            metavar="KEY=VALUE",
            help="only nodes with this label",
        ),
        timeout_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


timeout_option = click.option(
    "--timeout", default="5m", show_default=True, metavar="DURATION", help="for each wait"
)
revert_option = click.option("--revert", is_flag=True, help="revert armed faults first")


def options_from(values: dict[str, Any]) -> Any:
    """The Options of a command line. Raises InvalidSpec."""
    from controller.kube.manifests import Options

    pairs = [label.partition("=") for label in values["labels"]]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise InvalidSpec(f"--node-label {key!r} is not a label", "KEY=VALUE")
    return Options(
        image=values["image"],
        pull_policy=values["pull_policy"] or "",
        capabilities=values["capabilities"],
        nodes=tuple((key, value) for key, _, value in pairs),
    )


@deploy.command()
@image_options
@click.option(
    "--valid", default="365d", show_default=True, help="of the certificates that it makes"
)
@click.pass_obj
def install(access: Access, /, timeout: str, valid: str, **values: Any) -> None:
    """Install the agents and wait until every node has one.

    Makes certificates for mutual TLS unless their Secrets are there, as with cert-manager
    (daemonset/overlays/cert-manager).
    """
    from controller.kube.deploy import install as work

    options, length = options_from(values), duration_of("--valid", valid)
    done = work(access.deployment(timeout), options, length)
    render.out().print(f"agents are ready on {done.ready} nodes; see: faultctl deploy status")


@deploy.command()
@image_options
@revert_option
@click.pass_obj
def upgrade(access: Access, /, timeout: str, revert: bool, **values: Any) -> None:
    """Change the agents, node by node; refuses while faults are armed.

    Image, pull policy and nodes stay as they are unless they are named; nodes that get no agent any
    more are cleaned.
    """
    from controller.kube.deploy import upgrade as work

    done = work(access.deployment(timeout), options_from(values), revert=revert)
    render.out().print(f"agents are ready on {done.ready} nodes")


@deploy.command()
@click.option("--image", default="", metavar="NAME", help="that cleans the nodes [default: theirs]")
@timeout_option
@revert_option
@click.pass_obj
def uninstall(access: Access, image: str, timeout: str, revert: bool) -> None:
    """Take the agents and all that is theirs off the cluster and its nodes."""
    from controller.kube.deploy import uninstall as work
    from controller.kube.manifests import Options

    work(access.deployment(timeout), Options(image=image), revert=revert)
    render.out().print("nothing of faultctl is left in the cluster or on its nodes")


@deploy.command()
@output_option
@click.pass_obj
def status(access: Access, output: str) -> int:
    """Show every node's agent; exit 4 unless all are sound."""
    from controller.kube.deploy_health import status as ask

    found = ask(access.cluster())
    if output != "table":
        render.data(
            [
                {
                    "node": one.pod.node,
                    "pod": one.pod.pod,
                    "image": one.pod.image,
                    "ready": one.pod.ready,
                    "version": one.version,
                    "guardian": one.guardian,
                    "faults": one.faults,
                    "error": one.error or None,
                }
                for one in found
            ],
            output,
        )
    else:
        rows = [
            (one.pod.node, one.version, one.guardian, str(one.faults), one.error or "ready")
            for one in found
        ]
        render.table(("NODE", "AGENT", "GUARDIAN", "FAULTS", "STATE"), rows, "no node has an agent")
    return 0 if found and all(one.sound for one in found) else 4


@deploy.command()
@click.option("--valid", default="365d", show_default=True, metavar="DURATION")
@click.pass_obj
def certs(access: Access, valid: str) -> None:
    """Make new certificates for agents and controllers, with a new CA.

    Running agents take them at the next handshake after the kubelet has brought them. Refused
    where cert-manager holds the Secrets: it renews them by itself.
    """
    from controller.kube.deploy_certs import put

    end = put(access.cluster(), duration_of("--valid", valid))
    render.out().print(f"new certificates, valid until {end:%Y-%m-%d %H:%M} UTC")
