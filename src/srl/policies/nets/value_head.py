"""The head of a Q-network: from features to the value of each action."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from srl.policies.nets.config import Activation
from srl.policies.nets.mlp import MLP, orthogonal


class ActionValueHead(nn.Module):
    """Values of all actions, each as its mean or as quantiles, with or without dueling.

    Dueling (Wang et al. 2016, eq. 9): Q = V + A - mean of A over actions.
    """

    def __init__(
        self,
        num_inputs: int,
        num_actions: int,
        *,
        num_quantiles: int = 0,
        dueling: bool = False,
        hidden_sizes: Sequence[int] = (),
        activation: Activation = "relu",
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.num_actions, self.num_quantiles, self.dueling = num_actions, num_quantiles, dueling
        each = max(1, num_quantiles)
        widths = [each, num_actions * each] if dueling else [num_actions * each]
        if not hidden_sizes:
            # One product is faster than two.
            widths = [sum(widths)]
        self.hidden = nn.ModuleList(MLP(num_inputs, hidden_sizes, activation) for _ in widths)
        inputs = hidden_sizes[-1] if hidden_sizes else num_inputs
        self.linear = nn.ModuleList(orthogonal(nn.Linear(inputs, n), gain) for n in widths)

    @property
    def last_layer(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Weight and bias, if the head is one linear layer."""
        (linear, *others), hidden = self.linear, self.hidden[0]
        assert isinstance(hidden, MLP)
        if others or hidden.in_order:
            return None
        return linear.weight, linear.bias  # type: ignore[return-value]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Features [N, num_inputs] to values [N, actions], or quantiles [N, actions, quantiles]."""
        parts = [
            F.linear(hidden.forward(features), linear.weight, linear.bias)  # type: ignore[arg-type]
            for hidden, linear in zip(self.hidden, self.linear, strict=True)
        ]
        return self.values(parts[0] if len(parts) == 1 else torch.cat(parts, 1))

    def values(self, out: torch.Tensor) -> torch.Tensor:
        """The outputs of the last layers [N, n] to values, or quantiles."""
        out = out.view(out.shape[0], self.dueling + self.num_actions, max(1, self.num_quantiles))
        if self.dueling:
            advantage = out[:, 1:]
            out = out[:, :1] + (advantage - advantage.mean(1, keepdim=True))
        return out if self.num_quantiles else out.squeeze(2)

    def means(self, features: torch.Tensor) -> torch.Tensor:
        """Features [N, num_inputs] to the mean value of each action, [N, actions]."""
        values = self.forward(features)
        return values.mean(2) if self.num_quantiles else values

    @torch.no_grad()
    def folded(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Weight [actions, num_inputs] and bias [actions] of one linear layer that equals `means`,
        for a head that is one linear layer: dueling and the mean over quantiles are linear, too."""
        layer = self.last_layer
        if layer is None:
            return None
        weight, bias = (x.detach() for x in layer)
        # As values of the rows of a matrix, whose columns are the inputs.
        columns = torch.cat([weight, bias.unsqueeze(1)], 1).t()
        found = self.values(columns)
        found = found.mean(2) if self.num_quantiles else found
        return found[:-1].t().contiguous(), found[-1].contiguous()
