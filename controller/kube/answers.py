"""What the API server is asked about, and its errors in a person's words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from nodeagent.model.errors import Conflict, FaultError, InvalidSpec, Refused, Unreachable

_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_IS_TLS = re.compile("certificate|ssl", re.IGNORECASE)
ENDING = "is being deleted"


@dataclass(frozen=True)
class ApiPath:
    """What a request is about: enough for its URL and for naming what a Role lacks."""

    resource: str
    namespace: str = ""
    name: str = ""
    group: str = ""
    version: str = "v1"
    subresource: str = ""

    @property
    def url(self) -> str:
        """The path below the server's address."""
        head = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        middle = f"/namespaces/{self.namespace}" if self.namespace else ""
        tail = "".join(f"/{part}" for part in (self.name, self.subresource) if part)
        return f"{head}{middle}/{self.resource}{tail}".rstrip("/")

    @property
    def shown(self) -> str:
        """As a Role names it: resource/subresource.group."""
        whole = self.resource + (f"/{self.subresource}" if self.subresource else "")
        return whole + (f".{self.group}" if self.group else "")


class Expired(FaultError):
    """The list or watch has to be begun anew (410 Gone)."""

    code: ClassVar[str] = "unreachable"
    exit_code: ClassVar[int] = 4


@contextmanager
def translated(server: str) -> Iterator[None]:
    """Errors of the way to the API server as Unreachable."""
    import urllib3
    from kubernetes import client, config

    try:
        yield
    except config.ConfigException as exc:
        raise Refused("the kubeconfig gives no credentials", _line(exc), "log in again") from exc
    except (urllib3.exceptions.HTTPError, client.ApiException, OSError, ValueError) as exc:
        text = _line(exc)
        hint = "is it up, and the kubeconfig the right one?"
        if _IS_TLS.search(text):
            hint = "the kubeconfig's certificate-authority does not fit the server"
        raise Unreachable(f"the API server at {server} does not answer", text, hint) from exc


def _line(exc: Exception) -> str:
    reason = getattr(exc, "reason", None) or exc
    return " ".join(str(reason).split())[:300] or type(exc).__name__


def event_of(data: dict[str, Any], path: ApiPath) -> dict[str, Any]:
    """A watch event. Raises Expired, or Unreachable for another error that came as one."""
    if data.get("type") != "ERROR":
        return data
    status = data.get("object") or {}
    message = str(status.get("message", ""))
    if status.get("code") == 410:
        raise Expired(f"the watch of {path.shown} has to be begun anew", message)
    raise Unreachable(f"the watch of {path.shown} ended", message)


def error_of(
    response: Any, method: str, path: ApiPath, query: Sequence[tuple[str, str]]
) -> FaultError:
    """The error that an answer means; a refusal names the verb and resource that is missing."""
    raw = response.read()
    try:
        message = str(json.loads(raw).get("message", ""))
    except (ValueError, AttributeError):
        message = raw.decode("utf-8", "replace")[:200]
    code = response.status
    if code == 401:
        return Refused(
            "the API server does not accept your credentials",
            message or "401 Unauthorized: the token or certificate may have expired",
            "log in again, or renew the kubeconfig",
        )
    if code == 403 and "being terminated" in message:
        return Refused(f"namespace {path.namespace} {ENDING}", message, "name another")
    if code == 403:
        return forbidden(message, verb_of(method, path, query), path)
    if code == 409:
        return Conflict(f"{path.shown} {path.name} was changed meanwhile", message, "try again")
    if code == 410:
        return Expired(f"the list of {path.shown} has to be begun anew", message)
    if code in (400, 422):
        return InvalidSpec(f"the API server does not take this for {path.shown}", message)
    if code == 404:
        return Refused(f"the API server has no {path.shown}", message)
    return Unreachable(f"the API server failed ({code})", message or response.reason or "")


def verb_of(method: str, path: ApiPath, query: Sequence[tuple[str, str]]) -> str:
    """The verb that a Role has for a request."""
    if ("watch", "1") in query:
        return "watch"
    return "list" if method == "GET" and not path.name else _VERBS[method]


def forbidden(message: str, verb: str, path: ApiPath) -> Refused:
    """The error for a right that is missing, with the rule that would give it."""
    where = f"in namespace {path.namespace}" if path.namespace else "in the whole cluster"
    role = "Role" if path.namespace else "ClusterRole"
    group = f"{path.group!r}" if path.group else "the core group"
    return Refused(
        f"you may not {verb} {path.shown} {where}",
        message,
        f"a {role} is missing with verb {verb!r} on resource "
        f"{path.resource + (f'/{path.subresource}' if path.subresource else '')!r} of {group}",
    )
