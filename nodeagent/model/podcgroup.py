"""Names of cgroups that the kubelet and the container runtimes give to pods and containers.

The kubelet's cgroupfs driver makes `.../pod<UID>`, its systemd driver
`...-pod<UID with _>.slice` (pkg/kubelet/cm, GetPodContainerName and ToSystemd). Below it
containerd makes `<ID>` or `cri-containerd-<ID>.scope`, CRI-O `crio-<ID>` with or without
`.scope`; `crio-conmon-<ID>` is CRI-O's monitor, not the container.
"""

from __future__ import annotations

import re

_UID = r"[0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
_POD = re.compile(rf"pod(?P<fs>{_UID})|(?:[A-Za-z0-9_.]+-)*pod(?P<systemd>{_UID})\.slice", re.ASCII)
_CONTAINER = re.compile(r"(?:cri-containerd-|crio-|docker-)?([0-9a-f]{64})(?:\.scope)?", re.ASCII)


def pod_uid(name: str) -> str | None:
    """The UID of the pod that a cgroup directory of this name is for; None if for none."""
    found = _POD.fullmatch(name)
    if found is None:
        return None
    return (found["fs"] or found["systemd"]).replace("_", "-")


def container_id(name: str) -> str | None:
    """The runtime's id of the container that a cgroup directory below a pod's is for."""
    found = _CONTAINER.fullmatch(name)
    return None if found is None else found[1]
