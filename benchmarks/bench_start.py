"""What templates save: the start of a run, the restart of a killed worker, and memory.

Runs with templates (`on`) and without (`off`: SRL_TEMPLATE=off, a command starts each worker, as
outside of Linux), by turns. Of each run it measures:

- start: seconds from the command to the first update, and the seconds of cores that all processes
  of the run used until it had ended after that update. On a busy machine only the latter says much;
- restart: seconds from the kill (-9) of a worker to the next environment step of that actor, or to
  the next update of that trainer;
- memory: the proportional set size (PSS: shared pages are divided by the processes that share them)
  of each kind of process, and of all processes of the run together.

`--source FOLDER` adds a third kind of turn with another checkout's `src` (`other`). Leaves out:
several hosts, and reading the packages from a slow disk.

    python benchmarks/bench_start.py [--rounds 5] [--workloads cartpole pong_envpool] [--source ...]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

import psutil
from results import write_result

from srl.arena.shm import ROOT_VARIABLE, ShmArena, shm_root
from srl.launch.process.children import TEMPLATE_VARIABLE
from srl.launch.run.status import read_status
from srl.services.worker_stats import ROW_BYTES, StatsTable

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

from harness import Training, wait_for

_INLINE = ("--layout", "inline")
_SHARED = ("--layout", "shared", "--set", "actor.count=4")
_SMALL = ("--set", "actor.envs=8", "--set", "algorithm.rollout_length=32")
"""The first update of Pong's own settings takes longer than the start."""
WORKLOADS = {
    "cartpole": ("cartpole", *_INLINE),
    "cartpole shared": ("cartpole", *_SHARED),
    "pong_envpool": ("pong_envpool", *_INLINE, *_SMALL),
    "pong_envpool shared": ("pong_envpool", *_SHARED, *_SMALL),
}
LONG = (
    "--steps", "1e9", "--set", "max_restarts=1000", "--set", "restart_window_seconds=1",
    "--set", "logging.interval_seconds=0.5",
)  # fmt: skip
COUNTERS = {"actor": "count_env_steps", "trainer": "count_updates"}
PATIENCE_SECONDS = 120.0
Found = dict[str, list[float]]


def cores_used() -> float:
    """Seconds of cores that ended processes have used which were started here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start(arguments: tuple[str, ...], folder: Path, found: Found) -> None:
    """A run until its first update."""
    before = cores_used()
    run_dir = folder / "short"
    run = Training(
        run_dir, ("train", *arguments, "--run-dir", str(run_dir), "--quiet", "--steps", "1")
    )
    try:
        if run.wait() != 0:
            sys.exit(run.printed)
    finally:
        run.kill()
    summary = json.loads((run_dir / "summary.json").read_text())
    found["start: seconds to the first update"].append(summary["seconds_to_first_update"])
    found["start: seconds of cores"].append(cores_used() - before)


def goes_on(shm: Path, run_dir: Path, kind: str, kill: psutil.Process) -> float:
    """Kills a worker, and returns the seconds until its counter has grown."""
    names = tuple(worker.name for worker in read_status(run_dir).workers)
    (path,) = shm.glob("srl-*/worker_stats.region")
    if path.stat().st_size != 64 + ROW_BYTES * len(names):
        sys.exit("the worker stats have another size than expected")
    arena = ShmArena(path.parent, "")
    row = StatsTable(arena, names).rows[f"{kind}/0"]
    kill.kill()
    begun = time.monotonic()
    psutil.wait_procs([kill], PATIENCE_SECONDS)
    count = row.get(COUNTERS[kind])
    while row.get(COUNTERS[kind]) <= count:
        if time.monotonic() > begun + PATIENCE_SECONDS:
            sys.exit(f"{kind}/0 did not go on within {PATIENCE_SECONDS:g} s")
        time.sleep(0.002)
    seconds = time.monotonic() - begun
    arena.close()
    return seconds


def memory(run: Training, found: Found) -> None:
    """The memory of each kind of process, in MB."""
    head = psutil.Process(run.process.pid)
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for process in (head, *head.children(recursive=True)):
        with suppress(psutil.Error):
            words = process.cmdline()
            kind = "head"
            if "srl.launch.process.worker" in words:
                kind = words[words.index("srl.launch.process.worker") + 1].rpartition("-")[0]
            elif process.pid != head.pid:
                kind = "templates and reaper"
            sums[kind] += process.memory_full_info().pss
            counts[kind] += 1
    for kind, total in sums.items():
        each = total if kind == "templates and reaper" else total / counts[kind]
        found[f"memory: {kind}, MB"].append(each / 1e6)
    found["memory: all processes, MB"].append(sums.total() / 1e6)


def long_run(arguments: tuple[str, ...], folder: Path, shm: Path, found: Found) -> None:
    """A run of which workers are killed."""
    run_dir = folder / "long"
    run = Training(run_dir, ("train", *arguments, "--run-dir", str(run_dir), "--quiet", *LONG))
    try:
        run.wait_for_updates(3)
        wait_for((run_dir / "status.json").exists, "a status")
        memory(run, found)
        for kind in COUNTERS:
            seconds = goes_on(shm, run_dir, kind, run.workers()[f"{kind}-0"])
            found[f"restart: {kind}, seconds"].append(seconds)
            run.wait_for_updates(2)
    finally:
        run.kill()


def turn(arguments: tuple[str, ...], mode: str, source: str, found: Found) -> None:
    """One short and one long run."""
    changed = {TEMPLATE_VARIABLE: "off" if mode == "off" else "on"}
    if mode == "other":
        changed["PYTHONPATH"] = source
    before = {name: os.environ.get(name) for name in (*changed, ROOT_VARIABLE)}
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix="srl-start-", dir=shm_root()) as shm,
    ):
        os.environ.update(changed, **{ROOT_VARIABLE: shm})
        try:
            start(arguments, Path(folder), found)
            long_run(arguments, Path(folder), Path(shm), found)
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def table(workload: str, found: dict[str, Found]) -> list[str]:
    """The medians of all turns side by side."""
    modes = list(found)
    lines = [
        f"## {workload}",
        "",
        f"| median (least to most) | {' | '.join(modes)} |",
        f"|---|{'---|' * len(modes)}",
    ]
    for what in dict.fromkeys(what for one in found.values() for what in one):
        cells = []
        for one in found.values():
            values = one.get(what, [])
            cells.append(
                f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
                if values
                else "-"
            )
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each kind")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--source", default="", help="src folder of another checkout")
    parser.add_argument("--write", action="store_true", help="write into benchmarks/results")
    options = parser.parse_args()
    modes = ("on", "off", *(("other",) if options.source else ()))
    lines: list[str] = []
    medians: dict[str, dict[str, dict[str, float]]] = {}
    for workload in options.workloads:
        found: dict[str, Found] = {mode: defaultdict(list) for mode in modes}
        for number in range(options.rounds):
            # Which one is first changes, because the first one finds colder caches.
            for mode in modes if number % 2 == 0 else modes[::-1]:
                turn(WORKLOADS[workload], mode, options.source, found[mode])
                print(f"{workload}, round {number + 1}: {mode}", file=sys.stderr, flush=True)
        lines += table(workload, found)
        medians[workload] = {
            mode: {what: round(statistics.median(values), 3) for what, values in one.items()}
            for mode, one in found.items()
        }
    print("\n".join(lines))
    if options.write:
        print(write_result("start", __doc__, lines), file=sys.stderr)
    print(json.dumps({"bench": "start", "rounds": options.rounds, "medians": medians}))


if __name__ == "__main__":
    main()
