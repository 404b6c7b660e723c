"""Searches each peer's best layout on each workload by short runs, and keeps it in layouts.json.

Windows are short, so this decides between layouts that differ much; near ties keep the first.
With `--missing` only peers that have an untried layout on a workload are searched, as a whole.
With `--like W3a` what was far behind on that workload is not tried again: for one that differs in
epochs only.

    python benchmarks/compare/search.py [--workloads W1a ...] [--peers sb3 ...] [--missing]
"""

from __future__ import annotations

import argparse
import json
import sys

from compare import measure
from contenders import LAYOUTS, PEERS, Layout, found_layouts, untried
from processes import leave_nothing_behind
from workloads import WORKLOADS

from srl.bench.machine import commit, machine

TIE = 1.03
"""A later candidate has to be this much faster."""
FAR_BEHIND = 0.7
"""Share of the best speed below which a layout is not tried on a workload that is alike."""


def worth_trying(peer: str, like: str | None) -> list[Layout]:
    """Layouts of a peer, without those that were far behind its best on a workload that is alike.

    One that was not tried there is tried here.
    """
    candidates = list(PEERS[peer].candidates)
    entry = found_layouts().get(peer, {}).get(like or "")
    if entry is None:
        return candidates
    speeds = [(one["layout"], one["steps_per_second"] or 0.0) for one in entry["tried"]]
    enough = FAR_BEHIND * max(speed for _, speed in speeds)
    slow = [layout for layout, speed in speeds if speed < enough]
    return [layout for layout in candidates if layout not in slow]


def search(peer: str, workload: str, layouts: list[Layout], seconds: float, note: str) -> dict:
    """The best of some layouts of a peer, and everything that was tried."""
    tried: list[dict] = []
    best = None
    for layout in layouts:
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
    chosen = best[0] if best else layouts[0]
    about = f"{seconds:g} s windows; {note}; commit {commit()}; {machine()}"
    return {"layout": chosen, "tried": tried, "about": about}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workloads", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--note", default="quiet machine", help="the circumstances")
    parser.add_argument("--missing", action="store_true", help="only where not all was tried")
    parser.add_argument("--like", choices=list(WORKLOADS), help="leave out what was slow there")
    options = parser.parse_args()
    leave_nothing_behind()
    for workload in options.workloads:
        for peer in options.peers:
            if workload not in PEERS[peer].workloads:
                continue
            if options.missing and not untried(peer, workload):
                continue
            layouts = worth_trying(peer, options.like)
            note = options.note
            if len(layouts) < len(PEERS[peer].candidates):
                note += f"; not those far behind on {options.like}"
            found = search(peer, workload, layouts, options.seconds, note)
            table = found_layouts()
            table.setdefault(peer, {})[workload] = found
            LAYOUTS.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
