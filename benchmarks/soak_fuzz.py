"""Fuzzes what hears messages between hosts. The decoder: 100,000 inputs, half of them anything at
all, half real messages with changes. A host's bridge and the head: messages of every type with odd
values. No crash, no input that takes longer than 10 s, and memory bounded by the system.

    python benchmarks/soak_fuzz.py [--inputs 100000] [--typed 10000]
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from results import write_result

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "unit" / "net"), str(TESTS / "contracts")]

HANG_SECONDS = 10.0
"""One input that takes longer ends the process, with a traceback."""
ROOM_MB = 256
"""What may be allocated beyond what there is before the first input; the system refuses more."""
BATCH = 5_000
"""Hypothesis keeps what it has tried; it forgets that after so many inputs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--typed", type=int, default=10_000)
    args = parser.parse_args()
    from odd import Bridges, Head
    from test_framing import CHANGED, RAW, TARGETS, check_any, check_changed

    logging.disable()
    with tempfile.TemporaryDirectory() as folder, closing(Bridges()) as bridges:
        head = Head(Path(folder))
        room = _memory_bytes() + (ROOM_MB << 20)
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
        anything = st.tuples(RAW, TARGETS)
        found = {
            "anything, to the decoder": _fuzz(
                args.inputs // 2, anything, lambda said: check_any(*said)
            ),
            "changed messages, to the decoder": _fuzz(args.inputs // 2, CHANGED, check_changed),
            "typed messages, to bridges": _fuzz(args.typed, bridges.said, bridges.hear),
            "typed messages, to the head": _fuzz(args.typed, head.said, head.hear),
        }
    lines = [
        f"No crash, no input that took {HANG_SECONDS:.0f} s, and never {ROOM_MB} MB more memory "
        "than before the first one: the system would have refused it (RLIMIT_AS).",
        "",
        "| what | inputs | seconds |",
        "|---|---|---|",
        *(f"| {what} | {count:,} | {seconds:.0f} |" for what, (count, seconds) in found.items()),
    ]
    print(write_result("soak_fuzz", __doc__, lines), file=sys.stderr)
    print(json.dumps(found))


def _fuzz(
    inputs: int, strategy: st.SearchStrategy[Any], check: Callable[[Any], None]
) -> tuple[int, float]:
    """Gives a check so many inputs, and says how long that took."""

    @given(strategy)
    def fuzz(said: Any) -> None:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        check(said)

    start = time.monotonic()
    for done in range(0, inputs, BATCH):
        settings(
            max_examples=min(BATCH, inputs - done),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )(fuzz)()
        faulthandler.cancel_dump_traceback_later()
        gc.collect()
    return inputs, round(time.monotonic() - start, 1)


def _memory_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
