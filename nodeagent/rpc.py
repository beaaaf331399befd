"""The edge of the agent's interface: requests checked, every error with what, why and hint."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import grpc
from pydantic import BaseModel, ValidationError

from nodeagent.model import strictjson
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.planner import explain
from protos import faultd_pb2 as pb

MAX_JSON = 16 * 1024 * 1024
ERROR_METADATA = "faultctl-error-bin"
MAX_WORDS = {"what": 600, "why": 2000, "hint": 600}
"""Bytes; a gRPC client drops trailing metadata of more than 8 KiB, encoded."""
MAX_STREAMS = 40
"""Open Watch and Probe calls; each holds a worker, and others must be left for the rest."""

LOG = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)
F = TypeVar("F", bound=Callable[..., Any])


def clip(text: str, size: int) -> str:
    """The text in at most `size` bytes of valid UTF-8."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= size:
        return data.decode("utf-8")
    return data[: size - 3].decode("utf-8", "ignore") + "…"


def abort(context: grpc.ServicerContext, error: FaultError) -> NoReturn:
    """End a call with an error that keeps its what, why and hint."""
    words = {name: clip(getattr(error, name), size) for name, size in MAX_WORDS.items()}
    info = pb.ErrorInfo(code=error.code, **words)
    context.set_trailing_metadata(((ERROR_METADATA, info.SerializeToString()),))
    details = clip(words["what"], MAX_WORDS["what"])
    context.abort(getattr(grpc.StatusCode, error.grpc_status), details)
    raise AssertionError("abort returns never")


def caller(context: grpc.ServicerContext) -> str:
    """The name in the client's certificate; `root` on the Unix socket, which is root's alone."""
    found: Any = context.auth_context().get("x509_common_name")
    return str(found[0], "utf-8", "replace") if found else "root"


def _translated(exc: Exception) -> FaultError:
    if isinstance(exc, FaultError):
        return exc
    if isinstance(exc, OSError):
        return FaultError("the node refused an operation", str(exc))
    LOG.error("a call failed of a bug", exc_info=exc)
    return FaultError("the agent failed", repr(exc), "this is a bug in faultd: see its log")


def unary(method: F) -> F:
    """Turn FaultError, and at this outermost edge anything else, into a gRPC status."""

    @functools.wraps(method)
    def wrapper(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except Exception as exc:  # noqa: BLE001 - the outermost edge
            error = _translated(exc)
        abort(context, error)

    return wrapper  # type: ignore[return-value]


_streams = threading.BoundedSemaphore(MAX_STREAMS)


def streamed(method: F) -> F:
    """As `unary` for a call that streams its answer; only so many may be open at once."""

    @functools.wraps(method)
    def wrapper(self: Any, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if not _streams.acquire(blocking=False):
            abort(
                context,
                Refused(
                    "too many event streams and probes are open",
                    f"this agent serves {MAX_STREAMS} at once",
                    "end one of them",
                ),
            )
        try:
            yield from method(self, request, context)
            return
        except Exception as exc:  # noqa: BLE001 - the outermost edge
            error = _translated(exc)
        finally:
            _streams.release()
        abort(context, error)

    return wrapper  # type: ignore[return-value]


def needed(**fields: str) -> None:
    """Raises InvalidSpec naming the first field that is not set."""
    for name, value in fields.items():
        if not value:
            raise InvalidSpec("the request is not complete", f"{name} is not set")


def parse(model: type[M], text: str, what: str) -> M:
    """A pydantic model from a request's JSON. Raises InvalidSpec naming the field."""
    if len(text) > MAX_JSON:
        raise InvalidSpec(f"the {what} is too large", f"{len(text)} of {MAX_JSON} characters")
    try:
        return model.model_validate(strictjson.loads(text))
    except ValidationError as exc:
        raise InvalidSpec(f"the {what} is not valid", explain(exc)) from exc
    except ValueError as exc:
        raise InvalidSpec(f"the {what} is not JSON", str(exc)) from exc
