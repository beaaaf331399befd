"""Taking a run over from a controller that is gone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from controller.clock import boot_id, boottime_ns
from controller.experiment_plan import ns
from controller.kube.ways import Ways
from controller.recorder import Recorder, read_header, read_records
from controller.records import PLAN_FILE, RunHeader
from controller.run import View
from controller.run_finish import Outcome, experiment_of, finish, is_over
from controller.run_nodes import open_ports
from controller.run_plan import RunPlan
from controller.run_start import Stage
from nodeagent.model.errors import Refused


def take_over(
    folder: Path, ways: Ways, views: list[View], *, stop_at_once: bool = False
) -> Outcome:
    """Go on with a run whose controller is gone. Raises Refused if it is not gone, or if the
    run is over."""
    header = read_header(folder)
    with Recorder.resume(folder) as recorder:
        if is_over(folder):
            raise Refused(f"the run in {folder} is over", "there is nothing to take over")
        loaded = experiment_of(folder)
        plan = RunPlan.from_text((folder / PLAN_FILE).read_bytes())
        header = _in_this_boot(header, folder)
        with open_ports(loaded.experiment, plan, ways) as ports:
            stage = Stage(loaded.experiment, plan, header, ports, recorder, views, ways)
            if stop_at_once:
                stage.runner.interrupt("stop")
            stage.play(resume=folder)
    return finish(folder, stage.core.stopping)


def _in_this_boot(header: RunHeader, folder: Path) -> RunHeader:
    """After a reboot of the controller its old boot time means nothing; the wall clock of the
    last record, the best that is left, ties the old times to the new ones."""
    if header.boot_id == boot_id():
        return header
    last_t, last_wall = 0, header.created
    for name in ("events.jsonl", "faults.jsonl", "samples.jsonl"):
        for record in read_records(folder, name):
            if record.wall >= last_wall:
                last_t, last_wall = record.t_ns, record.wall
    gone = datetime.now(UTC) - datetime.fromisoformat(last_wall.replace("Z", "+00:00"))
    now_t = last_t + ns(gone)
    return header.model_copy(
        update={"origin_boottime_ns": boottime_ns() - now_t, "boot_id": boot_id()}
    )
