"""What became of a fault's changes while nobody of ours touched them, and by whom; reads only."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.clock import boottime_ns
from controller.kube.client import Cluster
from controller.kube.ledger import Entry, Patched
from controller.kube.lists import split
from controller.kube.patches import Change, where


@dataclass(frozen=True)
class Gone:
    """Changes of one object that are no longer there.

    manager, operation: of who has the field now, by the object's managedFields; empty where the
    object is gone, as nothing says who deleted it.
    """

    text: str
    object: str
    fields: tuple[str, ...] = ()
    manager: str = ""
    operation: str = ""
    time: str = ""

    def data(self) -> dict[str, Any]:
        """For the record."""
        return {"object": self.object, "fields": list(self.fields), "manager": self.manager,
                "operation": self.operation, "time": self.time}  # fmt: skip


@dataclass(frozen=True)
class Drift:
    """whole: nothing is left of what the fault changed. gone: UIDs of objects that are gone; empty
    where one is still there."""

    parts: tuple[Gone, ...]
    whole: bool
    gone: frozenset[str] = frozenset()

    def act_ns(self, since_ns: int) -> int:
        """When the last of it was done, CLOCK_BOOTTIME of this machine: by managedFields, which
        has whole seconds of another clock, but not before it was last seen to hold."""
        now_ns, now = boottime_ns(), time.time()
        ages = [max(0.0, now - at) for part in self.parts if (at := _seconds(part.time))]
        if len(ages) < len(self.parts):
            return since_ns or now_ns
        return max(since_ns, now_ns - int(min(ages, default=0.0) * 1e9))


def drift(cluster: Cluster, entry: Entry) -> Drift:
    """What of an armed fault is no longer as we left it. Raises FaultError classes."""
    parts: list[Gone] = []
    gone: set[str] = set()
    left = 0
    for one in entry.patched:
        current = cluster.get(one.place.path)
        if current is None or current["metadata"]["uid"] != one.uid:
            gone.add(one.uid)
            how = "is gone" if current is None else "is another object now"
            parts.append(Gone(f"{one.place.shown} {how}", one.place.shown))
            continue
        lost = [change for change in one.changes if where(current, change) != "ours"]
        left += len(one.changes) - len(lost)
        if lost:
            parts.append(_changed(one, current, lost))
    whole = bool(entry.patched) and not left
    return Drift(tuple(parts), whole, frozenset(gone if len(gone) == len(parts) else ()))


def _changed(one: Patched, current: dict[str, Any], lost: Sequence[Change]) -> Gone:
    fields = current["metadata"].get("managedFields") or []
    owners = [field for field in fields if _manages(field.get("fieldsV1"), lost[0])]
    # A field that was taken out is nobody's; status has other writers.
    specs = [field for field in fields if not field.get("subresource")]
    newest: dict[str, Any] = max(specs, key=lambda one: str(one.get("time", "")), default={})
    by = owners[-1] if owners else newest
    who = str(by.get("manager", "unknown"))
    told = who if owners else f"somebody (the newest writer is {who})"
    text = f"{one.place.shown} {lost[0].pointer} was taken away by {told}"
    return Gone(text, one.place.shown, tuple(change.pointer for change in lost), who,
                str(by.get("operation", "")), str(by.get("time", "")))  # fmt: skip


def _manages(fields: Any, change: Change) -> bool:
    """Whether a FieldsV1 has the path; positions in lists are not there, and end the search."""
    for part in change.path:
        if isinstance(part, int):
            return isinstance(fields, dict)
        name = f"f:{part}" if (item := split(part)) is None else _keyed(fields, item)
        if not isinstance(fields, dict) or name not in fields:
            return False
        fields = fields[name]
    return True


def _keyed(fields: Any, item: tuple[str, str]) -> str:
    """How a FieldsV1 names an item of a list: `k:{"name":"cart"}`; it may have more keys."""
    key, value = item
    for name in fields if isinstance(fields, dict) else ():
        if name.startswith("k:") and str(json.loads(name[2:]).get(key)) == value:
            return str(name)
    return ""


def _seconds(text: str) -> float:
    """RFC 3339 as seconds since 1970; 0 for none."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def lost(cluster: Cluster, entry: Entry) -> list[str]:
    """Changes that are no longer there, and who took them away; empty while the fault holds."""
    return [one.text for one in drift(cluster, entry).parts]
