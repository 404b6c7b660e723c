"""How fast training is on our workloads, and how far that is from what the machine can do.

Each workload is measured three ways side by side, as `srl bench` does: environment only, +
inference, + training (environment steps that went through an update, in a steady window). The limit
is computed from what the parts cost in the same run (`docs/how-to/benchmarks.md` says how). Leaves
out: start-up, evaluation, rendering.

    python benchmarks/bench_workloads.py [WORKLOAD ...] [--layouts auto shared] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys

from results import write_result

from srl.bench.bench import as_record, measure
from srl.bench.report import markdown, settings_line
from srl.bench.workloads import WORKLOADS, find_target


def lines_of(records: list[dict]) -> list[str]:
    lines = [*markdown(records), "", "Steps per second; of several rounds the median (and spread)."]
    busy = max(record["other_load"] for record in records)
    lines += [f"Other programs used at most {busy:.0%} of the machine.", ""]
    lines += [f"- doubtful: {r['workload']}: {why}" for r in records for why in r["doubtful"]]
    lines += ["", "Settings:", ""]
    lines += [f"- {r['workload']}: {settings_line(r)}" for r in records]
    return [*lines, "", "```json", *(json.dumps(record) for record in records), "```"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=60.0, help="the steady window")
    parser.add_argument("--warmup", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--layouts", nargs="+", default=["auto"])
    parser.add_argument("--write", action="store_true", help="write into benchmarks/results")
    args = parser.parse_args()
    records: list[dict] = []
    for name in args.workloads:
        for layout in args.layouts:
            result = measure(
                name,
                find_target(name, layout, {}),
                seconds=args.seconds,
                warmup=args.warmup,
                rounds=args.rounds,
                say=lambda text: print(text, file=sys.stderr, flush=True),
            )
            records.append(as_record(result))
            print(json.dumps(records[-1]), flush=True)
            if args.write:
                write_result("workloads", __doc__, lines_of(records))
    print("\n".join(markdown(records)), file=sys.stderr)


if __name__ == "__main__":
    main()
