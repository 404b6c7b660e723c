"""The evaluator between two evaluations."""

from __future__ import annotations

from typing import Any, cast

from srl.arena.arena import HeapArena
from srl.data.records import Snapshot
from srl.envs.protocol import EnvConfig
from srl.envs.registry import make_group, probe
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
from srl.services.messages import Evaluation
from srl.services.worker_stats import StatsTable
from srl.workers.configs import EvaluatorConfig
from srl.workers.evaluator import EvaluatorWorker
from srl.workers.worker import CurrentWorker, ProcessLoop

CARTPOLE = EnvConfig(id="CartPole-v1")


class Reader:
    """Weights that never change."""

    version = 3

    def __init__(self, policy: ActorCritic) -> None:
        self._weights = {name: t.numpy().copy() for name, t in policy.state_dict().items()}

    def snapshot(self) -> Snapshot:
        return Snapshot(self.version, self._weights)


class Sent(list[Evaluation]):
    """Metrics that are kept."""

    send = list.append


def test_no_environment_is_in_a_call_when_an_evaluation_is_over() -> None:
    """In `serial` nobody else would say so, and a call that takes too long ends the run."""
    stats_table = StatsTable(HeapArena(), ("evaluator/0",))
    row = stats_table.rows["evaluator/0"]
    policy = ActorCritic(probe(CARTPOLE).agents["agent"], ActorCriticConfig())
    policy_agents = {"default": ("agent",)}
    sent = Sent()
    worker = EvaluatorWorker(
        "evaluator/0",
        envs=make_group(
            CARTPOLE, num_envs=2, policy_agents=policy_agents, on_call=cast(Any, row.enter)
        ),
        policies={"default": policy},
        parameters={"default": cast(Any, Reader(policy))},
        metrics=cast(Any, sent),
        config=EvaluatorConfig(count=1, episodes=2),
        seed=1,
    )
    worker.stats = row
    host = ProcessLoop(
        [worker], stats_table, cast(Any, None), lambda worker, number: None, CurrentWorker("")
    )
    while not sent:
        host.round()
        assert row.activity == "running"
    assert [(one.policy_version, one.played, len(one.returns)) for one in sent] == [(3, 3, 2)]
    host.round()
    assert row.activity == "running"
    worker.close()
