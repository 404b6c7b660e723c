"""The controller of a run whose workers are played: their rows, and what they report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from srl.arena.arena import HeapArena
from srl.envs.registry import probe
from srl.errors import RunError
from srl.launch.plan.build import make_plan, resolve_settings
from srl.launch.run.controller import Controller, Ending
from srl.run import assemble
from srl.services.checkpoints import CheckpointConfig, CheckpointStore, Manifest, write_part
from srl.services.messages import Update
from srl.services.metrics import read_metrics

OVER = Ending("finished", "trained for 5 s")
Make = Callable[..., Controller]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes the controller of a run that has just begun."""

    def made(target: str, **settings: object) -> Controller:
        experiment = resolve_settings(assemble(target, layout="shared", set=settings), 2, "cpu")
        return Controller(
            experiment=experiment,
            plan=make_plan(experiment, probe(experiment.env), "cpu")[0],
            run_dir=tmp_path,
            arena=HeapArena(),
            store=CheckpointStore(tmp_path / "checkpoints", CheckpointConfig()),
            fixed_weights={},
            cores=2,
            quiet=True,
            begun=time.monotonic(),
        )

    return made


def show(controller: Controller, versions: Mapping[str, int], env_steps: int = 1000) -> None:
    """Lets trainers say how far they are."""
    for worker in controller.plan.workers:
        for policy in worker.trains:
            row = controller.stats_table.rows[worker.name]
            row.set("count_policy_version", versions[policy])
            row.set("count_env_steps", env_steps if versions[policy] else 0)


def resume(controller: Controller, versions: Mapping[str, int]) -> None:
    """Goes on from a checkpoint with these versions."""
    folder = controller.store.begin(1)
    write_part(folder, "collector", {**controller.collector.state(0.0), "seconds": 60.0})
    known = {"env_steps": 1000, "episodes": 0, "seconds": 60.0}
    manifest = Manifest(number=1, policy_versions=dict(versions), **known)
    controller.restore(controller.store.commit(folder, manifest))
    show(controller, versions)


def test_a_run_has_learned_if_any_of_its_policies_has(make: Make) -> None:
    controller = make("simple_tag")
    with pytest.raises(RunError, match="no update was made"):
        controller.check_learned(OVER)
    one, other = controller.names.learning
    show(controller, {one: 5, other: 0})
    assert controller.check_learned(OVER) is OVER


def test_each_of_the_first_updates_has_a_line_however_fast_they_come(
    make: Make, tmp_path: Path
) -> None:
    controller = make("CartPole-v1", **{"logging.interval_seconds": 1000})
    controller.poll()
    for version in range(1, 26):
        show(controller, {"default": version}, 100 * version)
        controller.collector.add(
            Update("trainer/0", "default", version, 100 * version, 100 * version, 0.0, 0, 0.1, {})
        )
        controller.poll()
    steps = [line["env_steps"] for line in read_metrics(tmp_path)]
    assert list(dict.fromkeys(steps))[:21] == [100 * version for version in range(21)]


def test_what_was_learned_before_a_resume_does_not_count(make: Make) -> None:
    controller = make("simple_tag")
    one, other = controller.names.learning
    resume(controller, {one: 5, other: 2})
    with pytest.raises(RunError, match=r"no update was made in 0 s\."):
        controller.check_learned(OVER)
    show(controller, {one: 5, other: 3})
    assert controller.check_learned(OVER) is OVER


def test_the_summary_counts_updates_whose_messages_are_lost(make: Make) -> None:
    """A busy machine may kill a trainer before its last messages have been sent."""
    controller = make("CartPole-v1", steps=1500)
    controller.poll()
    controller.collector.add(Update("trainer/0", "default", 1, 800, 800, 0.0, 0.0, 0.1, {}))
    show(controller, {"default": 2}, 1600)
    controller.poll()
    assert controller.ending is not None
    summary = controller.finish(controller.ending)
    assert summary.env_steps == 1600
    assert summary.policy_version == 2
