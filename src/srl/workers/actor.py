"""The actor: steps groups of environments in a ring, and writes what happens into fragments.

*Consumes* replies of the inference stream. *Waits for* replies, for a free slot of the sample
stream, for newer weights where policy age is bounded. *Unblocked by* policy workers and trainers.
*Produces* requests and fragments.

Whichever group has all its actions is stepped next, so that simulation and inference overlap. An
actor never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from srl.data.records import EnvStep, InferenceReply
from srl.data.spec import AgentSpec, action_array
from srl.data.stacking import push_frame
from srl.data.trajectory import FragmentWriter
from srl.data.tree import Tree, leaves, tree_map
from srl.envs.protocol import EnvGroup
from srl.errors import ConfigError
from srl.services.metrics_client import MetricsClient
from srl.services.parameters import ParameterReader
from srl.streams.inference import InferenceClient
from srl.streams.sample import SampleSink, Slot
from srl.workers.wiring import Context
from srl.workers.worker import MADE, Progress, Wait, Worker


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """How many environments, and how they are spread over actors."""

    envs: int = 16
    """Environments in all actors together; with the fragment's length this is the batch."""
    count: int = 0
    """Actor workers; 0 chooses by layout and cores."""
    groups: int = 0
    """Groups in each actor's ring: one is stepped while others wait for their actions; 0 chooses by
    layout."""

    def __post_init__(self) -> None:
        if self.envs < 1:
            raise ConfigError(f"actor.envs: expected at least 1, got {self.envs}.")
        for name in ("count", "groups"):
            if getattr(self, name) < 0:
                raise ConfigError(f"actor.{name}: expected at least 0, got {getattr(self, name)}.")


