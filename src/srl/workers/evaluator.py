"""The evaluator: plays whole episodes with fixed weights beside training.

*Consumes* snapshots of the parameter service. *Waits for* a newer version, and for the interval to
pass. *Unblocked by* trainers. *Produces* evaluation returns, with the version that played.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from srl.envs.protocol import EnvGroup
from srl.policies.protocol import Policy
from srl.services.messages import Evaluation
from srl.services.metrics_client import MetricsClient
from srl.services.parameters import ParameterReader
from srl.workers.configs import EvaluatorConfig
from srl.workers.episode_player import Player
from srl.workers.wiring import Context, load_weights
from srl.workers.worker import PROGRESS, StepResult, Wait, Worker


class EvaluatorWorker(Worker):
    """Plays one tick in each step; an evaluation uses the same weights to its end."""

    def __init__(
        self,
        name: str,
        *,
        envs: EnvGroup,
        policies: dict[str, Policy],
        parameters: dict[str, ParameterReader],
        metrics: MetricsClient,
        config: EvaluatorConfig,
        seed: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._envs = envs
        self._policies = policies
        self._parameters = parameters
        self._metrics = metrics
        self._config = config
        self._seed = seed
        self._clock = clock
        self._player: Player | None = None
        self._versions: dict[str, int] = {}
        self._next_start = 0.0
        self._rounds = 0

    @classmethod
    def build(cls, context: Context) -> EvaluatorWorker:
        """An evaluator from its part of the plan."""
        config: EvaluatorConfig = context.settings("evaluator", EvaluatorConfig)
        policies = context.worker.follows
        return cls(
            context.name,
            envs=context.env_group(config.envs),
            policies={policy: context.make_policy(policy) for policy in policies},
            parameters={policy: context.parameter_reader(policy) for policy in policies},
            metrics=context.metrics,
            config=config,
            seed=context.seed % (1 << 31),
        )

    def step(self) -> StepResult | Wait:
        """Starts an evaluation when it is time, or plays one tick of it."""
        if self._player is None:
            versions = {name: reader.version for name, reader in self._parameters.items()}
            if min(versions.values()) < 0 or versions == self._versions:
                return Wait("weights")
            now = self._clock()
            if now < self._next_start:
                return Wait("weights", self._next_start - now)
            self._next_start = now + self._config.every_seconds
            self._start()
            self.stats.enter("running")
            return PROGRESS
        self._player.tick()
        self.stats.enter("running")
        if self._player.done:
            self._report(self._player)
            self._player = None
        return PROGRESS

    def _start(self) -> None:
        for name, reader in self._parameters.items():
            snapshot = reader.snapshot()
            self._versions[name] = snapshot.policy_version
            load_weights(self._policies[name], snapshot.weights, name)
        self._rounds += 1
        self._player = Player(
            self._envs,
            self._policies,
            episodes=self._config.episodes,
            seed=self._seed + 1000 * self._rounds,
            explore=self._config.explore,
        )

    def _report(self, player: Player) -> None:
        played = sum(self._versions.values())
        for policy, returns in player.result.returns.items():
            self._metrics.send(
                Evaluation(
                    worker=self.name,
                    policy=policy,
                    policy_version=self._versions.get(policy, 0),
                    played=played,
                    returns=returns,
                    lengths=player.result.lengths[policy],
                    agents=player.result.agents[policy],
                )
            )
        self.stats.add("count_episodes", self._config.episodes)

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()
