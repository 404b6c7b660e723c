"""Run directories as runs write them, for tests of the page."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec

from srl.launch.run.status import BoxStatus, FlowStatus, RunStatus, WorkerStatus, read_status
from srl.reporting.summary import Summary, write_summary
from srl.services.metric_names import PolicyResult


def make_run(
    path: Path, *, points: int = 30, level: float = 1.0, seed: int = 0, ended: bool = True
) -> Path:
    """A run whose return is `level` times its steps."""
    (path / "logs").mkdir(parents=True)
    (path / "checkpoints" / "000000001").mkdir(parents=True)
    (path / "config.yaml").write_text(f"name: {path.parent.name}\nseed: {seed}\n")
    (path / "logs" / "controller.log").write_text("first update after 1.0 s\n")
    (path / "logs" / "actor-0.log").write_text("a line of the actor\n")
    add_points(path, 0, points, level)
    if ended:
        summary = Summary(
            status="finished", reason="steps", env_steps=100 * points, bottleneck="the trainer",
            bottleneck_setting="trainer.threads=2", policies={"default": PolicyResult()},
        )  # fmt: skip
        write_summary(path, summary)
    write_status(path)
    return path


def add_points(path: Path, first: int, last: int, level: float = 1.0, **more: Any) -> None:
    """Lines of metrics, one for every 100 steps."""
    with (path / "metrics.jsonl").open("a") as file:
        for number in range(first, last):
            line = {
                "time": 1e9 + number, "env_steps": 100 * number, "seconds": float(number),
                "env_steps_per_second": 100.0, "policy_age_mean": 1.0,
                "train.loss": 1.0 / (number + 1),
                "episode_return_mean": 100.0 * number * level, **more,
            }  # fmt: skip
            file.write(json.dumps(line) + "\n")


def worker(name: str, **changes: Any) -> WorkerStatus:
    group = name.partition("/")[0]
    known = {
        "name": name, "group": group, "process": name.replace("/", "-"), "host": "home", "pid": 7,
        "state": "running", "rate": 10.0, "unit": "env_steps", "busy": 0.5,
        "waits": {"samples": 0.4}, "restarts": 0, "env_failures": 0,
    }  # fmt: skip
    return WorkerStatus(**{**known, **changes})


def status(**changes: Any) -> RunStatus:
    boxes = tuple(
        BoxStatus(key=f"{group}+", column=column, frame="", groups=(group,), processes=processes)
        for group, column, processes in (
            ("actor", 0, ("actor-0", "actor-1")),
            ("trainer", 2, ("trainer-0",)),
        )
    )
    flow = FlowStatus(
        kind="sample", source="actor+", target="trainer+", title="sample default", detail="shm",
        rate=3.0, unit="fragments", fill=0.25, slots=4, age=1.0,
    )  # fmt: skip
    known = {
        "written": time.time(), "name": "made", "seconds": 3.0, "env_steps": 300,
        "policy_version": 3, "policies": {"default": PolicyResult(episode_return_mean=7.0)},
        "join": "", "hosts": (), "scaled": {"actor": 2}, "capacity": {"actor": 4},
        "workers": (worker("actor/0"), worker("actor/1"), worker("trainer/0", unit="updates")),
        "layout": "shared", "boxes": boxes, "flows": (flow,), "bottleneck": "the actors",
        "bottleneck_setting": "actor.count=2",
    }  # fmt: skip
    return RunStatus(**{**known, **changes})


def write_status(path: Path, **changes: Any) -> None:
    (path / "status.json").write_bytes(msgspec.json.encode(status(**changes)))
    assert read_status(path)
