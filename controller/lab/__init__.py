"""A disposable node in QEMU for people without a cluster, and for our tests.

from controller.lab import Disk, NodeConfig, launch

with launch(NodeConfig(flavour="debian-13", disks=(Disk("data", 1 << 30),))) as node:
    print(node.sh("uname -r"))
"""

from controller.lab.agent import AgentAccess
from controller.lab.config import Disk, NodeConfig
from controller.lab.errors import CommandFailed, NodeFailed
from controller.lab.flavours import FLAVOURS, Flavour
from controller.lab.guestio import Detached, Process, Result
from controller.lab.launcher import attached, launch, prepare, unique
from controller.lab.node import Node

__all__ = [
    "FLAVOURS",
    "AgentAccess",
    "CommandFailed",
    "Detached",
    "Disk",
    "Flavour",
    "Node",
    "NodeConfig",
    "NodeFailed",
    "Process",
    "Result",
    "attached",
    "launch",
    "prepare",
    "unique",
]
