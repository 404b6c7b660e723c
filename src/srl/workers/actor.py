"""The actor: steps groups of environments, and writes the steps into fragments.

*Consumes* replies of the inference stream. *Waits for* replies, for a free slot of the sample
stream, and for newer weights where policy age is bounded. *Unblocked by* policy workers and
trainers. *Produces* requests and fragments.

The actor steps any group that has all its actions, so that simulation and inference overlap. Where
environments step in threads of their own, the actor only starts the group's tick. It waits for that
tick when it has nothing else to do. An actor never imports torch.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from srl.data.records import EnvStep
from srl.data.tree import Tree
from srl.envs.protocol import BackgroundGroup, EnvConfig, EnvGroup
from srl.errors import ConfigError, EnvError
from srl.graph import Guide
from srl.plan import Plan
from srl.services.messages import Note
from srl.services.metrics_client import MetricsClient
from srl.settings import convert
from srl.streams.inference import InferenceClient
from srl.streams.sample import SampleSink
from srl.workers.agent_batch import AgentBatch, EndedEpisodes
from srl.workers.guided_batch import GuidedAgentBatch, GuideEnd
from srl.workers.wiring import Context
from srl.workers.worker import DONE, PROGRESS, StepResult, Wait, Worker

_SEED_STEP = 100_003
"""Added to a group's seed after a failure."""
_LOGGED_FAILURES = 10
"""Every failure of environments below this number is logged; later only every hundredth."""


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """How many environments, and how they are spread over actors."""

    envs: int = 16
    """Environments of all actors together; times the fragment's length, this is the batch."""
    count: int = 0
    """Actor workers; 0 chooses by layout, cores and environment."""
    max_count: int = 0
    """Most actors that `srl scale` may ask for; 0 allows no more than `count`."""
    max_restarts: int = -1
    """How often a killed actor is started again; -1 takes the experiment's `max_restarts`."""
    groups: int = 0
    """Groups of each actor: one is stepped while others wait for their actions; 0 chooses by
    layout."""
    keep_core: bool = True
    """Keeps an actor on a core of its own, if it has one group that one EnvPool thread steps. The
    actor and that thread then take turns without waking another core."""

    def __post_init__(self) -> None:
        if self.envs < 1:
            raise ConfigError(f"actor.envs: expected at least 1, got {self.envs}.")
        for name in ("count", "groups", "max_count"):
            if getattr(self, name) < 0:
                raise ConfigError(f"actor.{name}: expected at least 0, got {getattr(self, name)}.")


@dataclass(frozen=True, kw_only=True)
class ActorsConfig:
    """A further group of actors, with environments or a casting of its own. Everything else is as
    `actor`, `env` and `policies` say."""

    envs: int = 0
    """Environments of these actors together: a multiple of those of one actor; 0 takes
    `actor.envs`."""
    env_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of their environments that differ from `env.args`."""
    agents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Name patterns of the agents that each policy plays here; other policies do not play. Empty
    is as `policies.*.agents` say."""

    def __post_init__(self) -> None:
        if self.envs < 0:
            raise ConfigError(f"actors.*.envs: expected at least 0, got {self.envs}.")


class Group:
    """Environments that step together, with an agent batch for each policy."""

    def __init__(
        self,
        envs: EnvGroup,
        batches: list[AgentBatch],
        seed: int,
        make: Callable[[], EnvGroup] | None = None,
        config: EnvConfig | None = None,
    ) -> None:
        """With `make` and `config`, the group replaces environments that fail now and then."""
        self.envs = envs
        self.batches = batches
        self.seed = seed
        self.started = False
        self.ticks = 0
        """Ticks since the last failure."""
        self._make = make
        self._config = config
        self._credit = 0
        """Environment steps without a failure, up to a limit; a failure costs `failure_steps`."""
        self._background = envs if isinstance(envs, BackgroundGroup) else None
        self._actions = {batch.policy: batch.action for batch in batches}

    @property
    def ready(self) -> bool:
        """Whether every agent batch has its slot and its actions."""
        for batch in self.batches:  # noqa: SIM110 (a generator is slower than the check)
            if batch.phase != "ready":
                return False
        return True

    def step(self) -> dict[str, EnvStep]:
        """Makes one tick of every environment; the first call resets them."""
        if not self.started:
            self.started = True
            return self.envs.reset(self.seed)
        return self.envs.step(self._actions)

    def begin(self) -> bool:
        """Starts a tick in the background; False where only `step` can make it."""
        if self._background is None or not self.started:
            return False
        self._background.begin(self._actions)
        for batch in self.batches:
            batch.phase = "stepping"
        return True

    def finish(self) -> dict[str, EnvStep]:
        """Waits for the tick that `begin` started."""
        assert self._background is not None
        return self._background.finish()

    def restart(self) -> bool:
        """Replaces the environments after a failure; False if they fail too often."""
        config = self._config
        if config is None or self._make is None or not config.max_failures:
            return False
        earned = self._credit + self.ticks * self.envs.num_envs
        self._credit = min(earned, config.max_failures * config.failure_steps)
        self._credit -= config.failure_steps
        self.ticks = 0
        if self._credit < 0:
            return False
        # Broken environments may also fail to close.
        with suppress(Exception):
            self.envs.close()
        self.envs = self._make()
        self._background = self.envs if isinstance(self.envs, BackgroundGroup) else None
        self.started = False
        # A new seed, because the same episodes may lead to the same failure.
        self.seed += _SEED_STEP
        for batch in self.batches:
            batch.restart()
        return True


