"""A plan as text: where each worker runs, what flows between workers, and the memory it takes."""

from __future__ import annotations

from collections.abc import Mapping

from srl.launch.plan.facts import (
    age_text,
    agent_text,
    envs_text,
    inference_text,
    num_envs,
    num_parameters,
    sample_text,
)
from srl.launch.plan.memory import memory_needs, region_bytes, shared_bytes, size_text
from srl.plan import Plan, WorkerPlan

_SHOWN = 4
"""At most this many names are written out in a line."""


def describe_plan(plan: Plan, where: Mapping[str, str]) -> str:
    """The whole plan as lines of text; `where` is the host of each process."""
    sizes = region_bytes(plan)
    experiment = plan.experiment
    total = shared_bytes(plan)
    acts = any(worker.requests for worker in plan.workers)
    environments = f"{num_envs(plan)} environments, " if acts else ""
    lines = [
        f"{experiment['name'] or experiment['env']['id']}: layout {experiment['layout']}, "
        f"{environments}device {plan.device}, "
        + (f"{size_text(total)} of shared memory" if total else "no shared memory"),
        f"memory: {memory_needs(plan)}",
        "",
        "processes",
    ]
    width = max(len(process) for process in plan.processes)
    host_width = max(len(host) for host in where.values()) if len(set(where.values())) > 1 else 0
    for process, workers in plan.processes.items():
        for number, worker in enumerate(workers):
            location = process if number == 0 else ""
            if host_width:
                location = (
                    f"{where[process] if number == 0 else '':<{host_width}}  {location:<{width}}"
                )
            lines.append(f"  {location:<{width}}  {worker.name:<14}  {_duties(plan, worker)}")
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
            f"{sample_text(sample)}{'' if sample.has_tables else ' [ticks, rows]'} of "
            f"{size_text(sample.spec.record.nbytes)}, "
            f"{size_text(sizes[f'sample/{key}'])} in all, {age_text(sample)}"
        )
    lines += ["", "policies"]
    for name, policy in plan.policies.items():
        readers = tuple(w.name for w in plan.workers if name in w.follows and not w.requests)
        lines.append(
            f"  {name}: {policy.mode}, {agent_text(policy.agent)}, agents {_names(policy.agents)}, "
            f"{num_parameters(policy):,} parameters, {size_text(sizes[f'parameters/{name}'])} "
            f"-> {_names(readers)}"
        )
    return "\n".join(lines)


def _duties(plan: Plan, worker: WorkerPlan) -> str:
    """What a worker does, which streams it uses, and its threads."""
    duties = []
    if worker.requests and worker.writes:
        pool = plan.experiment["env"]["threads"]
        duties.append(
            f"steps {envs_text(plan, worker.group)}" + (f" on {pool} threads" if pool > 1 else "")
        )
    for verb in ("serves", "requests", "reads", "writes", "trains"):
        names = getattr(worker, verb)
        if names:
            duties.append(f"{verb} {_names(names)}")
    if not duties and worker.follows:
        duties.append(f"follows {_names(worker.follows)}")
    if worker.threads > 1:
        duties.append(f"{worker.threads} threads")
    return ", ".join(duties)


def _names(names: tuple[str, ...]) -> str:
    if len(names) <= _SHOWN:
        return " ".join(names)
    return f"{names[0]} ... {names[-1]} ({len(names)})"
