"""fault-point on the kernel that has them; on the others a refusal by name."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import syscall_kit as kit
from agentkit import Bench, Benches

from controller.lab import Node
from nodeagent.model.errors import Conflict, InvalidSpec, Refused

DISK = "/dev/disk/by-id/virtio-d0"
KNOBS = "cd /sys/kernel/debug && grep -r . fail*/ 2>/dev/null | grep -v /inject | sort"
MARKS = "cat /proc/[0-9]*/task/*/make-it-fail /proc/[0-9]*/task/*/fail-nth | sort | uniq -c"

# At each SIGUSR1 it asks the kernel 200 times for what the mode says, counts the errnos, and
# goes on writing until it is through: that, too, may fail.
ASKS = r"""
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static char page[4096] __attribute__((aligned(4096)));
static int disk, word;
static void *area;
static int ask(const char *mode)
{
	long got;
	if (!strcmp(mode, "slab") || !strcmp(mode, "child")) {
		got = epoll_create1(0);
		if (got >= 0)
			close(got);
	} else if (!strcmp(mode, "page")) {
		got = madvise(area, 4096, 23); /* MADV_POPULATE_WRITE */
		if (got >= 0)
			madvise(area, 4096, MADV_DONTNEED);
	} else if (!strcmp(mode, "futex")) {
		got = syscall(SYS_futex, &word, FUTEX_WAKE, 1, 0, 0, 0);
	} else {
		got = pread(disk, page, sizeof(page), 0);
	}
	return got < 0 ? errno : 0;
}
int main(int argc, char **argv)
{
	sigset_t set;
	int sig, status;
	area = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	disk = open("DISK", O_RDONLY | O_DIRECT);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, 0);
	write(1, "ready\n", 6);
	for (;;) {
		char out[4096], *at = out;
		sigwait(&set, &sig);
		if (!strcmp(argv[1], "child") && fork()) {
			wait(&status);
			continue;
		}
		at += sprintf(at, "[[");
		for (int n = 0; n < 200; n++)
			at += sprintf(at, "%s%d", n ? "," : "", ask(argv[1]));
		at += sprintf(at, "]]\n");
		for (char *from = out; from < at;) {
			long done = write(1, from, at - from);
			from += done > 0 ? done : 0;
		}
		if (!strcmp(argv[1], "child"))
			_exit(0);
	}
}
"""


@pytest.fixture
def bench(vm_node: Node, benches: Benches) -> Iterator[Bench]:
    found = benches.of(vm_node)
    before = found.node.sh(f"{KNOBS}; {MARKS.split(' |')[0]} | sort -u")
    yield found
    found.revert_all()
    assert found.node.sh(f"{KNOBS}; {MARKS.split(' |')[0]} | sort -u") == before
    assert found.residue() == []


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("asks")
    source, made = folder / "asks.c", folder / "asks"
    source.write_text("#define _GNU_SOURCE\n" + ASKS.replace("DISK", DISK))
    subprocess.run(["gcc", "-static", "-O1", "-w", "-o", made, source], check=True, timeout=120)
    return Path(made).read_bytes()


@contextmanager
def asking(bench: Bench, program: bytes, mode: str) -> Iterator[kit.Worker]:
    name = f"/tmp/asks{time.monotonic_ns()}"  # one that runs cannot be written again
    bench.node.put(name, program, 0o755)
    with kit.started(bench, f"{name} {mode}") as found:
        yield found


@pytest.mark.vm("full")
@pytest.mark.parametrize(
    ("mode", "spec", "errno"),
    [
        ("slab", {"point": "failslab"}, 12),
        ("page", {"point": "fail_page_alloc"}, 12),
        ("futex", {"point": "fail_futex"}, 14),
        ("disk", {"point": "fail_make_request", "on_device": DISK}, 5),
        ("slab", {"point": "fail_function", "function": "__x64_sys_epoll_create1",
                  "errno": "EMFILE"}, 24),
    ],
)  # fmt: skip
def test_each_point_hits_its_process_alone_and_is_put_back(
    vm_node: Node, bench: Bench, program: bytes, mode: str, spec: dict[str, Any], errno: int
) -> None:
    before = bench.node.sh(KNOBS)
    with asking(bench, program, mode) as hit, asking(bench, program, mode) as other:
        fault = bench.inject("fault-point", hit.target, spec={**spec, "probability": 50})
        found, spared = hit.go()[0], other.go()[0]
        assert set(found) == {0, errno}, found
        # One call may have several chances.
        assert 3 <= sum(map(bool, found)) <= 197
        assert not any(spared)
        assert bench.evidence(fault.id)["hits"] >= sum(map(bool, found))
        assert bench.node.sh(KNOBS) != before
        assert bench.node.run(f"cat /proc/{hit.pid}/make-it-fail").out.strip() == "1"
        assert bench.client.revert(fault.id).fault.end_reason == "reverted"
        assert bench.node.sh(KNOBS) == before
        assert not any(hit.go()[0])
        assert "biting" in bench.events(fault.id)


@pytest.mark.vm("full")
def test_times_and_children_and_the_next_one(vm_node: Node, bench: Bench, program: bytes) -> None:
    with asking(bench, program, "child") as hit:
        spec = {"point": "fail_function", "function": "__x64_sys_epoll_create1", "errno": "ENOMEM"}
        fault = bench.inject("fault-point", hit.target, spec={**spec, "times": 7})
        found = hit.go()[0]  # of a child, born under the fault
        assert found == [12] * 7 + [0] * 193
        assert bench.evidence(fault.id)["hits"] == 7
        with pytest.raises(Conflict, match=fault.id):
            bench.plan("fault-point", hit.target, spec=spec)
        bench.client.revert(fault.id)
        fault = bench.inject("fault-point", hit.target, spec={**spec, "interval": 10})
        assert hit.go()[0] == ([0] * 9 + [12]) * 20
        bench.client.revert(fault.id)


@pytest.mark.vm("full")
def test_the_nth_chance_of_a_thread(vm_node: Node, bench: Bench, program: bytes) -> None:
    with asking(bench, program, "slab") as hit:
        fault = bench.inject("fault-point", hit.target, spec={"point": "nth", "nth": 3})
        assert bench.evidence(fault.id)["hits"] == 0
        found = hit.go()[0]
        assert bench.evidence(fault.id)["hits"] == 1
        assert sum(map(bool, found)) <= 1  # it may have been the signal's own request
        bench.client.revert(fault.id)


@pytest.mark.vm("full")
def test_who_uses_it_already_is_left_alone(vm_node: Node, bench: Bench, program: bytes) -> None:
    knob = "/sys/kernel/debug/fail_futex/probability"
    with asking(bench, program, "futex") as hit:
        bench.node.sh(f"echo Y > /sys/kernel/debug/fail_futex/task-filter; echo 1 > {knob}")
        with pytest.raises(Refused, match="in use already"):
            bench.inject("fault-point", hit.target, spec={"point": "fail_futex"})
        assert bench.node.sh(f"cat {knob}").strip() == "1"
        bench.node.sh(f"echo 0 > {knob}; echo N > /sys/kernel/debug/fail_futex/task-filter")
        for spec, error, words in (
            ({"point": "fail_function", "function": "vfs_mkdir", "errno": "EIO"}, Refused,
             "not on the kernel's error-injection list"),
            ({"point": "fail_function"}, InvalidSpec, "needs --function"),
            ({"point": "fail_make_request"}, InvalidSpec, "needs --on-device"),
            ({"point": "failslab", "nth": 3}, InvalidSpec, "takes no --nth"),
        ):  # fmt: skip
            with pytest.raises(error, match=words):
                bench.inject("fault-point", hit.target, spec=spec)


@pytest.mark.vm("full")
def test_the_end_of_the_process_ends_it(vm_node: Node, bench: Bench, program: bytes) -> None:
    before = bench.node.sh(KNOBS)
    with asking(bench, program, "slab") as hit:
        fault = bench.inject("fault-point", hit.target, spec={"point": "failslab"})
    kit.wait_ended(bench, fault.id, "remedied")
    assert bench.node.sh(KNOBS) == before


@pytest.mark.vm("debian-12", "debian-13")
def test_stock_kernels_have_none(vm_node: Node, bench: Bench) -> None:
    with kit.worker(bench, "pread") as hit, pytest.raises(Refused, match="CONFIG_FAILSLAB"):
        bench.plan("fault-point", hit.target, spec={"point": "failslab"})
