"""Whether a long run keeps its memory: all processes of it and its shared memory, every 10 s.

Memory is what the kernel says of the command and its worker processes: anonymous and shared memory,
a page of n processes counting as 1/n in each (Pss_Anon and Pss_Shmem), plus the files in the run's
folder of shared memory that no process has mapped. The verdict is a straight line through the last
two thirds: its slope must stay below the bound. Leaves out: mapped files such as torch's libraries,
whose share depends on who else has them open, the page cache, and files on disk.

    python benchmarks/soak_memory.py [cartpole] [--minutes 30] [--layout shared]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from results import RESULTS, write_result

from srl.arena.shm import ROOT_VARIABLE, shm_root

MEGABYTE = 1e6
BOUND = 0.5
"""MB per minute; a leak of one small object in each update or episode is well above it."""
COMMAND = "import sys; from srl.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Sample:
    """What was in use at one moment, in MB."""

    seconds: float
    processes: float
    shared_files: float
    env_steps: int
    by_process: dict[str, float]

    @property
    def total(self) -> float:
        return self.processes + self.shared_files


def watch(options: argparse.Namespace, folder: Path) -> Iterator[Sample]:
    """Trains for the time that was asked for, and looks every few seconds."""
    root = Path(tempfile.mkdtemp(prefix="srl-soak-", dir=shm_root()))
    arguments = ["train", options.recipe, "--layout", options.layout, "--quiet", "--until", "none"]
    limits = ["--steps", "1e12", "--run-dir", str(folder / "run")]
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments, *limits],
        env={**os.environ, ROOT_VARIABLE: str(root)},
    )
    begun = time.monotonic()
    try:
        while (passed := time.monotonic() - begun) < 60 * options.minutes:
            time.sleep(min(options.every, 60 * options.minutes - passed))
            if command.poll() is not None:
                sys.exit(f"the run ended by itself, with exit code {command.returncode}")
            yield look(psutil.Process(command.pid), root, folder / "run", time.monotonic() - begun)
    finally:
        if command.poll() is None:
            command.send_signal(signal.SIGINT)
        command.wait()
        root.rmdir()


def look(command: psutil.Process, root: Path, run: Path, seconds: float) -> Sample:
    """One sample of a run."""
    found: dict[str, float] = {}
    mapped: set[str] = set()
    for process in (command, *command.children(recursive=True)):
        try:
            line = process.cmdline()
            worker = "srl.launch.process.worker"
            name = line[line.index(worker) + 1] if worker in line else "controller"
            found[name] = own_bytes(process.pid) / MEGABYTE
            mapped.update(entry.path for entry in process.memory_maps())
        except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
            continue
    files = [path for path in root.rglob("*") if path.is_file() and str(path) not in mapped]
    loose = sum(path.stat().st_blocks * 512 for path in files) / MEGABYTE
    return Sample(seconds, sum(found.values()), loose, steps_of(run), found)


def own_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process, its share of each page."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {name: size for name, _, size in (line.partition(":") for line in lines)}
    return sum(1024 * int(sizes[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))


def steps_of(run: Path) -> int:
    """Environment steps so far, from the last whole line of the metrics."""
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
            lines = file.read().splitlines()
        return int(json.loads(lines[-1])["env_steps"])
    except (OSError, ValueError, LookupError):
        return 0


def slope(samples: list[Sample]) -> float:
    """MB per minute over the last two thirds: caches and allocators have settled by then."""
    late = samples[len(samples) // 3 :]
    minutes = np.array([sample.seconds / 60 for sample in late])
    return float(np.polyfit(minutes, np.array([sample.total for sample in late]), 1)[0])


def write_csv(samples: list[Sample], path: Path) -> None:
    names = sorted({name for sample in samples for name in sample.by_process})
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seconds", "env_steps", "total_mb", "shared_files_mb", *names])
        for sample in samples:
            row = [sample.total, sample.shared_files, *map(sample.by_process.get, names)]
            rounded = [round(value, 3) if value is not None else "" for value in row]
            writer.writerow([round(sample.seconds, 1), sample.env_steps, *rounded])


def draw(samples: list[Sample], path: Path, title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), dpi=130, layout="constrained")
    panel = figure.subplots()
    minutes = [sample.seconds / 60 for sample in samples]
    panel.plot(minutes, [sample.total for sample in samples], color="black", lw=2, label="total")
    for name in sorted(samples[-1].by_process):
        values = [sample.by_process.get(name, np.nan) for sample in samples]
        panel.plot(minutes, values, lw=1.2, label=name)
    panel.set(title=title, xlabel="minutes", ylabel="MB")
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe", nargs="?", default="cartpole", help="such as cartpole or pong")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two looks")
    parser.add_argument("--layout", default="shared", choices=("serial", "inline", "shared"))
    parser.add_argument("--bound", type=float, default=BOUND, help="MB per minute")
    options = parser.parse_args()
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as folder:
        for sample in watch(options, Path(folder)):
            samples.append(sample)
            parts = "  ".join(f"{name} {mb:.1f}" for name, mb in sample.by_process.items())
            print(
                f"{sample.seconds / 60:5.1f} min  {sample.env_steps:>12,} steps  "
                f"{sample.total:8.1f} MB  {parts}",
                file=sys.stderr,
                flush=True,
            )
    if len(samples) < 4:
        sys.exit("expected at least 4 samples; raise --minutes or lower --every")
    growth = slope(samples)
    flat = growth < options.bound
    what = f"soak_memory_{options.recipe.replace('/', '-')}"
    lines = [
        f"{options.recipe}, layout {options.layout}, {options.minutes:g} minutes, "
        f"{samples[-1].env_steps:,} environment steps.",
        "",
        f"- growth over the last two thirds: {growth:.3f} MB/min (bound {options.bound:g})",
        f"- first {samples[0].total:.1f} MB, last {samples[-1].total:.1f} MB, "
        f"most {max(sample.total for sample in samples):.1f} MB",
        f"- verdict: {'flat' if flat else 'GROWS'}",
        "",
        f"![memory over time]({what}.png) ([every sample]({what}.csv))",
    ]
    print(write_result(what, __doc__, lines), file=sys.stderr)
    write_csv(samples, RESULTS / f"{what}.csv")
    draw(samples, RESULTS / f"{what}.png", f"{options.recipe}, {options.layout}")
    print(json.dumps({"soak": what, "mb_per_minute": round(growth, 3), "flat": flat}))
    sys.exit(0 if flat else 1)


if __name__ == "__main__":
    main()
