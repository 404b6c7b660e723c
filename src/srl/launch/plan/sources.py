"""Policies of other runs: what they are, and whether they fit."""

from __future__ import annotations

from pathlib import Path

import msgspec

from srl.data.spec import AgentSpec
from srl.envs.registry import probe
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.graph import Graph
from srl.launch.plan.build import plan_policies
from srl.plan import PolicyPlan


def plan_source(source: str, role: str, agent: AgentSpec | None, *, trust: bool) -> PolicyPlan:
    """The policy that `RUN[@CHECKPOINT[:POLICY]]` names; its weights are not read yet.

    Raises if it does not have the observations and actions of `agent`, or if the run names code
    that the user does not trust.
    """
    from srl.launch.directory.run_dir import RunDir, split_source

    run, _, name = split_source(source)
    source_run = RunDir(run).read_trusted(trust=trust)
    name = name or (role if role in source_run.policies else _only_policy(source_run, run))
    if name not in source_run.policies:
        known = ", ".join(source_run.policies)
        raise ConfigError(f"{source}: no policy {name!r} in that run; it has {known}.")
    plan = plan_policies(source_run, probe(source_run.env))[name]
    if agent is not None and plan.agent != agent:
        raise ConfigError(
            f"{source}: policy {name!r} expects {plan.agent.obs} and {plan.agent.action}, but "
            f"it would get {agent.obs} and {agent.action}."
        )
    return plan


def plan_loaded(graph: Graph, policies: dict[str, PolicyPlan]) -> dict[str, PolicyPlan]:
    """The policies of other runs that workers of a graph load, by their name here."""
    found = {}
    for name, (source, asked_for) in graph.loaded().items():
        if name in policies:
            raise ConfigError(
                f"policies: expected no policy {name!r}, because that of {source} has this name "
                "here. Rename yours."
            )
        plan = plan_source(source, name, policies[asked_for].agent, trust=False)
        asker = policies[asked_for].agents
        found[name] = msgspec.structs.replace(plan, name=name, mode="frozen", agents=asker)
    return found


def _only_policy(experiment: Experiment, run: Path) -> str:
    if len(experiment.policies) != 1:
        known = ", ".join(experiment.policies)
        raise ConfigError(
            f"{run}: it has several policies ({known}). Say which: {run}@latest:NAME."
        )
    return next(iter(experiment.policies))
