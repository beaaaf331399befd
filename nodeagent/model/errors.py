"""Errors that a person can act on: what happened, why, and what to do.

Each class has one exit code (DESIGN section 7) and one gRPC status, so that an
error means the same on the node, on the wire and on the terminal.
"""

from __future__ import annotations

from typing import ClassVar


class FaultError(Exception):
    """An error with a message for a person.

    what: one line, what could not be done.
    why:  one line, the reason, with the kernel's own words where there are any.
    hint: one line, what to do now; may be empty.
    log:  what a tool or the kernel said in full; it goes into the event, not to the terminal.
    """

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 70
    grpc_status: ClassVar[str] = "INTERNAL"

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)
        self.what = what
        self.why = why
        self.hint = hint
        self.log = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.what, self.why) if part)


class InvalidSpec(FaultError):
    """The request is malformed: a wrong unit, an unknown field, an empty range."""

    code = "invalid"
    exit_code = 2
    grpc_status = "INVALID_ARGUMENT"


class Refused(FaultError):
    """The request is understood, but this node, kernel or guard rail says no."""

    code = "refused"
    exit_code = 3
    grpc_status = "FAILED_PRECONDITION"


class Conflict(Refused):
    """Another fault holds the object that this one would change."""

    code = "conflict"
    grpc_status = "ABORTED"


class ForeignState(Refused):
    """The kernel object is neither as it was nor as we left it: a person must look."""

    code = "foreign"


class UnknownFault(FaultError):
    """No fault with this id is in the journal: that is never success."""

    code = "unknown"
    exit_code = 3
    grpc_status = "NOT_FOUND"


class StalePlan(Refused):
    """What the plan was computed from has changed: plan again."""

    code = "stale"
    grpc_status = "ABORTED"


class Unreachable(FaultError):
    """The agent, the node or the API server did not answer."""

    code = "unreachable"
    exit_code = 4
    grpc_status = "UNAVAILABLE"


class BackendError(FaultError):
    """The kernel refused an operation that the plan expected to work."""

    code = "backend"
    exit_code = 3
    grpc_status = "ABORTED"


ERRORS: dict[str, type[FaultError]] = {
    cls.code: cls
    for cls in (
        FaultError,
        InvalidSpec,
        Refused,
        Conflict,
        ForeignState,
        UnknownFault,
        StalePlan,
        Unreachable,
        BackendError,
    )
}


def lacks_package(
    what: str, package: str, extra: str, exc: ImportError, instead: str = ""
) -> InvalidSpec:
    """The error for a package that only an extra of ours brings (pyproject.toml)."""
    hint = f"install it: pip install 'faultctl[{extra}]'{instead}"
    return InvalidSpec(f"{what} needs the {package} package", str(exc), hint)
