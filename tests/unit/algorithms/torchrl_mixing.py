"""Writes torchrl_mixing.json: what TorchRL's mixing network makes of values and states.

Runs in an environment of its own:

    pip install torchrl==0.14.1 && python tests/unit/algorithms/torchrl_mixing.py
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torchrl.modules import QMixer

AGENTS, STATE, UNITS, NUM = 3, 4, 5, 6

if __name__ == "__main__":
    torch.manual_seed(0)
    mixer = QMixer(state_shape=(STATE,), mixing_embed_dim=UNITS, n_agents=AGENTS, device="cpu")
    value = torch.randn(NUM, AGENTS, requires_grad=True)
    state = torch.randn(NUM, STATE)
    mixed = mixer(value.unsqueeze(-1), state)
    mixed.sum().backward()
    found = {
        "weights": {name: x.tolist() for name, x in mixer.state_dict().items()},
        "value": value.tolist(),
        "state": state.tolist(),
        "mixed": mixed.squeeze(-1).tolist(),
        "gradient": value.grad.tolist(),
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(found) + "\n")
