"""Binding of a file system that is to run full."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class FillBinding(BaseModel):
    """A mounted file system; how full it is changes by itself and is no part of it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    target: str
    folder: str = Field(description="its mount point")
    device: int = Field(description="st_dev of its root")
    fs_type: str
    size: int = Field(description="bytes in all, f_blocks * f_frsize of statvfs(3)")
    inodes: int = Field(default=0, description="f_files of statvfs(3) where that is fixed; else 0")
    node_uses: tuple[str, ...] = Field(
        default=(), description="directories of the node itself that are on it"
    )
