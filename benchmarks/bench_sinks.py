"""Whether sinks and callbacks cost speed: workloads by turns without and with all of them.

Measures, in turns (A, B, B, A, ...): environment steps per second of training without sinks and
callbacks, and with TensorBoard, W&B (offline), MLflow (files), Prometheus (fetched once a second)
and a callback with every hook; and the processor seconds of the sinks' processes as a share of all
of the run's. The start of a tracker's process costs one to three processor seconds once, so the
share of a short run is larger than that of a long one. Leaves out: uploads to servers.

    python benchmarks/bench_sinks.py [W1a W3b] [--seconds 60] [--rounds 5]

Prints one JSON line for each workload.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from srl.bench.machine import commit, machine
from srl.bench.trial import Window
from srl.bench.workloads import find_target
from srl.experiment import Experiment
from srl.services.metrics import SINKS
from srl.settings import to_plain

LOOK_SECONDS = 0.5
SINK_WORDS = ("srl.reporting.sinks.process", "wandb-core")


class Every:
    """A callback with every hook, which only counts."""

    def __init__(self) -> None:
        self.calls = 0

    def on_metrics(self, metrics: object) -> None:
        self.calls += 1

    on_episode = on_evaluation = on_checkpoint = on_end = on_metrics


@dataclasses.dataclass
class Turn:
    """One measured run."""

    steps_per_second: float
    sink_seconds: float
    """Processor seconds of the processes of sinks."""
    all_seconds: float
    """Processor seconds of all processes of the run."""


def run_once(experiment: Experiment, sinks: Sequence[str], seconds: float, warmup: float) -> Turn:
    callbacks = (f"{Path(__file__).resolve()}:Every",) if sinks else ()
    logging = dataclasses.replace(
        experiment.logging,
        sinks=tuple(sinks),
        callbacks=callbacks,
        interval_seconds=0.25,
        prometheus_port=0,
    )
    changed = dataclasses.replace(
        experiment, logging=logging, steps=0, until="", seconds=seconds + warmup
    )
    used: dict[int, tuple[bool, float]] = {}
    with tempfile.TemporaryDirectory(prefix="srl-bench-") as folder:
        path = Path(folder) / "runs" / "run"
        child = subprocess.Popen(
            [sys.executable, "-m", "srl.bench.trial", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "WANDB_MODE": "offline"},
        )
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(to_plain(changed)) + b"\n")
        child.stdin.flush()
        while child.poll() is None:
            note_times(child.pid, used)
            if "prometheus" in sinks:
                scrape(path)
            time.sleep(LOOK_SECONDS)
        if child.returncode:
            raise SystemExit("the measured run failed")
        window = Window(warmup, seconds)
        for line in (path / "metrics.jsonl").read_bytes().splitlines():
            window.add(msgspec.json.decode(line))
    return Turn(
        steps_per_second=window.rate().steps_per_second,
        sink_seconds=sum(seconds for is_sink, seconds in used.values() if is_sink),
        all_seconds=sum(seconds for _, seconds in used.values()),
    )


def note_times(pid: int, used: dict[int, tuple[bool, float]]) -> None:
    """Notes the processor time that each process of a run has used so far."""
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                times = process.cpu_times()
                is_sink = any(word in line for word in SINK_WORDS)
                used[process.pid] = (is_sink, times.user + times.system)


def scrape(path: Path) -> None:
    """Fetches metrics as Prometheus does."""
    with suppress(OSError):
        log = (path / "logs" / "controller.log").read_text()
        address = re.search(r"http://\S+/metrics", log)
        if address is not None:
            with urllib.request.urlopen(address[0], timeout=10.0) as answer:
                answer.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("workloads", nargs="*", default=["W1a", "W3b"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warmup", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for name in args.workloads:
        experiment = find_target(name, "auto", {}, {})
        turns: dict[str, list[Turn]] = {"off": [], "on": []}
        for number in range(args.rounds):
            for which in ("off", "on") if number % 2 == 0 else ("on", "off"):
                sinks = SINKS if which == "on" else ()
                turn = run_once(experiment, sinks, args.seconds, args.warmup)
                turns[which].append(turn)
                print(name, which, f"{turn.steps_per_second:,.0f} steps/s", file=sys.stderr)
        speed = {which: [t.steps_per_second for t in found] for which, found in turns.items()}
        ratios = [on / off for on, off in zip(speed["on"], speed["off"], strict=True)]
        shares = [turn.sink_seconds / turn.all_seconds for turn in turns["on"]]
        record = {
            "workload": name,
            "off": speed["off"],
            "on": speed["on"],
            "ratio": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
            "sink_share_of_processor_time": statistics.median(shares),
            "sink_processor_seconds": statistics.median(t.sink_seconds for t in turns["on"]),
            "seconds": args.seconds,
            "commit": commit(),
            "machine": machine(),
        }
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
