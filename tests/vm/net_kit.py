"""Three net namespaces on a bridge, traffic between them, and dumps by ip(8) and tc(8).

    a 10.9.0.1 fd00:9::1      b 10.9.0.2 fd00:9::2      c 10.9.0.3 fd00:9::3

`a` is the target; its interface is eth0.

The kernel switches code paths (static keys) by patching its text when the first socket asks for
time stamps and the first clsact or filter comes. QEMU's multi-threaded emulation sometimes runs
a stale breakpoint of such a patch (an "int3" oops in a sound kernel), so all are kept on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkit import Bench

A = {"type": "netns", "netns": "/run/netns/a"}
GUEST = "/tmp/guest_net.py"
ADDRESS = {"a": "10.9.0.1", "b": "10.9.0.2", "c": "10.9.0.3"}
ADDRESS6 = {"a": "fd00:9::1", "b": "fd00:9::2", "c": "fd00:9::3"}
# Counters, times and what only counts up; everything else is compared by byte.
_VARIES = re.compile(
    r'"(bytes|packets|drops|overlimits|requeues|backlog|qlen|last_used|installed|used|expires'
    r"|first_used|direct_packets_stat|maxpacket|drop_overlimit|new_flow_count|ecn_mark"
    r'|new_flows_len|old_flows_len|success|rule_hit|rule_hits|ifindex)":[^,}\]]+'
)


@dataclass
class Net:
    """The namespaces of a node, with an agent beside them."""

    bench: Bench

    def sh(self, ns: str, script: str, timeout: float = 60) -> str:
        return self.bench.node.sh(f"ip netns exec {ns} sh -ec '{script}'", timeout=timeout)

    def rtts(self, host: str, count: int = 10, ns: str = "a", options: str = "") -> list[float]:
        """Round trips in ms that ping(8) saw, sorted; lost ones are missing."""
        done = self.bench.node.run(
            f"ip netns exec {ns} ping -n -i 0.05 -W 3 -c {count} {options} {host}",
            check=False,
            timeout=60,
        )
        return sorted(float(found) for found in re.findall(r"time=([\d.]+) ms", done.out))

    def udp(
        self, to: str, count: int, per_second: float = 0, size: int = 100, ns: str = "a",
        host: str = "", idle: float = 1.5, cpu: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """What of `count` numbered packets from one namespace arrives in another.

        cpu: the only one that the sender runs on.
        """
        port = 5001
        receiver = f"ip netns exec {to} python3 {GUEST} recv {port} {idle} >/tmp/recv.out"
        sender = (
            f"ip netns exec {ns} python3 {GUEST} send {host or ADDRESS[to]} {port} "
            f"{count} {size} {per_second} {cpu}"
        )
        script = (
            f"set -e; rm -f /tmp/recv.out; {receiver} & "
            "for i in $(seq 200); do grep -qs ready /tmp/recv.out && break; sleep 0.1; done; "
            f"{sender} >/tmp/send.out; wait; tail -n 1 /tmp/recv.out; cat /tmp/send.out"
        )
        got, sent = self.bench.node.sh(script, timeout=180).splitlines()
        return {**json.loads(got), **json.loads(sent)}

    def bad_sums(self, ns: str) -> dict[str, int]:
        """Packets with a wrong checksum that a namespace has got so far, by nstat(8)."""
        rows = [line.split() for line in self.sh(ns, 'nstat -asz "*InCsumErrors"').splitlines()]
        found = {row[0]: int(row[1]) for row in rows if not row[0].startswith("#")}
        assert found.keys() >= {f"{p}InCsumErrors" for p in ("Tcp", "Udp", "Udp6", "Icmp", "Icmp6")}
        return {name: count for name, count in found.items() if count}

    def dump(self) -> str:
        """Everything that tc and ip show of the target's namespace, without counters."""
        script = (
            "ip -j -d link; tc -j qdisc; for d in $(ls /sys/class/net); do tc -j class show dev $d;"
            " tc -j filter show dev $d;"
            " for h in ingress egress; do tc -j filter show dev $d $h 2>&1 || true; done; done;"
            " nft list ruleset"
        )
        text = self.sh("a", script)  # ip netns exec shows the namespace's own /sys
        return _VARIES.sub(r'"\1":0', text)

    def inject(self, kind: str, spec: dict[str, Any], **more: Any) -> str:
        """The id of a fault on `a` that is armed."""
        fault = self.bench.inject(kind, more.pop("target", A), spec=spec, **more)
        assert fault.state == "armed"
        return str(fault.id)

    def revert(self, fault_id: str) -> None:
        assert self.bench.client.revert(fault_id).fault.state == "ended"

    def revert_all(self) -> None:
        """What a test that failed has left armed."""
        self.bench.revert_all()

    def counters(self, fault_id: str) -> dict[str, int]:
        found: dict[str, int] = self.bench.evidence(fault_id)["counters"]
        return found


SET_UP = """
set -e
rm -f /tmp/hold.out
for n in sw a b c; do ip netns add $n; ip -n $n link set lo up; done
ip -n sw link add br0 type bridge; ip -n sw link set br0 up
i=0
for n in a b c; do
  i=$((i+1))
  ip -n $n link add eth0 type veth peer name port-$n netns sw
  ip -n sw link set dev port-$n master br0 up
  ip -n $n addr add 10.9.0.$i/24 dev eth0
  ip -n $n addr add fd00:9::$i/64 dev eth0 nodad
  ip -n $n link set eth0 up
done
tc -n sw qdisc add dev lo clsact
tc -n sw filter add dev lo egress protocol all matchall action pass
ip netns exec sw setsid python3 /tmp/guest_net.py hold >/tmp/hold.out 2>&1 </dev/null &
for i in $(seq 200); do grep -qs ready /tmp/hold.out && break; sleep 0.1; done
for t in 10.9.0.2 10.9.0.3 fd00:9::2 fd00:9::3; do
  ip netns exec a ping -q -c 1 -W 9 $t >/dev/null
done
"""
TEAR_DOWN = "for n in sw a b c; do ip netns pids $n | xargs -r kill -9; ip netns del $n; done"


@contextmanager
def namespaces(bench: Bench) -> Iterator[Net]:
    """The namespaces as above; afterwards nothing of them or of faults is left."""
    node = bench.node
    node.put(GUEST, (Path(__file__).parent / "guest_net.py").read_bytes())
    node.sh(SET_UP, timeout=60)
    try:
        yield Net(bench)
    finally:
        Net(bench).revert_all()
        node.sh(TEAR_DOWN, timeout=60)


class Nets:
    """The namespaces of each shared node, made when they are first asked for."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[AbstractContextManager[Net], Net]] = {}

    def of(self, bench: Bench) -> Net:
        if bench.node.name not in self._open:
            manager = namespaces(bench)
            self._open[bench.node.name] = (manager, manager.__enter__())
        return self._open[bench.node.name][1]

    def close(self) -> None:
        for manager, net in self._open.values():
            if net.bench.node.entry.supervisor is not None:
                manager.__exit__(None, None, None)


def binomial_bounds(count: int, share: float, z: float = 4.5) -> tuple[float, float]:
    """Where a binomial count lies but for about 7 in a million runs (normal approximation)."""
    middle, spread = count * share, z * (count * share * (1 - share)) ** 0.5
    return middle - spread - 1, middle + spread + 1
