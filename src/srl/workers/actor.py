"""The actor: steps groups of environments in a ring, and writes what happens into fragments.

*Consumes* replies of the inference stream. *Waits for* replies, for a free slot of the sample
stream, for newer weights where policy age is bounded. *Unblocked by* policy workers and trainers.
*Produces* requests and fragments.

Whichever group has all its actions is stepped next, so that simulation and inference overlap. Where
environments step in threads of their own, a group is only set going, and waited for when nothing
else is to be done. An actor never imports torch.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from srl.data.records import EnvStep
from srl.data.tree import Tree
from srl.envs.protocol import BackgroundGroup, EnvConfig, EnvGroup
from srl.errors import ConfigError, EnvError
from srl.services.messages import Note
from srl.services.metrics_client import MetricsClient
from srl.streams.inference import InferenceClient
from srl.streams.sample import SampleSink
from srl.workers.lane import Ended, Lane
from srl.workers.wiring import Context
from srl.workers.worker import DONE, MADE, Progress, Wait, Worker

_OTHER_SEEDS = 100_003
_TOLD_FAILURES = 10
"""Later failures of environments are counted, and only now and then told."""


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """How many environments, and how they are spread over actors."""

    envs: int = 16
    """Environments in all actors together; with the fragment's length this is the batch."""
    count: int = 0
    """Actor workers; 0 chooses by layout, cores and environment."""
    max_count: int = 0
    """Room for so many actors, for `srl scale`; 0 has none beyond `count`."""
    max_restarts: int = -1
    """How often a killed actor is started again; -1 is as `max_restarts` says."""
    groups: int = 0
    """Groups in each actor's ring: one is stepped while others wait for their actions; 0 chooses by
    layout."""
    keep_core: bool = True
    """An actor of one group, which one thread of EnvPool's steps, keeps to one core that no other
    actor keeps to: the two hand over without waking another core."""

    def __post_init__(self) -> None:
        if self.envs < 1:
            raise ConfigError(f"actor.envs: expected at least 1, got {self.envs}.")
        for name in ("count", "groups", "max_count"):
            if getattr(self, name) < 0:
                raise ConfigError(f"actor.{name}: expected at least 0, got {getattr(self, name)}.")


class Group:
    """Environments that step together, with a lane for each policy."""

    def __init__(
        self,
        envs: EnvGroup,
        lanes: list[Lane],
        seed: int,
        make: Callable[[], EnvGroup] | None = None,
        config: EnvConfig | None = None,
    ) -> None:
        """With `make` and `config`, environments that fail now and then are made anew."""
        self.envs = envs
        self.lanes = lanes
        self.seed = seed
        self.started = False
        self.ticks = 0
        """Since the last failure."""
        self._make = make
        self._config = config
        self._credit = 0
        """Steps that speak for the environments: a failure costs `failure_steps` of them."""
        self._background = envs if isinstance(envs, BackgroundGroup) else None
        self._actions = {lane.policy: lane.action for lane in lanes}

    @property
    def ready(self) -> bool:
        """Every lane has its slot and its actions."""
        for lane in self.lanes:  # noqa: SIM110 (a generator costs more than the question)
            if lane.phase != "ready":
                return False
        return True

    def step(self) -> dict[str, EnvStep]:
        """One tick of every environment (the first one resets them)."""
        if not self.started:
            self.started = True
            return self.envs.reset(self.seed)
        return self.envs.step(self._actions)

    def begin(self) -> bool:
        """Starts a tick that goes on by itself; False where only `step` can do it."""
        if self._background is None or not self.started:
            return False
        self._background.begin(self._actions)
        for lane in self.lanes:
            lane.phase = "stepping"
        return True

    def finish(self) -> dict[str, EnvStep]:
        """Waits for a tick that was begun."""
        assert self._background is not None
        return self._background.finish()

    def begin_again(self) -> bool:
        """Makes the environments anew after a failure; False if they fail too often for that."""
        config = self._config
        if config is None or self._make is None or not config.max_failures:
            return False
        earned = self._credit + self.ticks * self.envs.num_envs
        self._credit = min(earned, config.max_failures * config.failure_steps)
        self._credit -= config.failure_steps
        self.ticks = 0
        if self._credit < 0:
            return False
        # What is broken may not close well either.
        with suppress(Exception):
            self.envs.close()
        self.envs = self._make()
        self._background = self.envs if isinstance(self.envs, BackgroundGroup) else None
        self.started = False
        # Other episodes than those that led to the failure.
        self.seed += _OTHER_SEEDS
        for lane in self.lanes:
            lane.begin_again()
        return True


