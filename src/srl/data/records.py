"""What travels, in the order of the journey of one observation.

Everything is a batch over *rows*; a row is one agent in one environment. A *group* is the
environments that an actor steps together. An *agent batch* is the rows of a group that one policy
controls; each has its own requests and fragments. Rows are env-major, so `[envs, agents]` is a
reshape. Trees are nested dicts of arrays.

    environment ─1 EnvStep─▶ actor ─2 InferenceRequest─▶ policy ─3 InferenceReply─▶ actor
        ─4 Trajectory─▶ trainer: 5 SampleBatch, 6 TrainResult ─7 Snapshot─▶ policy, and back to 2
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from srl.data.tree import Tree

NO_VERSION = -2
"""In place of the policy version of an action that no version of the policy has chosen, as in
episodes that were recorded before."""


@dataclass(slots=True)
class EnvStep:
    """1. What an environment group shows one agent batch after a tick. *Made in* `envs/`, *read in*
    `workers/actor.py`.

    Next-step autoreset: the tick after a final observation shows the first observation of a new
    episode, with reward 0. It ignores the row's action.
    """

    obs: Tree
    """[rows, ...] raw observations: a single frame where the spec says `stack`."""
    reward: np.ndarray
    """float32 [rows]: earned since the last tick."""
    terminated: np.ndarray
    """bool [rows]: this observation is final, and its value is 0."""
    truncated: np.ndarray
    """bool [rows]: this observation is final, but only because of a time limit."""
    is_first: np.ndarray
    """bool [rows]: this observation opens an episode."""
    alive: np.ndarray
    """bool [rows]: the agent is in the game (its final observation included)."""
    turn: np.ndarray
    """bool [rows]: the agent acts now. Never where the observation is final."""
    action_mask: np.ndarray | None = None
    """bool [rows, choices]: what the agent may do, or None."""
    env_state: Tree = None
    """[envs, ...] the environment's global state, or None."""
    metrics: dict[str, np.ndarray] | None = None
    """float [envs] each: declared episode metrics, valid where an episode just ended."""
    quiet: bool = False
    """True: no episode begins or ends in this tick, and every row is alive and acts. Most ticks are
    quiet, and cost less if the group sets this flag. False promises nothing."""


@dataclass(slots=True)
class InferenceRequest:
    """2. Rows that need an action. *Allocated in* and *carried by* `streams/inference.py`, *filled
    by* the actor, *read in* the policy worker.

    With several agents, or turns, rows are packed: the request has only those that act now, or
    whose truncation needs a value. With one agent, or a frame stack, it has all rows.
    """

    obs: Tree
    """[rows, ...] as the policy sees them: stacked where the spec says so."""
    policy_state: Tree
    """[rows, ...] policy state, or None. The policy zeroes it where `is_first`."""
    is_first: np.ndarray
    """bool [rows]."""
    explore: np.ndarray
    """float32 [rows]: 1 samples from the policy, 0 is greedy. The policy decides what a value in
    between means."""
    action_mask: np.ndarray | None = None
    """bool [rows, choices] or None."""


@dataclass(slots=True)
class InferenceReply:
    """3. What the policy chose. *Allocated in* and *carried by* `streams/inference.py`, *filled by*
    the policy worker with the arrays of the policy's output, *read in* the actor."""

    action: np.ndarray
    """[rows, ...] as the action spec stores it."""
    policy_state: Tree
    """[rows, ...] the policy state after this step, or None."""
    extras: Tree
    """[rows, ...] arrays that the algorithm asked for: log_prob and value for PPO."""
    policy_version: int = -1
    """The number of learner steps that made the weights of this reply."""


@dataclass(slots=True)
class Trajectory:
    """4. A fragment: consecutive ticks of one agent batch, [ticks, rows]. *Made in*
    `data/fragment_writer.py` by the actor, *carried by* `streams/sample.py`, *read in* the trainer.

    The final observation of an episode is a tick of its own with reward 0. So along the alive ticks
    of a row `terminated[t] | truncated[t] == is_first[t + 1]`. The last `bootstrap` ticks are in
    the next fragment, too; here they only bootstrap. The first `burn_in` ticks only warm up the
    policy state.
    """

    obs: Tree
    """[ticks, rows, ...]; a leaf with `stack=n` has n - 1 earlier frames in front: [ticks + n - 1,
    rows, ...]."""
    is_first: np.ndarray
    """bool [ticks, rows]."""
    terminated: np.ndarray
    """bool [ticks, rows]: this observation is final; its value is 0."""
    truncated: np.ndarray
    """bool [ticks, rows]: this observation is final; its value bootstraps."""
    alive: np.ndarray
    """bool [ticks, rows]."""
    acted: np.ndarray
    """bool [ticks, rows]: an action was taken here. No loss ever sees a tick without an action."""
    action: np.ndarray
    """[ticks, rows, ...]."""
    reward: np.ndarray
    """float32 [ticks, rows]: earned by the action of this tick, until the row's next action."""
    policy_version: np.ndarray
    """int64 [ticks, rows]: -1 where the policy was not asked; NO_VERSION where no version of it has
    chosen the action."""
    extras: Tree
    """[ticks, rows, ...]."""
    policy_state: Tree
    """[ceil(ticks / state_every), rows, ...] policy state as it was fed in, or None."""
    action_mask: np.ndarray | None = None
    """bool [ticks, rows, choices] or None."""
    env_state: Tree = None
    """[ticks, envs, ...] the environment's global state, or None."""
    row: Tree = None
    """[rows, ...] what a row has once, not at every tick: a replayed row's key and weight. None in
    the fragments of actors."""


@dataclass(slots=True)
class SampleBatch:
    """5. Fragments side by side, [ticks, B]. *Made in* `data/batching.py`, *read in* the trainer by
    the algorithm."""

    data: Trajectory
    """All fragments as one: the rows axis of every field has the rows of all fragments."""
    num_fragments: int = 1
    """Fragments in the batch. Each has the same number of rows, next to each other."""
    num_agents: int = 1
    """Agents of the policy in each environment. Rows are env-major, so `[B // num_agents,
    num_agents]` is a reshape."""
    burn_in: int = 0
    """Leading ticks that no loss sees."""
    bootstrap: int = 1
    """Last ticks that no loss sees: targets look ahead into them."""
    state_every: int = 1
    """`data.policy_state[i]` belongs to tick `i * state_every`."""
    learner_version: int = -1
    """The policy version that learns from this batch; with -1 no data counts as older than it."""

    @property
    def used(self) -> slice:
        """The ticks that a loss sees: all without burn-in and bootstrap."""
        return slice(self.burn_in, -self.bootstrap)

    @property
    def num_steps(self) -> int:
        """Agent steps that a loss sees: used ticks with an action."""
        return int(self.data.acted[self.used].sum())


@dataclass(slots=True)
class TrainResult:
    """6. What one learner step did. *Made in* `algorithms/`, *read in* the trainer."""

    metrics: dict[str, float]
    priorities: np.ndarray | None = None
    """float [B] the new priority of each row, or None. It returns with the row's key."""


@dataclass(slots=True)
class Snapshot:
    """7. Weights at one version. *Made in* the trainer, *carried by* `services/parameters.py`. A
    policy worker reads them into its own arrays, an evaluator as a Snapshot."""

    policy_version: int
    weights: dict[str, Any] = field(default_factory=dict)
    """Flat dict of numpy arrays: parameters and buffers, including normaliser statistics."""
