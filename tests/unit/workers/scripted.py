"""A real actor on real streams, with a scripted policy and a recorder at both ends.

The environments' steps are recorded as they come out of the group, and every question to the policy
as it comes out of the inference stream. The fragments that come out of the sample stream are then
compared with these two records: the rules of the journey, as an oracle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from srl.arena.arena import Arena, HeapArena
from srl.data.records import EnvStep, InferenceReply, Snapshot, Trajectory
from srl.data.spec import AgentSpec, ArraySpec
from srl.data.trajectory import TrajectorySpec, from_tree, to_tree
from srl.data.tree import Tree, leaves, tree_map
from srl.envs.protocol import EnvConfig, EnvGroup
from srl.envs.registry import make_group
from srl.services.metrics_client import InlineMetrics
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
from srl.services.worker_stats import StatsTable
from srl.streams.inference import (
    InferenceClient,
    InferenceServer,
    InferenceSpec,
    create_inference,
)
from srl.streams.sample import SampleSink, SampleSource, SampleSpec, create_sample
from srl.streams.sample_queue import FragmentInfo
from srl.workers.actor import ActorWorker, Group
from srl.workers.agent_batch import AgentBatch
from srl.workers.worker import Wait

EXTRAS = {"id": ArraySpec(dtype="int64")}
STATE = {"h": ArraySpec(shape=(2,), dtype="float64")}


@dataclass(frozen=True)
class Setup:
    """What varies from one example to the next."""

    env: str = "srl.testing.envs:ScriptedEnv"
    env_args: dict[str, Any] = field(default_factory=dict)
    policy_agents: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"main": ("agent",)})
    num_envs: int = 2
    num_groups: int = 1
    length: int = 4
    burn_in: int = 0
    bootstrap: int = 1
    state_every: int = 1
    cut: str = "fixed"
    stack: int = 1
    age: int | None = 1
    seed: int = 0
    packs: bool = False
    background: bool = False
    """Environments that step in threads of their own."""

    @property
    def overlap(self) -> int:
        return self.burn_in + self.bootstrap

    @property
    def capacity(self) -> int:
        return self.length + self.overlap


@dataclass
class Asked:
    """One row of one request, and what was answered."""

    tick: int
    row: int
    obs: list[np.ndarray]
    fed: np.ndarray
    is_first: bool
    state: np.ndarray
    action: int
    version: int


@dataclass
class BatchRecord:
    """All that happened to one agent batch, from the outside."""

    ticks: list[EnvStep] = field(default_factory=list)
    asked: dict[int, Asked] = field(default_factory=dict)
    """By the id that the reply carried in its extras."""
    executed: dict[int, dict[int, Asked]] = field(default_factory=dict)
    """By tick and row: the last answer, which is what counts."""
    fragments: list[tuple[Trajectory, int]] = field(default_factory=list)
    """Copies with their lengths, in the order in which they were begun."""
    infos: list[FragmentInfo] = field(default_factory=list)
    consumed_at: list[int] = field(default_factory=list)
    """The policy version that consumed each fragment."""


class RecordingGroup:
    """An environment group that keeps a copy of everything it shows."""

    def __init__(self, envs: EnvGroup, records: dict[str, BatchRecord]) -> None:
        self._envs = envs
        self._records = records
        self.num_envs = envs.num_envs

    def reset(self, seed: int) -> dict[str, EnvStep]:
        return self._keep(self._envs.reset(seed))

    def step(self, actions: dict[str, np.ndarray]) -> dict[str, EnvStep]:
        for policy, record in self._records.items():
            last = record.ticks[-1]
            executed = record.executed.get(len(record.ticks) - 1, {})
            for row in np.flatnonzero(last.turn):
                assert actions[policy][row] == executed[row].action, "what was chosen is done"
        return self._keep(self._envs.step(actions))

    def _keep(self, steps: dict[str, EnvStep]) -> dict[str, EnvStep]:
        for policy, step in steps.items():
            values = {
                name: tree_map(np.copy, getattr(step, name))
                for name in EnvStep.__slots__
                if name != "metrics"
            }
            self._records[policy].ticks.append(EnvStep(**values))
        return steps

    def state(self) -> Tree | None:
        return self._envs.state()

    def close(self) -> None:
        self._envs.close()


class BackgroundRecordingGroup(RecordingGroup):
    """As if threads stepped its environments: actions are given at one time, taken up at another.

    `calls` is shared by all groups of an actor.
    """

    def __init__(
        self, envs: EnvGroup, records: dict[str, BatchRecord], calls: list[tuple[str, int]]
    ) -> None:
        super().__init__(envs, records)
        self._calls = calls
        self._begun: dict[str, np.ndarray] | None = None

    def begin(self, actions: dict[str, np.ndarray]) -> None:
        assert self._begun is None
        self._begun = {policy: action.copy() for policy, action in actions.items()}
        self._calls.append(("begin", id(self)))

    def finish(self) -> dict[str, EnvStep]:
        assert self._begun is not None
        actions, self._begun = self._begun, None
        self._calls.append(("finish", id(self)))
        return self.step(actions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)


class Play:
    """An actor with everything around it."""

    def __init__(self, setup: Setup, arena: Arena | None = None) -> None:
        self.setup = setup
        self.arena = arena = arena or HeapArena()
        self._random = np.random.default_rng([setup.seed, 7])
        self._next_id = 0
        config = EnvConfig(id=setup.env, args=setup.env_args)
        self.records = [
            {policy: BatchRecord() for policy in setup.policy_agents}
            for _ in range(setup.num_groups)
        ]
        groups = [
            make_group(
                config,
                num_envs=setup.num_envs,
                policy_agents=setup.policy_agents,
                on_call=lambda call, index: None,
            )
            for _ in range(setup.num_groups)
        ]
        self.env_spec = groups[0].spec
        self.versions = dict.fromkeys(setup.policy_agents, 0)
        self.episodes: list[Any] = []
        self.calls: list[tuple[str, int]] = []
        self._open_streams(arena)
        several = self.env_spec.turn_based or len(self.env_spec.agents) > 1
        self.actor = ActorWorker(
            "actor/0",
            [
                Group(
                    self._recording(envs, index),  # type: ignore[arg-type]
                    [self._agent_batch(index, policy, several) for policy in setup.policy_agents],
                    seed=setup.seed + 100 * index,
                )
                for index, envs in enumerate(groups)
            ],
            InlineMetrics(self.episodes.append),
        )
        self.actor.stats = StatsTable(arena, ("actor/0",)).rows["actor/0"]

    def _recording(self, envs: EnvGroup, index: int) -> RecordingGroup:
        if self.setup.background:
            return BackgroundRecordingGroup(envs, self.records[index], self.calls)
        return RecordingGroup(envs, self.records[index])

    def _open_streams(self, arena: Arena) -> None:
        setup = self.setup
        self.clients: dict[str, InferenceClient] = {}
        self.servers: dict[str, InferenceServer] = {}
        self.sinks: dict[str, SampleSink] = {}
        self.sources: dict[str, SampleSource] = {}
        self.writers: dict[str, ParameterWriter] = {}
        self.readers: dict[str, ParameterReader] = {}
        self._taken: dict[str, int] = dict.fromkeys(setup.policy_agents, 0)
        for policy, agents in setup.policy_agents.items():
            rows = setup.num_envs * len(agents)
            agent = self._agent(agents[0])
            request_sender = InferenceSpec(
                name=policy,
                agent=agent,
                extras=EXTRAS,
                policy_state=STATE,
                rows=rows,
                slots_per_client=setup.num_groups,
                clients=("here",),
                servers=("here",),
            )
            create_inference(request_sender, arena)
            self.clients[policy] = InferenceClient(request_sender, arena, 0)
            self.servers[policy] = InferenceServer(request_sender, arena, 0)
            stream = SampleSpec(
                name=policy,
                record=TrajectorySpec(
                    length=setup.length,
                    rows=rows,
                    envs=setup.num_envs,
                    agent=agent,
                    extras=EXTRAS,
                    policy_state=STATE,
                    env_state=self.env_spec.env_state,
                    burn_in=setup.burn_in,
                    bootstrap=setup.bootstrap,
                    state_every=setup.state_every,
                    cut=setup.cut,  # type: ignore[arg-type]
                    turn_based=self.env_spec.turn_based,
                ),
                slots=2 * setup.num_groups,
                writers=("here",),
                readers=("here",),
                fragments_per_batch=setup.num_groups,
                max_policy_age=setup.age,
            )
            create_sample(stream, arena)
            self.sinks[policy] = SampleSink(stream, arena, 0)
            self.sources[policy] = SampleSource(stream, arena, 0)
            weights = ParameterSpec(policy=policy, shapes={"w": ((1,), "float32")})
            self.writers[policy] = ParameterWriter(weights, arena)
            self.readers[policy] = ParameterReader(weights, arena)
            self.writers[policy].publish(Snapshot(0, {"w": np.zeros(1)}))

    def _agent(self, name: str) -> AgentSpec:
        agent = self.env_spec.agents[name]
        if self.setup.stack == 1:
            return agent
        obs = tree_map(
            lambda leaf: msgspec.structs.replace(leaf, stack=self.setup.stack), agent.obs
        )
        return msgspec.structs.replace(agent, obs=obs)

    def _agent_batch(self, index: int, policy: str, several: bool) -> AgentBatch:
        agents = self.setup.policy_agents[policy]
        return AgentBatch(
            index=index,
            policy=policy,
            agent=self._agent(agents[0]),
            rows=self.setup.num_envs * len(agents),
            num_agents=len(agents),
            client=self.clients[policy],
            sink=self.sinks[policy],
            parameters=self.readers[policy],
            explore=np.ones(self.setup.num_envs * len(agents), np.float32),
            packs=several or self.setup.packs,
        )

    # -- running -----------------------------------------------------------------------------------

    def run(self, fragments: int) -> None:
        """Until every agent batch has written so many fragments."""
        for _ in range(100_000):
            result = self.actor.step()
            served = [self._serve(policy) for policy in self.setup.policy_agents]
            consumed = [self._consume(policy) for policy in self.setup.policy_agents]
            if all(
                len(record.fragments) >= fragments
                for group in self.records
                for record in group.values()
            ):
                return
            stuck = isinstance(result, Wait) and not any(served) and not any(consumed)
            assert not stuck, f"nothing makes progress: waiting for {result.name}"
        raise AssertionError("it never came to an end")

    def _serve(self, policy: str) -> bool:
        server = self.servers[policy]
        # Not always all at once, and not always at once.
        slots = server.poll(int(self._random.integers(0, 4)))
        if not slots:
            return False
        request, counts = server.gather(slots)
        rows = len(request.is_first)
        obs = [leaf.copy() for leaf in leaves(request.obs)]
        fed = np.where(request.is_first[:, None], 0.0, request.policy_state["h"])
        seen = np.stack([leaf.reshape(rows, -1).sum(1) for leaf in obs], 1).sum(1)
        state = np.stack([fed[:, 0] + 1, fed[:, 1] * 0.5 + seen], 1)
        action = self._actions(rows, request.action_mask)
        ids = np.arange(self._next_id, self._next_id + rows)
        self._next_id += rows
        version = self.versions[policy]
        at = 0
        for slot, count in zip(slots, counts, strict=True):
            record = self.records[slot][policy]
            needs = self.actor._batch_of[policy, slot].needs
            for i in range(count):
                asked = Asked(
                    tick=len(record.ticks) - 1,
                    row=i if needs is None else int(needs[i]),
                    obs=[leaf[at] for leaf in obs],
                    fed=request.policy_state["h"][at].copy(),
                    is_first=bool(request.is_first[at]),
                    state=state[at],
                    action=int(action[at]),
                    version=version,
                )
                record.asked[int(ids[at])] = asked
                record.executed.setdefault(asked.tick, {})[asked.row] = asked
                at += 1
        reply = InferenceReply(action, {"h": state}, {"id": ids}, version)
        server.answer(slots, counts, reply)
        return True

    def _actions(self, rows: int, mask: np.ndarray | None) -> np.ndarray:
        if mask is None:
            return self._random.integers(0, 2, rows)
        noise = self._random.random(mask.shape)
        return np.where(mask, noise, -1.0).argmax(1)

    def _consume(self, policy: str) -> bool:
        source, got = self.sources[policy], False
        while (item := source.take()) is not None:
            got = True
            trajectory = from_tree(tree_map(np.copy, to_tree(item.trajectory)))
            acted = trajectory.policy_version[trajectory.acted]
            if self.setup.age is not None and acted.size:
                used = slice(self.setup.burn_in, item.info.length - 1)
                loss = trajectory.policy_version[used][trajectory.acted[used]]
                lag = self.versions[policy] - loss.min(initial=self.versions[policy])
                assert lag <= self.setup.age
            record = self._record_of(policy, trajectory, item.info.length)
            record.fragments.append((trajectory, item.info.length))
            record.infos.append(item.info)
            record.consumed_at.append(self.versions[policy])
            item.release()
            self._taken[policy] += 1
            if self._taken[policy] % self.setup.num_groups == 0:
                source.acknowledge(self.setup.num_groups)
                self.versions[policy] += 1
                self.writers[policy].publish(Snapshot(self.versions[policy], {"w": np.zeros(1)}))
        return got

    def _record_of(self, policy: str, trajectory: Trajectory, length: int) -> BatchRecord:
        if self.setup.num_groups == 1:
            return self.records[0][policy]
        asked = trajectory.policy_version[:length] >= 0
        some = int(trajectory.extras["id"][:length][asked][0])
        return next(g[policy] for g in self.records if some in g[policy].asked)

    def close(self) -> None:
        self.actor.close()
