"""The parts of a workload in one plain loop: environments, policies and algorithms, without workers
and streams.

`srl bench` measures the cost of each part. A test compares the speed of the whole system with that
of the plain loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from srl.algorithms.protocol import Algorithm
from srl.data.fragment_writer import FragmentWriter
from srl.data.records import EnvStep, InferenceReply, InferenceRequest, SampleBatch
from srl.data.spec import action_array
from srl.data.stacking import push_frame
from srl.data.trajectory import TrajectorySpec
from srl.data.tree import Tree, leaves, tree_map
from srl.envs.check import random_actions
from srl.envs.registry import make_group, probe
from srl.experiment import Experiment
from srl.launch.plan.build import make_plan
from srl.plan import PolicyPlan
from srl.policies.protocol import Policy
from srl.resolve import resolve
from srl.settings import convert
from srl.workers.actor import ActorConfig
from srl.workers.configs import InferenceConfig
from srl.workers.policy import infer

NUM_RANDOM = 64
"""Number of random actions that are drawn in advance, so that the drawing is not measured."""


class PolicyParts:
    """The parts of one policy: its request, its actions, and the batch that it learns from."""

    def __init__(
        self,
        plan: PolicyPlan,
        policy: Policy,
        rows: int,
        trajectory: TrajectorySpec | None,
        device: str,
    ) -> None:
        self.policy = policy.to(device)
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(1)
        agent = plan.agent
        self._stacks = [leaf.stack for leaf in leaves(agent.obs)]
        mask = agent.action_mask
        self.request = InferenceRequest(
            obs=tree_map(lambda s: np.zeros((rows, *s.seen_shape), s.dtype), agent.obs),
            policy_state=tree_map(lambda s: np.zeros((rows, *s.shape), s.dtype), policy.state_spec),
            is_first=np.ones(rows, bool),
            explore=np.ones(rows, np.float32),
            action_mask=np.ones((rows, *mask.shape), bool) if mask else None,
        )
        stored = action_array(agent.action)
        self.action = np.zeros((rows, *stored.shape), stored.dtype)
        self.algorithm: Algorithm | None = None
        self._writer: FragmentWriter | None = None
        if trajectory is not None:
            kind = resolve(plan.algorithm_class)
            config = convert(plan.algorithm, kind.Config, "algorithm")
            self.algorithm = kind(self.policy, config, device=device, seed=1)
            self._slot = trajectory.allocate()
            self._writer = FragmentWriter(trajectory)
            self._writer.open(self._slot)
        self._pack()

    def _pack(self) -> None:
        """Prepares the weights for inference, as a policy worker does after it takes newer ones."""
        with torch.inference_mode():
            self.policy.pack()

    def see(self, step: EnvStep) -> None:
        """Copies what the environments show into the request for the next actions."""
        request = self.request
        if self._writer is not None:
            if self._writer.full:
                # The batch in this memory has been learned from.
                self._writer.close()
                self._writer.open(self._slot)
            self._writer.observe(step, leaves(request.policy_state))
        for target, source, stack in zip(
            leaves(request.obs), leaves(step.obs), self._stacks, strict=True
        ):
            if stack > 1:
                push_frame(target, source, step.is_first)
            else:
                target[...] = source
        request.is_first[...] = step.is_first
        if request.action_mask is not None and step.action_mask is not None:
            request.action_mask[...] = step.action_mask

    def choose(self) -> InferenceReply:
        """Chooses actions for the current request."""
        act = infer(self.policy, self.request, self.generator, self.device)
        return InferenceReply(
            action=act.action.cpu().numpy(),
            policy_state=None
            if act.policy_state is None
            else tree_map(_to_numpy, act.policy_state),
            extras=tree_map(_to_numpy, act.extras),
            policy_version=0,
        )

    def act(self) -> None:
        """Chooses actions and keeps them."""
        reply = self.choose()
        self.action[...] = reply.action
        tree_map(np.copyto, self.request.policy_state, reply.policy_state)
        if self._writer is not None:
            self._writer.act(reply.action, leaves(reply.extras), reply.policy_version, None)

    @property
    def full(self) -> bool:
        """Whether the batch is complete."""
        return self._writer is not None and self._writer.full

    @property
    def batch(self) -> SampleBatch:
        """The current batch; the next one overwrites it."""
        assert self._writer is not None
        spec = self._writer.spec
        return SampleBatch(
            data=self._slot,
            num_agents=spec.num_agents,
            burn_in=spec.burn_in,
            bootstrap=spec.bootstrap,
            state_every=spec.state_every,
            # As in a run, where actors are one version behind.
            learner_version=1,
        )

    def update(self) -> None:
        """Does one learner step on the current batch."""
        assert self.algorithm is not None
        for _ in self.algorithm.update(self.batch, 0.0):
            pass
        self._pack()


class Parts:
    """A group of environments, and the policies that play in it."""

    def __init__(self, experiment: Experiment, num_envs: int, device: str = "cpu") -> None:
        alone = dataclasses.replace(
            experiment,
            actor=ActorConfig(envs=num_envs, count=1, groups=1),
            inference=InferenceConfig(count=1),
            trainer=dataclasses.replace(experiment.trainer, count=1),
            layout="serial",
            dataflow="",
        )
        env_spec = probe(alone.env)
        plan, modules = make_plan(alone, env_spec, device)
        self.num_envs = num_envs
        self.steps_per_batch = 0
        """Environment steps that a batch holds."""
        self._spec = env_spec
        self.group = make_group(
            alone.env,
            num_envs=num_envs,
            policy_agents=plan.policy_agents,
            on_call=lambda call, index: None,
        )
        trajectories = {
            s.policy: s.spec.trajectory for s in plan.samples.values() if not s.has_tables
        }
        self.policies = {
            name: PolicyParts(
                policy,
                modules[name],
                num_envs * len(policy.agents),
                trajectories.get(name),
                device,
            )
            for name, policy in plan.policies.items()
        }
        for trajectory in trajectories.values():
            self.steps_per_batch = num_envs * trajectory.length
        self._acted = False
        self._last_steps = self.group.reset(1)
        self._observe(self._last_steps)

    def _observe(self, steps: dict[str, EnvStep]) -> None:
        for name, policy in self.policies.items():
            policy.see(steps[name])

    def act(self) -> None:
        """Chooses the actions of every policy."""
        for policy in self.policies.values():
            policy.act()

    def choose(self) -> None:
        """Does one forward pass of every policy; the results are not kept."""
        for policy in self.policies.values():
            policy.choose()

    def collect(self) -> None:
        """Plays until every policy that learns has its next batch."""
        while True:
            if self._acted:
                self._observe(
                    self.group.step({name: policy.action for name, policy in self.policies.items()})
                )
            self.act()
            self._acted = True
            if all(
                policy.full for policy in self.policies.values() if policy.algorithm is not None
            ):
                return

    def update(self) -> None:
        """Does one learner step of every policy that learns."""
        for policy in self.policies.values():
            if policy.algorithm is not None:
                policy.update()

    def loop(self) -> None:
        """Collects a batch, then does the learner step on it."""
        self.collect()
        self.update()

    def random_stepper(self) -> Callable[[], None]:
        """A call that steps the environments once, with random actions."""
        rng = np.random.default_rng(0)
        policies = self.group.policy_agents
        drawn = [
            random_actions(self._spec, self._last_steps, policies, rng) for _ in range(NUM_RANDOM)
        ]
        masked = any(agent.has_action_mask for agent in self._spec.agents.values())
        count = 0

        def step() -> None:
            nonlocal count
            count += 1
            actions = drawn[count % NUM_RANDOM]
            if masked:
                actions = random_actions(self._spec, self._last_steps, policies, rng)
            self._last_steps = self.group.step(actions)

        return step

    def close(self) -> None:
        """Closes the environments."""
        self.group.close()


def _to_numpy(tensor: Tree) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array
