"""Settings of DAgger, each checked when it is set."""

from __future__ import annotations

import math
from dataclasses import dataclass

from srl.algorithms.config import Sampling
from srl.algorithms.imitation_config import ImitationConfig
from srl.algorithms.off_policy_config import OffPolicyConfig
from srl.algorithms.suggestion import Suggestion, has_images
from srl.data.spec import EnvSpec
from srl.errors import ConfigError
from srl.graph import FragmentShape, Graph, Guide, WorkerGroup


@dataclass(frozen=True, kw_only=True)
class DAggerConfig(ImitationConfig, OffPolicyConfig):
    """Settings of DAgger, `--set algorithm.*`."""

    expert: str = ""
    """The run whose policy says what should have been done: RUN or RUN@CHECKPOINT[:POLICY]. A
    policy without memory, with the same observations and actions."""
    expert_workers: int = 1
    """Workers that ask the expert."""
    beta: float = 1.0
    """Share of the episodes in which the expert acts at the start. It falls to 0, and then the
    learner acts in all."""
    beta_steps: int = 2000
    """Environment steps until then; 0: the learner acts from the start."""
    updates_per_step: float = 1 / 16
    """Gradient steps for each environment step. With 256 samples of a gradient step each
    observation is learned from 16 times."""
    learning_starts: int = 256
    """Environment steps in the replay before the first gradient step."""
    fragment_length: int = 16
    """Ticks that actors write at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_share("beta")
        self._expect("beta_steps", self.beta_steps >= 0, "at least 0")
        enough = self.expert_workers >= self.replay_workers
        self._expect("expert_workers", enough, f"at least replay_workers ({self.replay_workers})")

    @classmethod
    def suggest(cls, spec: EnvSpec) -> Suggestion:
        """Normalised observations where they are plain numbers."""
        return Suggestion(envs=8, network={} if has_images(spec) else {"normalize_obs": True})

    def sampling(self) -> Sampling:
        """Short fragments, with policy state where windows begin."""
        every = math.gcd(self.fragment_length, self.sequence_length, self.burn_in)
        return Sampling(length=self.fragment_length, state_every=every, max_policy_age=None)

    def windows(self) -> FragmentShape:
        """The windows that a gradient step learns from."""
        return ImitationConfig.windows(self)

    def dataflow(self, graph: Graph, policy: str) -> Graph:
        """Puts workers that ask the expert between the actors and the replay."""
        if not self.expert:
            raise ConfigError(
                "algorithm.expert: expected the folder of a run whose policy is the expert, got "
                "none. Train one first, then --set algorithm.expert=FOLDER."
            )
        graph = super().dataflow(graph, policy)
        several = len({node.policy for node in graph.streams.values()}) > 1
        name = f"expert-{policy}" if several else "expert"
        group = WorkerGroup(
            kind="srl.workers.policy_relabeller:PolicyRelabeller",
            count=self.expert_workers,
            follows=(name,),
            loads={name: self.expert},
        )
        graph = graph.insert(name, group, into=policy)
        if not (self.beta and self.beta_steps):
            return graph
        learned_from = max(0, self.beta_steps - self.learning_starts)
        versions = max(1, round(learned_from * self.updates_per_step / self.gradient_steps))
        return graph.guide(policy, Guide(policy=name, share=self.beta, versions=versions))
