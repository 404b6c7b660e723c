"""The actor's lanes: one policy's rows of one group, from observation to fragment."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from srl.data.flags import any_true
from srl.data.records import EnvStep
from srl.data.spec import AgentSpec, action_array
from srl.data.stacking import push_frame
from srl.data.trajectory import FragmentWriter
from srl.data.tree import Tree, leaves, tree_map
from srl.services.parameters import ParameterReader
from srl.streams.inference import InferenceClient
from srl.streams.sample import SampleSink, Slot


class Ended(NamedTuple):
    """Episodes that ended in one tick."""

    rows: np.ndarray
    returns: list[float]
    lengths: list[int]


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
        self.reply = client.reply(index)
        self.policy_state: Tree = tree_map(np.zeros_like, self.request.state)
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
                # Stacks of rows that are not in the game yet are sent along: zeros, not NaN.
                seen.fill(0)
        # Where agents come and go or take turns, only the rows that need it are sent. Elsewhere all
        # rows are, for the one final row in many that needs no action is cheaper than picking rows.
        self._packs = packs and max(self._stacks) == 1
        self._turn = np.zeros(rows, bool)
        self._all_turn = False
        self._first = np.zeros(rows, bool)
        """Rows whose episode has begun and that have not been asked about since."""
        self._any_first = True
        """Whether there may be such rows, in the request or still to be asked about."""
        self._episode_return = np.zeros(rows, np.float64)
        self._episode_length = np.zeros(rows, np.int64)
        self._uncounted = 0
        """Ticks in which every row acted, to be added to the lengths."""
        self._list_arrays()

    def _list_arrays(self) -> None:
        """Leaves that stay where they are, listed once, so that a tick walks through no trees."""
        self._states: list[np.ndarray] = leaves(self.policy_state)
        self._new_states: list[np.ndarray] = leaves(self.reply.state)
        self._extras: list[np.ndarray] = leaves(self.reply.extras)
        self._seen: list[np.ndarray] = leaves(self.request.obs)
        self._fed = list(zip(leaves(self.request.state), self._states, strict=True))

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
        too_old = self.num_needed and self.reply_version < slot.oldest_version
        if too_old and self.writer.overlaps:
            # The action at hand came with the last fragment's bootstrap and would be too old here.
            self.submit()
        else:
            self.phase = "ready"
        return None

    def observe(self, step: EnvStep) -> None:
        """Notes what the environments showed, and asks for actions."""
        if not step.quiet and any_true(step.is_first):
            # A row that is not on turn yet is asked later, with nothing of the last episode.
            self._first |= step.is_first
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
        """Sends the request as it stands."""
        self.phase = "asked"
        self.client.submit(self.index, self.num_needed)

    def receive(self) -> None:
        """Takes the reply: actions, the next policy state, and what the fragment keeps."""
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
        trajectory, spec = self.slot.trajectory, self.writer.spec
        length = self.writer.close()
        acted = trajectory.acted[spec.burn_in : length - 1]
        env_steps = acted.reshape(len(acted), -1, self.num_agents).any(axis=2).sum()
        self.slot.commit(length, int(env_steps))
        self.slot = None
        self.phase = "claim"

    def begin_again(self) -> None:
        """Forgets the episodes under way, and begins the fragment again in the slot it has."""
        if self.writer is not None and self.slot is not None:
            self.writer = FragmentWriter(self.writer.spec)
            self.writer.open(self.slot.trajectory)
        self.phase = "ready"
        self.needs, self.num_needed = None, 0
        self._turn.fill(False)
        self._first.fill(False)
        self._any_first, self._all_turn, self._uncounted = True, False, 0
        self._episode_return.fill(0.0)
        self._episode_length.fill(0)

    def _write_request(self, step: EnvStep) -> None:
        rows, mask = self.needs, self.request.action_mask
        for target, source, stack in zip(self._seen, leaves(step.obs), self._stacks, strict=True):
            if stack > 1:
                # The stack lives in the request itself: moved on in place, with all rows.
                push_frame(target, source, step.is_first)
            else:
                _put(target, source, rows)
        if mask is not None and step.action_mask is not None:
            _put(mask, step.action_mask, rows)
        for target, source in self._fed:
            _put(target, source, rows)
        if self._any_first or not step.quiet:
            _put(self.request.is_first, self._first, rows)
            # Rows that are not in this request may still hold what was put there earlier.
            self._any_first = rows is not None or any_true(self._first)
            if rows is None:
                self._first.fill(False)
            else:
                self._first[rows] = False

    # -- episodes ------------------------------------------------------------------------------

    def count_episodes(self, step: EnvStep) -> Ended | None:
        """The episodes that just ended, if any did."""
        self._episode_return += step.reward
        if self._all_turn:
            self._uncounted += 1
        else:
            self._episode_length += self._turn
        if step.quiet or not (any_true(step.terminated) or any_true(step.truncated)):
            return None
        self._count_quiet_ticks()
        rows = np.flatnonzero(step.terminated | step.truncated)
        ended = Ended(
            rows, self._episode_return[rows].tolist(), self._episode_length[rows].tolist()
        )
        self._episode_return[rows] = 0.0
        self._episode_length[rows] = 0
        return ended

    def _count_quiet_ticks(self) -> None:
        self._episode_length += self._uncounted
        self._uncounted = 0

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Tree]:
        """All that is not in the streams' own memory."""
        self._count_quiet_ticks()
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
        self._any_first, self._all_turn, self._uncounted = True, False, 0
        self._episode_return[...] = state["episode_return"]
        self._episode_length[...] = state["episode_length"]


def _put(target: np.ndarray, source: np.ndarray, rows: np.ndarray | None) -> None:
    """Copies all rows, or packs those that are named."""
    if rows is None:
        target[...] = source
    else:
        target[: rows.size] = source[rows]
