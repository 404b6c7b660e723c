"""Compares speed on one workload: ours and every peer in turn, several rounds, one table of ratios.

Every contender gets the same warm-up and a window of its own, alone on the machine, in a scheduling
group of the heaviest weight, and none writes checkpoints in it. Ours is first in each round, and a
ratio is between two results of the same round. The limit is measured in the first and in the last
round. Results are appended to `results/<workload>_<machine>.jsonl` as they arrive.

    python benchmarks/compare/compare.py W1a [--rounds 3] [--seconds 60] [--peers sb3 cleanrl ...]
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from typing import Any

import venvs
from contenders import (
    OURS,
    PEERS,
    chosen_layout,
    our_command,
    peers_of,
    search_note,
    unsearched,
)
from processes import leave_nothing_behind, run
from ratios import Record, table
from records import RESULTS, append, command_text, machine_name
from workloads import PREPROCESSING, WORKLOADS

from srl.bench.machine import commit, machine

STARTUP_SECONDS = {"rllib": 25.0, "sample_factory": 18.0}
"""What a contender of an environment takes to start, to get to its first update and to stop."""
USUAL_STARTUP_SECONDS = 8.0
LIMIT_SECONDS = 36.0
"""What `srl bench` takes for the limit, beside training."""
PATIENCE = 120.0
"""Seconds beyond warm-up and window after which a contender is stopped as hung."""
OUR_PATIENCE = 300.0
"""`srl bench` also measures the parts and the limit."""


def command_of(
    contender: str, workload: str, number: int, options: argparse.Namespace
) -> list[str]:
    """The command that measures a contender in a round."""
    window = ["--seconds", f"{options.seconds:g}", "--warmup", f"{options.warmup:g}"]
    if contender == OURS:
        parts = parts_of(number, options.rounds)
        ours = ["--layout", options.layout, "--parts", parts, "--json"]
        return our_command("bench", workload, *window, *ours)
    return PEERS[contender].command(workload, chosen_layout(contender, workload), *window)


def parts_of(number: int, rounds: int) -> str:
    """What is measured of ours beside training in a round."""
    return "limit" if number in (1, rounds) else "none"


def estimate(contenders: list[str], options: argparse.Namespace) -> float:
    """Seconds that a comparison takes, about."""
    total = 0.0
    for number in range(1, options.rounds + 1):
        for contender in contenders:
            total += options.warmup + options.seconds
            venv = "" if contender == OURS else PEERS[contender].venv
            total += STARTUP_SECONDS.get(venv, USUAL_STARTUP_SECONDS)
            if contender == OURS and parts_of(number, options.rounds) == "limit":
                total += LIMIT_SECONDS
    return total


def parse_result(lines: list[str]) -> dict[str, Any] | None:
    """The last line that is a JSON object with a speed in it."""
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(found, dict) and found.get("steps_per_second") is not None:
                return found
    return None


def measure(command: list[str], timeout: float) -> Record:
    """Runs one contender once; a crash or a hang is a result, too."""
    lines: list[str] = []

    def keep(line: str, seconds: float) -> bool:
        lines.append(line)
        return False

    finished = run(command, timeout, keep)
    result = parse_result(lines)
    reason = ""
    if result is None:
        reason = "timed out" if finished.timed_out else f"exit code {finished.code}"
    return {
        "ok": result is not None,
        "reason": reason,
        "result": result,
        "seconds": round(finished.seconds, 1),
        "tail": [] if result else finished.tail,
        "command": command_text(command),
    }


def rounds(contenders: list[str], options: argparse.Namespace) -> list[Record]:
    """All rounds, printed and appended as they go."""
    path = RESULTS / f"{options.workload}_{machine_name()}.jsonl"
    records = []
    for number in range(1, options.rounds + 1):
        for contender in contenders:
            patience = OUR_PATIENCE if contender == OURS else PATIENCE
            timeout = options.warmup + options.seconds + patience
            record = measure(command_of(contender, options.workload, number, options), timeout)
            record = {
                "workload": options.workload,
                "round": number,
                "contender": contender,
                **record,
            }
            append(path, record)
            records.append(record)
            shown = (
                f"{record['result']['steps_per_second']:,.0f} steps/s"
                if record["ok"]
                else (f"failed: {record['reason']}: {' / '.join(record['tail'][-2:])[:200]}")
            )
            print(f"round {number}  {contender:16s} {shown}  [{record['seconds']} s]", flush=True)
    return records


def write_table(records: list[Record], options: argparse.Namespace) -> None:
    """Prints the table, and writes it beside the raw results."""
    lines = table(records)
    print("\n".join(lines))
    path = RESULTS / f"{options.workload}_{machine_name()}.md"
    workload = WORKLOADS[options.workload]
    settings = ", ".join(f"{k} {v}" for k, v in vars(workload).items())
    seen = PREPROCESSING.get(workload.env, "observations as they are")
    head = [
        f"# {options.workload}",
        "",
        f"Equal settings: {settings}. {seen[0].upper()}{seen[1:]}. Float32, no evaluation, no "
        "checkpoints in the window.",
        "",
        f"- machine: {machine()}",
        f"- commit: {commit()}",
        f"- command: `python benchmarks/compare/compare.py {shlex.join(sys.argv[1:])}`",
        f"- date: {time.strftime('%Y-%m-%d')}",
        "",
    ]
    ran = [name for name in dict.fromkeys(r["contender"] for r in records) if name != OURS]
    found = [f"- {search_note(peer, options.workload)}" for peer in ran]
    tail = ["", "How the layouts were found:", "", *found] if found else []
    path.write_text("\n".join([*head, *lines, *tail]) + "\n")
    print(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warmup", type=float, default=4.0)
    parser.add_argument("--layout", default="auto", help="of ours")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), help="default: all that can")
    parser.add_argument("--without-ours", action="store_true")
    options = parser.parse_args()
    peers = peers_of(options.workload) if options.peers is None else options.peers
    missing = sorted({PEERS[p].venv for p in peers if not venvs.is_ready(PEERS[p].venv)})
    if missing:
        print(f"Not installed: {', '.join(missing)}. Run venvs.py {' '.join(missing)} first.")
        return 1
    if left := unsearched(peers, options.workload):
        print(
            f"No layout was searched on {options.workload} for {', '.join(left)}. Run "
            f"search.py --workloads {options.workload} --peers {' '.join(left)} first, or leave "
            "them out with --peers."
        )
        return 1
    leave_nothing_behind()
    contenders = [*([] if options.without_ours else [OURS]), *peers]
    minutes = estimate(contenders, options) / 60
    print(f"{options.workload}: {', '.join(contenders)}; about {minutes:.0f} minutes", flush=True)
    write_table(rounds(contenders, options), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
