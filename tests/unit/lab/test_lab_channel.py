"""The result channel: the real guest service, on this host, behind a Unix socket."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.lab import guestio
from controller.lab.channel import Channel
from controller.lab.errors import CommandFailed, NoAnswer, NodeFailed

SERVE = """
import sys
from controller.lab.guest.labd import Port, Service
Service([Port(int(sys.argv[1]))], "").run()
"""


class Guest:
    """Plays QEMU: hands the channel's connection to a process that runs the service."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.near, self.far = socket.socketpair()
        self.service = self._start(self.far)
        self.host: socket.socket | None = None
        threading.Thread(target=self._relay, daemon=True).start()

    def _start(self, end: socket.socket) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", SERVE, str(end.fileno())]
        return subprocess.Popen(argv, pass_fds=[end.fileno()])

    def _relay(self) -> None:
        self.host, _ = self.listener.accept()
        threading.Thread(target=self._pump, args=(self.host, self.near), daemon=True).start()
        self._pump(self.near, self.host)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self.service.kill()
        self.service.wait()
        for one in (self.listener, self.near, self.far, self.host):
            if one is not None:
                one.close()


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    one = Guest(tmp_path / "p.sock")
    yield one
    one.close()


@pytest.fixture
def channel(guest: Guest, tmp_path: Path) -> Iterator[Channel]:
    one = Channel(tmp_path / "p.sock", lambda: None)
    hello = one.open(soon())
    assert hello.loop_ns > 0 and hello.kernel
    yield one
    one.close()


def run(channel: Channel, argv: guestio.Argv, stdin: bytes = b"", **more: object) -> guestio.Result:
    process = guestio.start(channel, argv, timeout=10, **more)  # type: ignore[arg-type]
    process.write(stdin, eof=True, deadline=soon())
    return process.wait(soon())


def test_streams_and_status_are_kept_apart(channel: Channel) -> None:
    got = run(channel, "echo out; echo err >&2; exit 3")
    assert (got.stdout, got.stderr, got.code, got.signum) == (b"out\n", b"err\n", 3, None)
    with pytest.raises(CommandFailed, match="ended with 3"):
        got.check()


def test_a_signal_is_not_an_exit_status(channel: Channel) -> None:
    got = run(channel, "kill -SEGV $$")
    assert (got.code, got.signum) == (None, signal.SIGSEGV) and not got.ok
    assert run(channel, "exit 139").code == 139


def test_binary_data_both_ways(channel: Channel) -> None:
    data = bytes(range(256)) * 4096 + b"\n\0end"
    assert run(channel, ["cat"], data).stdout == data


def test_more_output_than_any_buffer(channel: Channel) -> None:
    got = run(channel, "head -c 8000000 /dev/zero; echo done >&2")
    assert len(got.stdout) == 8_000_000 and got.stderr == b"done\n"


def test_many_at_once(channel: Channel) -> None:
    running = [guestio.start(channel, f"sleep 0.{9 - i}; echo {i}", timeout=10) for i in range(9)]
    assert [one.wait(soon()).out.strip() for one in running] == [str(i) for i in range(9)]


def test_threads_share_a_channel(channel: Channel) -> None:
    found: dict[int, str] = {}

    def one(i: int) -> None:
        found[i] = run(channel, ["cat"], str(i).encode() * 50_000).out

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: str(i) * 50_000 for i in range(6)}


