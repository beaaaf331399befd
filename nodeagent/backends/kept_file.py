"""A file that gets other content for a while; the file itself waits under a second name.

The second name is made before the first one leads elsewhere, and goes last: as long as it
is there, something is not as it was. So the same inode comes back, with its mode, owner,
times and extended attributes; where somebody has removed it, a copy from the journal does.
"""

from __future__ import annotations

import base64
import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeagent.crashpoint import crashpoint
from nodeagent.model.errors import BackendError, Refused

MOST = 1 << 20
"""Bytes of a file that the journal keeps."""


class KeptFile:
    """One file of one fault. ident: the fault's id, part of the names that are made."""

    def __init__(self, path: str, ident: str) -> None:
        self.path = Path(path)
        self.kept = self.path.with_name(f".faultctl-{ident}.kept")
        self._new = self.path.with_name(f".faultctl-{ident}.new")

    def observe(self) -> dict[str, Any]:
        """Content and all that belongs to it, as JSON data. Raises Refused."""
        what = f"{self.path} cannot be changed"
        try:
            with open(self.path, "rb") as file:
                data, info = file.read(MOST + 1), os.fstat(file.fileno())
                xattrs = {n: os.getxattr(file.fileno(), n) for n in os.listxattr(file.fileno())}
        except OSError as exc:
            raise Refused(what, f"it cannot be read: {exc.strerror}") from exc
        if len(data) > MOST:
            raise Refused(what, f"it is larger than {MOST} bytes")
        if self.kept.exists():
            raise Refused(what, f"{self.kept} is there already", "look: faultctl doctor")
        return {
            "data": _text(data),
            "mode": info.st_mode & 0o7777,
            "owner": [info.st_uid, info.st_gid],
            "times": [info.st_atime_ns, info.st_mtime_ns],
            "xattrs": {name: _text(value) for name, value in xattrs.items()},
        }

    def read(self) -> bytes | None:
        """What is under the name now; None when there is none."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, data: bytes, prior: dict[str, Any]) -> None:
        """Keep the file and put another with this content in its place. Raises BackendError."""
        try:
            with suppress(FileExistsError):
                os.link(self.path, self.kept, follow_symlinks=False)
            self._sync()
            crashpoint("file:kept")
            self._write(data, prior)
            os.rename(self._new, self.path)
            self._sync()
        except OSError as exc:
            raise BackendError(
                f"{self.path} was not changed",
                f"{exc.strerror} ({errno.errorcode[exc.errno or 0]})",
            ) from exc

    def put_back(self, prior: dict[str, Any]) -> None:
        """The file under its name again; `release` is still due. Raises OSError."""
        self._new.unlink(missing_ok=True)
        if self._is_kept(prior):
            if not (self.path.exists() and os.path.samefile(self.kept, self.path)):
                os.link(self.kept, self._new)
                os.rename(self._new, self.path)
        elif self.read() != _bytes(prior["data"]):
            self._write(_bytes(prior["data"]), prior)
            os.utime(self._new, ns=(prior["times"][0], prior["times"][1]))
            os.rename(self._new, self.path)
        self._sync()
        crashpoint("file:back")

    def _is_kept(self, prior: dict[str, Any]) -> bool:
        """Whether the kept file is still what it was: somebody may have edited or removed it."""
        try:
            return self.kept.read_bytes() == _bytes(prior["data"])
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Drop the second name."""
        self._new.unlink(missing_ok=True)
        self.kept.unlink(missing_ok=True)
        self._sync()

    def is_as_before(self, prior: dict[str, Any]) -> bool:
        """By content."""
        return self.read() == _bytes(prior["data"])

    def _write(self, data: bytes, prior: dict[str, Any]) -> None:
        self._new.unlink(missing_ok=True)
        fd = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchown(fd, *prior["owner"])
            os.fchmod(fd, prior["mode"])
            for name, value in prior["xattrs"].items():
                os.setxattr(fd, name, _bytes(value))
            os.fsync(fd)

    def _sync(self) -> None:
        fd = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
