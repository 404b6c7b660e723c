"""Searches each peer's best layout on each workload by short runs, and keeps it in layouts.json.

Windows are short, so this decides between layouts that differ much; near ties keep the first.
With `--missing` only peers that have an untried layout on a workload are searched, as a whole.

    python benchmarks/compare/search.py [--workloads W1a ...] [--peers sb3 ...] [--missing]
"""

from __future__ import annotations

import argparse
import json
import sys

from compare import measure
from contenders import LAYOUTS, PEERS, found_layouts, untried
from processes import leave_nothing_behind
from workloads import WORKLOADS

from srl.bench.machine import commit, machine

TIE = 1.03
"""A later candidate has to be this much faster."""


def search(peer: str, workload: str, seconds: float, note: str) -> dict:
    """The best layout of a peer, and everything that was tried."""
    tried: list[dict] = []
    best = None
    for layout in PEERS[peer].candidates:
        window = ["--seconds", f"{seconds:g}", "--warmup", "3"]
        record = measure(PEERS[peer].command(workload, layout, *window), seconds + 60)
        speed = record["result"]["steps_per_second"] if record["ok"] else None
        why = record["reason"] + ": " + (record["tail"][-1][:160] if record["tail"] else "")
        tried.append(
            {"layout": layout, "steps_per_second": speed, "failed": why if not speed else ""}
        )
        print(f"{workload} {peer} {layout} {speed or why}", flush=True)
        if speed and (best is None or speed > TIE * best[1]):
            best = (layout, speed)
    chosen = best[0] if best else PEERS[peer].candidates[0]
    about = f"{seconds:g} s windows; {note}; commit {commit()}; {machine()}"
    return {"layout": chosen, "tried": tried, "about": about}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workloads", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--note", default="quiet machine", help="the circumstances")
    parser.add_argument("--missing", action="store_true", help="only where not all was tried")
    options = parser.parse_args()
    leave_nothing_behind()
    for workload in options.workloads:
        for peer in options.peers:
            if workload not in PEERS[peer].workloads:
                continue
            if options.missing and not untried(peer, workload):
                continue
            found = search(peer, workload, options.seconds, options.note)
            table = found_layouts()
            table.setdefault(peer, {})[workload] = found
            LAYOUTS.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
