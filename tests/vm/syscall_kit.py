"""Programs that make system calls on request, in lab nodes, and how they fared."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agentkit import Bench

# At each SIGUSR1 it makes its calls, by so many threads (started anew) so many times, and
# writes their errnos. What it waits with and writes by is none of the calls it is tested with.
WORKER = r"""
import errno, json, os, signal, sys, threading
mode, threads, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
fd = os.open((sys.argv + ["/etc/hostname"])[4], os.O_RDONLY)
pipe = os.pipe()
os.write(pipe[1], b"x" * 4096)
def child():
    pid = os.fork()
    if not pid:
        os._exit(grandchild() if mode == "grandchild" else attempt(preadv))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def grandchild():
    pid = os.fork()
    if not pid:
        os._exit(attempt(preadv))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def attempt(what):
    try:
        found = what()
    except OSError as exc:
        return exc.errno
    return -1 if found in (b"", 0) else 0  # -1: an end of file
def preadv():  # not pread64, which the dynamic loader needs to start a program
    return os.preadv(fd, [bytearray(4)], 0)
def read_pipe():
    return os.read(pipe[0], 1)
def open_close():
    os.close(os.open("/etc/hostname", os.O_RDONLY))
def one():
    if mode in ("child", "grandchild"):
        return child()
    return attempt({"pread": lambda: os.pread(fd, 4, 0), "preadv": preadv,
        "pipe": read_pipe, "open": open_close, "exec": lambda: b"" if os.system("true") else b"ran",
        "fsync": lambda: os.fsync(fd)}[mode])
def work(out):
    out.extend(one() for _ in range(times))
os.write(1, b"ready\n")
while True:
    signal.sigwait({signal.SIGUSR1})
    outs = [[] for _ in range(threads)]
    if threads == 1:
        work(outs[0])
    else:
        started = [threading.Thread(target=work, args=(out,)) for out in outs]
        [t.start() for t in started]
        [t.join() for t in started]
    os.write(1, (json.dumps(outs) + "\n").encode())
"""

# No libc between: a static program, and the 32-bit entry of the same kernel by int 0x80.
STATIC = r"""
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/syscall.h>
static char buffer[64];
int main(void)
{
	sigset_t set;
	int sig, fd = open("/etc/hostname", O_RDONLY);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, 0);
	write(1, "ready\n", 6);
	for (;;) {
		long native, compat;
		sigwait(&set, &sig);
		native = syscall(SYS_read, fd, buffer, 4);
		native = native < 0 ? errno : 0;
		lseek(fd, 0, SEEK_SET);
		__asm__ volatile("int $0x80"
			: "=a"(compat)
			: "a"(3), "b"((long)fd), "c"((long)buffer), "d"(4L)
			: "memory", "r8", "r9", "r10", "r11");
		dprintf(1, "[[%ld, %ld]]\n", native, (int)compat < 0 ? -(int)compat : 0L);
	}
}
"""


# Runs each of its forms at each SIGUSR1 and writes their errnos.
FORMS = r"""
import json, os, signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
setup, forms = json.load(open(sys.argv[1]))
exec(setup)
forms = [compile(form, "form", "exec") for form in forms]
os.write(1, b"ready\n")
while True:
    signal.sigwait({signal.SIGUSR1})
    found = []
    for form in forms:
        try:
            exec(form)
            found.append(0)
        except OSError as exc:
            found.append(exc.errno)
    os.write(1, (json.dumps([found]) + "\n").encode())
"""


class Worker:
    """One program in the node; `go` lets it make its calls."""

    def __init__(self, bench: Bench, pid: int, out: str) -> None:
        self.bench, self.pid, self.out = bench, pid, out

    def go(self) -> list[list[int]]:
        """The errnos of each thread's calls; -1 is an end of file."""
        before = self._lines()
        self.bench.node.sh(f"kill -USR1 {self.pid}")
        deadline = self.bench.node.deadline(30)
        while len(lines := self._lines()) == len(before):
            assert time.monotonic() < deadline, "the program did not answer"
            time.sleep(0.05)
        found: list[list[int]] = json.loads(lines[-1])
        return found

    def _lines(self) -> list[str]:
        return [line for line in self.bench.node.sh(f"cat {self.out}").splitlines() if line]

    @property
    def target(self) -> dict[str, Any]:
        return {"type": "pid", "pid": self.pid}

    def failed(self) -> int:
        """Of all its calls, how many failed."""
        return sum(1 for thread in self.go() for code in thread if code)


