"""The API server, with the user's own kubeconfig: JSON in, JSON out, errors that a person can use.

The `kubernetes` package does the kubeconfig (tokens, certificates, exec plugins, proxies); the
objects stay plain data, so that what decides over them is pure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from controller.kube.answers import ApiPath, Expired, error_of, event_of, translated
from nodeagent.model.errors import InvalidSpec, Refused, Unreachable, lacks_package

PAGE = 500
"""Objects a page of a list; the API server's own chunk size of kubectl."""
CONNECT_S, READ_S = 10.0, 60.0
WATCH_S = 300
TRIES = 4
PAUSE_S = 0.5
_BROKEN = (OSError, TypeError, KeyError, AttributeError, ValueError, IndexError)
"""What the kubernetes package raises for kubeconfigs that are no kubeconfigs."""
_AGAIN = (429, 500, 502, 503, 504)
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
STRATEGIC = "application/strategic-merge-patch+json"


class Cluster:
    """One cluster. Threads may share it. All calls raise FaultError classes."""

    def __init__(self, kubeconfig: Path | None = None, context: str | None = None) -> None:
        try:
            from kubernetes import client
        except ImportError as exc:
            raise lacks_package("talking to a cluster", "kubernetes", "kube", exc) from exc
        self._kubeconfig, self._context = kubeconfig, context
        self._api: client.ApiClient = self._load()

    def _load(self) -> Any:
        from kubernetes import config
        from kubernetes.client import ApiClient, Configuration
        from yaml import YAMLError

        file = str(self._kubeconfig) if self._kubeconfig else None
        settings = Configuration()
        self.namespace = "default"
        try:
            try:
                config.load_kube_config(file, self._context, settings)  # type: ignore[no-untyped-call]
                contexts, current = config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
                named = [c for c in contexts if c["name"] == (self._context or current["name"])]
                self.namespace = named[0]["context"].get("namespace") or "default"
            except config.ConfigException:
                if file or self._context:
                    raise
                config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
        except (config.ConfigException, YAMLError, *_BROKEN) as exc:
            raise InvalidSpec(
                "no cluster is known",
                " ".join(str(exc).split()) or type(exc).__name__,
                "name one: --kubeconfig FILE, --context NAME, or KUBECONFIG",
            ) from exc
        settings.retries = False
        settings.connection_pool_maxsize = 32
        return ApiClient(settings)

    @property
    def server(self) -> str:
        """The API server's address."""
        return str(self._api.configuration.host)

    @property
    def settings(self) -> Any:
        """The kubernetes package's Configuration, for a client of one's own."""
        return self._api.configuration

    # --- requests -----------------------------------------------------------------

    def get(self, path: ApiPath) -> dict[str, Any] | None:
        """One object, None if there is none."""
        answer = self._json("GET", path)
        return None if answer.get("code") == 404 and answer.get("kind") == "Status" else answer

    def listed(self, path: ApiPath, labels: str = "", fields: str = "") -> tuple[list[Any], str]:
        """(all objects, in pages; the resource version of the list)."""
        for _ in range(TRIES):
            try:
                return self._pages(path, labels, fields)
            except Expired:
                continue  # the list took longer than the server keeps it: from the start
        raise Unreachable(f"the list of {path.shown} never comes to its end", "410 Gone")

    def _pages(self, path: ApiPath, labels: str, fields: str) -> tuple[list[Any], str]:
        items: list[Any] = []
        token = ""
        while True:
            query = [("limit", str(PAGE)), *_selectors(labels, fields)]
            answer = self._json("GET", path, query + ([("continue", token)] if token else []))
            items += answer.get("items") or ()
            meta = answer.get("metadata") or {}
            token = meta.get("continue") or ""
            if not token:
                return items, meta.get("resourceVersion", "")

    def watch(
        self,
        path: ApiPath,
        version: str,
        labels: str = "",
        fields: str = "",
        seconds: int = WATCH_S,
    ) -> Iterator[dict[str, Any]]:
        """Changes since a resource version; ends after `seconds`, to be begun again.

        Bookmarks are passed on. Raises Expired when the version is too old.
        """
        query = [("watch", "1"), ("resourceVersion", version), ("allowWatchBookmarks", "true"),
                 ("timeoutSeconds", str(seconds)), *_selectors(labels, fields)]  # fmt: skip
        response = self._send("GET", path, query, read_s=seconds + 15)
        with translated(self.server):
            rest = b""
            try:
                for chunk in response.response.stream(amt=None, decode_content=False):
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in filter(None, lines):
                        yield event_of(json.loads(line), path)
            finally:
                response.response.release_conn()

    def create(self, path: ApiPath, body: Mapping[str, Any]) -> dict[str, Any]:
        """A new object."""
        return self._json("POST", path, body=body)

    def patch(self, path: ApiPath, body: Any, sort: str = MERGE, **query: str) -> dict[str, Any]:
        """Change an object. Raises Refused when it is gone."""
        answer = self._json("PATCH", path, list(query.items()), body, sort)
        if answer.get("code") == 404 and answer.get("kind") == "Status":
            raise Refused(f"there is no {path.shown} {path.name}", answer.get("message", ""))
        return answer

    def delete(self, path: ApiPath, body: Mapping[str, Any] | None = None) -> bool:
        """Whether there was something to delete."""
        answer = self._json("DELETE", path, body=body or {})
        return not (answer.get("code") == 404 and answer.get("kind") == "Status")

    def allowed(self, verb: str, path: ApiPath) -> bool:
        """Whether this user may do something (SelfSubjectAccessReview)."""
        asked = {"verb": verb, "resource": path.resource, "group": path.group,
                 "namespace": path.namespace, "subresource": path.subresource}  # fmt: skip
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked}}  # fmt: skip
        review = ApiPath("selfsubjectaccessreviews", group="authorization.k8s.io")
        return bool(self.create(review, body).get("status", {}).get("allowed"))

    def whoami(self) -> str:
        """This user's name (SelfSubjectReview)."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = ApiPath("selfsubjectreviews", group="authentication.k8s.io")
        return str(self.create(path, body).get("status", {}).get("userInfo", {}).get("username"))

    # --- below --------------------------------------------------------------------

    def _json(
        self, method: str, path: ApiPath, query: list[tuple[str, str]] | None = None,
        body: Any = None, sort: str = "application/json",
    ) -> dict[str, Any]:  # fmt: skip
        response = self._send(method, path, query or [], body, sort)
        with translated(self.server):
            found: dict[str, Any] = json.loads(response.read() or b"{}")
        return found

    def _send(
        self, method: str, path: ApiPath, query: list[tuple[str, str]], body: Any = None,
        sort: str = "application/json", read_s: float = READ_S,
    ) -> Any:  # fmt: skip
        """An answer that is 2xx, or 404; others are raised. What may pass is tried again."""
        renewed = False
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            try:
                response = self._once(method, path, query, body, sort, read_s)
            except Unreachable:
                if last or method != "GET":
                    raise
                time.sleep(PAUSE_S * 2**attempt)
                continue
            if response.status == 401 and not renewed:
                # A token may have expired since it was read, and its plugin have a new one.
                renewed, self._api = True, self._load()
                continue
            if response.status in _AGAIN and not last and (method == "GET" or _told(response)):
                time.sleep(min(float(_told(response) or PAUSE_S * 2**attempt), 10))
                continue
            break
        if 200 <= response.status < 300 or (response.status == 404 and "watch" not in dict(query)):
            return response
        raise error_of(response, method, path, query)

    def _once(
        self, method: str, path: ApiPath, query: list[tuple[str, str]], body: Any, sort: str,
        read_s: float,
    ) -> Any:  # fmt: skip
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = sort
        if sort == APPLY:
            body = json.dumps(body)  # JSON is YAML
        with translated(self.server):
            ready = self._api.param_serialize(
                method=method, resource_path=path.url, query_params=query,
                header_params=headers, body=body, auth_settings=["BearerToken"],
            )  # fmt: skip
            return self._api.call_api(*ready, _request_timeout=(CONNECT_S, read_s))


def _selectors(labels: str, fields: str) -> list[tuple[str, str]]:
    found = [("labelSelector", labels), ("fieldSelector", fields)]
    return [(name, value) for name, value in found if value]


def _told(response: Any) -> str:
    found: str = response.getheaders().get("Retry-After", "")
    return found if found.isdigit() else ""
