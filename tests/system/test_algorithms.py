"""Every registered algorithm in one layout: it learns, its workers may be killed, it is resumed.

All layouts for each of them: `benchmarks/soak_algorithms.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from algorithm_runs import Trial, task_of

from srl.algorithms.registry import ALGORITHMS, find_algorithm


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_learns_survives_and_goes_on(name: str, tmp_path: Path, shm: Path) -> None:
    task = task_of(name)
    if task.dataset:
        pytest.importorskip("h5py", reason="needs the extra `datasets`")
    several = find_algorithm(name).data_parallel and task.layout != "serial"
    Trial(name, task.layout, 2 if several else 1, tmp_path).run()