class Lane:
    """The rows of one group that one policy controls: its request, its fragment, its episodes."""

    def __init__(
        self,
        *,
        index: int,
        policy: str,
        agent: AgentSpec,
        rows: int,
        num_agents: int,
        client: InferenceClient,
        sink: SampleSink | None,
        parameters: ParameterReader | None,
        explore: float,
        packs: bool,
    ) -> None:
        self.index = index
        self.policy = policy
        self.num_agents = num_agents
        self.client = client
        self.sink = sink
        self.parameters = parameters
        self.writer = FragmentWriter(sink.spec.trajectory) if sink is not None else None
        self.slot: Slot | None = None
        self.request = client.request(index)
        self.request.explore.fill(explore)
        self.policy_state: Tree = tree_map(np.zeros_like, self.request.state)
        stored = action_array(agent.action)
        self.action = np.zeros((rows, *stored.shape), stored.dtype)
        self.needs: np.ndarray | None = None
        """Rows of the open request, or None for all of them."""
        self.num_needed = 0
        self.phase = "claim" if sink is not None else "ready"
        self.reply_version = -1
        self._stacks = [leaf.stack for leaf in leaves(agent.obs)]
        # Where agents come and go or take turns, only the rows that need it are sent. Elsewhere all
        # rows are, for the one final row in many that needs no action is cheaper than picking rows.
        self._packs = packs and max(self._stacks) == 1
        self._turn = np.zeros(rows, bool)
        self._first = np.zeros(rows, bool)
        """Rows whose episode has begun and that have not been asked about since."""
        self._episode_return = np.zeros(rows, np.float64)
        self._episode_length = np.zeros(rows, np.int64)

    # -- the fragment --------------------------------------------------------------------------

    def try_claim(self) -> str | None:
        """Starts the next fragment; returns what it waits for if it cannot."""
        assert self.sink is not None
        assert self.writer is not None
        newest = self.parameters.version if self.parameters is not None else 0
        slot = self.sink.claim(newest)
        if slot is None:
            return self.sink.waits_for
        self.slot = slot
        self.writer.open(slot.trajectory)
        if self.num_needed and self.reply_version < slot.oldest_version:
            # The action at hand came with the last fragment's bootstrap and would be too old here.
            self.submit()
        else:
            self.phase = "ready"
        return None

    def observe(self, step: EnvStep) -> None:
        """Notes what the environments showed, and asks for actions."""
        if step.is_first.any():
            # A row that is not on turn yet is asked later, with nothing of the last episode.
            self._first |= step.is_first
            for leaf in leaves(self.policy_state):
                leaf[step.is_first] = 0
        if self.writer is not None:
            self.writer.reward(step.reward)
            self.writer.observe(step, self.policy_state)
        self._turn[...] = step.turn
        self.needs, self.num_needed = None, step.turn.size
        if self._packs:
            rows = np.flatnonzero(step.turn | step.truncated)
            self.num_needed = rows.size
            self.needs = rows if rows.size < step.turn.size else None
        self._write_request(step)
        if self.num_needed:
            self.submit()
        else:
            self._after_reply()

    def submit(self) -> None:
        """Sends the request as it stands."""
        self.phase = "asked"
        self.client.submit(self.index, self.num_needed)

    def receive(self) -> None:
        """Takes the reply: actions, the next policy state, and what the fragment keeps."""
        reply = self.client.take(self.index)
        self.reply_version = reply.policy_version
        rows, count = self.needs, self.num_needed
        if rows is not None:
            reply = _first_rows(reply, count)
        if self.writer is not None:
            self.writer.act(reply, rows)
        if rows is None:
            self.action[...] = reply.action
            tree_map(np.copyto, self.policy_state, reply.state)
        else:
            self.action[rows] = reply.action
            for mine, new in zip(leaves(self.policy_state), leaves(reply.state), strict=True):
                mine[rows] = new
        self._after_reply()

    def _after_reply(self) -> None:
        self.phase = "ready"
        if self.writer is not None and self.writer.full:
            self._commit()

    def _commit(self) -> None:
        assert self.writer is not None
        assert self.slot is not None
        trajectory, spec = self.slot.trajectory, self.writer.spec
        length = self.writer.close()
        acted = trajectory.acted[spec.burn_in : length - 1]
        env_steps = acted.reshape(len(acted), -1, self.num_agents).any(axis=2).sum()
        self.slot.commit(length, int(env_steps))
        self.slot = None
        self.phase = "claim"

    def _write_request(self, step: EnvStep) -> None:
        request, rows = self.request, self.needs
        observed = zip(leaves(request.obs), leaves(step.obs), self._stacks, strict=True)
        for target, source, stack in observed:
            if stack > 1:
                # The stack lives in the request itself: moved on in place, with all rows.
                push_frame(target, source, step.is_first)
            elif rows is None:
                target[...] = source
            else:
                target[: len(rows)] = source[rows]
        pairs = [(request.is_first, self._first)]
        if request.action_mask is not None and step.action_mask is not None:
            pairs.append((request.action_mask, step.action_mask))
        pairs += zip(leaves(request.state), leaves(self.policy_state), strict=True)
        for target, source in pairs:
            if rows is None:
                target[...] = source
            else:
                target[: len(rows)] = source[rows]
        self._first[slice(None) if rows is None else rows] = False

    # -- episodes ------------------------------------------------------------------------------

    def count_episodes(self, step: EnvStep) -> tuple[list[float], list[int], np.ndarray]:
        """Returns and lengths of the episodes that just ended, and their rows."""
        self._episode_return += step.reward
        self._episode_length += self._turn
        final = np.flatnonzero(step.terminated | step.truncated)
        if not final.size:
            return [], [], final
        returns, lengths = (
            self._episode_return[final].tolist(),
            self._episode_length[final].tolist(),
        )
        self._episode_return[final] = 0.0
        self._episode_length[final] = 0
        return returns, lengths, final

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Tree]:
        """All that is not in the streams' own memory."""
        return {
            "writer": self.writer.state() if self.writer is not None else None,
            "slot": self.slot.index if self.slot is not None else None,
            "policy_state": tree_map(np.copy, self.policy_state),
            "action": self.action.copy(),
            "needs": None if self.needs is None else self.needs.copy(),
            "num_needed": self.num_needed,
            "phase": self.phase,
            "reply_version": self.reply_version,
            "turn": self._turn.copy(),
            "first": self._first.copy(),
            "episode_return": self._episode_return.copy(),
            "episode_length": self._episode_length.copy(),
        }

    def restore(self, state: dict[str, Tree]) -> None:
        """Goes on from `state`, after the streams' memory was restored."""
        if self.writer is not None:
            assert self.sink is not None
            if state["slot"] is not None:
                self.slot = self.sink.reopen(state["slot"])
            self.writer.restore(
                state["writer"], self.slot.trajectory if self.slot is not None else None
            )
        tree_map(np.copyto, self.policy_state, state["policy_state"])
        self.action[...] = state["action"]
        self.needs, self.num_needed = state["needs"], state["num_needed"]
        self.phase, self.reply_version = state["phase"], state["reply_version"]
        self._turn[...] = state["turn"]
        self._first[...] = state["first"]
        self._episode_return[...] = state["episode_return"]
        self._episode_length[...] = state["episode_length"]


