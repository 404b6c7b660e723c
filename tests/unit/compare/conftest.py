"""The comparison is scripts beside each other, not a package: tests import them by their folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "compare"))
