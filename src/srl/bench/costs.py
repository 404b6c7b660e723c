"""Measuring what the parts of a workload cost, with all cores loaded by copies of each."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable

from srl.bench.copies import Copies, Order, Taken, setup_of
from srl.bench.limit import Costs
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.launch.plan import algorithm_settings
from srl.settings import to_plain

STILL = 1e-12
"""The learning rate while updates are timed: the same work, and a policy that stays where it is."""


def measure_costs(
    experiment: Experiment,
    device: str,
    cores: int,
    seconds: float,
    say: Callable[[str], None] = lambda text: None,
) -> Costs:
    """The costs of a settled experiment's parts; each part is run for `seconds`."""
    actor = experiment.actor
    settings = algorithm_settings(experiment)
    if "rollout_length" not in settings:
        raise ConfigError(
            f"bench: expected an algorithm with a rollout_length, got {settings['name']!r} without."
        )
    batch = actor.envs * int(settings["rollout_length"])
    group = actor.envs // (actor.count * actor.groups)
    # Ticks are also timed in a group for each core, if the run's are larger: how environments are
    # grouped is the run's choice, not the machine's limit.
    smaller = actor.envs // cores if actor.envs % cores == 0 else group
    groups = sorted({group, min(group, smaller)})
    setup = setup_of(
        _still(experiment), device, tuple(sorted({*groups, actor.envs})), (actor.envs,)
    )
    with Copies(cores, setup) as copies:
        env, inference = (
            {
                envs: _run(copies, say, Order(part=part, envs=envs, seconds=seconds))
                for envs in groups
            }
            for part in ("env", "inference")
        )
        training, chains = [], []
        for name, policy in experiment.policies.items():
            if policy.mode == "train":
                order = Order(part=f"training:{name}", envs=actor.envs, seconds=seconds)
                training.append(_run(copies, say, order))
                order.threads = cores
                chains.append(min(training[-1].wall, _run(copies, say, order, count=1).wall))
    return Costs(
        env=env[group].cpu / group,
        inference=inference[group].cpu / group,
        training=sum(taken.cpu for taken in training) / batch,
        collect_chain=min(env[n].wall + inference[n].wall for n in groups) / actor.envs,
        train_chain=max(chains, default=0.0) / batch,
        at_once=settings.get("max_policy_age", 1) != 0,
    )


def _run(
    copies: Copies, say: Callable[[str], None], order: Order, count: int | None = None
) -> Taken:
    """What a call takes: the median over the copies."""
    say(f"cost of {order.part}, {order.envs} environments, {order.threads} thread(s)")
    found = copies.run(order, count=count)
    return Taken(
        wall=statistics.median(one.wall for one in found),
        cpu=statistics.median(one.cpu for one in found),
        calls=sum(one.calls for one in found),
        seconds=max(one.seconds for one in found),
    )


def env_only(experiment: Experiment, device: str, seconds: float) -> float:
    """Environment steps per second of a settled experiment's actors, if they did nothing else."""
    actor = experiment.actor
    group = actor.envs // (actor.count * actor.groups)
    with Copies(actor.count, setup_of(experiment, device, (group,), ())) as copies:
        found = copies.run(Order(part="env", envs=group, seconds=seconds))
    return sum(one.calls * group / one.seconds for one in found)


def plain_loop(experiment: Experiment, device: str, seconds: float) -> float:
    """Environment steps per second of the bare parts in one thread: collect, learn, and again."""
    envs = experiment.actor.envs
    length = int(algorithm_settings(experiment)["rollout_length"])
    with Copies(1, setup_of(experiment, device, (envs,), (envs,))) as copies:
        (taken,) = copies.run(Order(part="loop", envs=envs, seconds=seconds))
    return taken.calls * envs * length / taken.seconds


def _still(experiment: Experiment) -> Experiment:
    """The same work on one thread in each copy, with a policy that learns next to nothing."""
    env = experiment.env
    if env.id.startswith("envpool:"):
        env = dataclasses.replace(env, threads=1)
    algorithm = dict(experiment.algorithm)
    if "learning_rate" in to_plain(algorithm_settings(experiment)):
        algorithm["learning_rate"] = STILL
    return dataclasses.replace(experiment, env=env, algorithm=algorithm)
