"""Sysctls of the node, or of the net namespace of a target: there, readable, writable."""

from __future__ import annotations

import os
import stat

from nodeagent.bind import net, procsys
from nodeagent.bind.family import Ask, Scene
from nodeagent.model.errors import Refused
from nodeagent.model.sysctl import (
    ONE_WAY,
    PARTNERS,
    SysctlBinding,
    SysctlValue,
    assignment,
    is_net,
    name_of,
    words,
)
from nodeagent.model.target import NetnsTarget, NodeTarget


def bind(scene: Scene, ask: Ask) -> SysctlBinding:
    """The sysctls that the spec names, as they are now. Raises Refused."""
    on_node = isinstance(ask.target, NodeTarget)
    whose = NetnsTarget(netns=f"{scene.node.proc}/1/ns/net") if on_node else ask.target
    netns, _ = net.resolve(scene.node.proc, whose)
    paths = [assignment(text)[0] for text in getattr(ask.spec, "set", ())]
    strangers = [path for path in paths if not is_net(path)]
    if strangers and not on_node:
        raise Refused(
            f"{name_of(strangers[0])} of {ask.target.label()} cannot be set",
            "it is the whole node's: only net.* belong to a net namespace",
            "if the node is meant: --node",
        )
    found = {
        path: procsys.viewed(netns if is_net(path) else None, lambda path=path: _value(path))  # type: ignore[misc]
        for path in paths
    }
    missing = [path for path, value in found.items() if value is None]
    if missing:
        raise Refused(f"{ask.target.label()} cannot be looked at", "its net namespace is gone")
    return SysctlBinding(
        target=ask.target.label(),
        netns=netns,
        host=any(
            os.stat(scene.node.proc / pid / "ns/net").st_ino == netns.inode for pid in ("1", "self")
        ),
        values=tuple(value for value in found.values() if value is not None),
    )


def _value(path: str) -> SysctlValue:
    """One of them. Raises Refused: unknown, no file, read-only, write-only."""
    what, file = f"{name_of(path)} cannot be set", procsys.ROOT / path
    if path in ONE_WAY:
        raise Refused(what, f"it could not be taken back: {ONE_WAY[path]}")
    try:
        mode = os.stat(file).st_mode
    except OSError:
        near = f"see: ls {file.parent}" if file.parent.is_dir() else "see: sysctl -a"
        raise Refused(
            what, "this kernel has none, not in this namespace, or its module is not loaded", near
        ) from None
    if stat.S_ISDIR(mode):
        raise Refused(what, "it is a folder of sysctls", f"see: ls {file}")
    if not mode & 0o222 or os.statvfs(file).f_flag & os.ST_RDONLY:
        raise Refused(what, "it is read-only here")
    try:
        now = procsys.read(path) if mode & 0o444 else None
    except (OSError, UnicodeDecodeError) as exc:
        raise Refused(what, f"it cannot be read: {exc}") from exc
    if now is None:
        raise Refused(what, "it cannot be read, so it could not be put back")
    partner = PARTNERS.get(path)
    other = procsys.read(partner) if partner else None
    return SysctlValue(path=path, value=words(now), partner=words(other or ""))
