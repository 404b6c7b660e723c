"""A relabeller that asks a policy what it would do, and writes that into fragments.

*Consumes* fragments of a sample stream. *Waits for* fragments, for a free slot of the next stream,
and for the policy's weights. *Unblocked by* actors, trainers, and whoever publishes the weights.
*Produces* the same fragments, in which every action is the one that the policy takes greedily.
"""

from __future__ import annotations

import numpy as np
import torch

from srl.data.records import InferenceRequest, Trajectory
from srl.data.spec import ArraySpec
from srl.data.stacking import stack_index
from srl.data.tree import tree_map
from srl.errors import ConfigError
from srl.policies.protocol import PolicyOutput
from srl.workers.policy import infer
from srl.workers.relabeller import Relabeller
from srl.workers.wiring import Context
from srl.workers.worker import StepResult, Wait


class PolicyRelabeller(Relabeller):
    """Replaces the actions of fragments by those of the one policy that it follows.

    A subclass that stores something else of what the policy says overrides `replace`.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        (name,) = context.worker.follows
        self._policy = context.make_policy(name)
        if self._policy.state_spec is not None:
            raise ConfigError(
                f"policy {name!r}: expected one without memory, because it is asked about single "
                "observations, got one with policy state. Name a run of a feed-forward policy."
            )
        self._parameters = context.parameter_reader(name)
        self._version = -1
        self._weights = {key: t.numpy() for key, t in self._policy.state_dict().items()}
        self._generator = torch.Generator().manual_seed(context.seed)
        self._wait_weights = Wait("weights")

    def step(self) -> StepResult | Wait:
        """Relabels one fragment with the newest weights."""
        if self._parameters.version < 0:
            return self._wait_weights
        if self._parameters.version != self._version:
            self._version = self._parameters.read(self._weights)
            with torch.inference_mode():
                self._policy.pack()
        return super().step()

    def relabel(self, fragment: Trajectory, length: int) -> None:
        """Asks the policy about every observation on which an action was taken."""
        index = np.flatnonzero(fragment.acted[:length])
        if index.size:
            self.replace(fragment, index, self._ask(fragment, length, index))

    def replace(self, fragment: Trajectory, index: np.ndarray, output: PolicyOutput) -> None:
        """Writes what the policy said at these ticks and rows, by tick * rows + row."""
        actions = fragment.action.reshape(-1, *fragment.action.shape[2:])
        actions[index] = output.action.numpy()

    def _ask(self, fragment: Trajectory, length: int, index: np.ndarray) -> PolicyOutput:
        tick, row = np.divmod(index, self.spec.rows)
        is_first = fragment.is_first[:length]

        def seen(spec: ArraySpec, stored: np.ndarray) -> np.ndarray:
            if spec.stack == 1:
                found: np.ndarray = stored[tick, row]
                return found
            frames = stack_index(is_first, spec.stack)[tick, row]
            stacked: np.ndarray = stored[frames, row[:, None]]
            return stacked

        mask = fragment.action_mask
        request = InferenceRequest(
            obs=tree_map(seen, self.spec.agent.obs, fragment.obs),
            policy_state=None,
            is_first=is_first[tick, row],
            explore=np.zeros(index.size, np.float32),
            action_mask=None if mask is None else mask[tick, row],
        )
        return infer(self._policy, request, self._generator, torch.device("cpu"))
