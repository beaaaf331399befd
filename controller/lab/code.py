"""The code under test as a tar archive, for a node that runs already."""

from __future__ import annotations

import io
import stat
import tarfile

from controller.lab import image, initrd
from controller.lab.flavours import flavour


def tarball(name: str) -> bytes:
    """Paths relative to `/opt/faultctl`, byte code for the flavour's Python included."""
    chosen = flavour(name)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for entry in initrd.code(image.ensure(chosen), chosen.python):
            if not stat.S_ISREG(entry.mode):
                continue
            info = tarfile.TarInfo(entry.path.removeprefix("opt/faultctl/"))
            info.size, info.mode = len(entry.data), entry.mode & 0o777
            tar.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()
