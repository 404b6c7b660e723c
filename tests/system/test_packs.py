"""A short real run of each pack: `docs/environments/index.md` says "runs" of these recipes only."""

from __future__ import annotations

import re
from collections.abc import Callable
from ctypes.util import find_library
from pathlib import Path

import pytest
from harness import Training

import srl
from srl.envs.registry import probe
from srl.errors import ConfigError
from srl.recipes import find_recipe

pytestmark = pytest.mark.runs

TABLE = Path(__file__).parents[2] / "docs" / "environments" / "index.md"
RECIPES = (
    *("football", "doom", "minigrid", "dmc_cartpole", "panda_pick", "metaworld_reach"),
    *("cartpole_jax", "smax", "overcooked", "hanabi"),
)
ROW = re.compile(r"^\|[^|]*\|[^|]*\(`(\w+)`\)[^|]*\|[^|]*\| (runs|learned)", re.MULTILINE)


def trained(recipe: str, folder: Path) -> srl.Run:
    settings = {"algorithm.epochs": 1, "algorithm.rollout_length": 16, "actor.envs": 2}
    return srl.train(
        recipe, layout="serial", steps=64, run_dir=folder / "run", quiet=True, set=settings
    )


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_pack_trains(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # VizDoom writes its settings into the current folder.
    monkeypatch.chdir(tmp_path)
    run = trained(recipe, tmp_path)
    assert run.summary.env_steps >= 64


def test_a_jax_environment_trains_in_processes(
    tmp_path: Path, start: Callable[..., Training]
) -> None:
    assert start("cartpole_jax", "--steps", "2k").process.wait(timeout=280) == 0


def test_a_pack_that_cannot_start_says_why() -> None:
    if find_library("Qt5Gui"):
        pytest.skip("Qt 5 is installed, so Procgen starts here")
    with pytest.raises(ConfigError, match="Qt 5"):
        probe(find_recipe("coinrun")().env)


def test_the_table_says_of_these_recipes_only_that_they_run() -> None:
    assert {recipe for recipe, _ in ROW.findall(TABLE.read_text())} == set(RECIPES)