class ActorWorker(Worker):
    """Steps groups that are ready, and starts the fragments of their agent batches."""

    def __init__(self, name: str, groups: list[Group], metrics: MetricsClient) -> None:
        self.name = name
        self.groups = groups
        self._metrics = metrics
        self._next = 0
        self._stepping: deque[Group] = deque()
        """Groups with a tick in the background, in the order in which the ticks began."""
        self._clients: dict[str, InferenceClient] = {}
        for batch in groups[0].batches:
            self._clients[batch.policy] = batch.client
        self._batches = [batch for group in groups for batch in group.batches]
        self._batch_of: dict[tuple[str, int], AgentBatch | GuideEnd] = {}
        """Who takes the replies of an inference stream: by its policy, and the group's index."""
        for batch in self._batches:
            self._batch_of[batch.policy, batch.index] = batch
            if isinstance(batch, GuidedAgentBatch):
                guide = batch.guide
                self._clients[guide.policy] = guide.client
                self._batch_of[guide.policy, batch.index] = guide
        self._waits = {name: Wait(name) for name in ("inference", "slots", "policy_age")}

    @classmethod
    def build(cls, context: Context) -> ActorWorker:
        """An actor from its part of the plan."""
        plan = context.plan
        # Actors of the user's own, by another name, play as the first group does.
        own = plan.actors.get(context.worker.group, plan.actors["actor"])
        clients = {policy: context.inference_client(policy) for policy in context.worker.requests}
        sinks: dict[str, dict[int, SampleSink]] = {}
        parts: dict[str, int] = {}
        for name in context.worker.writes:
            stream = plan.samples[name]
            parts[stream.policy] = stream.parts
            sinks.setdefault(stream.policy, {})[stream.part] = context.sample_sink(name)
        readers = {policy: context.parameter_reader(policy) for policy in sinks}
        several = plan.env_spec.turn_based or len(plan.env_spec.agents) > 1
        groups = []
        for index in range(plan.num_groups):
            number = context.worker.index * plan.num_groups + index
            batches = [
                _agent_batch(
                    context,
                    clients,
                    number,
                    index=index,
                    policy=policy,
                    agent=plan.policies[policy].agent,
                    rows=plan.envs_per_group * len(agents),
                    num_agents=len(agents),
                    client=clients[policy],
                    sink=sinks[policy][number % parts[policy]] if policy in sinks else None,
                    parameters=readers.get(policy),
                    explore=_exploration(plan, policy, number, len(agents)),
                    packs=several,
                    incarnation=context.incarnation,
                )
                for policy, agents in own.agents.items()
            ]
            first_env = (own.first_group + number) * plan.envs_per_group
            seed = int(plan.experiment["seed"]) * 1_000_003 + first_env
            make = functools.partial(
                context.env_group,
                plan.envs_per_group,
                policy_agents=own.agents,
                env_args=own.env_args,
            )
            groups.append(Group(make(), batches, seed, make, context.settings("env", EnvConfig)))
        return cls(context.name, groups, context.metrics)

    def step(self) -> StepResult | Wait:
        """Takes replies, starts fragments, and steps one group."""
        made = False
        for policy, client in self._clients.items():
            for index in client.poll():
                self._batch_of[policy, index].receive()
                made = True
        waits_for = "inference"
        for batch in self._batches:
            if batch.phase == "claim":
                blocked = batch.try_claim()
                if blocked is None:
                    made = True
                    self.stats.add("count_dropped_actions", batch.num_dropped)
                elif batch.sink is not None and batch.sink.closed:
                    return DONE
                else:
                    waits_for = blocked
        for offset in range(len(self.groups)):
            at = (self._next + offset) % len(self.groups)
            if self.groups[at].ready:
                self._next = (at + 1) % len(self.groups)
                self._step_group(self.groups[at])
                return PROGRESS
        if made:
            return PROGRESS
        if self._stepping:
            group = self._stepping.popleft()
            self._tick(group, group.finish)
            return PROGRESS
        return self._waits[waits_for]

    def _step_group(self, group: Group) -> None:
        if len(self.groups) > 1 and group.begin():
            self._stepping.append(group)
        else:
            self._tick(group, group.step)

    def _tick(self, group: Group, step: Callable[[], dict[str, EnvStep]]) -> None:
        """Makes one tick; replaces environments that fail now and then."""
        try:
            steps = step()
        except EnvError as error:
            if not group.restart():
                raise
            self.stats.enter("running")
            self.stats.add("count_env_failures", 1)
            failures = self.stats.get("count_env_failures")
            if failures < _LOGGED_FAILURES or failures % 100 == 0:
                text = f"Environments replaced ({failures} failures so far): {error}"
                self._metrics.send(Note(self.name, "warning", text))
            return
        group.ticks += 1
        self._observe(group, steps)

    def _observe(self, group: Group, steps: dict[str, EnvStep]) -> None:
        acted = 0
        for batch in group.batches:
            step = steps[batch.policy]
            ended = batch.count_episodes(step)
            if ended is not None:
                self._report(batch, step, ended)
            batch.observe(step)
            acted += step.turn.size if step.quiet else int(np.count_nonzero(step.turn))
        stats = self.stats
        stats.enter("running")
        stats.add("count_env_steps", group.envs.num_envs)
        stats.add("count_agent_steps", acted)

    def _report(self, batch: AgentBatch, step: EnvStep, ended: EndedEpisodes) -> None:
        # A metric is NaN where an outer time limit ended the episode: the environment did not know.
        metrics = {
            name: [x for x in values[ended.rows // batch.num_agents].tolist() if x == x]
            for name, values in (step.metrics or {}).items()
        }
        self.stats.add("count_episodes", len(ended.returns))
        self._metrics.episodes(
            self.name, batch.policy, ended.returns, ended.lengths, metrics, ended.agents
        )

    def state(self, exact: bool) -> Tree:
        """Groups, fragments and policy states; environments too, where they offer their state."""
        return {
            "next": self._next,
            "groups": [
                {
                    "started": group.started,
                    "envs": group.envs.state() if group.started else None,
                    "agent_batches": [batch.state() for batch in group.batches],
                }
                for group in self.groups
            ],
        }

    def restore(self, state: Tree, exact: bool) -> None:
        """Continues from `state`."""
        self._next = state["next"]
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.started = saved["started"]
            if group.started:
                group.envs.restore(saved["envs"])
            for batch, kept in zip(group.batches, saved["agent_batches"], strict=True):
                batch.restore(kept)

    @property
    def restorable(self) -> bool:
        """Whether the environments offer their state."""
        return all(not group.started or group.envs.state() is not None for group in self.groups)

    def close(self) -> None:
        """Leaves the streams and closes the environments."""
        for batch in self._batches:
            if batch.sink is not None:
                batch.sink.close()
        for client in self._clients.values():
            client.close()
        for group in self.groups:
            group.envs.close()


def _agent_batch(
    context: Context, clients: dict[str, InferenceClient], number: int, **given: Any
) -> AgentBatch:
    """An agent batch of the group with this number, counted over actors; a guided one where the
    settings say so."""
    guide = context.worker.settings.get("guides", {}).get(given["policy"])
    if guide is None:
        return AgentBatch(**given)
    config = convert(guide, Guide, "guides")
    entropy = np.random.SeedSequence([context.seed, number, context.incarnation])
    seed = int(entropy.generate_state(1)[0])
    return GuidedAgentBatch(guide=clients[config.policy], config=config, seed=seed, **given)


def _exploration(plan: Plan, policy: str, number: int, num_agents: int) -> np.ndarray:
    """How much a policy explores in each row of the group with this number, counted over actors."""
    envs = np.arange(number * plan.envs_per_group, (number + 1) * plan.envs_per_group)
    share = np.array(plan.explore[policy], np.float32)
    # One number is for all, and a run that is scaled up has more environments than planned.
    return share[envs % share.size].repeat(num_agents)
