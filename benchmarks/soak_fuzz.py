"""Fuzzes the decoder of messages between hosts: 100,000 inputs, half of them anything at all, half
real messages with changes. No crash, no hang, and memory stays where it was.

    python benchmarks/soak_fuzz.py [--inputs 100000]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from results import write_result

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "net"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    args = parser.parse_args()
    from test_framing import CHANGED, RAW, TARGETS, check_any, check_changed

    options = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    start = time.monotonic()
    grown = []
    for fuzz in (given(frames=RAW, targets=TARGETS)(check_any), given(CHANGED)(check_changed)):
        settings(max_examples=args.inputs // 2, **options)(fuzz)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        fuzz()
        grown.append((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    found = {
        "inputs": 2 * (args.inputs // 2),
        "seconds": round(time.monotonic() - start, 1),
        "grown_mb": [round(mb, 1) for mb in grown],
    }
    anything, changed = found["grown_mb"]
    lines = [
        f"{found['inputs']:,} inputs in {found['seconds']:.0f} s: no crash, no hang.",
        "",
        f"Memory grew by {anything} MB over the first half and {changed} MB over the second, most "
        "of it what Hypothesis keeps of its inputs.",
    ]
    print(write_result("soak_fuzz", __doc__, lines), file=sys.stderr)
    print(json.dumps(found))
    # Hypothesis keeps what it has tried; the decoder keeps nothing.
    if max(grown) > 400:
        raise SystemExit("the decoder's memory grows with what it is given")


if __name__ == "__main__":
    main()
