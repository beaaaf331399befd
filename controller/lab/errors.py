"""Errors of the lab, on top of those that the whole project shares."""

from __future__ import annotations

from nodeagent.model.errors import FaultError, Unreachable


class NodeFailed(Unreachable):
    """The guest panicked, its QEMU ended, or it did not answer before its deadline."""

    code = "node-failed"


class NoAnswer(NodeFailed):
    """A deadline passed while the node seemed to be alive."""


class CommandFailed(FaultError):
    """A command in the guest (or a build tool on the host) ended with a failure."""

    code = "command-failed"
    exit_code = 1
    grpc_status = "ABORTED"
