"""The controller's journal of faults on objects of a cluster: one file a fault, synced first.

It lies with the user (in their state directory), not in the cluster, where whoever is to
find the fault could read it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from controller.clock import boottime_ns, wall
from controller.kube.answers import ApiPath
from controller.kube.patches import Change
from nodeagent.model.errors import Conflict, FaultError, UnknownFault, lacks_package
from nodeagent.model.plan import FAULT_ID_PATTERN

State = Literal["intent", "armed", "ended"]
FIELD_MANAGER = "kubectl-patch"
"""Whose name the API server writes beside our changes, for anybody to read (managedFields); it
has to be some, and this is the most common one."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Place(_Model):
    """An object of the cluster, as ApiPath."""

    resource: str
    namespace: str = ""
    name: str
    group: str = ""
    version: str = "v1"

    @classmethod
    def of(cls, path: ApiPath) -> Place:
        return cls(resource=path.resource, namespace=path.namespace, name=path.name,
                   group=path.group, version=path.version)  # fmt: skip

    @property
    def path(self) -> ApiPath:
        return ApiPath(self.resource, self.namespace, self.name, self.group, self.version)

    @property
    def shown(self) -> str:
        """`pods shop/db-0`."""
        return f"{self.resource} {self.namespace + '/' if self.namespace else ''}{self.name}"


class Patched(_Model):
    """The changes of one object. uid: another object of the same name is not ours."""

    place: Place
    uid: str
    changes: tuple[Change, ...]
    manager: str = FIELD_MANAGER


class Removed(_Model):
    """A pod that is deleted or evicted; nothing brings it back."""

    place: Place
    uid: str
    grace_s: int | None = None
    evict: bool = False


class Note(_Model):
    """Something that happened to a fault. name: armed, drifted, kept, remedied, ended, or note;
    ns: CLOCK_BOOTTIME of the machine that saw it."""

    name: str = "note"
    text: str = ""
    ns: int
    wall: str
    data: dict[str, Any] = {}


def places_of(patched: Iterable[Patched], removed: Iterable[Removed]) -> list[Place]:
    """The objects that are changed and those that are removed."""
    return [one.place for one in patched] + [one.place for one in removed]


class Entry(_Model):
    """One fault: what it does, how far it is, and when it ends by itself."""

    version: Literal[1] = 1
    id: str = Field(pattern=FAULT_ID_PATTERN)
    kind: str
    server: str
    kubeconfig: str | None = None
    context: str | None = None
    state: State = "intent"
    end_reason: str = ""
    created: float = Field(description="seconds since 1970")
    lease_s: float = 0
    until: float = Field(default=0, description="the lease's end, seconds since 1970")
    hard_end: float = 0
    patched: tuple[Patched, ...] = ()
    removed: tuple[Removed, ...] = ()
    ending: bool = Field(default=False, description="a revert has begun: some may be back")
    notes: list[Note] = []

    @model_validator(mode="before")
    @classmethod
    def _older(cls, data: Any) -> Any:
        """Lines without a time, as they were written once."""
        if isinstance(data, dict) and "events" in data:
            lines = data["events"]
            data = {key: value for key, value in data.items() if key != "events"}
            data["notes"] = [{"text": line, "ns": 0, "wall": ""} for line in lines]
        return data

    @property
    def events(self) -> list[str]:
        """What there is to say about it, for a person."""
        return [note.text for note in self.notes if note.text]

    def note(self, name: str, text: str = "", **data: Any) -> bool:
        """Adds what happened; False if that was said already."""
        if any((one.name, one.text) == (name, text) for one in self.notes):
            return False
        self.notes.append(Note(name=name, text=text, ns=boottime_ns(), wall=wall(), data=data))
        return True

    def end_as(self, reason: str) -> None:
        """Nothing of it is left."""
        self.state, self.end_reason = "ended", reason
        self.note("ended", reason=reason)

    @property
    def end(self) -> float:
        """When it ends by itself at the latest, seconds since 1970."""
        return min(self.until, self.hard_end)

    @property
    def places(self) -> list[Place]:
        """The objects that it changes and those that it removes."""
        return places_of(self.patched, self.removed)


