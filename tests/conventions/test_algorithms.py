"""Every registered algorithm is the same folder, and is in the suite that tries them all."""

from __future__ import annotations

import sys

import pytest
from source import PACKAGE, ROOT

from srl.algorithms.registry import ALGORITHMS, algorithm_config, find_algorithm

sys.path.insert(0, str(ROOT / "tests" / "system"))

from algorithm_runs import LAYOUTS, TASKS, combinations, task_of


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_has_the_files_of_all(name: str) -> None:
    folder = PACKAGE / "algorithms" / name
    for file in ("README.md", "config.py", "learner.py"):
        assert (folder / file).exists(), f"{folder.name}/{file} is missing"
    assert find_algorithm(name).Config is algorithm_config(name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_has_a_task_in_the_suite(name: str) -> None:
    assert task_of(name).layout in LAYOUTS


def test_the_suite_tries_each_layout() -> None:
    assert {task.layout for task in TASKS.values()} == set(LAYOUTS)
    assert {(name, layout) for name, layout, _ in combinations()} == {
        (name, layout) for name in ALGORITHMS for layout in LAYOUTS
    }
