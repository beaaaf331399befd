"""Files that take up a file system's space, or its inodes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nodeagent.model.steps.base import StepBase


class RoomFill(StepBase):
    """Something hidden in the root of a file system, until so much is free; the revert removes it.

    how: `take` that much; `leave` that much free; `used`: until so many millionths of what
    could ever be used are taken.
    """

    survives_boot: ClassVar[bool] = True
    patience_s: ClassVar[int] = 120

    op: str
    folder: str = Field(description="mount point")
    device: int = Field(description="st_dev of the file system")
    name: str = Field(pattern=r"^\.faultctl-[a-z0-9-]+$")
    how: Literal["take", "leave", "used"]
    value: int = Field(ge=0)
    reserve: int = Field(default=0, ge=0, description="what is left free whatever is asked")

    @property
    def place(self) -> str:
        """Its path."""
        return f"{self.folder.rstrip('/')}/{self.name}"

    @property
    def amount(self) -> str:
        """How much, for a summary."""
        return {
            "take": f"{self.value}",
            "leave": f"<free - {self.value}>",
            "used": f"<until {self.value / 10_000:g}% are used>",
        }[self.how]


class FileFill(RoomFill):
    """Allocate a hidden file until so many bytes are free.

    Free is what processes without privileges can still write (f_bavail of statvfs(3)).
    """

    op: Literal["file_fill"] = "file_fill"

    def key(self) -> str:
        return f"fill:{self.folder}"

    def summary(self) -> str:
        return f"fallocate -l {self.amount} {self.place}"


class InodeFill(RoomFill):
    """Empty files in one hidden directory until so many inodes are free."""

    op: Literal["inode_fill"] = "inode_fill"

    def key(self) -> str:
        return f"inodes:{self.folder}"

    def summary(self) -> str:
        files = f"seq {self.amount} | (cd {self.place} && xargs touch)"
        return f"mkdir {self.place}; {files}"
