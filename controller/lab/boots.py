"""Boots that the emulator itself has spoiled are begun anew.

When the kernel switches a static key while another processor is on its way through it, QEMU's
multi-threaded emulation can run the breakpoint of that moment too late (poke_int3_handler,
arch/x86/kernel/alternative.c), and a sound kernel dies of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from controller.lab.errors import NodeFailed

BOOTS = 3


def tried(
    switch_on: Callable[[], None], spoiled: Callable[[], bool], off: Callable[[], None], name: str
) -> None:
    """Switch a node on, at most BOOTS times; what is tried again is a RuntimeWarning.

    Raises NodeFailed of the last boot, and at once of one that was not spoiled.
    """
    for left in reversed(range(BOOTS)):
        try:
            switch_on()
        except NodeFailed:
            if not left or not spoiled():
                raise
            off()
            said = "QEMU ran a breakpoint of the kernel's own patching that was gone already (int3)"
            warnings.warn(f"node {name}: {said}; it is booted again", RuntimeWarning, stacklevel=3)
        else:
            return
