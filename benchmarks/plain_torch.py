"""PPO's update and its choice of actions in a few lines of plain torch, as its tutorials write
them: what our kernels are measured beside. What was tried for speed can be switched on, one by
one."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from srl.launch.process.allocator import keep_large_buffers

LEARNING_RATE, EPS = 2.5e-4, 1e-5
TRIED = (
    "allocator", "channels last", "scale in weights", "index_select",
    "fused Adam", "for-each Adam", "compile", "tanh by sigmoid",
    "space to depth", "gradient in blocks",
)  # fmt: skip
BLOCK = 64
"""Samples of a minibatch that are in flight at a time, where gradients are summed in blocks."""

_LAST = frozenset({"channels last", "space to depth"})

Call = Callable[[], object]


class PlainTorch:
    """A network, PPO's objective and Adam. Subclasses say what the network is like."""

    actions: int

    def __init__(self, tried: frozenset[str] = frozenset()) -> None:
        self.tried = tried
        if "allocator" in tried:
            keep_large_buffers()
        parts = self.make()
        self.parameters = [p for part in parts for p in part.parameters()]
        if "compile" in tried:
            # Distributions are left outside: what is in them is no part of the network.
            self.run = torch.compile(self.run)

    def make(self) -> list[nn.Module]:
        """The network's parts."""
        raise NotImplementedError

    def observations(self, rows: int) -> torch.Tensor:
        """Random ones, as they lie in a rollout."""
        raise NotImplementedError

    def run(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [N, actions] and values [N]."""
        raise NotImplementedError

    def forward(self, obs: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        """The distribution over actions, and values."""
        logits, value = self.run(obs)
        return torch.distributions.Categorical(logits=logits), value

    def training(self, size: int, total: int) -> Call:
        """One epoch over `total` samples in minibatches of `size`."""
        obs = self.observations(total)
        action = torch.randint(0, self.actions, (total,))
        log_prob, advantage, target = torch.full((total,), -1.8), *torch.randn(2, total)
        kind = {"fused": "fused Adam" in self.tried, "foreach": "for-each Adam" in self.tried}
        optimizer = torch.optim.Adam(
            self.parameters, lr=LEARNING_RATE, eps=EPS, **{k: True for k, on in kind.items() if on}
        )

        def call() -> None:
            for index in torch.randperm(total).split(size):
                picked = advantage[index]
                weight = (picked - picked.mean()) / (picked.std() + 1e-8)
                optimizer.zero_grad()
                block = BLOCK if "gradient in blocks" in self.tried else size
                for part, by in zip(index.split(block), weight.split(block), strict=True):
                    chosen, value = self.forward(self._pick(obs, part))
                    ratio = (chosen.log_prob(action[part]) - log_prob[part]).exp()
                    policy_loss = -torch.min(ratio * by, ratio.clamp(0.8, 1.2) * by).sum()
                    value_loss = 0.5 * (value - target[part]).square().sum()
                    loss = policy_loss + 0.5 * value_loss - 0.01 * chosen.entropy().sum()
                    (loss / len(index)).backward()
                nn.utils.clip_grad_norm_(self.parameters, 0.5)
                optimizer.step()

        return call

    def _pick(self, obs: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return obs.index_select(0, index) if "index_select" in self.tried else obs[index]

    def acting(self, size: int) -> Call:
        """Actions, their log probabilities and values for `size` rows."""
        obs = self.observations(size)

        def call() -> object:
            with torch.no_grad():
                chosen, value = self.forward(obs)
                action = chosen.sample()  # type: ignore[no-untyped-call]
                return action, chosen.log_prob(action), value

        return call


class PlainNature(PlainTorch):
    """The Nature CNN over 84x84x4 bytes."""

    actions = 6

    def make(self) -> list[nn.Module]:
        # The same products: blocks of 4x4 pixels as 64 channels.
        blocks = "space to depth" in self.tried
        self.first = nn.Conv2d(64, 32, 2) if blocks else nn.Conv2d(4, 32, 8, stride=4)
        self.body = nn.Sequential(
            *(nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()),
        )
        self.actor, self.critic = nn.Linear(512, self.actions), nn.Linear(512, 1)
        parts: list[nn.Module] = [self.first, self.body, self.actor, self.critic]
        if self.tried & _LAST:
            for part in parts:
                part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return parts

    def observations(self, rows: int) -> torch.Tensor:
        return torch.randint(0, 256, (rows, 4, 84, 84), dtype=torch.uint8)

    def run(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if "space to depth" in self.tried:
            obs = F.pixel_unshuffle(obs, 4)
        if self.tried & _LAST:
            obs = obs.contiguous(memory_format=torch.channels_last)
        if "scale in weights" in self.tried:
            seen = F.conv2d(obs.float(), self.first.weight / 255.0, self.first.bias, stride=4)
        else:
            seen = self.first(obs.float() / 255.0)
        features = self.body(seen)
        return self.actor(features), self.critic(features).squeeze(-1)


class SigmoidTanh(nn.Module):
    """tanh(z) = 2 sigmoid(2 z) - 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * torch.sigmoid(2.0 * x) - 1.0


class PlainTowers(PlainTorch):
    """Two towers of 64x64 tanh over four numbers."""

    actions = 2

    def make(self) -> list[nn.Module]:
        tanh = SigmoidTanh if "tanh by sigmoid" in self.tried else nn.Tanh
        self.actor, self.critic = (
            nn.Sequential(
                *(nn.Linear(4, 64), tanh(), nn.Linear(64, 64), tanh()), nn.Linear(64, outputs)
            )
            for outputs in (self.actions, 1)
        )
        return [self.actor, self.critic]

    def observations(self, rows: int) -> torch.Tensor:
        return torch.randn(rows, 4)

    def run(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(obs), self.critic(obs).squeeze(-1)
