"""Lifelines of the node's own network, from a /proc in a folder."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from nodeagent.bind.lifelines import _name_servers, lifelines

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue ... inode"
ANY, LOCAL, MINE, SERVER = "00000000", "0100007F", "0A00000A", "0100000A"  # 10.0.0.10, 10.0.0.1
LISTEN, ESTABLISHED = "0A", "01"


class Proc:
    """The files that are looked at, as proc_pid_fd(5) and proc_pid_net(5) have them."""

    def __init__(self, base: Path) -> None:
        self.path = base
        self.rows: list[str] = []
        self.process(1, "systemd")
        self.process("self", "faultd")

    def process(self, pid: int | str, comm: str, *args: str, inodes: tuple[int, ...] = ()) -> Path:
        folder = self.path / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "net").mkdir()
        (folder / "comm").write_text(f"{comm}\n")
        (folder / "cmdline").write_bytes("".join(f"{a}\0" for a in (comm, *args)).encode())
        (folder / "stat").write_text(f"{pid} ({comm}) S 1 " + "0 " * 40)
        for number, inode in enumerate(inodes):
            (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
        return folder

    def socket(self, state: str, local: tuple[str, int], inode: int, far: str = "") -> None:
        far = far or f"{ANY}:0000"
        row = f"{local[0]}:{local[1]:04X} {far} {state} 00000000:00000000 00:00000000 00000000"
        self.rows.append(f"   0: {row}     0        0 {inode} 1 0000")

    def found(self) -> list[str]:
        (self.path / "1/net/tcp").write_text("\n".join([HEAD, *self.rows]) + "\n")
        (self.path / "1/net/tcp6").write_text(f"{HEAD}\n")
        return [flow.text() for flow in lifelines(self.path)]


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("nodeagent.bind.lifelines._name_servers", list)
    return Proc(tmp_path)


def test_without_a_kubelet_only_ssh_and_what_serves_here(proc: Proc) -> None:
    proc.process(70, "nginx", inodes=(5,))
    proc.socket(LISTEN, (ANY, 10250), 5)  # whoever else has this port is no lifeline
    proc.process(71, "sshd", inodes=(6,))
    proc.socket(LISTEN, (ANY, 2222), 6)
    assert proc.found() == ["*/tcp<-:22", "*/tcp<-:2222"]


@pytest.mark.parametrize("comm", ["kubelet", "k3s-server", "k3s-agent", "kubelite"])
def test_the_kubelets_api_is_found_by_its_socket(proc: Proc, comm: str) -> None:
    """Logs and exec come by it; its health on the loopback is nobody's way in."""
    proc.process(80, comm, "--port=7", inodes=(1, 2))
    proc.socket(LISTEN, (ANY, 10350), 1)
    proc.socket(LISTEN, (LOCAL, 10248), 2)
    assert proc.found() == ["*/tcp<-:10350", "*/tcp<-:22"]


def test_its_connections_out_are_spared_and_those_to_it_are_by_its_port(proc: Proc) -> None:
    """A caller's port of the moment would make each plan another one."""
    proc.process(80, "kubelet", inodes=(1, 2, 3, 4))
    proc.socket(LISTEN, (ANY, 10250), 1)
    proc.socket(ESTABLISHED, (MINE, 40000), 2, f"{SERVER}:{6443:04X}")
    proc.socket(ESTABLISHED, (MINE, 10250), 3, f"{SERVER}:{51000:04X}")
    proc.socket(ESTABLISHED, (MINE, 40001), 9, f"{SERVER}:{80:04X}")  # another process's
    assert proc.found() == ["*/tcp<-:10250", "*/tcp<-:22", "10.0.0.1/32:6443/tcp"]


@pytest.mark.parametrize(
    ("args", "config", "port"),
    [
        ([], None, 10250),
        (["--config=/etc/k.yaml"], "kind: KubeletConfiguration\n", 10250),
        (["--config", "/etc/k.yaml"], "port: 10350\n", 10350),
        (["--config=/etc/k.yaml"], '{"port": 10351}', 10351),
        (["--config=etc/k.yaml"], "port: 10352\n", 10352),
        (["--config=/etc/k.yaml", "--port=10353"], "port: 10350\n", 10353),
        (["--config=/etc/k.yaml"], "port: 0\n", 10250),
        (["--config=/etc/k.yaml"], "port: true\n", 10250),
        (["--config=/etc/k.yaml"], "port: 70000\n", 10250),
        (["--config=/etc/k.yaml"], "port: [\n", 10250),
        (["--config=/etc/none.yaml"], "port: 10350\n", 10250),
        (["--port=x"], None, 10250),
        (["--port=70000"], None, 10250),
    ],
)
def test_while_it_restarts_the_port_is_the_one_that_it_will_open(
    proc: Proc, tmp_path: Path, args: list[str], config: str | None, port: int
) -> None:
    folder = proc.process(80, "kubelet", *args)
    root = tmp_path / "node"
    (root / "etc").mkdir(parents=True)
    if config is not None:
        (root / "etc/k.yaml").write_text(config)
    for name in ("root", "cwd"):
        (folder / name).symlink_to(root)
    assert proc.found() == sorted([f"*/tcp<-:{port}", "*/tcp<-:22"])


def test_an_api_server_by_name_is_all_its_addresses(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KUBERNETES_SERVICE_HOST is a name where pods of the node's network do without kube-proxy."""

    def found(host: str, *args: object, **more: object) -> list[tuple[object, ...]]:
        if host == "gone.invalid":
            raise socket.gaierror(-2, "Name or service not known")
        assert host == "api.example.com"
        return [(2, 1, 6, "", ("192.0.2.7", 0)), (10, 1, 6, "", ("2001:db8::7", 0, 0, 0))]

    monkeypatch.setattr("socket.getaddrinfo", found)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "api.example.com")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert {"192.0.2.7/32:6443/tcp", "[2001:db8::7]/128:6443/tcp"} <= set(proc.found())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "gone.invalid")
    assert not any("6443" in text for text in proc.found())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.9")
    assert "192.0.2.9/32:6443/tcp" in proc.found()


def test_lines_of_resolv_conf_that_name_no_address_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text(
        "nameserver dns.local\nnameserver\nnameserver 127.0.0.53\nnameserver 192.0.2.53\n"
    )
    monkeypatch.setattr("nodeagent.bind.lifelines.RESOLV_CONF", conf)
    assert _name_servers() == [("192.0.2.53", 53)]
