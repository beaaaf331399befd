"""The agent's pod: the copied runtime, what it starts, what it cleans; no namespaces needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import core_kit
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from nodeagent import pod, podclean, podnode, podruntime
from nodeagent.guardian import cgroup_roots
from nodeagent.model.errors import Refused
from nodeagent.transport import build_health_server
from protos import faultd_pb2 as pb
from protos import faultd_pb2_grpc as pb_grpc


def make_image(folder: Path, identity: str = "abc") -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "launch").write_bytes(b"program")
    (folder / "bin" / "faultd").symlink_to("launch")
    (folder / "ID").write_text(f"{identity}\n")
    return folder


def test_the_runtime_is_copied_once_and_whole(tmp_path: Path) -> None:
    image = make_image(tmp_path / "image")
    state = tmp_path / "state"
    state.mkdir()
    found = podruntime.install(image, state)
    assert found == state / "runtime" / "abc"
    assert (found / "bin" / "faultd").readlink() == Path("launch")
    inode = found.stat().st_ino
    assert podruntime.install(image, state).stat().st_ino == inode


def test_what_an_earlier_copy_left_is_swept(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "runtime" / ".abc.1" / "bin").mkdir(parents=True)
    (state / "runtime" / "old").mkdir()
    podruntime.install(make_image(tmp_path / "image"), state)
    assert [path.name for path in (state / "runtime").iterdir()] == ["abc"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's namespaces are this process's own."""
    monkeypatch.setattr(podnode, "enter_node", lambda: None)


def test_a_version_that_still_runs_is_kept(tmp_path: Path, here: None) -> None:
    state = tmp_path / "state"
    old = state / "runtime" / "old"
    old.mkdir(parents=True)
    shutil.copy("/bin/sleep", old / "sleep")
    with subprocess.Popen([str(old / "sleep"), "60"]) as child:
        try:
            podruntime.install(make_image(tmp_path / "image"), state)
            assert old.is_dir()
            assert podclean.still_there(state) == [f"process {child.pid} ({old / 'sleep'})"]
        finally:
            child.kill()
    podruntime.install(tmp_path / "image", state)
    assert not old.exists()
    assert podclean.still_there(state) == []


def test_another_image_is_no_runtime(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not the node image"):
        podruntime.install(tmp_path, tmp_path)


def test_a_container_without_the_nodes_pids_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "samefile", lambda _a, _b: True)
    with pytest.raises(Refused, match="process 1 is not visible") as caught:
        podnode.check_pod()
    assert "hostPID" in caught.value.hint


@pytest.mark.parametrize(
    ("address", "listens"), [("10.1.2.3", "tcp://0.0.0.0:7443"), ("fd00::7", "tcp://[::]:7443")]
)
def test_it_listens_in_the_pods_own_family(
    address: str, listens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_IP", address)
    argv = pod.agent_argv(Path("/r"), Path("/s"), Path("/tls"), ["--protect", "/x"])
    assert argv[0] == "/r/bin/faultd"
    assert listens in argv
    assert f"/proc/{os.getpid()}/root" + "/tls/tls.key" in argv
    assert argv[-2:] == ["--protect", "/x"]


def test_nothing_is_cleaned_while_a_fault_is_in_the_journal(
    core: core_kit.Core, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podclean, "CLEAN_DEADLINE_S", 0.0)
    podclean.wait_until_unused(core.state_dir)
    core.apply("f-1", core_kit.SetValue(name="a", value="x"))
    with pytest.raises(Refused, match="still needed") as caught:
        podclean.wait_until_unused(core.state_dir)
    assert "f-1 is armed" in caught.value.why
    core.executor.revert("f-1")
    podclean.wait_until_unused(core.state_dir)


def test_a_journal_that_cannot_be_read_is_not_removed(tmp_path: Path, here: None) -> None:
    (tmp_path / "journal.sqlite3").write_bytes(b"no database at all" * 1000)
    (why,) = podclean.still_there(tmp_path)
    assert "cannot be read: file is not a database" in why


def test_what_a_child_in_the_node_cannot_do_is_an_error(tmp_path: Path, here: None) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="the node was not reached") as caught:
        podnode.in_node(lambda: podclean.remove([tmp_path / "file"]))
    assert "Not a directory" in caught.value.why
    (tmp_path / "folder").mkdir()
    folders = [tmp_path / "folder", tmp_path / "none"]
    assert podnode.in_node(lambda: podclean.remove(folders)) == [str(tmp_path / "folder")]
    assert podnode.in_node(lambda: podclean.remove(folders)) == []


def test_an_unknown_verb_is_wrong_usage() -> None:
    argv = [sys.executable, "-m", "nodeagent.pod", "dance"]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 2


def test_cgroup_roots_of_v1_hybrid_and_v2() -> None:
    text = (
        "30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
        "32 30 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
        "33 30 0:30 /kubepods /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "34 30 0:29 / /mnt/again rw shared:3 - cgroup cgroup rw,pids\n"
    )
    assert [str(path) for path in cgroup_roots(text)] == [
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/pids",
    ]


def test_the_health_port_answers_and_takes_no_orders() -> None:
    server = build_health_server("tcp://127.0.0.1:57444")
    server.start()
    try:
        with grpc.insecure_channel("127.0.0.1:57444") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            reply = health.Check(health_pb2.HealthCheckRequest(), timeout=20)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.RpcError) as caught:
                pb_grpc.FaultdStub(channel).Describe(pb.DescribeRequest(), timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]
    finally:
        server.stop(None)