@contextmanager
def worker(
    bench: Bench, mode: str, threads: int = 1, times: int = 10, cgroup: str = "", file: str = ""
) -> Iterator[Worker]:
    """A worker, born now; killed at the end. file: what it reads."""
    node = bench.node
    node.put("/tmp/worker.py", WORKER.encode())
    with started(bench, f"python3 /tmp/worker.py {mode} {threads} {times} {file}", cgroup) as found:
        yield found


@contextmanager
def forms(
    bench: Bench, setup: str, forms: list[str], cgroup: str = "", python: str = "python3"
) -> Iterator[Worker]:
    """A worker that runs these lines of Python, each by itself; `setup` once before."""
    name = f"/tmp/forms{time.monotonic_ns()}"
    bench.node.put("/tmp/forms.py", FORMS.encode())
    bench.node.put(name, json.dumps([setup, forms]).encode())
    with started(bench, f"{python} /tmp/forms.py {name}", cgroup) as found:
        yield found


@contextmanager
def static_program(bench: Bench) -> Iterator[Worker]:
    """The static program, compiled here."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "s.c"), Path(folder, "s")
        source.write_text(STATIC)
        flags = ["-static", "-no-pie", "-O1", "-w"]
        subprocess.run(["gcc", *flags, "-o", program, source], check=True, timeout=120)
        bench.node.put("/tmp/static", program.read_bytes())
    bench.node.sh("chmod +x /tmp/static")
    with started(bench, "/tmp/static", "") as found:
        yield found


@contextmanager
def started(bench: Bench, command: str, cgroup: str = "") -> Iterator[Worker]:
    """A program that writes `ready`, then a line of JSON at each SIGUSR1."""
    node = bench.node
    out = f"/tmp/w{time.monotonic_ns()}"
    join = f"echo $$ > {cgroup}/cgroup.procs; " if cgroup else ""
    line = f"{join}echo $$ > {out}.pid; exec {command}"
    node.sh(f"setsid sh -c '{line}' > {out} 2>&1 < /dev/null &")
    deadline = node.deadline(30)
    alive = f"cat {out}; test ! -s {out}.pid || kill -0 $(cat {out}.pid)"
    while "ready" not in (seen := node.run(alive, check=False)).out:
        assert time.monotonic() < deadline and not seen.code, f"it did not start: {seen.out}"
        time.sleep(0.1)
    pid = int(node.sh(f"cat {out}.pid"))
    try:
        yield Worker(bench, pid, out)
    finally:
        node.run(f"kill -9 {pid}", check=False)


@contextmanager
def cgroup(bench: Bench, name: str) -> Iterator[str]:
    """A cgroup of its own, empty again and gone at the end."""
    path = f"/sys/fs/cgroup/{name}"
    bench.node.sh(f"mkdir -p {path}")
    try:
        yield path
    finally:
        bench.node.run(
            f"for i in $(seq 50); do find {path} -depth -type d -exec rmdir {{}} + && exit 0; "
            "sleep 0.1; done",
            check=False,
        )


def hooks(bench: Bench) -> list[str]:
    """Our attached programs of system calls, by bpftool, which knows nothing of us."""
    programs = {
        p["id"]: p.get("name", "") for p in json.loads(bench.node.sh("bpftool -j prog list"))
    }
    links = json.loads(bench.node.sh("bpftool -j link list"))
    names = [programs.get(link.get("prog_id"), "") for link in links]
    return sorted(name for name in names if name.startswith(("fc_sys", "fc_tree")))


@contextmanager
def hookless_after(bench: Bench) -> Iterator[Bench]:
    """What a test injects ends with it, and no hook is left."""
    yield bench
    bench.revert_all()
    assert hooks(bench) == []


def wait_ended(bench: Bench, fault_id: str, reason: str) -> None:
    """Until a fault has ended by itself, for this reason."""
    deadline = bench.node.deadline(30)
    while (fault := bench.client.fault(fault_id)).state != "ended":
        assert time.monotonic() < deadline, f"{fault_id} is {fault.state}"
        time.sleep(0.1)
    assert fault.end_reason == reason


def need_cgroup2(bench: Bench) -> None:
    if bench.node.run("test -e /sys/fs/cgroup/cgroup.controllers", check=False).code:
        pytest.fail("the node has no cgroup v2")
