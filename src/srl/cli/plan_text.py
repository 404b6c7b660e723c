"""A plan in words: who runs where, what flows between them, and how many bytes that takes."""

from __future__ import annotations

from collections.abc import Mapping

from srl.cli.plan_facts import (
    age_text,
    agent_text,
    envs_text,
    inference_text,
    num_parameters,
    region_bytes,
    sample_text,
    shared_bytes,
    size_text,
)
from srl.workers.wiring import Plan, WorkerPlan

_SHOWN = 4
"""Names of workers that a line spells out."""


def describe_plan(plan: Plan, where: Mapping[str, str]) -> str:
    """The whole plan as lines of text; `where` is the host of each process."""
    sizes = region_bytes(plan)
    experiment = plan.experiment
    total = shared_bytes(plan)
    lines = [
        f"{experiment['name'] or experiment['env']['id']}: layout {experiment['layout']}, "
        f"{experiment['actor']['envs']} environments, device {plan.device}, "
        + (f"{size_text(total)} of shared memory" if total else "no shared memory"),
        "",
        "processes",
    ]
    width = max(len(process) for process in plan.processes)
    far = max(len(host) for host in where.values()) if len(set(where.values())) > 1 else 0
    for process, workers in plan.processes.items():
        for number, worker in enumerate(workers):
            home = process if number == 0 else ""
            if far:
                home = f"{where[process] if number == 0 else '':<{far}}  {home:<{width}}"
            lines.append(f"  {home:<{width}}  {worker.name:<14}  {_does(plan, worker)}")
    lines += ["", "inference streams"]
    for key, stream in plan.inference.items():
        lines.append(
            f"  {key}: {_names(stream.clients)} <-> {_names(stream.servers)}, {stream.carrier}, "
            f"{inference_text(stream)}, {size_text(sizes[f'inference/{key}'])}"
        )
    lines += ["", "sample streams"]
    for key, sample in plan.samples.items():
        lines.append(
            f"  {key}: {_names(sample.writers)} -> {_names(sample.readers)}, {sample.carrier}, "
            f"{sample_text(sample)} [ticks, rows] of {size_text(sample.spec.trajectory.nbytes)}, "
            f"{size_text(sizes[f'sample/{key}'])} in all, {age_text(sample)}"
        )
    lines += ["", "policies"]
    for name, policy in plan.policies.items():
        readers = tuple(w.name for w in plan.workers if name in w.follows and not w.asks)
        lines.append(
            f"  {name}: {policy.mode}, {agent_text(policy.agent)}, agents {_names(policy.agents)}, "
            f"{num_parameters(policy):,} parameters, {size_text(sizes[f'parameters/{name}'])} "
            f"-> {_names(readers)}"
        )
    return "\n".join(lines)


def _does(plan: Plan, worker: WorkerPlan) -> str:
    said = []
    if worker.asks and worker.writes:
        pool = plan.experiment["env"]["threads"]
        said.append(f"steps {envs_text(plan)}" + (f" on {pool} threads" if pool > 1 else ""))
    for verb in ("serves", "asks", "reads", "writes", "trains"):
        names = getattr(worker, verb)
        if names:
            said.append(f"{verb} {_names(names)}")
    if not said and worker.follows:
        said.append(f"follows {_names(worker.follows)}")
    if worker.threads > 1:
        said.append(f"{worker.threads} threads")
    return ", ".join(said)


def _names(names: tuple[str, ...]) -> str:
    if len(names) <= _SHOWN:
        return " ".join(names)
    return f"{names[0]} ... {names[-1]} ({len(names)})"
