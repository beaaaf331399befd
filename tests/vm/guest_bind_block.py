"""Runs inside a lab node as root: disk targets against filefrag, sfdisk, mincore and O_DIRECT.

Prints one JSON line a check: {"check", "ok", "detail"}, or "skip" with the reason, which
the test that started it judges. Arguments: names of checks, none for all.
"""

from __future__ import annotations

import sys

import guest_bind_cache
import guest_bind_files
import guest_bind_stacks
import guest_bind_usage
from guest_bind_kit import main

PARTS = (guest_bind_files, guest_bind_stacks, guest_bind_usage, guest_bind_cache)

if __name__ == "__main__":
    sys.exit(main())
