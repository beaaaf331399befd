"""Runs inside a lab node as root: what the block-layer programs say where they cannot work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from guest_bio import WORK, check, dev, loop, main, programs, ranges, sh

from nodeagent.backends.bio_trace import BioTracer
from nodeagent.backends.bpf_object import OBJECTS, BpfObject
from nodeagent.backends.libbpf import VerifierRejected

# Loads one of the two and prints the error's class, text and hint.
LOAD = """
import json, sys
from nodeagent.backends.bio_fail import BioFailer
from nodeagent.backends.bio_trace import BioTracer
from nodeagent.model.errors import FaultError
try:
    {"fail": BioFailer, "trace": BioTracer}[sys.argv[1]]().close()
    print(json.dumps(["loaded", "", ""]))
except FaultError as exc:
    print(json.dumps([type(exc).__name__, str(exc), exc.hint]))
"""


def load(which: str, *prefix: str) -> list[str]:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", LOAD, which], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


@check
def sectors_need_the_injection_point() -> object:
    """Stock Debian has none; where the kernel has it, the program loads."""
    kind, text, hint = load("fail")
    listed = Path("/sys/kernel/debug/error_injection/list")
    sh("mount", "-t", "debugfs", "none", "/sys/kernel/debug", ok=False)
    if listed.exists() and "should_fail_bio" in listed.read_text():
        assert kind == "loaded", text
    else:
        assert kind == "Refused" and "should_fail_bio is no error-injection point" in text, text
        assert "volume prepare" in hint
    assert programs() == []
    return [kind, text]


@check
def no_root_is_said() -> object:
    kind, text, hint = load("trace", "setpriv", "--reuid", "65534", "--clear-groups")
    assert kind == "Refused" and "denies bpf()" in text and "root" in hint, (kind, text)
    return text


@check
def no_library_is_said() -> object:
    found = sh("sh", "-c", "readlink -f /usr/lib/*/libbpf.so.1").strip()
    kind, text, hint = load(
        "trace", "unshare", "-m", "sh", "-c", f'mount --bind /dev/null {found} && exec "$@"', "sh"
    )
    assert kind == "Refused" and "libbpf.so.1" in text and hint == "apt-get install libbpf1", text
    return text


@check
def a_cut_object_is_said_with_its_log() -> object:
    path = WORK / "cut.bpf.o"
    path.write_bytes((OBJECTS / "bio_trace.bpf.o").read_bytes()[:3000])
    try:
        BpfObject("bio_trace", path)
    except VerifierRejected as exc:
        assert "libbpf" in exc.log, exc.log
        return [str(exc), exc.log]
    raise AssertionError("half an object was opened")


@check
def what_the_verifier_rejects_is_said_short() -> object:
    """The program without its null check after the first lookup: jumps turned into nops."""
    data = bytearray((OBJECTS / "bio_trace.bpf.o").read_bytes())
    null_check = b"\x15\x00"  # if r0 == 0 goto +off
    call = bytes.fromhex("8500000001000000")  # call bpf_map_lookup_elem
    at = data.find(call)
    while at >= 0:
        if data[at + 8 : at + 10] == null_check:
            data[at + 8 : at + 16] = bytes.fromhex("bf00000000000000")  # r0 = r0
        at = data.find(call, at + 8)
    path = WORK / "unsafe.bpf.o"
    path.write_bytes(data)
    with BpfObject("bio_trace", path) as broken:
        try:
            broken.load()
        except VerifierRejected as exc:
            assert "Permission denied" in exc.why and "map_value_or_null" in exc.why, exc.why
            assert len(exc.why) < 300 < len(exc.log) <= 256 * 1024
            assert programs() == []
            return exc.why
    raise AssertionError("an unsafe program was taken")


@check
def a_device_that_is_not() -> object:
    tracer = BioTracer()
    try:
        tracer.add_watch(4000, 77, ranges((0, 1)))
    except FileNotFoundError as exc:
        said = str(exc)
    else:
        raise AssertionError("a device that is not there was watched")
    assert tracer.watches() == ()
    watch = tracer.add_watch(*dev(loop("some.img")), ranges((0, 1)))
    tracer.remove_watch(watch)
    for gone in (tracer.stats, tracer.remove_watch):
        try:
            gone(watch)
        except KeyError:
            continue
        raise AssertionError("an ended watch still counts")
    tracer.close()
    return said


if __name__ == "__main__":
    main(lambda: None)
