"""Rewards as a loss sees them."""

from __future__ import annotations

import torch

from srl.algorithms.config import RewardClip


def clip_reward(reward: torch.Tensor, bound: RewardClip) -> torch.Tensor:
    """The sign of rewards, rewards within a bound, or rewards as they are (None)."""
    match bound:
        case None:
            return reward
        case "sign":
            return reward.sign()
        case number:
            return reward.clamp(-float(number), float(number))
