"""Putting the agents on the nodes of a cluster, changing them, and taking everything off again.

Nothing here restarts or removes an agent while a fault is armed, unless the faults are reverted
first. The last act of an uninstall is a DaemonSet that cleans every node (nodeagent/pod.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from controller.kube import deploy_certs, deploy_left
from controller.kube.agents import Access, Agents
from controller.kube.answers import ApiPath
from controller.kube.client import APPLY, Cluster
from controller.kube.deploy_left import Selector
from controller.kube.deploy_status import PodState, Rollout, not_ready, pod_state, rollout
from controller.kube.group import Clients, Failure
from controller.kube.manifests import Object, Options, cleaning, installed, path_of
from controller.kube.node_condition import forget, settle
from controller.kube.portforward import forward
from nodeagent.model.errors import FaultError, Refused, Unreachable
from nodeagent.model.protected import AGENT_NAMESPACE

Progress = Callable[[str], None]
FAULTD, CLEAN = "faultd", "faultd-clean"
LABEL = "app.kubernetes.io/name"
PRIORITY = ApiPath("priorityclasses", "", "faultctl-node", "scheduling.k8s.io")
POLL_S = 1.0
TIMEOUT = timedelta(minutes=5)
AGAIN = "say it again: it goes on from here"
MEND = (
    "faultctl deploy status says what is in the way; when it is mended, or with another --image, "
    "faultctl deploy upgrade goes on from here"
)


@dataclass(frozen=True)
class Deployment:
    """One cluster to work on. timeout_s: for each wait."""

    cluster: Cluster
    progress: Progress
    timeout_s: float = TIMEOUT.total_seconds()


def daemonset(cluster: Cluster, name: str = FAULTD) -> Object | None:
    """A DaemonSet of ours, or None."""
    return cluster.get(ApiPath("daemonsets", AGENT_NAMESPACE, name, "apps"))


def pods(cluster: Cluster, name: str = FAULTD) -> list[PodState]:
    """The pods of a DaemonSet of ours, by node."""
    items, _ = cluster.listed(ApiPath("pods", AGENT_NAMESPACE), f"{LABEL}={name}")
    return sorted(map(pod_state, items), key=lambda one: (one.node, one.pod))


def install(at: Deployment, options: Options, valid: timedelta = deploy_certs.VALID) -> Rollout:
    """Put the agents on the nodes and wait until all are ready. Raises Refused if they are there.

    Certificates that are there already, cert-manager's for instance, are kept.
    """
    if daemonset(at.cluster) is not None:
        raise Refused(
            "faultctl is installed in this cluster",
            f"there is a DaemonSet {AGENT_NAMESPACE}/{FAULTD}",
            "faultctl deploy upgrade, or faultctl deploy status",
        )
    objects = installed(options)
    _apply(at, [one for one in objects if one["kind"] != "DaemonSet"])
    if not deploy_certs.there(at.cluster):
        end = deploy_certs.put(at.cluster, valid)
        at.progress(f"made certificates that are valid until {end:%Y-%m-%d}")
    _apply(at, [one for one in objects if one["kind"] == "DaemonSet"])
    return wait(at, again=MEND)


def upgrade(at: Deployment, options: Options, *, revert: bool = False) -> Rollout:
    """Change an installation, node by node. Raises Refused while faults are armed.

    What the options leave open (image, pull policy, nodes) stays as it is. Nodes that are chosen no
    more are cleaned; if that fails, the DaemonSet remembers them for the next time.
    """
    present = daemonset(at.cluster)
    if present is None:
        raise Refused("faultctl is not installed in this cluster", "", "faultctl deploy install")
    quiet(at, revert=revert)
    if not options.capabilities and not _privileged(present):
        at.progress("the agents become privileged; --capabilities keeps them as they are")
    options = _kept(present, options)
    left = deploy_left.left(present, options)
    _apply(at, deploy_left.marked(options, left))
    done = wait(at)
    _leave(at, options, left)
    if left:
        _apply(at, deploy_left.marked(options, ()))
    return done


def uninstall(at: Deployment, options: Options, *, revert: bool = False) -> None:
    """Take everything off the cluster and its nodes. Raises Refused while faults are armed.

    The nodes are cleaned by the image that the agents have, unless the options name another.
    """
    present, cleaner = daemonset(at.cluster), daemonset(at.cluster, CLEAN)
    if present is not None:
        quiet(at, revert=revert)
        options = _kept(present, options)
        _leave(at, options, deploy_left.left(present, options))
        at.progress("ending the agents")
        _end(at, FAULTD)
    elif cleaner is not None:
        options = _kept(cleaner, options)  # an uninstall that came so far
    elif _namespace(at.cluster) is None:
        raise Refused("faultctl is not installed in this cluster", "", "")
    at.progress("cleaning the nodes")
    _apply(at, cleaning(options))
    wait(at, CLEAN)
    _end(at, CLEAN)
    for line in forget(at.cluster):
        at.progress(line)
    at.cluster.delete(PRIORITY)
    at.cluster.delete(ApiPath("namespaces", "", AGENT_NAMESPACE))
    _until(at, lambda: _namespace(at.cluster) is None, lambda: "the namespace is being deleted")


def quiet(at: Deployment, *, revert: bool) -> None:
    """See that no fault is armed on any node; `revert` takes those back that are.

    Raises Refused with their names, Unreachable when an agent cannot tell.
    """
    found, failed = armed(at.cluster)
    if failed:
        raise Unreachable(
            f"{len(failed)} agents do not say whether faults are armed",
            "; ".join(str(one) for one in failed[:5]),
            "faultctl deploy status; is a node gone for good? kubectl delete node NAME",
        )
    if not found:
        return
    names = ", ".join(f"{fault} on {node}" for node, ids in found.items() for fault in ids[:5])
    if not revert:
        raise Refused("faults are armed", names, "revert them first, or say --revert")
    at.progress(f"reverting {names}")
    with Agents(at.cluster, Access(forward=forward)) as agents, Clients(agents) as clients:
        _, failed = clients.everywhere(
            found, lambda node, agent: [agent.revert(fault) for fault in found[node]]
        )
        for line in settle(at.cluster, clients, found):
            at.progress(line)
    if failed:
        raise Refused("faults could not be reverted", "; ".join(map(str, failed)))


def armed(cluster: Cluster) -> tuple[dict[str, list[str]], list[Failure]]:
    """(ids of faults that have not ended, by node; nodes whose agent does not answer).

    An agent that never ran, for want of its image for instance, has armed nothing.
    """
    nodes = sorted({one.node for one in pods(cluster) if one.node and one.begun})
    if not nodes:
        return {}, []
    with Agents(cluster, Access(forward=forward)) as agents, Clients(agents) as clients:
        done, failed = clients.everywhere(nodes, lambda _, agent: agent.faults(active_only=True))
    return {node: [fault.id for fault in found] for node, found in done.items() if found}, failed


def wait(at: Deployment, name: str = FAULTD, again: str = AGAIN) -> Rollout:
    """Wait until a DaemonSet has a ready pod on every node. Raises Unreachable, Refused.

    again: what to do when that takes too long.
    Agents need a node; where there is none, nothing is to be cleaned.
    """
    last = Rollout(0, 0, 0, False)

    def done() -> bool:
        nonlocal last
        found = daemonset(at.cluster, name)
        if found is None:
            raise Refused(f"the DaemonSet {name} is gone", "somebody has deleted it meanwhile")
        last = rollout(found)
        if last.seen and not last.wanted and name == FAULTD:
            raise Refused(
                "no node takes an agent",
                f"node selector: {_labels(found)}",
                "is there a node with these labels? then faultctl deploy upgrade",
            )
        return last.done

    def said() -> str:
        return ": ".join(filter(None, (last.text(), not_ready(pods(at.cluster, name)))))

    _until(at, done, said, again)
    at.progress(last.text())
    return last


def _until(
    at: Deployment, done: Callable[[], bool], said: Callable[[], str], again: str = AGAIN
) -> None:
    end = time.monotonic() + at.timeout_s
    told = ""
    while not done():
        if (line := said()) != told:
            at.progress(line)
            told = line
        if time.monotonic() > end:
            raise Unreachable(f"not done within {at.timeout_s:.0f}s", told, again)
        time.sleep(POLL_S)


def _apply(at: Deployment, objects: list[Object]) -> None:
    for one in objects:
        path = path_of(one)
        at.cluster.patch(path, one, APPLY, fieldManager="faultctl", force="true")
        at.progress(f"{path.resource}/{path.name}")


def _leave(at: Deployment, options: Options, left: Sequence[Selector]) -> None:
    """Clean the nodes that an upgrade has taken the agents off."""
    for one in left:
        at.progress(f"cleaning nodes that have no agent any more, of {deploy_left.text(one)}")
        _apply(at, deploy_left.cleaning_left(options, one))
        wait(at, CLEAN)
        _end(at, CLEAN)


def _end(at: Deployment, name: str) -> None:
    """Delete a DaemonSet and wait until its pods have gone."""
    background = {"propagationPolicy": "Background"}
    at.cluster.delete(ApiPath("daemonsets", AGENT_NAMESPACE, name, "apps"), background)
    _until(
        at,
        lambda: not pods(at.cluster, name),
        lambda: not_ready(pods(at.cluster, name)) or "pods are ending",
    )


def _namespace(cluster: Cluster) -> Object | None:
    try:
        return cluster.get(ApiPath("namespaces", "", AGENT_NAMESPACE))
    except FaultError as exc:
        raise Refused("the namespace cannot be read", str(exc)) from exc


def _labels(found: Object) -> str:
    selector = found["spec"]["template"]["spec"].get("nodeSelector") or {}
    return ",".join(f"{key}={value}" for key, value in selector.items()) or "none"


def _privileged(present: Object) -> bool:
    container = present["spec"]["template"]["spec"]["containers"][0]
    return bool((container.get("securityContext") or {}).get("privileged"))


def _kept(present: Object, options: Options) -> Options:
    """The options, with what they leave open as it is in the cluster."""
    spec = present["spec"]["template"]["spec"]
    container = spec["containers"][0]
    return replace(
        options,
        image=options.image or container["image"],
        pull_policy=options.pull_policy or container["imagePullPolicy"],
        nodes=options.nodes or tuple((spec.get("nodeSelector") or {}).items()),
    )
