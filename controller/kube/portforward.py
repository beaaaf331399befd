"""The way to an agent through the API server: a port of loopback that leads into a pod.

Every connection that is made to the port is a port-forward of its own (`pods/portforward`),
so that the API server's, the kubelet's or the agent's restart ends what was open and nothing
else: whoever calls again gets a new one. What goes through is TLS between this process and the
agent; the API server sees no more than anybody in between.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from typing import Any

from controller.kube.client import Cluster
from nodeagent.model.errors import FaultError, Refused, Unreachable

CHUNK = 1 << 16
OPEN_S = 30.0


class PortForward:
    """A listener on 127.0.0.1 for one pod's port. Use it as a context manager.

    The first port-forward is made at once, so that what is in the way is told here: a gRPC
    client sees no more than a connection that was closed. Raises Refused or Unreachable.
    """

    def __init__(self, cluster: Cluster, namespace: str, pod: str, port: int) -> None:
        self._cluster, self._namespace, self._pod, self._port = cluster, namespace, pod, port
        self._first: Any = open_stream(cluster, namespace, pod, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.local_port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, name=f"forward-{pod}", daemon=True).start()

    def __enter__(self) -> PortForward:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and cut what is open."""
        with self._guard:
            self._closed = True
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(2)
            self._listener.close()
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            if self._first is not None:
                self._first.close()

    def _stream(self) -> Any:
        with self._guard:
            first, self._first = self._first, None
        if first is not None and first.connected:
            return first
        return open_stream(self._cluster, self._namespace, self._pod, self._port)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with contextlib.closing(near):
            try:
                far: socket.socket = self._stream().socket(self._port)
            except FaultError:
                return  # the caller sees that it was closed, and tries again
            with self._kept(near), contextlib.closing(far):
                pump(near, far)

    @contextlib.contextmanager
    def _kept(self, one: socket.socket) -> Iterator[None]:
        with self._guard:
            if self._closed:
                return
            self._open.add(one)
        try:
            yield
        finally:
            with self._guard:
                self._open.discard(one)


@contextlib.contextmanager
def forward(cluster: Cluster, namespace: str, pod: str, port: int) -> Iterator[tuple[str, int]]:
    """Host and port of loopback that lead to a pod's port as long as the context.

    Raises Refused or Unreachable when there is no way.
    """
    with PortForward(cluster, namespace, pod, port) as way:
        yield "127.0.0.1", way.local_port


def open_stream(cluster: Cluster, namespace: str, pod: str, port: int) -> Any:
    """A port-forward (kubernetes.stream.ws_client.PortForward). Raises Refused or Unreachable."""
    from kubernetes import client, stream

    # A client of its own: while one makes a stream, its other calls go astray.
    api = client.CoreV1Api(client.ApiClient(cluster.settings))
    try:
        return stream.portforward(
            api.connect_get_namespaced_pod_portforward,
            pod,
            namespace,
            ports=str(port),
            _request_timeout=OPEN_S,
        )
    except client.ApiException as exc:
        raise _refusal(exc, namespace, pod) from exc
    except (OSError, ValueError) as exc:
        raise Unreachable(
            f"{namespace}/{pod} cannot be reached through {cluster.server}", str(exc)
        ) from exc


def _refusal(exc: Any, namespace: str, pod: str) -> FaultError:
    """A websocket's handshake tells its status in words only."""
    text = " ".join(str(exc.reason or exc).split())[:300]
    if exc.status == 403 or "403" in text:
        return Refused(
            f"you may not reach {namespace}/{pod} by port-forward",
            text,
            f"a Role is missing with verb 'get' on resource 'pods/portforward' in {namespace}: "
            "see faultctl-user",
        )
    if exc.status == 401 or "401" in text:
        return Refused("the API server does not accept your credentials", text, "log in again")
    return Unreachable(f"{namespace}/{pod} cannot be reached by port-forward", text)


def pump(near: socket.socket, far: socket.socket) -> None:
    """Pass bytes on both ways until one side ends."""
    with selectors.DefaultSelector() as ready:
        ready.register(near, selectors.EVENT_READ, far)
        ready.register(far, selectors.EVENT_READ, near)
        while True:
            for key, _ in ready.select():
                source: Any = key.fileobj
                try:
                    data = source.recv(CHUNK)
                    if not data:
                        return
                    key.data.sendall(data)
                except OSError:
                    return
