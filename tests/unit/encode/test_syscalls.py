"""Tables of system calls: against the C library's headers, and symbols of recorded kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import syscall_maps as m
from nodeagent.encode.bpf_maps import kernel_dev
from nodeagent.encode.syscall_table import FAMILIES
from nodeagent.encode.syscalls import (
    MAX_ERRNO,
    all_functions,
    cannot_return,
    errno_number,
    expand,
    on_arch,
    table,
)

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
# Lines of /sys/kernel/debug/error_injection/list of an x86-64 kernel, of kallsyms of an arm64 one.
X86 = [
    "__x64_sys_read",
    "__ia32_sys_read",
    "__x64_sys_preadv",
    "__ia32_compat_sys_preadv",
    "__x64_sys_newstat",
    "__x64_sys_clone3",
    "__ia32_sys_nanosleep_time32",
    "__x64_sys_nanosleep",
    "__x64_sys_pread64",
    "__ia32_sys_ia32_pread64",
    "__x64_sys_mmap",
    "__ia32_sys_mmap_pgoff",
    "__x64_sys_umount",
]
ARM = [
    "__arm64_sys_read",
    "__arm64_sys_openat",
    "__arm64_compat_sys_aarch32_pread64",
    "__arm64_sys_clone",
    "__arm64_compat_sys_preadv",
    "__arm64_sys_newfstatat",
]


@pytest.mark.parametrize("arch", HEADERS)
def test_numbers_are_the_headers_own(arch: str) -> None:
    if not HEADERS[arch].exists():
        pytest.skip("linux-libc-dev is not installed")
    text = HEADERS[arch].read_text()
    known = {n: int(v) for n, v in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    known.setdefault("newfstatat", known.get("fstatat", -1))
    for call in table().values():
        assert call.number(arch) == known.get(call.name), call.name


def test_every_name_of_an_errno_is_one_and_every_index_fits() -> None:
    for call in table().values():
        assert all(0 < errno_number(name) <= MAX_ERRNO for name in call.errnos)
        assert call.index < m.MAX_CALLS
        assert not call.hook.startswith("bpf_lsm_")
        for arch in HEADERS:
            number = call.number(arch)
            assert number is None or number < 512
    assert len({call.index for call in table().values()}) == len(table())


def test_families_have_known_members() -> None:
    for name, members in FAMILIES.items():
        assert [call.name for call in expand((name,))] == list(members)
        assert name not in table()
    assert [c.name for c in expand(("read", "read-family"))][:2] == ["read", "pread64"]


def test_symbols_of_recorded_kernels_are_found() -> None:
    assert set(X86) <= all_functions("x86_64")
    assert set(ARM) <= all_functions("aarch64")
    assert all_functions("riscv64") == frozenset()
    assert table()["stat"].function("x86_64") == "__x64_sys_newstat"
    assert table()["read"].function("aarch64") == "__arm64_sys_read"
    with pytest.raises(ValueError, match="riscv64"):
        table()["read"].function("riscv64")


def test_arm64_lacks_the_old_calls() -> None:
    names = [call.name for call in on_arch(expand(("open-family", "fork-family")), "aarch64")]
    assert names == ["openat", "openat2", "open_by_handle_at", "clone", "clone3"]


def test_what_a_call_cannot_return() -> None:
    read = table()["read"]
    assert not cannot_return(read, "EIO")
    assert not cannot_return(read, "EWOULDBLOCK")  # it is EAGAIN
    assert cannot_return(read, "ECHILD")
    assert cannot_return(table()["brk"], "ENOMEM")


@pytest.mark.parametrize(("name", "words"), [("raed", "did you mean read"), ("qqqq", "families")])
def test_an_unknown_call_is_named_with_what_is_near(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        expand((name,))


@given(st.text(max_size=12))
def test_only_names_of_errnos_are_errnos(name: str) -> None:
    try:
        assert 0 < errno_number(name) <= MAX_ERRNO
        assert name.startswith("E")
    except ValueError as exc:
        assert "errno" in str(exc)


# --- layouts ----------------------------------------------------------------------


def test_points_do_not_meet() -> None:
    points = {
        m.point(way, call, compat)
        for way in m.Way
        for call in (0, m.MAX_CALLS - 1)
        for compat in (False, True)
    }
    assert len(points) == len(m.Way) * 4
    assert max(points) == 2047
    assert m.point(m.Way.LSM, 0) == 768  # FC_LSM_POINTS


def test_golden_bytes() -> None:
    flags = m.CallFlag.UID | m.CallFlag.FILES
    device = kernel_dev(8, 16)
    slot = m.CallSlot(-5, 1, 2, 3, 4, 300_000, flags, 0x100, 1000, 9, device)
    assert slot.pack().hex() == (
        "fbffffffffffffff0100000000000000020000000000000003000000000000000400000"
        "0e093040005000000000100" + "00e8030000" + "09000000"
        "1000800000000000"
    )
    assert len(m.pack_control(7, True, (2, 5))) == 48
    assert m.pack_number(0, 3) == b"\1\0\3\0"
    assert m.pack_info(m.Subject.OPENED, m.Named.FIFTH) == b"\2\2\0\0"
    assert m.glob_key(63, 512, True) == (512 | 63 << 16 | 1 << 22).to_bytes(4, "little")
    assert m.unpack_process(m.pack_process(5, 6, 7)) == (5, 6, 7)
    with pytest.raises(ValueError, match="depths"):
        m.pack_control(1, False, tuple(range(9)))


def test_sockets_ends() -> None:
    """An IPv4 network as one of IPv6: ::ffff:a.b.c.d, its mask 96 bits longer."""
    data = m.pack_nets((80, 443), ("10.1.2.3/8", "fe80::/10"))
    assert len(data) == 152
    assert data[:16] == b"\x50\0\xbb\1" + bytes(12)
    assert data[16:32].hex() == "00000000000000000000ffff0a000000"
    assert data[32:48].hex() == "f" * 26 + "000000"
    assert data[48:80].hex() == "fe80" + "0" * 28 + "ffc0" + "0" * 28
    assert data[144:] == b"\2" + bytes(7)


def test_hits_come_back() -> None:
    import struct

    key = struct.pack("=4I", 3, 9, 17, 4242)
    value = struct.pack("=4Q16s", 10, 4, 100, 200, b"python3")
    assert m.hit_slot(key) == (3, 9)
    assert m.unpack_hits(key, value) == m.Hits(17, 4242, 10, 4, 100, 200, "python3")
    assert m.unpack_stats(struct.pack("=7Q", *range(7))).last_ns == 6
