"""Selectors, choice and rules of targeting pods, as pure functions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kube_kit import IDS, NODES, ask, container, node, pod, uid, volume_pod

from controller.kube.choose import ALL, HowMany, chosen, parse_how_many
from controller.kube.labels import parse_field_selector, parse_selector
from controller.kube.objects import Pod, node_from, pod_from
from controller.kube.peers import peers_of
from controller.kube.select import select, select_nodes
from controller.kube.targets import check_ask, group_id, items_of, of_group
from controller.kube.volumes import NO_DEVICE, volume_target
from nodeagent.faults import kind_named, kinds
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.plan import FAULT_ID_PATTERN
from nodeagent.model.target import parse_target

# --- selectors --------------------------------------------------------------------

LABELS = {"app": "cart", "tier": "", "n": "7", "example.com/x": "A_b.c-1"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True), ("app", True), ("!app", False), ("app=cart", True), ("app==cart", True),
        ("app = cart , tier", True), ("app!=cart", False), ("none!=x", True), ("tier=", True),
        ("tier", True), ("none=", False), ("app in (cart,db)", True), ("app in (db)", False),
        ("app notin (db)", True), ("none notin (a)", True), ("app in ()", False), ("n>6", True),
        ("n<7", False), ("tier in (,x)", True), ("app>1", False), ("example.com/x=A_b.c-1", True),
        ("node-role.kubernetes.io/worker=", False), ("in=in", False), ("!none,app=cart", True),
    ],
)  # fmt: skip
def test_the_grammar_is_kubernetes_own(text: str, holds: bool) -> None:
    assert parse_selector(text).matches(LABELS) is holds


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("app=cart,", 10), ("=x", 1), ("app in cart", 8), ("app in (a", 10), ("a b", 3),
        ("app=ca!rt", 7), ("-x=1", 1), ("a/b/c", 1), ("n>x", 3), (",a", 1), ("a,,b", 3),
        ("app=" + "v" * 64, 5), ("X/app", 1), ("!", 2), ("app=cart)", 9), ("a=b=c", 4),
    ],
)  # fmt: skip
def test_a_bad_selector_fails_with_the_column(text: str, column: int) -> None:
    with pytest.raises(InvalidSpec, match=f"column {column}:"):
        parse_selector(text)


@given(st.text(alphabet="ab=!,() in<>not/.-\t\n\0é", max_size=24))
def test_no_selector_crashes_the_parser(text: str) -> None:
    try:
        parse_selector(text).matches(LABELS)
    except InvalidSpec as exc:
        assert "column" in exc.why


def test_field_selectors() -> None:
    assert parse_field_selector("spec.nodeName=n1,status.phase!=Failed")
    with pytest.raises(InvalidSpec, match="column 5:"):
        parse_field_selector("a=1,b")


# --- how many ---------------------------------------------------------------------


@given(st.integers(1, 50), st.integers(0, 2**32), st.integers(1, 10_000))
def test_any_seed_chooses_so_many_and_no_other(size: int, seed: int, parts: int) -> None:
    names = [f"p{n}" for n in range(size)]
    share = HowMany(share=Fraction(parts, 100))
    found = chosen(names, share, str(seed), str)
    assert len(found) == ceil(size * parts / 10_000) >= 1
    assert set(found) <= set(names) and len(set(found)) == len(found)
    assert found == chosen(list(reversed(names)), share, str(seed), str)


def test_each_one_can_be_chosen_and_about_as_often() -> None:
    for size in (1, 2, 3, 7, 50):
        names = [f"p{n}" for n in range(size)]
        counts = dict.fromkeys(names, 0)
        for seed in range(40 * size):
            counts[chosen(names, HowMany(number=1), str(seed), str)[0]] += 1
        assert min(counts.values()) >= 10, size


@given(st.integers(2, 30), st.integers(0, 999))
def test_one_that_goes_changes_the_choice_by_at_most_one(size: int, seed: int) -> None:
    names = [f"p{n}" for n in range(size)]
    before = set(chosen(names, HowMany(number=size // 2), str(seed), str))
    after = set(chosen(names[1:], HowMany(number=size // 2), str(seed), str))
    assert len(before - after) <= 1


@pytest.mark.parametrize(("share", "count"), [("1%", 1), ("10%", 1), ("34%", 2), ("100%", 3)])
def test_a_share_of_three_is_rounded_up(share: str, count: int) -> None:
    assert parse_how_many(share).of(3) == count


@pytest.mark.parametrize("text", ["0", "-1", "0%", "101%", "1.5", "half", "", "50 %", "1e3", "²"])
def test_there_are_no_magic_numbers(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_how_many(text)


def test_fewer_than_asked_is_refused() -> None:
    with pytest.raises(Refused, match="4 are asked for, 3"):
        parse_how_many("4").of(3)


# --- rules ------------------------------------------------------------------------

MIRROR = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "ab" * 16}


@pytest.mark.parametrize(
    ("change", "more", "reason"),
    [
        ({"deleting": True}, {}, "being deleted"),
        ({"phase": "Succeeded"}, {}, "completed"),
        ({"phase": "Failed"}, {}, "completed"),
        ({"phase": "Pending"}, {}, "Pending"),
        ({"phase": "Pending", "node": ""}, {}, "not scheduled"),
        ({"phase": "Unknown"}, {}, "does not answer"),
        ({"labels": {"app.kubernetes.io/name": "faultd"}}, {}, "own agent"),
        ({"annotations": MIRROR}, {}, "static"),
        ({"host_network": True}, {"network": True}, "node's own network"),
        ({"node": "gone"}, {}, "no node gone"),
        ({}, {"zones": ("z9",)}, "zone"),
        ({}, {"nodes": ("n2",)}, "on node n1"),
        ({}, {"containers": ("none",)}, "no container none"),
        ({"containers": (container("i", init=True), container())}, {"containers": ("i",)}, "init"),
        ({"containers": (container("x", sidecar=True, init=True),)}, {}, "nothing but sidecars"),
    ],
)
def test_who_cannot_be_hit_is_left_out_and_named(
    change: dict[str, Any], more: dict[str, Any], reason: str
) -> None:
    bad, good = replace(pod(), **change), pod("cart-1", 2, node="n2")
    asked = {k: v for k, v in more.items() if k not in ("nodes", "zones", "containers")}
    found = select(ask(how_many=ALL, **asked), [bad, good], NODES)
    if asked == more:
        assert found.pods == (good,) and found.matching == 1
        assert [reason in one.reason for one in found.left_out] == [True]
    with pytest.raises(Refused, match=reason):
        select(ask(how_many=ALL, **more), [bad], NODES)
    if reason != "static":
        with pytest.raises(Refused, match=reason):
            select(ask(names=("cart-0",), **more), [bad], NODES)


def test_a_static_pod_is_hit_by_name_and_by_the_hash_of_its_file() -> None:
    static = pod(annotations=MIRROR)
    assert select(ask(names=("cart-0",)), [static], NODES).pods == (static,)
    found = items_of("g-000000", kind_named("netem"), [static], ask(), {}, {})
    assert found[0].request.target["uid"] == "ab" * 16


def test_nothing_is_an_error_and_so_is_everything_unless_asked_for() -> None:
    many = [pod(f"p{n}", n) for n in range(4)]
    with pytest.raises(Refused, match="no pod"):
        select(ask(how_many=ALL), [], NODES)
    with pytest.raises(Refused, match="4 pods match"):
        select(ask(), many, NODES)
    with pytest.raises(Refused, match="1 pods match"):
        select(ask(selective=False), many[:1], NODES)
    assert select(ask(), many[:1], NODES).pods == (many[0],)
    assert len(select(ask(how_many=ALL), many, NODES).pods) == 4
    half = select(ask(how_many=parse_how_many("50%"), seed="7"), many, NODES)
    assert (len(half.pods), half.matching, half.seed) == (2, 4, "7")


def test_a_share_is_of_what_can_be_hit() -> None:
    """CASES 29: 10 nodes, 2 left out, 50 %: 4 of 8."""
    many = [pod(f"p{n}", n, deleting=n < 2) for n in range(10)]
    found = select(ask(how_many=parse_how_many("50%")), many, NODES)
    assert (found.matching, len(found.pods), len(found.left_out)) == (8, 4, 2)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(1, 4), st.integers(0, 99))
def test_no_zone_loses_more_than_its_cap(zones: list[int], cap: int, seed: int) -> None:
    """An outage of zones with a cap for each; what is picked is picked of that."""
    nodes = {
        f"n{z}": node(f"n{z}", labels={"topology.kubernetes.io/zone": f"z{z}"}) for z in range(4)
    }
    many = [pod(f"p{n}", n, node=f"n{zone}") for n, zone in enumerate(zones)]
    found = select(ask(how_many=ALL, zone_cap=HowMany(number=cap), seed=str(seed)), many, nodes)
    for zone in set(zones):
        hit = sum(p.node == f"n{zone}" for p in found.pods)
        assert hit == min(cap, zones.count(zone))
    half = select(ask(how_many=ALL, zone_cap=parse_how_many("50%"), seed="1"), many, nodes)
    for zone in set(zones):
        assert sum(p.node == f"n{zone}" for p in half.pods) == ceil(zones.count(zone) / 2)


def test_a_name_that_is_not_there_is_said() -> None:
    with pytest.raises(Refused, match="no pod shop/x"):
        select(ask(names=("cart-0", "x")), [pod()], NODES)


def test_control_planes_lose_no_disk_unless_they_are_named() -> None:
    for role in ("control-plane", "master"):
        cp = {"cp": node("cp", labels={f"node-role.kubernetes.io/{role}": ""})}
        one = pod(node="cp")
        with pytest.raises(Refused, match="control plane"):
            select(ask(whole_device=True), [one], cp)
        assert select(ask(whole_device=True, nodes=("cp",)), [one], cp).pods
        assert select(ask(), [one], cp).pods


def test_nodes_are_chosen_only_when_it_is_said_how_many() -> None:
    """CASES 24 and 36."""
    five = [node(f"n{n}") for n in range(5)] + [
        node("cp", labels={"node-role.kubernetes.io/master": ""})
    ]
    with pytest.raises(InvalidSpec, match="5 could be meant"):
        select_nodes(five, (), None, "")
    assert len(select_nodes(five, (), ALL, "")) == 5
    assert [n.name for n in select_nodes(five, ("cp",), None, "")] == ["cp"]
    with pytest.raises(Refused, match="no node x"):
        select_nodes(five, ("x",), None, "")


# --- targets ----------------------------------------------------------------------


def targets(name: str, one: Pod, **more: Any) -> list[dict[str, Any]]:
    part = more.pop("part", {})
    asked = check_ask(kind_named(name), ask(**more), part)
    found = items_of("g-000000", kind_named(name), [one], asked, part, {})
    for item in found:
        parse_target(item.request.target)
    return [item.request.target for item in found]


def test_the_whole_pod_unless_there_is_a_sidecar_to_spare() -> None:
    whole = targets("stress", pod())
    assert whole == [{"type": "pod", "pod": "shop/cart-0", "uid": uid(1)}]
    mesh = pod(containers=(container(), container("istio-proxy"), container("i", init=True)))
    assert [t["container_id"] for t in targets("stress", mesh)] == [IDS["app"]]
    both = targets("stress", mesh, containers=("istio-proxy", "app"))
    assert [t["container"] for t in both] == ["istio-proxy", "app"]
    native = pod(containers=(container(), container("proxy", init=True, sidecar=True)))
    assert [t["container"] for t in targets("stress", native)] == ["app"]
    alone = pod(containers=(container("istio-proxy"),))
    assert "container" not in targets("stress", alone)[0], "it is the workload then"


def test_network_kinds_hit_the_pod_as_a_whole() -> None:
    mesh = pod(containers=(container(), container("istio-proxy")))
    assert "container" not in targets("netem", mesh)[0]
    with pytest.raises(InvalidSpec, match="one net namespace"):
        targets("netem", mesh, containers=("app",))


def test_a_dead_container_has_no_cgroup() -> None:
    dead = container(running=False, state="waiting", container_id="")
    assert "container" not in targets("throttle", pod(containers=(dead,)))[0], "the pod's holds"
    with pytest.raises(Refused, match="does not run"):
        targets("throttle", pod(containers=(dead,)), containers=("app",))


def test_disk_kinds_need_a_volume_and_others_take_none() -> None:
    with pytest.raises(InvalidSpec, match="which volume"):
        targets("latent-sector", pod())
    with pytest.raises(InvalidSpec, match="does not act on volumes"):
        targets("netem", pod(), volume="data")


@pytest.mark.parametrize("kind", list(kinds().values()), ids=lambda k: k.name)
def test_every_kind_takes_a_pod_or_says_why_not(kind: Any) -> None:
    one = volume_pod({"persistentVolumeClaim": {"claimName": "c"}})
    try:
        found = targets(kind.name, one, volume="data")
    except InvalidSpec:
        try:
            found = targets(kind.name, one)
        except InvalidSpec as exc:
            assert "--on-node" in exc.hint or "volume" in exc.what
            return
    assert found


def test_a_volume_is_looked_up_in_the_workload_first() -> None:
    one = volume_pod({"persistentVolumeClaim": {"claimName": "c"}}, sub_path="pg")
    found = targets("latent-sector", one, volume="data", part={"file": "base/1"})[0]
    assert found == {
        "type": "pod-volume", "pod": "shop/cart-0", "uid": uid(1), "volume": "data",
        "container": "app", "container_id": IDS["app"], "path": "/data", "sub_path": "pg",
        "file": "base/1",
    }  # fmt: skip
    named = targets("latent-sector", one, volume="data", containers=("istio-proxy",))[0]
    assert (named["container"], named["path"]) == ("istio-proxy", "/side")
    raw = volume_pod({"persistentVolumeClaim": {"claimName": "c"}}, block=True)
    assert targets("latent-sector", raw, volume="data")[0]["block"] is True


@pytest.mark.parametrize("source", [*NO_DEVICE, "emptyDir"])
def test_volumes_without_a_device_are_refused(source: str) -> None:
    body = {"medium": "Memory"} if source == "emptyDir" else {}
    with pytest.raises(Refused, match=source):
        volume_target(volume_pod({source: body}), "data", (), {})


def test_a_volume_needs_a_name_that_is_there_and_a_running_container() -> None:
    one = volume_pod({"hostPath": {"path": "/x"}})
    with pytest.raises(InvalidSpec, match="it has: data"):
        volume_target(one, "date", (), {})
    with pytest.raises(Refused, match="no container of app2"):
        volume_target(one, "data", ("app2",), {})
    down = replace(one, containers=tuple(replace(c, running=False) for c in one.containers))
    with pytest.raises(Refused, match="running"):
        volume_target(down, "data", (), {})
    with pytest.raises(InvalidSpec, match="has no files"):
        volume_target(volume_pod({"hostPath": {}}, block=True), "data", (), {"file": "x"})


# --- groups and peers -------------------------------------------------------------


@given(st.sampled_from(list(kinds())), st.integers(1, 99_999))
def test_ids_of_a_group_are_ids_and_its_own(kind: str, number: int) -> None:
    import re

    group = group_id(kind, "0a1b2c")
    assert re.fullmatch(FAULT_ID_PATTERN, f"{group}-{number}")
    assert of_group(f"{group}-{number}", group) and of_group(group, group)
    assert not of_group(f"{group}0-{number}", group)


def test_an_empty_far_end_never_means_everything() -> None:
    two = pod(ips=("10.0.0.2", "fd00::2"))
    assert peers_of([two], [], [two], "a").networks == ("10.0.0.2", "fd00::2")
    for none in ([], [pod(host_network=True)], [pod(deleting=True)], [pod(ips=())]):
        with pytest.raises(Refused, match="no pod to talk to"):
            peers_of(none, [], none, "app=db")


def test_the_services_before_the_peers_are_far_ends_too() -> None:
    """In the pod's own namespace a packet to a Service still has the Service's address."""
    db, other = pod("db-0", 1, labels={"app": "db"}), pod("db-1", 2, labels={"app": "db"})

    def service(name: str, selector: dict[str, str], **spec: Any) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"selector": selector, **spec}}

    services = [
        service("db", {"app": "db"}, clusterIP="10.96.0.9", clusterIPs=["10.96.0.9", "fd01::9"]),
        service("headless", {"app": "db"}, clusterIP="None"),
        service("cart", {"app": "cart"}, clusterIP="10.96.0.7"),
        service("external", {}, clusterIP="10.96.0.8"),
    ]
    found = peers_of([db], services, [db, other], "app=db")
    assert found.networks == ("10.0.0.1", "10.96.0.9", "fd01::9")
    assert any("db leads to other pods as well: db-1" in note for note in found.notes)


# --- the API's JSON ---------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), st.just({})))
def test_a_bare_object_is_read(data: dict[str, Any]) -> None:
    assume(True)
    found = pod_from({**data, "metadata": {"name": "x"}})
    assert (found.name, found.phase, found.containers) == ("x", "Pending", ())
    assert not node_from({**data, "metadata": {"name": "x"}}).ready


def test_a_whole_pod_is_read() -> None:
    status = {"containerID": "containerd://" + "a" * 64, "state": {"running": {}}}
    found = pod_from({
        "metadata": {"name": "db-0", "namespace": "shop", "uid": uid(1), "ownerReferences": [
            {"kind": "X", "name": "x", "uid": "u"},
            {"kind": "StatefulSet", "name": "db", "uid": "u2", "controller": True}]},
        "spec": {"nodeName": "n1", "containers": [{"name": "db", "image": "i",
            "volumeMounts": [{"name": "data", "mountPath": "/d", "subPath": "pg"}],
            "volumeDevices": [{"name": "raw", "devicePath": "/dev/x"}]}],
            "initContainers": [{"name": "p", "restartPolicy": "Always"}, {"name": "i"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "db", "restartCount": 3, **status}],
            "initContainerStatuses": [{"name": "p", **status}]},
    })  # fmt: skip
    assert found.owner is not None and found.owner.name == "db"
    assert found.ips == ("10.0.0.1", "fd00::1") and found.ready
    db, sidecar, init = found.containers
    assert (db.container_id, db.running, db.restarts) == ("a" * 64, True, 3)
    assert [(m.path, m.sub_path, m.block) for m in db.mounts] == [
        ("/d", "pg", False), ("/dev/x", "", True)]  # fmt: skip
    assert (sidecar.sidecar, sidecar.running, init.sidecar) == (True, True, False)
    assert found.volumes == {"data": {"persistentVolumeClaim": {"claimName": "c"}}}


def test_a_selection_never_crashes_on_any_mix() -> None:
    for change in ({"containers": ()}, {"node": ""}, {"ips": ()}, {"owner": None}):
        with pytest.raises(FaultError):
            select(ask(how_many=ALL, containers=("app",), nodes=("n9",)),
                   [replace(pod(), **change)], NODES)  # fmt: skip
