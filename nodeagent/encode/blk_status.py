"""blk_status_t as an errno (blk_errors in block/blk-core.c) and REQ_OP as a word.

Values up to 13 have been the same since 4.16; those above moved when 6.11 dropped
BLK_STS_ZONE_RESOURCE (include/linux/blk_types.h of 6.1 and 6.12 compared).
"""

from __future__ import annotations

import errno

BLK_STS_IOERR = 10
BLK_STS_MEDIUM = 7

_FIXED = {
    0: 0,
    1: errno.EOPNOTSUPP,
    2: errno.ETIMEDOUT,
    3: errno.ENOSPC,
    4: errno.ENOLINK,
    5: errno.EREMOTEIO,
    6: errno.EBADE,
    7: errno.ENODATA,
    8: errno.EILSEQ,
    9: errno.ENOMEM,
    10: errno.EIO,
    11: errno.EREMCHG,
    12: errno.EAGAIN,
    13: errno.EBUSY,
}
_BEFORE_6_11 = {14: errno.EIO, 15: errno.ETOOMANYREFS, 16: errno.EOVERFLOW, 17: errno.ENODEV}
_SINCE_6_11 = {
    14: errno.ETOOMANYREFS,
    15: errno.EOVERFLOW,
    16: errno.ENODEV,
    17: errno.ETIME,
    19: errno.EINVAL,
}

_OPS = {0: "read", 1: "write", 2: "flush", 3: "discard", 5: "secure-erase", 7: "zone-append"}
_OPS |= {9: "write-zeroes", 11: "zone-open", 13: "zone-close", 15: "zone-finish"}
_OPS |= {17: "zone-reset", 19: "zone-reset-all", 34: "driver-in", 35: "driver-out"}


def status_errno(status: int, kernel: tuple[int, int] = (6, 12)) -> int:
    """The positive errno that a direct reader gets; 0 for success, EIO for what is unknown.

    kernel: (major, minor) of the running kernel. A buffered reader always gets EIO.
    """
    if status in _FIXED:
        return _FIXED[status]
    return (_SINCE_6_11 if kernel >= (6, 11) else _BEFORE_6_11).get(status, errno.EIO)


def op_word(op: int) -> str:
    """`read`, `write`, ... for a REQ_OP number of 6.0 and later."""
    return _OPS.get(op, f"op-{op}")
