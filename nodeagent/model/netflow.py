"""Whether two sets of packets have some in common; pure, and fast for thousands of networks."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from nodeagent.model.netspec import Flow, Network, PortRange


def common(one: Sequence[Flow], other: Sequence[Flow]) -> tuple[Flow, Flow] | None:
    """A flow of each with packets in common, or None."""
    few, many = sorted((one, other), key=len)
    index = _Index(many)
    for flow in few:
        for candidate in index.near(flow):
            if _agree(flow, candidate):
                return (flow, candidate) if few is one else (candidate, flow)
    return None


def _agree(a: Flow, b: Flow) -> bool:
    """Everything but the networks: what is not given agrees with all."""
    if None not in (a.protocol, b.protocol) and a.protocol != b.protocol:
        return False
    if (a.protocol == "icmp" and _has_ports(b)) or (b.protocol == "icmp" and _has_ports(a)):
        return False
    return _meet(a.remote_port, b.remote_port) and _meet(a.local_port, b.local_port)


def _has_ports(flow: Flow) -> bool:
    return flow.remote_port is not None or flow.local_port is not None


def _meet(a: PortRange | None, b: PortRange | None) -> bool:
    return a is None or b is None or (a[0] <= b[1] and b[0] <= a[1])


class _Index:
    """Flows by network: two networks either lie within each other or are apart."""

    def __init__(self, flows: Sequence[Flow]) -> None:
        self._all = flows
        self._any = [f for f in flows if f.remote is None]
        self._exact: dict[tuple[int, int, int], list[Flow]] = defaultdict(list)
        self._lengths: dict[int, set[int]] = defaultdict(set)
        ordered: dict[int, list[tuple[int, Flow]]] = defaultdict(list)
        for flow in flows:
            network = flow.network()
            if network is None:
                continue
            first = int(network.network_address)
            self._exact[network.version, network.prefixlen, first].append(flow)
            self._lengths[network.version].add(network.prefixlen)
            ordered[network.version].append((first, flow))
        self._ordered = {v: sorted(items, key=lambda i: i[0]) for v, items in ordered.items()}
        self._starts = {v: [first for first, _ in items] for v, items in self._ordered.items()}

    def near(self, flow: Flow) -> Sequence[Flow]:
        """Flows whose network overlaps this one's."""
        network = flow.network()
        if network is None:
            return self._all
        return [*self._any, *self._around(network), *self._within(network)]

    def _around(self, network: Network) -> list[Flow]:
        first, bits = int(network.network_address), network.max_prefixlen
        found: list[Flow] = []
        for length in self._lengths[network.version]:
            if length < network.prefixlen:
                start = first >> (bits - length) << (bits - length)
                found += self._exact.get((network.version, length, start), ())
        return found

    def _within(self, network: Network) -> list[Flow]:
        starts = self._starts.get(network.version, [])
        low = bisect_left(starts, int(network.network_address))
        high = bisect_left(starts, int(network.broadcast_address) + 1)
        return [
            flow
            for _, flow in self._ordered.get(network.version, [])[low:high]
            if (inner := flow.network()) is not None and inner.prefixlen >= network.prefixlen
        ]
