"""Measures what each part of a workload costs while all cores run copies of that part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from srl.bench.copies import Copies, CopyOrder, CopyTiming, setup_of
from srl.bench.limit import Costs
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.launch.plan.build import algorithm_settings
from srl.settings import to_plain

TINY_LEARNING_RATE = 1e-12
"""The learning rate while updates are timed: the work is equal, and the policy does not change."""


Timings = dict[str, CopyTiming]
"""The measurement of each part, by the key of its order."""


def measure_parts(
    experiment: Experiment,
    device: str,
    cores: int,
    seconds: float,
    say: Callable[[str], None] = lambda text: None,
) -> Timings:
    """Measures the parts of a settled experiment one after another, each for `seconds`."""
    envs = experiment.actor.envs
    sizes = group_sizes(experiment, cores)
    found: Timings = {}
    with Copies(cores, setup_of(one_thread(experiment), device, sizes, (envs,))) as copies:

        def run(order: CopyOrder, count: int | None = None) -> None:
            say(f"cost of {order.part}, {order.envs} environments, {order.threads} thread(s)")
            found[_key(order)] = CopyTiming.together(copies.run(order, count=count))

        for part in ("env", "inference"):
            for size in sizes:
                run(CopyOrder(part=part, envs=size, seconds=seconds))
        for part in updates_of(experiment):
            run(CopyOrder(part=part, envs=envs, seconds=seconds))
            run(CopyOrder(part=part, envs=envs, seconds=seconds, threads=cores), count=1)
    return found


def costs_of(experiment: Experiment, cores: int, *measured: Timings) -> Costs:
    """The costs of a settled experiment's parts, from one or more measurements."""
    envs = experiment.actor.envs
    settings = algorithm_settings(experiment)
    batch = envs * rollout_length(experiment)
    sizes = group_sizes(experiment, cores)

    def taken(part: str, size: int = envs, threads: int = 1) -> CopyTiming:
        order = CopyOrder(part=part, envs=size, seconds=0.0, threads=threads)
        return CopyTiming.together([pieces[_key(order)] for pieces in measured])

    updates = [(taken(part), taken(part, threads=cores)) for part in updates_of(experiment)]
    ticks = {size: (taken("env", size), taken("inference", size)) for size in sizes}
    # The best group size counts: the size is a choice of the run, not a limit of the machine.
    return Costs(
        env=min(env.cpu / size for size, (env, _) in ticks.items()),
        inference=min(inference.cpu / size for size, (_, inference) in ticks.items()),
        training=sum(one.cpu for one, _ in updates) / batch,
        collect_chain=min(env.wall + inference.wall for env, inference in ticks.values()) / envs,
        train_chain=max((min(one.wall, many.wall) for one, many in updates), default=0.0) / batch,
        overlaps=settings.get("max_policy_age", 0) != 0,
    )


def group_sizes(experiment: Experiment, cores: int) -> tuple[int, ...]:
    """The group sizes that are timed: that of the run, one group for each core, and one for all."""
    actor = experiment.actor
    group = actor.envs // (actor.count * actor.groups)
    smaller = actor.envs // cores if actor.envs % cores == 0 else group
    return tuple(sorted({group, min(group, smaller), actor.envs}))


def rollout_length(experiment: Experiment) -> int:
    """Steps of each environment in a batch."""
    settings = algorithm_settings(experiment)
    if "rollout_length" not in settings:
        raise ConfigError(
            f"bench: expected an algorithm with a rollout_length, got {settings['name']!r} without."
        )
    return int(settings["rollout_length"])


def updates_of(experiment: Experiment) -> list[str]:
    """The names of the parts that are learner steps: one for each policy that learns."""
    learn = [name for name, policy in experiment.policies.items() if policy.mode == "train"]
    return [f"training:{name}" for name in learn]


def _key(order: CopyOrder) -> str:
    return f"{order.part} {order.envs} {order.threads}"


def env_only(experiment: Experiment, device: str, seconds: float) -> float:
    """Environment steps per second of a settled experiment's actors, if they did nothing else."""
    actor = experiment.actor
    group = actor.envs // (actor.count * actor.groups)
    with Copies(actor.count, setup_of(experiment, device, (group,), ())) as copies:
        found = copies.run(CopyOrder(part="env", envs=group, seconds=seconds))
    return sum(one.calls * group / one.seconds for one in found)


def plain_loop(experiment: Experiment, device: str, seconds: float) -> float:
    """Environment steps per second of a plain loop in one thread: collect, learn, and repeat."""
    envs = experiment.actor.envs
    length = rollout_length(experiment)
    with Copies(1, setup_of(experiment, device, (envs,), (envs,))) as copies:
        (taken,) = copies.run(CopyOrder(part="loop", envs=envs, seconds=seconds))
    return taken.calls * envs * length / taken.seconds


def one_thread(experiment: Experiment) -> Experiment:
    """The same work with one thread in each copy, and a policy that hardly changes."""
    env = experiment.env
    if env.id.startswith("envpool:"):
        env = dataclasses.replace(env, threads=1)
    algorithm = dict(experiment.algorithm)
    if "learning_rate" in to_plain(algorithm_settings(experiment)):
        algorithm["learning_rate"] = TINY_LEARNING_RATE
    return dataclasses.replace(experiment, env=env, algorithm=algorithm)
