"""An API server in small: lists in pages, single objects, patches, watches, rights, bad moments.

What it answers is shaped as kube-apiserver does; tests/cluster has the real one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from json_patch import Untrue, json_patched

from controller.kube.labels import parse_selector


class FakeApi:
    """Objects by path, such as /api/v1/namespaces/shop/pods/a."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.objects: dict[str, dict[str, Any]] = {}
        self.log: list[tuple[int, str, str, dict[str, Any]]] = []
        self.version = 100
        self.bearer = "good"
        self.forbidden: set[tuple[str, str]] = set()
        """(verb, resource) that nobody may."""
        self.bad: list[int] = []
        """Statuses of the next answers, before any real one."""
        self.expire_lists = 0
        self.requests: list[tuple[str, str]] = []
        self.changed = threading.Condition()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.api = self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def put(self, path: str, data: dict[str, Any], event: str = "") -> dict[str, Any]:
        with self.changed:
            self.version += 1
            event = event or ("MODIFIED" if path in self.objects else "ADDED")
            meta = {"name": path.rsplit("/", 1)[1], **data.get("metadata", {})}
            if "/namespaces/" in path and not path.endswith(f"/namespaces/{meta['name']}"):
                meta.setdefault("namespace", path.split("/namespaces/")[1].split("/")[0])
            meta.setdefault("uid", f"00000000-0000-4000-8000-{self.version:012x}")
            meta["resourceVersion"] = str(self.version)
            whole = {**data, "metadata": meta}
            self.objects[path] = whole
            self.log.append((self.version, event, path, whole))
            self.changed.notify_all()
        return whole

    def drop(self, path: str) -> None:
        with self.changed:
            self.version += 1
            self.log.append((self.version, "DELETED", path, self.objects.pop(path)))
            self.changed.notify_all()

    def namespace(self, name: str, **meta: Any) -> None:
        self.put(f"/api/v1/namespaces/{name}", {"metadata": meta})

    def node(self, name: str, **labels: str) -> None:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.put(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}, "status": ready})

    def pod(
        self, namespace: str, name: str, node: str = "n1", labels: dict[str, str] | None = None,
        ip: str = "10.0.0.1", meta: dict[str, Any] | None = None, **spec: Any,
    ) -> dict[str, Any]:  # fmt: skip
        containers = spec.pop("containers", [{"name": "app"}])
        statuses = [
            {"name": c["name"], "containerID": "containerd://" + "a" * 64,
             "state": {"running": {}}} for c in containers
        ]  # fmt: skip
        return self.put(f"/api/v1/namespaces/{namespace}/pods/{name}", {
            "metadata": {"labels": labels or {}, **(meta or {})},
            "spec": {"nodeName": node, "containers": containers, **spec},
            "status": {"phase": "Running", "podIPs": [{"ip": ip}], "podIP": ip,
                       "conditions": [{"type": "Ready", "status": "True"}],
                       "containerStatuses": statuses},
        })  # fmt: skip

    def kubeconfig(self, bearer: str = "good", namespace: str = "shop") -> Path:
        path = self.home / "kubeconfig"
        context = {"cluster": "c", "user": "u", "namespace": namespace}
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": bearer}}],
            "contexts": [{"name": "x", "context": context}],
        }))  # fmt: skip
        return path

    def below(self, path: str) -> list[tuple[str, dict[str, Any]]]:
        return [(p, o) for p, o in sorted(self.objects.items()) if p.rsplit("/", 1)[0] == path]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    api: FakeApi


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *args: Any) -> None: ...

    def _answer(self, code: int, data: Any) -> None:
        raw = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _status(self, code: int, message: str = "") -> None:
        self._answer(code, {"kind": "Status", "code": code, "message": message})

    def _any(self) -> None:
        parts = urlsplit(self.path)
        path, query = parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()}
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or b"null") if size else None
        self.server.api.requests.append((self.command, self.path))
        if self.server.api.bad:
            self._status(self.server.api.bad.pop(0), "a bad moment")
        elif self.headers.get("Authorization") != f"Bearer {self.server.api.bearer}":
            self._status(401, "Unauthorized")
        else:
            self._allowed(path, query, body)

    do_GET = do_POST = do_PATCH = do_DELETE = _any  # noqa: N815 - names of http.server

    def _allowed(self, path: str, query: dict[str, str], body: Any) -> None:
        parts = path.split("/")
        status = parts[-1] == "status" and path.removesuffix("/status") in self.server.api.objects
        if status:
            path = path.removesuffix("/status")
        listing = path not in self.server.api.objects and self.command == "GET" and _is_list(parts)
        named = path.split("/")
        resource = named[-1] if listing or self.command == "POST" else named[-2]
        verb = {"GET": "list" if listing else "get", "POST": "create", "PATCH": "patch",
                "DELETE": "delete"}[self.command]  # fmt: skip
        verb = "watch" if query.get("watch") else verb
        resource += "/status" if status else ""
        if (verb, resource) in self.server.api.forbidden:
            self._status(403, f'{resource} is forbidden: User "u" cannot {verb} "{resource}"')
        elif resource == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            no = (asked["verb"], asked["resource"]) in self.server.api.forbidden
            self._answer(201, {**body, "status": {"allowed": not no}})
        elif resource == "selfsubjectreviews":
            self._answer(201, {**body, "status": {"userInfo": {"username": "u"}}})
        elif query.get("watch"):
            self._watch(path, query)
        elif listing:
            self._list(path, query)
        else:
            self._object(path, body)

    def _patched(self, path: str, body: Any) -> None:
        """A patch of an object or of its status, for the version that it names, if any."""
        old = self.server.api.objects[path]
        if self.headers.get("Content-Type") == "application/json-patch+json":
            query = parse_qs(urlsplit(self.path).query)
            manager, dry = query.get("fieldManager", ["unknown"])[0], "dryRun" in query
            try:
                new = json_patched(old, body, manager)
                self._answer(200, new if dry else self.server.api.put(path, new))
            except Untrue as exc:
                self._status(422, f"the server rejected our request: {exc}")
            return
        version = body.get("metadata", {}).get("resourceVersion")
        if version not in (None, old["metadata"]["resourceVersion"]):
            self._status(409, "the object has been modified; please apply your changes")
            return
        sort = self.headers.get("Content-Type", "")
        if sort == "application/strategic-merge-patch+json":
            body = strategic(old, body)
        self._answer(200, self.server.api.put(path, merged(old, body)))

    def _object(self, path: str, body: Any) -> None:
        if self.command == "POST":
            self._answer(201, self.server.api.put(f"{path}/{body['metadata']['name']}", body))
        elif self.headers.get("Content-Type") == "application/apply-patch+yaml":
            self._answer(200, self.server.api.put(path, body))
        elif path not in self.server.api.objects:
            self._status(404, f'"{path.rsplit("/", 1)[1]}" not found')
        elif self.command == "DELETE":
            self.server.api.drop(path)
            self._status(200)
        elif self.command == "PATCH":
            self._patched(path, body)
        else:
            self._answer(200, self.server.api.objects[path])

    def _list(self, path: str, query: dict[str, str]) -> None:
        if query.get("continue") and self.server.api.expire_lists:
            self.server.api.expire_lists -= 1
            self._status(410, "The provided continue parameter is too old")
            return
        wanted = parse_selector(query.get("labelSelector", ""))
        found = [o for _, o in self.server.api.below(path)
                 if wanted.matches(o["metadata"].get("labels") or {})]  # fmt: skip
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or 10**9)
        more = str(start + limit) if start + limit < len(found) else ""
        meta = {"resourceVersion": str(self.server.api.version), "continue": more}
        self._answer(200, {"metadata": meta, "items": found[start : start + limit]})

    def _watch(self, path: str, query: dict[str, str]) -> None:
        after = int(query.get("resourceVersion") or 0)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if after < self.server.api.log[0][0] - 1:
            gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
            self._chunk({"type": "ERROR", "object": gone})
            after = 10**9
        wanted = parse_selector(query.get("labelSelector", ""))
        while after < 10**9:
            with self.server.api.changed:
                news = [e for e in self.server.api.log if e[0] > after]
                if not news and not self.server.api.changed.wait(float(query["timeoutSeconds"])):
                    break
            for version, kind, at, data in news:
                after = version
                labels = data["metadata"].get("labels") or {}
                if at.rsplit("/", 1)[0] == path and wanted.matches(labels):
                    self._chunk({"type": kind, "object": data})
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: Any) -> None:
        raw = json.dumps(data).encode() + b"\n"
        self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        self.wfile.flush()


def _is_list(parts: list[str]) -> bool:
    """/api/v1/nodes, /api/v1/namespaces/NS/pods, /apis/G/V/namespaces/NS/x: an even tail."""
    tail = parts[3:] if parts[1] == "api" else parts[4:]
    return len(tail) % 2 == 1


def strategic(old: Any, patch: Any) -> Any:
    """A node's patch with its conditions merged by their type, as its schema says; the rest as it
    is in a merge patch."""
    new = patch.get("status", {}).get("conditions")
    if new is None:
        return patch
    found = {one["type"]: one for one in old.get("status", {}).get("conditions", ())}
    found |= {one["type"]: {**found.get(one["type"], {}), **one} for one in new}
    found = {name: one for name, one in found.items() if one.get("$patch") != "delete"}
    return {**patch, "status": {**patch["status"], "conditions": list(found.values())}}


def merged(old: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


@contextmanager
def fake_api(home: Path) -> Iterator[FakeApi]:
    api = FakeApi(home)
    thread = threading.Thread(target=api.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.server.shutdown()
        api.server.server_close()
