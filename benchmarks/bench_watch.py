"""What `srl watch` costs: how fast 50 runs open, and its share of a run's processor time.

Measures, in a real browser (Debian's Chromium, no window): seconds from the address to drawn curves
of 50 runs, where nothing is cached; and processor seconds of the page's server while a run trains
and a browser shows it, as a share of the run's own processor seconds in that time. With `--turns`
also the speed of workloads with the page open and without, by turns. Leaves out: the browser's own
processor time, which is the user's and not the run's.

    python benchmarks/bench_watch.py [--runs 50] [--lines 2000] [--seconds 60] [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from playwright.sync_api import Browser, sync_playwright
from results import write_result

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
COMMAND = (sys.executable, "-c", "import sys; from srl.cli import main; sys.exit(main())")
METRICS = 40
"""Metrics of each line, as a PPO run has them."""


@contextmanager
def watched(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a page over a folder, and the process that serves it."""
    command = [*COMMAND, "watch", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), psutil.Process(process.pid)
        process.terminate()


def make_runs(folder: Path, runs: int, lines: int) -> None:
    """Runs that have ended: five seeds of each experiment."""
    for number in range(runs):
        path = folder / f"experiment{number // 5}" / f"seed{number % 5}"
        path.mkdir(parents=True)
        (path / "config.yaml").write_text(f"name: e{number // 5}\nseed: {number % 5}\n")
        summary = {"status": "finished", "policies": {"default": {}}}
        (path / "summary.json").write_text(json.dumps(summary))
        with (path / "metrics.jsonl").open("w") as file:
            for line in range(lines):
                values = {f"train.metric_{n}": line / (n + 1) for n in range(METRICS)}
                values |= {"env_steps": 1000 * line, "seconds": float(line)}
                values |= {"episode_return_mean": line * (1 + number % 5) / 7.0}
                values |= {"env_steps_per_second": 1e5, "policy_age_mean": 1.0}
                file.write(json.dumps(values) + "\n")


def seconds_to_open(browser: Browser, runs: int, lines: int, rounds: int) -> list[float]:
    """Seconds until the curves of all runs are drawn, each time by a new server."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder), runs, lines)
        for _ in range(rounds):
            with watched(Path(folder)) as (address, _), browser.new_context() as context:
                page = context.new_page()
                begun = time.perf_counter()
                page.goto(address)
                page.wait_for_selector(".charts[data-drawn]:not([data-drawn='0'])")
                found.append(time.perf_counter() - begun)
    return found


def cpu_of(process: psutil.Process) -> float:
    """Processor seconds of a process and of those that it has started."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        try:
            times = one.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def share_of_run(browser: Browser, target: str, seconds: float) -> tuple[float, float, float]:
    """Processor seconds of the server for its own start, and of the server and of the run that it
    shows from then on."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        limits = ("--seconds", str(seconds), "--steps", "1e12", "--until", "none", "--quiet")
        command = [*COMMAND, "train", target, "--run-dir", str(path), *limits]
        with watched(Path(folder)) as (address, server), browser.new_context() as context:
            page = context.new_page()
            page.goto(address)
            page.get_by_text("No runs here yet").wait_for(timeout=300_000)
            begun = cpu_of(server)
            with subprocess.Popen(command) as training:
                run, used = psutil.Process(training.pid), 0.0
                page.get_by_role("link", name="run", exact=True).click(timeout=300_000)
                while training.poll() is None:
                    used = max(used, cpu_of(run))
                    time.sleep(0.5)
                return begun, cpu_of(server) - begun, used


def turns(browser: Browser, names: list[str], seconds: float, rounds: int) -> list[str]:
    """The speed of workloads with the page open and without, by turns."""
    from srl.bench.trial import run_trial
    from srl.bench.workloads import experiment_of

    lines = ["", "| workload | steps/s with the page | without | ratio |", "|---|--:|--:|--:|"]
    folder = tempfile.TemporaryDirectory()
    # The runs of trials are made in the folder for temporary files.
    tempfile.tempdir = folder.name
    for name in names:
        speeds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * rounds):
            with watched(Path(folder.name)) as (address, _), browser.new_context() as one:
                if number % 2 == 0:
                    one.new_page().goto(address)
                rate = run_trial(experiment_of(name), seconds=seconds, warmup=5.0)
                speeds[number % 2 == 0].append(rate.steps_per_second)
        ratios = [a / b for a, b in zip(speeds[True], speeds[False], strict=True)]
        lines.append(
            f"| {name} | {statistics.median(speeds[True]):,.0f} | "
            f"{statistics.median(speeds[False]):,.0f} | {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}) |"
        )
    tempfile.tempdir = None
    folder.cleanup()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--target", default="CartPole-v1")
    parser.add_argument("--turns", nargs="*", default=[], metavar="WORKLOAD", help="like W1a W3b")
    parser.add_argument("--write", action="store_true", help="write the results into results/")
    args = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        opened = seconds_to_open(browser, args.runs, args.lines, args.rounds)
        begun, server, run = share_of_run(browser, args.target, args.seconds)
        more = turns(browser, args.turns, args.seconds, args.rounds) if args.turns else []
        browser.close()
    result = {
        "runs": args.runs,
        "lines": args.lines,
        "seconds_to_open": [round(one, 2) for one in opened],
        "server_start_cpu_seconds": round(begun, 2),
        "server_cpu_seconds": round(server, 2),
        "run_cpu_seconds": round(run, 2),
        "share": round(server / run, 4),
    }
    print(json.dumps(result))
    lines = [
        "| what | measured |",
        "|---|--:|",
        f"| {args.runs} runs of {args.lines} lines open, seconds (median of {args.rounds}) "
        f"| {statistics.median(opened):.2f} ({min(opened):.2f} to {max(opened):.2f}) |",
        f"| processor seconds of the server, for its start | {begun:.2f} |",
        f"| from then on | {server:.2f} |",
        f"| processor seconds of the run ({args.target}, {args.seconds:.0f} s) | {run:.1f} |",
        f"| share | {server / run:.2%} |",
        *more,
    ]
    print("\n".join(lines))
    if args.write:
        print(write_result("watch", __doc__ or "", lines))


if __name__ == "__main__":
    main()
