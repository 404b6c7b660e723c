"""Settings of DQN, each checked when it is set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from srl.algorithms.config import RewardClip, Sampling
from srl.algorithms.gradient_config import GradientConfig
from srl.algorithms.off_policy_config import OffPolicyConfig
from srl.algorithms.suggestion import Suggestion, has_images
from srl.data.spec import EnvSpec
from srl.graph import FragmentShape

Exploration = Literal["schedule", "per_environment"]


@dataclass(frozen=True, kw_only=True)
class DQNConfig(OffPolicyConfig, GradientConfig):
    """Settings of DQN, `--set algorithm.*`."""

    network: ClassVar[str] = "q_network"
    gives_priorities: ClassVar[bool] = True

    learning_rate: float = 5e-4
    """The optimizer's step size at the start."""
    gamma: float = 0.99
    """Discount per action."""
    n_steps: int = 1
    """Rewards in a target, before it bootstraps from a value."""
    double: bool = True
    """The network chooses the action that the target network values (van Hasselt et al. 2016)."""
    target_steps: int = 250
    """Gradient steps between two moves of the target network."""
    tau: float = 1.0
    """Share of the difference by which the target network moves: 1 is a copy. For soft updates set
    target_steps=1 and, for example, 0.005."""
    value_rescaling: bool = False
    """The network predicts rescaled values, for rewards of any size (Pohlen et al. 2018)."""
    huber_delta: float | None = 1.0
    """Errors above this count linearly, below it by their square; unset: all by their square.
    Quantiles need it."""
    clip_reward: RewardClip = None
    """`sign` learns from the sign of rewards, a number bounds them; unset: rewards as they are."""
    max_grad_norm: float | None = 10.0
    """Longer gradients are shortened to this norm; unset: never."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    exploration: Exploration = "schedule"
    """Who acts at random: all environments alike, by a schedule, or each with a probability of its
    own (Ape-X)."""
    epsilon_start: float = 1.0
    """`schedule`: the probability of a random action until learning starts."""
    epsilon_end: float = 0.05
    """`schedule`: the probability at the end."""
    epsilon_steps: int = 10_000
    """`schedule`: environment steps from start to end, after learning_starts."""
    epsilon_base: float = 0.4
    """`per_environment`: environment i of n has epsilon_base ** (1 + epsilon_alpha * i / (n - 1)),
    always."""
    epsilon_alpha: float = 7.0
    """`per_environment`: the exponent above."""
    sequence_length: int = 1
    """Ticks of a window at which actions are learned from. A network with memory needs several, and
    is trained through all of them at once (R2D2: 80)."""
    burn_in: int = 0
    """Ticks in front of these that warm up the memory, without gradient (R2D2: 40)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_count("n_steps", "target_steps", "epsilon_steps", "sequence_length")
        self._expect_positive("adam_eps")
        self._expect_positive_or_nothing("huber_delta")
        self._expect_share("gamma", "epsilon_start", "epsilon_end", "epsilon_base")
        self._expect("tau", 0 < self.tau <= 1, "a number above 0 and up to 1")
        self._expect("epsilon_alpha", self.epsilon_alpha >= 0, "at least 0")
        self._expect("burn_in", self.burn_in >= 0, "at least 0")
        self._expect_one_of("exploration", Exploration)
        self._expect_reward_clip("clip_reward")

    @classmethod
    def suggest(cls, spec: EnvSpec) -> Suggestion:
        """The settings of Mnih et al. (2015) for images, with Adam; normalised observations for
        everything else."""
        algorithm: dict[str, Any] = {}
        if spec.turn_based:
            # An action is followed by ticks of others before the agent acts again.
            algorithm["sequence_length"] = 2 * len(spec.agents)
        if not has_images(spec):
            return Suggestion(envs=8, algorithm=algorithm, network={"normalize_obs": True})
        algorithm |= {
            "learning_rate": 1e-4,
            "batch_size": 32,
            "learning_starts": 10_000,
            "target_steps": 1000,
            "epsilon_steps": 250_000,
            "epsilon_end": 0.01,
            "clip_reward": "sign",
        }
        return Suggestion(envs=8, algorithm=algorithm)

    def sampling(self) -> Sampling:
        """Short fragments, with policy state where windows begin."""
        every = math.gcd(self.fragment_length, self.sequence_length, self.burn_in)
        return Sampling(length=self.fragment_length, state_every=every, max_policy_age=None)

    def windows(self) -> FragmentShape:
        """Burn-in, the ticks to learn from, and those to bootstrap from."""
        return FragmentShape(
            length=self.sequence_length,
            burn_in=self.burn_in,
            bootstrap=self.n_steps,
            state_every=math.gcd(self.sequence_length, self.burn_in),
        )

    def explore(self, num_envs: int) -> list[float]:
        """Alike for a schedule; else from much to little, environment by environment."""
        if self.exploration == "schedule":
            return [1.0] * num_envs
        last = max(1, num_envs - 1)
        base, alpha = self.epsilon_base, self.epsilon_alpha
        return [base ** (1.0 + alpha * i / last) for i in range(num_envs)]

    def epsilon_at(self, gradient_steps: int) -> float:
        """The epsilon of the policy after so many gradient steps."""
        if self.exploration == "per_environment":
            return 1.0
        done = min(1.0, gradient_steps / self.updates_per_step / self.epsilon_steps)
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * done