def own_ledger() -> Ledger:
    """The journal of this user's faults on clusters. Raises InvalidSpec without the extra `kube`,
    which faults by agents do without."""
    try:
        import platformdirs
    except ImportError as exc:
        raise lacks_package("the journal of clusters", "platformdirs", "kube", exc) from exc
    return Ledger(platformdirs.user_state_path("faultctl") / "cluster")


class Ledger:
    """The faults of this user. Raises FaultError classes; OSError for a disk that is full."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def identity(self) -> str:
        """Which ledger it is, wherever its folder lies."""
        path, name = self.home / ".identity", secrets.token_hex(8)
        if not path.exists():
            new = self.home / f".{name}.new"
            new.write_text(name, encoding="ascii")
            with suppress(FileExistsError):
                os.link(new, path)
            new.unlink()
        return path.read_text(encoding="ascii")

    def _file(self, fault_id: str) -> Path:
        return self.home / f"{fault_id}.json"

    @contextmanager
    def held(self, fault_id: str) -> Iterator[None]:
        """One at a time changes a fault: verbs and the keeper."""
        fd = os.open(self.home / f".{fault_id}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def kept(self, fault_id: str) -> Iterator[bool]:
        """Whether the caller is the only keeper of a fault, as long as it lasts."""
        name = self.home / f".{fault_id}.keeper"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def begin(self, entry: Entry) -> None:
        """The intent, on disk before anything is touched. Raises Conflict for an id that is."""
        if self._file(entry.id).exists():
            raise Conflict(f"there is a fault {entry.id} already", "", "choose another --id")
        self.check_free(entry)
        self.write(entry)

    def check_free(self, entry: Entry) -> None:
        """Raises Conflict when another fault has changed one of its fields."""
        for other in self.all():
            both = _objects(other) & _objects(entry)
            if other.state != "ended" and other.server == entry.server and both:
                raise Conflict(
                    f"{entry.kind} conflicts with the armed fault {other.id}",
                    f"both would change {sorted(both)[0]}",
                    f"revert it first: faultctl revert --cluster {other.id}",
                )

    def write(self, entry: Entry) -> None:
        """Synced, whole or not at all."""
        new = self.home / f".{entry.id}.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(entry.model_dump_json(indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._file(entry.id))
        folder = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def get(self, fault_id: str) -> Entry:
        """One fault. Raises UnknownFault."""
        found = self.find(fault_id)
        if found is None:
            raise UnknownFault(f"no fault {fault_id} is known here", f"in {self.home}")
        return found

    def find(self, fault_id: str) -> Entry | None:
        """One fault, None if there is none."""
        try:
            return Entry.model_validate_json(self._file(fault_id).read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as exc:
            raise FaultError(
                f"{self._file(fault_id)} cannot be read",
                exc.errors(include_url=False)[0]["msg"],
                "it is of another version, or damaged: look at it before anything else",
            ) from exc

    def renew(self, fault_id: str) -> Entry:
        """Word from the owner of a fault: its lease starts anew, if it has not ended. Raises
        UnknownFault."""
        with self.held(fault_id):
            entry = self.get(fault_id)
            if entry.state != "ended":
                entry.until = time.time() + entry.lease_s
                self.write(entry)
        return entry

    def all(self) -> list[Entry]:
        """All faults, the oldest first."""
        names = [path.stem for path in self.home.glob("*.json")]
        found: list[Any] = [self.find(name) for name in names]
        return sorted((one for one in found if one), key=lambda one: (one.created, one.id))


def _objects(entry: Entry) -> set[str]:
    return {f"{one.place.shown} {c.pointer}" for one in entry.patched for c in one.changes}