def _first_rows(reply: InferenceReply, count: int) -> InferenceReply:
    """A reply cut to the rows that were asked for."""

    def cut(array: np.ndarray) -> np.ndarray:
        return array[:count]

    return InferenceReply(
        action=reply.action[:count],
        state=tree_map(cut, reply.state),
        extras=tree_map(cut, reply.extras),
        policy_version=reply.policy_version,
    )


class Group:
    """Environments that step together, with a lane for each policy."""

    def __init__(self, envs: EnvGroup, lanes: list[Lane], seed: int) -> None:
        self.envs = envs
        self.lanes = lanes
        self.seed = seed
        self.started = False

    @property
    def ready(self) -> bool:
        """Every lane has its slot and its actions."""
        return all(lane.phase == "ready" for lane in self.lanes)

    def step(self) -> dict[str, EnvStep]:
        """One tick of every environment (the first one resets them)."""
        if not self.started:
            self.started = True
            return self.envs.reset(self.seed)
        return self.envs.step({lane.policy: lane.action for lane in self.lanes})


class ActorWorker(Worker):
    """Steps whichever group is ready, and keeps the fragments of its lanes going."""

    def __init__(self, name: str, groups: list[Group], metrics: MetricsClient) -> None:
        self.name = name
        self.groups = groups
        self._metrics = metrics
        self._next = 0
        self._clients: dict[str, InferenceClient] = {}
        for lane in groups[0].lanes:
            self._clients[lane.policy] = lane.client
        self._lane_of = {
            (lane.policy, lane.index): lane for group in groups for lane in group.lanes
        }
        self._waits: dict[str, Wait] = {}

    @classmethod
    def build(cls, context: Context) -> ActorWorker:
        """An actor from its part of the plan."""
        plan = context.plan
        clients = {policy: context.inference_client(policy) for policy in context.worker.asks}
        sinks = {
            plan.samples[name].policy: context.sample_sink(name) for name in context.worker.writes
        }
        readers = {policy: context.parameter_reader(policy) for policy in sinks}
        several = plan.env_spec.turn_based or len(plan.env_spec.agents) > 1
        groups = []
        for index in range(plan.num_groups):
            lanes = [
                Lane(
                    index=index,
                    policy=policy,
                    agent=plan.policies[policy].agent,
                    rows=plan.envs_per_group * len(agents),
                    num_agents=len(agents),
                    client=clients[policy],
                    sink=sinks.get(policy),
                    parameters=readers.get(policy),
                    explore=1.0,
                    packs=several,
                )
                for policy, agents in plan.lanes.items()
            ]
            first_env = (context.worker.index * plan.num_groups + index) * plan.envs_per_group
            seed = int(plan.experiment["seed"]) * 1_000_003 + first_env
            groups.append(Group(context.env_group(plan.envs_per_group), lanes, seed))
        return cls(context.name, groups, context.metrics)

    def step(self) -> Progress | Wait:
        """Takes replies, starts fragments, and steps one group."""
        made = False
        for policy, client in self._clients.items():
            for index in client.poll():
                self._lane_of[policy, index].receive()
                made = True
        waits_for = "inference"
        for lane in self._lane_of.values():
            if lane.phase == "claim":
                blocked = lane.try_claim()
                if blocked is None:
                    made = True
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
        return self._waits.setdefault(waits_for, Wait(waits_for))

    def _step_group(self, group: Group) -> None:
        steps = group.step()
        acted = 0
        for lane in group.lanes:
            step = steps[lane.policy]
            returns, lengths, final = lane.count_episodes(step)
            if returns:
                self._report(lane, step, returns, lengths, final)
            lane.observe(step)
            acted += int(step.turn.sum())
        self.row.enter("running")
        self.row.add("count_env_steps", group.envs.num_envs)
        self.row.add("count_agent_steps", acted)

    def _report(
        self, lane: Lane, step: EnvStep, returns: list[float], lengths: list[int], rows: np.ndarray
    ) -> None:
        # A number is missing where an outer time limit ended the episode unseen by the environment.
        metrics = {
            name: [x for x in values[rows // lane.num_agents].tolist() if x == x]
            for name, values in (step.metrics or {}).items()
        }
        self.row.add("count_episodes", len(returns))
        self._metrics.episodes(self.name, lane.policy, returns, lengths, metrics)

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
        for lane in self._lane_of.values():
            if lane.sink is not None:
                lane.sink.close()
        for client in self._clients.values():
            client.close()
        for group in self.groups:
            group.envs.close()
