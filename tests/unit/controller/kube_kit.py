"""Pods and nodes written down."""

from __future__ import annotations

from typing import Any

from controller.kube.objects import Container, Mount, Node, Owner, Pod
from controller.kube.select import Ask

IDS = {name: digit * 64 for name, digit in (("app", "a"), ("istio-proxy", "b"), ("log", "c"))}


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def container(name: str = "app", **more: Any) -> Container:
    base = {"container_id": IDS.get(name, "d" * 64), "running": True, "state": "running"}
    return Container(**{"name": name, **base, **more})


def pod(name: str = "cart-0", number: int = 1, **more: Any) -> Pod:
    base: dict[str, Any] = {
        "namespace": "shop",
        "name": name,
        "uid": uid(number),
        "node": "n1",
        "ready": True,
        "containers": (container(),),
        "ips": (f"10.0.0.{number}",),
    }
    return Pod(**{**base, **more})


def node(name: str = "n1", **more: Any) -> Node:
    return Node(name=name, **more)


NODES = {"n1": node(), "n2": node("n2", labels={"topology.kubernetes.io/zone": "z2"})}


def ask(**more: Any) -> Ask:
    return Ask(**{"namespace": "shop", "selective": True, **more})


def volume_pod(source: dict[str, Any], *, block: bool = False, **mount: Any) -> Pod:
    where = Mount("data", "/dev/xvda" if block else "/data", block=block, **mount)
    side = container("istio-proxy", mounts=(Mount("data", "/side"),))
    return pod(
        volumes={"data": source},
        containers=(side, container(mounts=(where,))),
        owner=Owner("StatefulSet", "db", uid(99)),
    )
