"""Policies of other runs that workers ask: found, compared, and trusted like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

import srl
from srl.envs.registry import probe
from srl.errors import ConfigError, RunError
from srl.experiment import Experiment, build_graph
from srl.launch.directory.run_dir import RunDir
from srl.launch.directory.signature import SIGNATURE_FILE
from srl.launch.plan.build import filled_in, make_plan, resolve_settings
from srl.overrides import override
from srl.recipes.target import find_experiment


def expert(folder: Path, env: str = "CartPole-v1", **settings: object) -> Path:
    """The folder of a run, without checkpoints."""
    directory = RunDir(folder)
    with directory.locked():
        directory.write_config(filled_in(override(find_experiment(env), settings)))
    return folder


def dagger(source: Path | str, **settings: object) -> Experiment:
    found = find_experiment("CartPole-v1", algorithm="dagger")
    found = override(found, {"algorithm.expert": str(source), **settings})
    return resolve_settings(found, 2, "cpu")


def test_the_expert_is_planned_beside_the_policies_and_plays_nothing(tmp_path: Path) -> None:
    run = expert(tmp_path / "run", **{"network.hidden_sizes": [7]})
    experiment = dagger(run, **{"layout": "shared"})
    plan, modules = make_plan(experiment, probe(experiment.env), "cpu")
    assert plan.policies["expert"].mode == "frozen"
    assert plan.policies["expert"].network["hidden_sizes"] == [7]
    assert set(modules) == {"default", "expert"}
    assert set(plan.policy_agents) == {"default"}
    (worker,) = (w for w in plan.workers if w.group == "expert")
    assert (worker.reads, worker.writes) == (("default",), ("default/expert",))
    (replay,) = (w for w in plan.workers if w.group == "replay")
    assert replay.reads == ("default/expert",)
    readers = plan.policies["expert"].parameters.readers
    assert readers == (worker.process, "policy-0"), "who labels, and who acts in its place"
    assert plan.inference["expert"].clients == ("actor/0",)
    alone = dagger(run, **{"layout": "shared", "algorithm.beta_steps": 0})
    alone_plan, _ = make_plan(alone, probe(alone.env), "cpu")
    assert set(alone_plan.inference) == {"default"}


def test_an_expert_of_another_environment_is_refused(tmp_path: Path) -> None:
    experiment = dagger(expert(tmp_path / "run", "MountainCar-v0"))
    with pytest.raises(ConfigError, match=r"'default' expects float32\[2\] .* get float32\[4\]"):
        make_plan(experiment, probe(experiment.env), "cpu")


def test_code_of_an_experts_run_needs_trust(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("def same(graph):\n    return graph\n")
    run = expert(tmp_path / "run", dataflow=f"{code}:same")
    experiment = dagger(run)
    make_plan(experiment, probe(experiment.env), "cpu")
    (run / SIGNATURE_FILE).unlink()
    with pytest.raises(ConfigError, match="this run names code that is not part of SRL"):
        make_plan(experiment, probe(experiment.env), "cpu")


def test_an_expert_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.expert: expected the folder of a run"):
        build_graph(dagger(""))
    experiment = dagger(tmp_path)
    with pytest.raises(RunError, match="expected a run"):
        make_plan(experiment, probe(experiment.env), "cpu")
    with pytest.raises(ConfigError, match=r"expected at least replay_workers \(2\)"):
        srl.DAggerConfig(expert="x", replay_workers=2)
    assert build_graph(dagger(tmp_path, **{"algorithm.expert_workers": 2})).parts("default") == 2
