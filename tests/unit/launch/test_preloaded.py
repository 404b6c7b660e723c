"""What templates import: one list with torch, one without, and neither starts a thread."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from srl.experiment import Experiment, build_graph
from srl.graph import WorkerGroup
from srl.launch.plan.build import process_names, resolve_settings
from srl.launch.plan.preloaded import modules_of, modules_with_torch
from srl.recipes import RECIPES, find_recipe
from srl.recipes.target import find_experiment

CODE = """
import os, sys
from srl.launch.process.interpreter import preload
from srl.launch.process.template import is_single_threaded
preload(sys.argv[2:])
assert is_single_threaded(), os.listdir("/proc/self/task")
assert ("torch" in sys.modules) == (sys.argv[1] == "torch"), "torch"
missing = [name for name in sys.argv[2:] if name not in sys.modules]
assert not missing, missing
"""


def lists_of(experiment: Experiment) -> tuple[set[str], set[str]]:
    """What processes without torch import, and what those with torch do."""
    wanted = dataclasses.replace(experiment, layout="shared")
    settled = resolve_settings(wanted, 2, "cpu")
    placed = process_names(build_graph(settled), settled)
    with_torch = modules_with_torch(placed, settled)
    found = set(modules_of(placed, settled).values())
    assert len(found) <= 2
    return {name for one in found - {with_torch} for name in one}, set(with_torch)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are no templates")
@pytest.mark.parametrize("kind", ["light", "torch"])
def test_no_recipe_s_modules_start_threads_and_actors_import_no_torch(kind: str) -> None:
    modules: set[str] = set()
    for name in RECIPES:
        light, heavy = lists_of(find_recipe(name)())
        modules |= light if kind == "light" else heavy
    assert (
        {"srl.workers.actor", "envpool"} if kind == "light" else {"srl.workers.trainer"}
    ) <= modules
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, kind, *sorted(modules)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr


def test_users_modules_are_imported_by_workers_only() -> None:
    experiment = find_experiment("CartPole-v1")
    mine = dataclasses.replace(
        experiment,
        env=dataclasses.replace(experiment.env, id="mine.py:Env"),
        network={"name": "mine.py:Net"},
    )
    settled = resolve_settings(dataclasses.replace(experiment, layout="shared"), 2, "cpu")
    placed = process_names(build_graph(settled), settled)
    placed["own-0"] = [("own", WorkerGroup(kind="mine.py:Worker", requests=("default",)), 0)]
    for modules in modules_of(placed, mine).values():
        assert all(name.startswith("srl.") for name in modules), modules
