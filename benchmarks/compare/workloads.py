"""What is measured, as data: the workloads of `srl bench` and the tasks that are learned.

Every runner reads its settings here, in its peer's own environment, so this file needs nothing but
Python. A test keeps the workloads equal to those of `srl bench`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """PPO's settings for one environment; those of the peers are named differently, but equal."""

    env: str
    """A key of `ENVPOOL`, or simple_tag."""
    num_envs: int
    horizon: int
    """Steps of each environment in a batch."""
    epochs: int
    minibatches: int
    learning_rate: float = 2.5e-4
    entropy_coefficient: float = 0.01
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    lstm: int = 0
    """Width of the memory after the network's 64x64 layers; 0: none."""
    sequence: int = 0
    """Steps that the memory is trained through at once."""
    anneal_steps: int = 0
    """The learning rate goes to 0 linearly over so many environment steps; 0: it is constant."""
    normalize: bool = False
    """Observations and returns by their running deviation (learning only: no workload does)."""
    log_std: float = 0.0
    """Of real-valued actions: log of the standard deviation at the start."""
    convolutions: tuple[tuple[int, int, int], ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    """Of images: channels, kernel and stride of each layer; these are those of Mnih et al. 2015."""
    image_features: int = 512
    """Of images: width of the layer after the convolutions."""
    max_policy_age: int = 1
    """Of ours alone: updates that data may lag. The others wait, except for Sample Factory."""

    def __post_init__(self) -> None:
        # As lists they come from JSON.
        layers = tuple(tuple(layer) for layer in self.convolutions)
        object.__setattr__(self, "convolutions", layers)

    @property
    def batch(self) -> int:
        """Environment steps of one update."""
        return self.num_envs * self.horizon

    @property
    def minibatch(self) -> int:
        """Environment steps of one optimizer step."""
        return self.batch // self.minibatches

    @property
    def image_side(self) -> int:
        """Height and width of what the last convolution makes of 84x84 pixels."""
        side = 84
        for _, kernel, stride in self.convolutions:
            side = (side - kernel) // stride + 1
        return side

    def replaced(self, **changes: object) -> Settings:
        """The same with some settings changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


ENVPOOL = {
    "cartpole": "CartPole-v1",
    "cartpole_masked": "CartPole-v1",
    "cheetah": "HalfCheetah-v5",
    "pong": "Pong-v5",
    "acrobot": "Acrobot-v1",
    "pendulum": "Pendulum-v1",
    "lunarlander": "LunarLander-v3",
    "lunarlander_continuous": "LunarLanderContinuous-v3",
    "bipedalwalker": "BipedalWalker-v3",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
}
"""The id of each environment in EnvPool."""

_CHEETAH = {"env": "cheetah", "learning_rate": 3e-4, "entropy_coefficient": 0.0}

WORKLOADS: dict[str, Settings] = {
    "W1a": Settings("cartpole", 64, 32, 1, 1),
    "W1b": Settings("cartpole", 64, 16, 4, 4),
    "W2a": Settings("pong", 8, 128, 1, 4),
    "W2b": Settings("pong", 8, 128, 4, 4),
    "W3a": Settings(num_envs=64, horizon=32, epochs=1, minibatches=1, **_CHEETAH),
    "W3b": Settings(num_envs=64, horizon=32, epochs=4, minibatches=4, **_CHEETAH),
    "W4": Settings("cartpole_masked", 64, 32, 1, 1, lstm=128, sequence=16),
    "W5": Settings("simple_tag", 16, 64, 4, 4),
}

PREPROCESSING = {"pong": "84x84 grey, frame skip 4, 4 frames stacked (84x84x4), raw rewards"}
"""What is done to observations of an environment, for all; nothing where it is not named."""

THRESHOLDS = {"cartpole": 475.0, "cheetah": 2000.0, "pong": 18.0}
"""A task is solved at this mean return of the last 100 training episodes."""

EPISODES = 100
"""Episodes behind a mean return."""

_DISCRETE = {
    "num_envs": 16,
    "horizon": 128,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 1e-3,
    "normalize": True,
    "max_policy_age": 0,
}
_CONTINUOUS = {
    **_DISCRETE,
    "epochs": 10,
    "minibatches": 16,
    "learning_rate": 3e-4,
    "entropy_coefficient": 0.0,
}
_SWING_UP = {"epochs": 10, "minibatches": 8, "entropy_coefficient": 0.0, "gamma": 0.9}

_EQUAL: dict[str, tuple[Settings, int]] = {
    "acrobot": (Settings("acrobot", **_DISCRETE), 100_000),
    "pendulum": (Settings("pendulum", **{**_DISCRETE, **_SWING_UP}), 100_000),
    "lunarlander": (Settings("lunarlander", **_DISCRETE), 300_000),
    "lunarlander_continuous": (Settings("lunarlander_continuous", **_CONTINUOUS), 300_000),
    "bipedalwalker": (Settings("bipedalwalker", **_CONTINUOUS), 500_000),
    "hopper": (Settings("hopper", **_CONTINUOUS), 500_000),
    "walker2d": (Settings("walker2d", **_CONTINUOUS), 500_000),
}
"""Tasks of `equal_steps.py`: our default settings for any environment, except for Pendulum, which
has those of our recipe."""
EQUAL_TASKS = tuple(_EQUAL)

CURVES: dict[str, tuple[Settings, int, int]] = {
    "cartpole": (Settings("cartpole", 8, 128, 4, 4), 300_000, 10),
    "cheetah": (
        Settings(
            **{**_CHEETAH, "learning_rate": 2e-3},
            num_envs=64,
            horizon=32,
            epochs=4,
            minibatches=4,
            normalize=True,
            log_std=-1.0,
            max_policy_age=0,
        ),
        600_000,
        5,
    ),
    **{task: (settings, steps, 5) for task, (settings, steps) in _EQUAL.items()},
    "pong": (
        Settings(
            "pong",
            *(32, 64, 3, 8),
            gamma=0.96,
            learning_rate=1e-3,
            anneal_steps=1_500_000,
            convolutions=((16, 8, 4), (32, 4, 2)),
            image_features=256,
        ),
        1_500_000,
        2,
    ),
}
"""Learning at equal environment steps: settings for all, steps, and seeds."""
