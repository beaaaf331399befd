"""The image's pod without a container runtime: run as process 1 of new pid and mount namespaces.

    unshare --pid --fork --mount --mount-proc python podsim.py ROOTFS SCRATCH

This process and its mounts are the node; the pod is a chroot into ROOTFS in a mount namespace
of its own that sees the node's processes, as with hostPID. Prints one JSON object of what it saw.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOTFS, SCRATCH = Path(sys.argv[1]), Path(sys.argv[2])
STATE, RUN = Path("/var/lib/faultctl"), Path("/run/faultctl")
DEADLINE_S = 60.0
IN_POD = """
set -e
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
mount --rbind /sys {root}/sys
[ "$1" = clean ] || [ "$1" = cleaned ] || {{
  mkdir -p {state}; mount --bind {state} {root}{state}; }}
exec chroot {root} /opt/faultctl/bin/faultd-pod "$@"
"""


def sh(script: str) -> None:
    subprocess.run(["sh", "-ec", script], check=True)


def pod(verb: str, log: str = "pod.log") -> subprocess.Popen[bytes]:
    script = IN_POD.format(root=ROOTFS, state=STATE)
    with (SCRATCH / log).open("ab") as sink:
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script, "pod", verb], stdout=sink, stderr=sink
        )


def until(what: str, holds: Callable[[], Any]) -> float:
    """Seconds that it took."""
    begin = time.monotonic()
    while not holds():
        if time.monotonic() > begin + DEADLINE_S:
            log = (SCRATCH / "pod.log").read_text(errors="replace")
            raise SystemExit(f"not in time: {what}\n{log}")
        time.sleep(0.005)
    return time.monotonic() - begin


def named(name: str) -> list[int]:
    """Pids by the name of the process; zombies are none."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "comm").read_text().strip() == name and state(int(path.name)) not in "ZX":
                found.append(int(path.name))
        except OSError:
            continue
    return found


def guardians() -> list[int]:
    """Pids, by the command line."""
    found = []
    for pid in named("python3"):
        try:
            if b"nodeagent.guardian" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def state(pid: int) -> str:
    """The third field of proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def faultctl(*words: str) -> str:
    """The image's own command line, on the node, through the agent's socket."""
    (runtime,) = (STATE / "runtime").iterdir()
    done = subprocess.run([str(runtime / "bin/faultctl"), *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"faultctl {' '.join(words)}: {done.stdout} {done.stderr}")
    return done.stdout


def seen(pid: int) -> dict[str, Any]:
    home = Path(f"/proc/{pid}")
    same = {n: os.readlink(home / f"ns/{n}") == os.readlink(f"/proc/1/ns/{n}")
            for n in ("mnt", "uts", "ipc", "cgroup", "pid")}  # fmt: skip
    kib = next(x for x in (home / "status").read_text().splitlines() if x.startswith("VmRSS"))
    return {"ns": same, "exe": os.readlink(home / "exe"), "rss_kib": int(kib.split()[1])}


def ready() -> bool:
    return "ready on" in (SCRATCH / "pod.log").read_text(errors="replace")


def start() -> tuple[subprocess.Popen[bytes], float]:
    (SCRATCH / "pod.log").write_text("")
    first = pod("run")
    return first, until("the agent is ready", ready)


def inject(fault: str) -> None:
    faultctl("inject", "link-down", "--netns", "/run/netns/work", "--interface", "d0",
             "--id", fault)  # fmt: skip


def is_up() -> bool:
    """IFF_UP of the interface that the faults set down, by ip(8)."""
    argv = ["ip", "-n", "work", "-o", "link", "show", "d0"]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return "UP" in shown[shown.index("<") + 1 : shown.index(">")].split(",")


def main() -> None:
    sh(f"mount --make-rprivate /; mount -t tmpfs run /run; mount -t tmpfs lib {STATE.parent}")
    result: dict[str, Any] = {}
    first, result["start_s"] = start()
    (agent,), (entry,), (guardian,) = named("faultd"), named("faultd-pod"), guardians()
    result |= {"agent": seen(agent), "entry": seen(entry), "guardian": seen(guardian)}
    sh("ip netns add work; ip -n work link add d0 type veth peer name d1")
    sh("ip -n work link set d0 up")
    inject("held")
    result["down"] = not is_up()
    for pid in (entry, agent):  # what a runtime does to the pod's cgroup
        os.kill(pid, signal.SIGKILL)
    result["revert_s"] = until("the link is up again", is_up)
    first.wait()
    until("the guardian has ended", lambda: not guardians())
    second, result["start_again_s"] = start()
    faults = json.loads(faultctl("ls", "--all", "-o", "json"))
    result["end"] = {one["id"]: one["end_reason"] for one in faults}
    inject("graceful")
    second.terminate()
    result["exit"] = second.wait(DEADLINE_S)
    result["up_after_sigterm"] = is_up()
    result["left_running"] = named("faultd") + guardians()
    cleaning = pod("clean", "clean.log")
    until("it is clean", lambda: "clean" in (SCRATCH / "clean.log").read_text(errors="replace"))
    result["cleaned"] = pod("cleaned", "cleaned.log").wait(DEADLINE_S)
    result["left"] = [str(path) for path in (STATE, RUN) if path.exists()]
    cleaning.terminate()
    result["clean_exit"] = cleaning.wait(DEADLINE_S)
    print(json.dumps(result))


main()
