"""Put a worker of your own between the actors and the trainer.

    python examples/05_own_dataflow.py [FOLDER]

The actors write fragments of experience to a stream, and the trainer reads them. Here another
worker stands in between: it pays a bonus for what it has rarely seen (random network distillation,
Burda et al. 2018), with a network of its own that it trains on everything that passes.

    actors ──default──▶ curiosity ──default/curiosity──▶ trainer

`DeepSea` is a dive in which every step to the right costs a little, and only a diver who goes right
at every step finds the treasure: one in 2^14 random dives. PPO alone learns to stay on the left;
with the bonus it finds the treasure.

In the layouts `inline` and `shared` the new worker is a process of its own. If it is killed, it is
started again with what it knew at the last checkpoint, and the run goes on. In `serial` it takes
its turn in the one thread. The code is the same.
"""

import sys
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

import srl
from srl.data.records import Trajectory
from srl.workers.relabeller import Relabeller
from srl.workers.wiring import Context


class DeepSea(gymnasium.Env):
    """A triangle to dive through: at each of `size` steps one row down, left or right."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, *, size: int = 14, render_mode: str | None = None) -> None:
        self.size = size
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (2 * size,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.row = self.column = 0
        return self._observe(), {}

    def step(self, action: Any):
        right = int(action) == 1
        self.row += 1
        self.column = max(0, self.column + (1 if right else -1))
        found = self.column == self.size
        reward = float(found) - (0.01 / self.size if right else 0.0)
        return self._observe(), reward, self.row == self.size, False, {}

    def _observe(self) -> np.ndarray:
        eye = np.eye(self.size, dtype=np.float32)
        last = self.size - 1
        return np.concatenate([eye[min(self.row, last)], eye[min(self.column, last)]])


class Curiosity(Relabeller):
    """Adds to every reward how badly a network foretells a random one at the place it led to.

    Reads fragments of the actors; writes them, with other rewards, to the trainer. What is seen
    often becomes easy to foretell, and so the bonus fades.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        settings = context.worker.settings
        self.weight = float(settings["weight"])
        num_inputs = int(np.prod(self.spec.agent.obs.shape))
        torch.manual_seed(context.seed)
        self.target = self._network(num_inputs).requires_grad_(False)
        self.predictor = self._network(num_inputs)
        self.optimizer = torch.optim.Adam(self.predictor.parameters(), lr=1e-3)
        self.scale = 0.0
        self.num_fragments = 0

    def relabel(self, fragment: Trajectory, length: int) -> None:
        # A tick's action leads to the observation of the next tick.
        arrived = torch.from_numpy(fragment.obs[1:length]).flatten(2).float()
        acted = torch.from_numpy(fragment.acted[: length - 1])
        error = (self.predictor(arrived) - self.target(arrived)).square().mean(-1)
        self.optimizer.zero_grad()
        error[acted].mean().backward()
        self.optimizer.step()
        bonus = error.detach().numpy()
        self.num_fragments += 1
        self.scale = max(0.99 * self.scale, float(bonus.mean()))
        fragment.reward[: length - 1] += self.weight * bonus / self.scale * acted.numpy()

    def own_state(self) -> dict[str, Any]:
        # Adam's moments are left out: they are back after a few fragments.
        networks = {"target": self.target, "predictor": self.predictor}
        weights = {
            name: {key: value.numpy().copy() for key, value in network.state_dict().items()}
            for name, network in networks.items()
        }
        return {**weights, "scale": self.scale, "num_fragments": self.num_fragments}

    def restore_own(self, state: dict[str, Any]) -> None:
        for name, network in (("target", self.target), ("predictor", self.predictor)):
            network.load_state_dict({k: torch.from_numpy(v) for k, v in state[name].items()})
        self.scale, self.num_fragments = state["scale"], state["num_fragments"]

    @staticmethod
    def _network(num_inputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(num_inputs, 64), nn.ReLU(), nn.Linear(64, 32))


def curious(graph: srl.Graph) -> srl.Graph:
    """The usual graph with one more worker in the middle of the stream `default`."""
    group = srl.WorkerGroup(kind=f"{__file__}:Curiosity", settings={"weight": 0.02})
    return graph.insert("curiosity", group, into="default")


def experiment(dataflow: str = f"{__file__}:curious") -> srl.Experiment:
    """PPO on DeepSea; `dataflow` names the function that changes the graph."""
    return srl.Experiment(
        name="deep_sea",
        env=srl.EnvConfig(id=f"{__file__}:DeepSea"),
        actor=srl.ActorConfig(envs=16),
        algorithm=srl.PPOConfig(rollout_length=32, learning_rate=1e-3),
        steps=60_000,
        dataflow=dataflow,
    )


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/example_05"
    curious_run = srl.train(experiment(), run_dir=f"{folder}/curious")
    plain_run = srl.train(experiment(dataflow=""), run_dir=f"{folder}/plain")
    for name, run in (("with curiosity", curious_run), ("without", plain_run)):
        score = run.evaluate(episodes=100, explore=True)
        print(f"{name}: return {score.mean:.2f}, of at most 0.99")