def test_time_limit_ends_the_whole_group(channel: Channel, tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/pid; wait"
    process = guestio.start(channel, script, timeout=0.5)
    got = process.wait(soon())
    assert got.timed_out and not got.ok
    pid = int((tmp_path / "pid").read_text())
    end = soon(5)
    while _alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_daemon_does_not_hold_the_result_back(channel: Channel) -> None:
    begin = time.monotonic()
    got = run(channel, "sleep 300 & echo $!")
    assert time.monotonic() - begin < 10
    run(channel, f"kill {int(got.out)}")


def test_what_cannot_be_executed_says_why(channel: Channel) -> None:
    with pytest.raises(FileNotFoundError, match="in the guest"):
        guestio.start(channel, ["/no/such/program"], timeout=5)
    with pytest.raises(PermissionError):
        guestio.start(channel, ["/etc/passwd"], timeout=5)
    with pytest.raises(FileNotFoundError):
        guestio.start(channel, ["true"], timeout=5, cwd="/no/such/folder")
    assert run(channel, ["true"]).ok, "the service goes on"


def test_environment_and_folder(channel: Channel) -> None:
    got = run(channel, 'echo "$A $PWD $HOME"', env={"A": "b c"}, cwd="/tmp")
    assert got.out == "b c /tmp /root\n"


def test_a_terminal(channel: Channel) -> None:
    process = guestio.start(
        channel, "stty size; tty >&2; read x; echo =$x", timeout=10, tty=(7, 99)
    )
    process.write(b"hi\n", deadline=soon())
    got = process.wait(soon())
    assert b"7 99" in got.stdout and b"=hi" in got.stdout and b"/dev/pts/" in got.stdout


def test_files(channel: Channel, tmp_path: Path) -> None:
    data = bytes(range(256)) * 500
    path = tmp_path / "with space"
    guestio.put(channel, str(path), data, 0o640, soon())
    assert path.read_bytes() == data and path.stat().st_mode & 0o777 == 0o640
    assert guestio.get(channel, str(path), soon()) == data
    guestio.put(channel, str(path), b"", 0o600, soon())
    assert path.read_bytes() == b"" and guestio.get(channel, str(path), soon()) == b""
    assert guestio.get(channel, "/proc/version", soon()).startswith(b"Linux version")
    with pytest.raises(FileNotFoundError):
        guestio.get(channel, str(tmp_path / "none"), soon())
    with pytest.raises(OSError, match="in the guest"):
        guestio.put(channel, str(tmp_path / "none/x"), b"", 0o600, soon())


def test_a_detached_command_outlives_its_session(
    guest: Guest, channel: Channel, tmp_path: Path
) -> None:
    log = str(tmp_path / "log")
    child = guestio.spawn(channel, "echo begin; sleep 1; exit 5", log, None, soon())
    attached = guestio.start(channel, "sleep 300", timeout=None)
    channel.open(soon())  # a new hello ends the session
    assert not _alive(attached.pid)
    assert guestio.ended(channel, child, soon()) is None
    end = soon()
    while (result := guestio.ended(channel, child, soon())) is None and time.monotonic() < end:
        time.sleep(0.05)
    assert result is not None and result.code == 5
    assert Path(log).read_text() == "begin\n"


def test_noise_on_the_line_is_ignored(guest: Guest, channel: Channel) -> None:
    assert guest.host is not None
    guest.near.sendall(b'{"id": 1, "op"\n\xff\xfe\nnull\n[]\n{"id":1}\n{"id":2,"op":"no"}\n')
    guest.host.sendall(b'torn{"ev":"exit"\n[1]\n\xff\n')
    assert run(channel, ["echo", "fine"]).out == "fine\n"


def test_a_dead_service_is_an_error_not_an_empty_result(guest: Guest, channel: Channel) -> None:
    process = guestio.start(channel, "sleep 300", timeout=None)
    guest.far.close()
    guest.service.kill()
    guest.service.wait()
    assert guest.host is not None
    guest.host.shutdown(socket.SHUT_RDWR)
    with pytest.raises(NodeFailed):
        process.wait(soon())
    with pytest.raises(NodeFailed):
        run(channel, ["true"])


def test_health_is_asked_while_waiting(guest: Guest, tmp_path: Path) -> None:
    trouble: list[NodeFailed] = []

    def health() -> None:
        if trouble:
            raise trouble[0]

    one = Channel(tmp_path / "p.sock", health)
    one.open(soon())
    process = guestio.start(one, "sleep 300", timeout=None)
    threading.Timer(0.3, trouble.append, [NodeFailed("kernel panic")]).start()
    with pytest.raises(NodeFailed, match="kernel panic"):
        process.wait(soon())
    one.close()


def test_deadlines_hold(channel: Channel) -> None:
    process = guestio.start(channel, "sleep 300", timeout=None)
    begin = time.monotonic()
    with pytest.raises(NoAnswer, match="sleep 300"):
        process.wait(begin + 0.5)
    assert time.monotonic() - begin < 5


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(NodeFailed, match="no channel"):
        Channel(tmp_path / "none.sock", lambda: None).open(time.monotonic() + 0.3)
