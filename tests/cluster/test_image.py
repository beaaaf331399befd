"""The image that Dockerfile.node builds, run for real: in namespaces, without a runtime or a VM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import images
import pytest

from controller.kube import deploy_certs  # isort: skip
import base64

HERE = Path(__file__).parent
REVERT_S = 2.0
TREE = ("proc", "dev", "sys", "var/lib/faultctl", "etc/faultctl/tls")


def unpack(archive: Path, root: Path) -> dict[str, Any]:
    """The layers of a docker-archive, in their order; returns the image's configuration."""
    with tarfile.open(archive) as outer:
        manifest = json.load(outer.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        config: dict[str, Any] = json.load(outer.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(layer)) as inner:
                inner.extractall(root, filter="fully_trusted")
    return config


@pytest.fixture(scope="module")
def archive() -> Path:
    return images.agent()


@pytest.fixture(scope="module")
def rootfs(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rootfs")
    unpack(archive, root)
    for name in TREE:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in deploy_certs.make()[0]["data"].items():
        (root / "etc/faultctl/tls" / name).write_bytes(base64.b64decode(text))
    return root


@pytest.fixture(scope="module")
def seen(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What podsim.py saw: one life of a pod, with a SIGKILL in mid-fault."""
    if os.geteuid() != 0:
        pytest.skip("namespaces and a chroot need root")
    scratch = tmp_path_factory.mktemp("pod")
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
    argv += [sys.executable, str(HERE / "guest" / "podsim.py"), str(rootfs), str(scratch)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps(found, indent=1))
    return found


def test_the_image_is_small_and_says_what_it_is(archive: Path, tmp_path: Path) -> None:
    config = unpack(archive, tmp_path)["config"]
    assert archive.stat().st_size < 160 << 20
    assert config["Entrypoint"] == ["/opt/faultctl/bin/faultd-pod"]
    assert config["Labels"]["org.opencontainers.image.licenses"] == "MIT"
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert [path.name for path in tmp_path.iterdir()] == ["opt"]


def test_the_image_has_no_shell_no_compiler_and_no_package_manager(rootfs: Path) -> None:
    programs = {path.name for folder in ("bin", "libexec") for path in
                (rootfs / "opt/faultctl" / folder).iterdir()}  # fmt: skip
    assert programs == {"launch", "python3", "stress-ng", "dmsetup", "faultctl", "faultd",
                        "faultd-pod"}  # fmt: skip
    assert list((rootfs / "opt/faultctl").rglob("*.bpf.o"))


def test_nothing_of_the_hosts_libraries_is_needed(rootfs: Path) -> None:
    """Every library that a program of the image loads lies in the image."""
    python = rootfs / "opt/faultctl/bin/python3"
    script = (
        "import ctypes, grpc, pydantic, pyroute2, sqlite3\n"
        "ctypes.CDLL('libbpf.so.1')\n"
        "print(''.join(l.split()[-1] + '\\n' for l in open('/proc/self/maps') if '.so' in l))"
    )
    done = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert len(loaded) > 10
    assert [path for path in loaded if not Path(path).is_relative_to(rootfs)] == []


def test_agent_and_guardian_run_on_the_node_from_its_own_disk(seen: dict[str, Any]) -> None:
    for who in ("agent", "guardian"):
        assert set(seen[who]["ns"].values()) == {True}
        assert seen[who]["exe"].startswith("/var/lib/faultctl/runtime/")
    assert seen["entry"]["ns"]["mnt"] is False


def test_the_process_that_stays_in_the_pod_is_small(seen: dict[str, Any]) -> None:
    assert seen["entry"]["rss_kib"] < 25 * 1024


def test_a_killed_pod_is_reverted_by_the_guardian(seen: dict[str, Any]) -> None:
    assert seen["down"] is True
    assert seen["revert_s"] <= REVERT_S
    assert seen["end"]["held"] == "agent-lost"


def test_a_pod_that_is_asked_to_end_reverts_and_leaves_no_process(seen: dict[str, Any]) -> None:
    assert seen["exit"] == 0
    assert seen["up_after_sigterm"] is True
    assert seen["left_running"] == []


def test_cleaning_leaves_nothing_on_the_node(seen: dict[str, Any]) -> None:
    assert seen["cleaned"] == 0
    assert seen["left"] == []
    assert seen["clean_exit"] == 0
