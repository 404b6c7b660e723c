"""Agent batches: one policy's rows of one group, from observation to fragment."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from srl.data.flags import any_true
from srl.data.fragment_writer import FragmentWriter
from srl.data.records import EnvStep
from srl.data.spec import AgentSpec, action_array
from srl.data.stacking import push_frame
from srl.data.tree import Tree, leaves, tree_map
from srl.services.parameters import ParameterReader
from srl.streams.inference import InferenceClient
from srl.streams.sample import SampleSink, Slot
from srl.streams.sample_queue import FragmentInfo


class EndedEpisodes(NamedTuple):
    """Episodes that ended in one tick."""

    rows: np.ndarray
    returns: list[float]
    lengths: list[int]
    agents: list[int]
    """Index of each episode's agent among the policy's agents; empty if the policy has one."""


class AgentBatch:
    """The rows of one group that one policy controls: their request, fragment and episodes."""

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
        explore: np.ndarray,
        packs: bool,
        incarnation: int = 0,
    ) -> None:
        self.index = index
        self.policy = policy
        self.num_agents = num_agents
        self.client = client
        self.sink = sink
        self.parameters = parameters
        self.writer = FragmentWriter(sink.spec.trajectory) if sink is not None else None
        self.slot: Slot | None = None
        self._sequence = incarnation << 40
        """Sequence of the current fragment. It starts above those of earlier incarnations."""
        self.num_dropped = 0
        """Actions that the open fragment lacks, because they were too old for it."""
        self.request = client.request(index)
        self.request.explore[...] = explore
        self._explore = explore
        self.reply = client.reply(index)
        self.policy_state: Tree = tree_map(np.zeros_like, self.request.policy_state)
        stored = action_array(agent.action)
        self.action = np.zeros((rows, *stored.shape), stored.dtype)
        self.needs: np.ndarray | None = None
        """Rows of the open request, or None for all of them."""
        self.num_needed = 0
        self.phase = "claim" if sink is not None else "ready"
        self.reply_version = -1
        self._stacks = [leaf.stack for leaf in leaves(agent.obs)]
        for seen, stack in zip(leaves(self.request.obs), self._stacks, strict=True):
            if stack > 1:
                # Rows that are not in the game yet are sent too: their stacks must not hold NaN.
                seen.fill(0)
        # Where agents come and go or take turns, only rows that need a reply are sent. Elsewhere
        # all rows are sent: a few final rows without need cost less than selecting rows.
        self._packs = packs and max(self._stacks) == 1
        self._turn = np.zeros(rows, bool)
        self._all_turn = False
        self._new_episode = np.zeros(rows, bool)
        """Rows whose episode has begun, and which no request has held since."""
        self._any_new_episode = True
        """Whether there may be such rows, in the request or still to be sent."""
        self._episode_return = np.zeros(rows, np.float64)
        self._episode_length = np.zeros(rows, np.int64)
        self._uncounted_ticks = 0
        """Ticks in which every row acted, and which the lengths do not count yet."""
        self._list_arrays()

    def _list_arrays(self) -> None:
        """Lists the leaves whose memory never moves, so that a tick walks through no trees."""
        self._states: list[np.ndarray] = leaves(self.policy_state)
        self._new_states: list[np.ndarray] = leaves(self.reply.policy_state)
        self._extras: list[np.ndarray] = leaves(self.reply.extras)
        self._request_obs: list[np.ndarray] = leaves(self.request.obs)
        self._request_states = list(
            zip(leaves(self.request.policy_state), self._states, strict=True)
        )

    # -- the fragment --------------------------------------------------------------------------

    def try_claim(self) -> str | None:
        """Starts the next fragment; if it cannot, returns the name of what it waits for."""
        assert self.sink is not None
        assert self.writer is not None
        newest = self.parameters.version if self.parameters is not None else 0
        slot = self.sink.claim(newest)
        if slot is None:
            return self.sink.waits_for
        self.slot = slot
        overlaps = self.writer.overlaps
        self.writer.open(slot.trajectory)
        self.num_dropped = 0
        if overlaps and self.writer.spec.turn_based:
            oldest = slot.oldest_version
            self.num_dropped = self.writer.drop_open_actions(oldest, self._turn, self._states)
        # A fragment that lacks an action does not go on where the one before ended.
        self._sequence += 1 if overlaps and not self.num_dropped else 2
        too_old = self.num_needed and self.reply_version < slot.oldest_version
        if too_old and overlaps:
            # The current action came with the last fragment's bootstrap and is too old here.
            self.submit()
        else:
            self.phase = "ready"
        return None

    def observe(self, step: EnvStep) -> None:
        """Writes a tick into the fragment, and requests actions for it."""
        if not step.quiet and any_true(step.is_first):
            # A row that is not on turn yet is sent later, without state of the last episode.
            self._new_episode |= step.is_first
            for leaf in self._states:
                leaf[step.is_first] = 0
        if self.writer is not None:
            self.writer.observe(step, self._states)
        self._turn[...] = step.turn
        self._all_turn = step.quiet
        self.needs, self.num_needed = None, step.turn.size
        if self._packs and not step.quiet:
            rows = np.flatnonzero(step.turn | step.truncated)
            self.num_needed = rows.size
            self.needs = rows if rows.size < step.turn.size else None
        self._write_request(step)
        if self.num_needed:
            self.submit()
        else:
            self._after_reply()

    def submit(self) -> None:
        """Sends the request as it is written."""
        self.phase = "asked"
        self.client.submit(self.index, self.num_needed)

    def receive(self) -> None:
        """Takes the reply: actions, the next policy state, and what the fragment stores."""
        self.reply_version = version = self.client.take(self.index).policy_version
        rows, action = self.needs, self.reply.action
        extras, states = self._extras, self._new_states
        if rows is None:
            self.action[...] = action
            for mine, new in zip(self._states, states, strict=True):
                mine[...] = new
        else:
            action = action[: rows.size]
            extras = [leaf[: rows.size] for leaf in extras]
            self.action[rows] = action
            for mine, new in zip(self._states, states, strict=True):
                mine[rows] = new[: rows.size]
        if self.writer is not None:
            self.writer.act(action, extras, version, rows)
        self._after_reply()

    def _after_reply(self) -> None:
        self.phase = "ready"
        if self.writer is not None and self.writer.full:
            self._commit()

    def _commit(self) -> None:
        assert self.writer is not None
        assert self.slot is not None
        assert self.sink is not None
        trajectory, spec = self.slot.trajectory, self.writer.spec
        length = self.writer.close()
        acted = trajectory.acted[spec.burn_in : length - spec.bootstrap]
        # Agents that act at the same time share a step. Where they take turns, an action that moved
        # to another agent's tick is still a step of its own.
        together = 1 if spec.turn_based else self.num_agents
        env_steps = acted.reshape(len(acted), -1, together).any(axis=2).sum()
        origin = self.sink.origin(self.index)
        self.slot.commit(FragmentInfo(length, int(env_steps), origin, self._sequence))
        self.slot = None
        self.phase = "claim"

    def restart(self) -> None:
        """Drops the unfinished episodes, and begins the fragment again in the same slot."""
        if self.writer is not None and self.slot is not None:
            self.writer = FragmentWriter(self.writer.spec)
            self.writer.open(self.slot.trajectory)
            self._sequence += 1
        self.phase = "ready"
        self.needs, self.num_needed = None, 0
        self._turn.fill(False)
        self._new_episode.fill(False)
        self._any_new_episode, self._all_turn, self._uncounted_ticks = True, False, 0
        self._episode_return.fill(0.0)
        self._episode_length.fill(0)

    def _write_request(self, step: EnvStep) -> None:
        rows, mask = self.needs, self.request.action_mask
        for target, source, stack in zip(
            self._request_obs, leaves(step.obs), self._stacks, strict=True
        ):
            if stack > 1:
                # The request itself holds the stack: all rows move on in place.
                push_frame(target, source, step.is_first)
            else:
                _copy_rows(target, source, rows)
        if mask is not None and step.action_mask is not None:
            _copy_rows(mask, step.action_mask, rows)
        for target, source in self._request_states:
            _copy_rows(target, source, rows)
        if self._packs:
            _copy_rows(self.request.explore, self._explore, rows)
        if self._any_new_episode or not step.quiet:
            _copy_rows(self.request.is_first, self._new_episode, rows)
            # Rows of the memory that this request does not use may still hold earlier flags.
            self._any_new_episode = rows is not None or any_true(self._new_episode)
            if rows is None:
                self._new_episode.fill(False)
            else:
                self._new_episode[rows] = False

    # -- episodes ------------------------------------------------------------------------------

    def count_episodes(self, step: EnvStep) -> EndedEpisodes | None:
        """Counts the rewards and steps of a tick; returns the episodes that it ended, if any."""
        self._episode_return += step.reward
        if self._all_turn:
            self._uncounted_ticks += 1
        else:
            self._episode_length += self._turn
        if step.quiet or not (any_true(step.terminated) or any_true(step.truncated)):
            return None
        self._count_quiet_ticks()
        rows = np.flatnonzero(step.terminated | step.truncated)
        ended = EndedEpisodes(
            rows,
            self._episode_return[rows].tolist(),
            self._episode_length[rows].tolist(),
            (rows % self.num_agents).tolist() if self.num_agents > 1 else [],
        )
        self._episode_return[rows] = 0.0
        self._episode_length[rows] = 0
        return ended

    def _count_quiet_ticks(self) -> None:
        self._episode_length += self._uncounted_ticks
        self._uncounted_ticks = 0

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Tree]:
        """All state that is not in the streams' own memory."""
        self._count_quiet_ticks()
        return {
            "writer": self.writer.state() if self.writer is not None else None,
            "slot": self.slot.index if self.slot is not None else None,
            "sequence": self._sequence,
            "policy_state": tree_map(np.copy, self.policy_state),
            "action": self.action.copy(),
            "needs": None if self.needs is None else self.needs.copy(),
            "num_needed": self.num_needed,
            "phase": self.phase,
            "reply_version": self.reply_version,
            "turn": self._turn.copy(),
            "first": self._new_episode.copy(),
            "episode_return": self._episode_return.copy(),
            "episode_length": self._episode_length.copy(),
        }

    def restore(self, state: dict[str, Tree]) -> None:
        """Continues from `state`, after the streams' memory was restored."""
        if self.writer is not None:
            assert self.sink is not None
            if state["slot"] is not None:
                self.slot = self.sink.reopen(state["slot"])
            self.writer.restore(
                state["writer"], self.slot.trajectory if self.slot is not None else None
            )
        self._sequence = state["sequence"]
        tree_map(np.copyto, self.policy_state, state["policy_state"])
        self.action[...] = state["action"]
        self.needs, self.num_needed = state["needs"], state["num_needed"]
        self.phase, self.reply_version = state["phase"], state["reply_version"]
        self._turn[...] = state["turn"]
        self._new_episode[...] = state["first"]
        self._any_new_episode, self._all_turn, self._uncounted_ticks = True, False, 0
        self._episode_return[...] = state["episode_return"]
        self._episode_length[...] = state["episode_length"]


def _copy_rows(target: np.ndarray, source: np.ndarray, rows: np.ndarray | None) -> None:
    """Copies all rows, or packs the given rows at the front."""
    if rows is None:
        target[...] = source
    else:
        target[: rows.size] = source[rows]
