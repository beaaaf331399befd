"""A file that takes up a file system's space."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nodeagent.model.steps.base import StepBase


class FileFill(StepBase):
    """Allocate a hidden file until so much is free; the revert removes it.

    Free is what processes without privileges can still write (f_bavail of statvfs(3)).
    how: `take` that many bytes; `leave` that many free; `used`: until so many
    millionths of what they could ever use are taken.
    """

    survives_boot: ClassVar[bool] = True

    op: Literal["file_fill"] = "file_fill"
    folder: str = Field(description="mount point")
    device: int = Field(description="st_dev of the file system")
    name: str = Field(pattern=r"^\.faultctl-[a-z0-9-]+$")
    how: Literal["take", "leave", "used"]
    value: int = Field(ge=0)
    reserve: int = Field(default=0, ge=0, description="bytes that are left free whatever is asked")

    def key(self) -> str:
        return f"fill:{self.folder}"

    def summary(self) -> str:
        what = {
            "take": f"{self.value}",
            "leave": f"<free - {self.value}>",
            "used": f"<until {self.value / 10_000:g}% are used>",
        }[self.how]
        return f"fallocate -l {what} {self.folder.rstrip('/')}/{self.name}"
