"""A run as judges read it: a sealed bundle or a run folder, and what its experiment asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from controller.bundle import open_bundle
from controller.experiment_yaml import read_document
from controller.load.spec import parse_load
from controller.oracle import RunVerdict, judge_run, nanoseconds, oracles_for
from controller.oracle_history import FaultStory, History
from controller.oracle_scene import Pace
from controller.oracle_spec import OracleSpec, parse_oracle
from controller.probes.spec import parse_probe
from controller.recorder import header_from, records_in
from controller.records import EXPERIMENT_FILE, FILE_OF, HEADER_FILE, RUN_FILES, RunHeader
from nodeagent.model.errors import InvalidSpec, Refused


@dataclass(frozen=True)
class RunFiles:
    """A run as it is read: its header, its history, and what its experiment says of judging."""

    header: RunHeader
    history: History
    oracles: Mapping[str, OracleSpec]
    paces: Mapping[str, Pace]
    services: tuple[str, ...]
    """All services that the experiment's targets belong to."""

    @classmethod
    def of(cls, files: Mapping[str, bytes], name: str) -> RunFiles:
        """From the files of a run folder or bundle. Raises InvalidSpec, and Refused for another
        version."""
        header = header_from(files.get(HEADER_FILE, b""), name)
        records = [
            record
            for file in sorted(set(FILE_OF.values()))
            for record in records_in(files.get(file, b""), file)
        ]
        data = _experiment(files.get(EXPERIMENT_FILE, b""))
        oracles = {key: _parsed(parse_oracle, key, one) for key, one in _part(data, "oracles")}
        paces = {}
        for key, one in _part(data, "probes"):
            probe = _parsed(parse_probe, key, one)
            paces[key] = Pace(probe.gap_ns, probe.failures, probe.successes)
        for key, one in _part(data, "load"):
            paces[key] = Pace(_parsed(parse_load, key, one).gap_ns)
        services = {str(t["service"]) for _, t in _part(data, "targets") if t.get("service")}
        remedies = {key: str(one.get("probe", "")) for key, one in _part(data, "remedies")}
        history = History.of(records, header.origin_boottime_ns, remedies)
        return cls(header, history, oracles, paces, tuple(sorted(services)))

    @cached_property
    def verdict(self) -> RunVerdict:
        """All oracles' verdicts, computed anew."""
        return judge_run(self.history, self.oracles, self.paces)

    def cap_ns(self, story: FaultStory) -> int:
        """What a time that never came counts as, for a fault."""
        return max(nanoseconds(s.cap) for _, s in oracles_for(story, self.oracles))


def _experiment(raw: bytes) -> dict[str, Any]:
    document = read_document(raw)
    if document.problems or not isinstance(document.data, dict):
        why = str(document.problems[0]) if document.problems else "it is no mapping"
        raise InvalidSpec("the run's experiment cannot be read", why)
    return document.data


def _part(data: Mapping[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    found = data.get(key)
    if not isinstance(found, dict):
        return []
    return [(str(name), one) for name, one in sorted(found.items()) if isinstance(one, dict)]


def _parsed(parse: Any, name: str, data: dict[str, Any]) -> Any:
    try:
        return parse(data)
    except ValidationError as exc:
        raise InvalidSpec(f"{name} of the run's experiment is not valid", str(exc)) from exc


def open_run(path: Path, seal: str = "") -> RunFiles:
    """A bundle, after it was verified, or a run folder as it is now.

    Raises Refused for a damaged bundle, another version or something else, and InvalidSpec.
    """
    if not path.is_dir():
        return RunFiles.of(open_bundle(path, seal).files, str(path))
    if seal:
        raise Refused(f"{path} is a folder", "only a bundle has a seal")
    try:
        present = [name for name in RUN_FILES if (path / name).is_file()]
        files = {name: (path / name).read_bytes() for name in present}
    except OSError as exc:
        raise Refused(f"{path} cannot be read", exc.strerror or str(exc)) from exc
    if HEADER_FILE not in files:
        raise Refused(f"{path} is no run folder", f"it has no {HEADER_FILE}")
    return RunFiles.of(files, str(path))
