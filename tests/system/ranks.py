"""A rank of a group of trainers, in a process of its own:
`python ranks.py TASK,... CARRIER FOLDER RANK COUNT`. The batches of a task are in FOLDER/TASK.

`learn`: trains on recorded batches and leaves its weights. `ddp`: compares the gradient of one
minibatch with what torch's DistributedDataParallel finds.
"""

from __future__ import annotations

import copy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "algorithms"))

from ppo_data import AGENT, learn, split_batch

from srl.algorithms.collective import Collective
from srl.algorithms.learning.step import sum_over_ranks
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.learner import PPO
from srl.algorithms.ppo.rollout import Minibatch, Rollout
from srl.arena.shm import ShmArena
from srl.data.codec import load_state, save_state
from srl.data.records import SampleBatch
from srl.data.trajectory import from_tree
from srl.distributed.shared_memory import SharedMemoryCollective
from srl.distributed.torch_distributed import TorchCollective, connect, make_group
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig

SETTINGS = {"rollout_length": 8, "epochs": 2, "minibatches": 3}


def make() -> PPO:
    """The same in every process."""
    torch.manual_seed(0)
    network = ActorCriticConfig(hidden_sizes=(16,), normalize_obs=True, normalize_returns=True)
    return PPO(ActorCritic(AGENT, network), PPOConfig(**SETTINGS), seed=3)


def recorded(folder: Path) -> list[SampleBatch]:
    """The global batches, in order."""
    batches = []
    for path in sorted(folder.glob("batch-*")):
        state = load_state(path)
        batches.append(SampleBatch(from_tree(state["data"]), state["num_fragments"]))
    return batches


def link(carrier: str, folder: Path, rank: int, count: int) -> Collective:
    """What the trainer's group makes, on one host or on several."""
    if count == 1:
        return Collective()

    def look(waited: float) -> None:
        assert waited < 60, "the others do not come"

    if carrier == "shared":
        processes = [f"trainer-{number}" for number in range(count)]
        arena = ShmArena(folder, processes[rank])
        return SharedMemoryCollective(arena, "sums", processes, rank, look, lambda: False)
    device = torch.device("cpu")
    group = connect(partial(make_group, folder / "store", rank, count, device, ""), look)
    return TorchCollective(group, rank, count, "cpu", look, lambda: False)


def learn_recorded(carrier: str, folder: Path, rank: int, count: int) -> None:
    algorithm = make()
    algorithm.join(link(carrier, folder, rank, count))
    for batch in recorded(folder):
        learn(algorithm, split_batch(batch, rank, count))
    weights = {k: v.numpy() for k, v in algorithm.policy.state_dict().items()}
    save_state(folder / f"weights-{rank}-of-{count}", weights)


class Loss(torch.nn.Module):
    """The loss as a module, which is what DistributedDataParallel takes."""

    def __init__(self, algorithm: PPO) -> None:
        super().__init__()
        self.policy = algorithm.policy
        self._algorithm = algorithm

    def forward(self, minibatch: Minibatch) -> torch.Tensor:
        loss, _ = self._algorithm.loss(minibatch)
        return loss


def compare_with_ddp(carrier: str, folder: Path, rank: int, count: int) -> None:
    torch.distributed.init_process_group(
        "gloo",
        store=torch.distributed.FileStore(str(folder / "ddp-store"), count),
        rank=rank,
        world_size=count,
    )
    (batch,) = recorded(folder)
    algorithm = make()
    algorithm._manual = None
    other = copy.deepcopy(algorithm)
    part = split_batch(batch, rank, count)

    def minibatch(learner: PPO) -> Minibatch:
        rollout = Rollout(part, learner.policy, torch.device("cpu"))
        rollout.set_targets(*learner.targets(rollout))
        index = rollout.counts.flatten().nonzero().squeeze(1)
        return rollout.gather(index.unsqueeze(0), 0, normalize=False)

    wrapped: Any = torch.nn.parallel.DistributedDataParallel(Loss(other))
    wrapped(minibatch(other)).backward()
    theirs = torch.cat([p.grad.flatten() for p in other.policy.parameters()])

    algorithm.join(link(carrier, folder, rank, count))
    loss, metrics = algorithm._find_gradients(minibatch(algorithm))
    sum_over_ranks(algorithm.collective, algorithm.optimizer, loss, metrics, 1.0 / count)
    torch.testing.assert_close(algorithm.optimizer.grad, theirs, rtol=1e-5, atol=1e-7)
    assert float(theirs.abs().max()) > 1e-3
    (folder / f"equal-{rank}").touch()


if __name__ == "__main__":
    torch.set_num_threads(1)
    tasks, by, where, own, everyone = sys.argv[1:]
    for name in tasks.split(","):
        task = {"learn": learn_recorded, "ddp": compare_with_ddp}[name]
        task(by, Path(where) / name, int(own), int(everyone))