class ActorWorker(Worker):
    """Steps whichever group is ready, and keeps the fragments of its lanes going."""

    def __init__(self, name: str, groups: list[Group], metrics: MetricsClient) -> None:
        self.name = name
        self.groups = groups
        self._metrics = metrics
        self._next = 0
        self._stepping: deque[Group] = deque()
        """Groups whose tick goes on by itself, the first begun first."""
        self._clients: dict[str, InferenceClient] = {}
        for lane in groups[0].lanes:
            self._clients[lane.policy] = lane.client
        self._lane_of = {
            (lane.policy, lane.index): lane for group in groups for lane in group.lanes
        }
        self._lanes = list(self._lane_of.values())
        self._waits = {name: Wait(name) for name in ("inference", "slots", "policy_age")}

    @classmethod
    def build(cls, context: Context) -> ActorWorker:
        """An actor from its part of the plan."""
        plan = context.plan
        clients = {policy: context.inference_client(policy) for policy in context.worker.asks}
        sinks: dict[str, dict[int, SampleSink]] = {}
        for name in context.worker.writes:
            stream = plan.samples[name]
            sinks.setdefault(stream.policy, {})[stream.part] = context.sample_sink(name)
        readers = {policy: context.parameter_reader(policy) for policy in sinks}
        several = plan.env_spec.turn_based or len(plan.env_spec.agents) > 1
        groups = []
        for index in range(plan.num_groups):
            number = context.worker.index * plan.num_groups + index
            lanes = [
                Lane(
                    index=index,
                    policy=policy,
                    agent=plan.policies[policy].agent,
                    rows=plan.envs_per_group * len(agents),
                    num_agents=len(agents),
                    client=clients[policy],
                    sink=sinks[policy][number % plan.parts(policy)] if policy in sinks else None,
                    parameters=readers.get(policy),
                    explore=1.0,
                    packs=several,
                )
                for policy, agents in plan.lanes.items()
            ]
            seed = int(plan.experiment["seed"]) * 1_000_003 + number * plan.envs_per_group
            make = functools.partial(context.env_group, plan.envs_per_group)
            groups.append(Group(make(), lanes, seed, make, context.settings("env", EnvConfig)))
        return cls(context.name, groups, context.metrics)

    def step(self) -> Progress | Wait:
        """Takes replies, starts fragments, and steps one group."""
        made = False
        for policy, client in self._clients.items():
            for index in client.poll():
                self._lane_of[policy, index].receive()
                made = True
        waits_for = "inference"
        for lane in self._lanes:
            if lane.phase == "claim":
                blocked = lane.try_claim()
                if blocked is None:
                    made = True
                elif lane.sink is not None and lane.sink.closed:
                    return DONE
                else:
                    waits_for = blocked
        for offset in range(len(self.groups)):
            at = (self._next + offset) % len(self.groups)
            if self.groups[at].ready:
                self._next = (at + 1) % len(self.groups)
                self._step_group(self.groups[at])
                return MADE
        if made:
            return MADE
        if self._stepping:
            group = self._stepping.popleft()
            self._tick(group, group.finish)
            return MADE
        return self._waits[waits_for]

    def _step_group(self, group: Group) -> None:
        if len(self.groups) > 1 and group.begin():
            self._stepping.append(group)
        else:
            self._tick(group, group.step)

    def _tick(self, group: Group, step: Callable[[], dict[str, EnvStep]]) -> None:
        """One tick; environments that fail now and then are made anew."""
        try:
            steps = step()
        except EnvError as error:
            if not group.begin_again():
                raise
            self.row.enter("running")
            self.row.add("count_env_failures", 1)
            failures = self.row.get("count_env_failures")
            if failures < _TOLD_FAILURES or failures % 100 == 0:
                text = f"{error} Made anew ({failures} failures so far)."
                self._metrics.send(Note(self.name, "warning", text))
            return
        group.ticks += 1
        self._observe(group, steps)

    def _observe(self, group: Group, steps: dict[str, EnvStep]) -> None:
        acted = 0
        for lane in group.lanes:
            step = steps[lane.policy]
            ended = lane.count_episodes(step)
            if ended is not None:
                self._report(lane, step, ended)
            lane.observe(step)
            acted += step.turn.size if step.quiet else int(np.count_nonzero(step.turn))
        row = self.row
        row.enter("running")
        row.add("count_env_steps", group.envs.num_envs)
        row.add("count_agent_steps", acted)

    def _report(self, lane: Lane, step: EnvStep, ended: Ended) -> None:
        # A number is missing where an outer time limit ended the episode unseen by the environment.
        metrics = {
            name: [x for x in values[ended.rows // lane.num_agents].tolist() if x == x]
            for name, values in (step.metrics or {}).items()
        }
        self.row.add("count_episodes", len(ended.returns))
        self._metrics.episodes(self.name, lane.policy, ended.returns, ended.lengths, metrics)

    def state(self, exact: bool) -> Tree:
        """Rings, fragments, policy states and the environments themselves, where they offer it."""
        return {
            "next": self._next,
            "groups": [
                {
                    "started": group.started,
                    "envs": group.envs.state() if group.started else None,
                    "lanes": [lane.state() for lane in group.lanes],
                }
                for group in self.groups
            ],
        }

    def restore(self, state: Tree, exact: bool) -> None:
        """Goes on from `state`."""
        self._next = state["next"]
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.started = saved["started"]
            if group.started:
                group.envs.restore(saved["envs"])
            for lane, kept in zip(group.lanes, saved["lanes"], strict=True):
                lane.restore(kept)

    @property
    def restorable(self) -> bool:
        """Whether the environments offer their state."""
        return all(not group.started or group.envs.state() is not None for group in self.groups)

    def close(self) -> None:
        """Leaves the streams and closes the environments."""
        for lane in self._lanes:
            if lane.sink is not None:
                lane.sink.close()
        for client in self._clients.values():
            client.close()
        for group in self.groups:
            group.envs.close()
