"""VDN and QMIX: targets worked by hand, whose rows are whose, and what an update keeps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from q_data import KEYED, learn
from team_data import (
    AGENT,
    STATE,
    TEAM,
    batch_of,
    game_batch,
    game_policy,
    greedy_return,
    random_batch,
    with_team,
)
from test_ranks import split_batch, together

from srl.algorithms.learning.team import CentralInput, Teams
from srl.algorithms.qmix.config import QMIXConfig
from srl.algorithms.qmix.learner import QMIX
from srl.algorithms.qmix.mixer import MixingNetwork
from srl.algorithms.vdn.config import VDNConfig
from srl.algorithms.vdn.learner import VDN
from srl.data.codec import dump_state, parse_state
from srl.data.spec import AgentSpec, ArraySpec, Box, TeamSpec
from srl.errors import ConfigError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
from srl.policies.q_network import QNetwork
from srl.policies.q_network_config import QNetworkConfig

torch.set_num_threads(1)

ONLINE = [[1.0, 2.0, 3.0], [0.0, 9.0, 1.0], [5.0, 4.0, 0.0], [0.0, 0.0, 0.0]]
TARGET = [[0.0, 0.0, 0.0], [7.0, 5.0, 6.0], [1.0, 2.0, 8.0], [3.0, 2.0, 1.0]]
KINDS: dict[str, tuple[type[VDN], dict[str, Any], dict[str, Any]]] = {
    "vdn": (VDN, {}, {"n_steps": 2}),
    "vdn with memory": (
        VDN,
        {"recurrent": "lstm"},
        {"sequence_length": 4, "burn_in": 2, "team_reward": "sum"},
    ),
    "qmix": (QMIX, {"normalize_obs": True}, {"mixing_input": "state"}),
    "qmix of observations": (
        QMIX,
        {"normalize_obs": True, "recurrent": "gru"},
        {"mixing_input": "observations", "sequence_length": 4, "tau": 0.1, "target_steps": 1},
    ),
}


def make(
    kind: type[VDN], network: dict[str, Any] | None = None, team: TeamSpec = TEAM, **settings: Any
) -> Any:
    torch.manual_seed(0)
    given = {"hidden_sizes": (16,), "recurrent_size": 8, **(network or {})}
    policy = with_team(QNetwork(AGENT, QNetworkConfig(**given)), team)
    return kind(policy, kind.Config(**{"gradient_steps": 1, **settings}), seed=3)


def make_table(kind: type[VDN] = VDN, bias: float = 0.0, **settings: Any) -> Any:
    """A learner whose networks are tables, because observations are one-hot; `bias` is added."""
    learner = make(kind, {"hidden_sizes": ()}, gamma=0.5, max_grad_norm=None, **settings)
    for network, table in ((learner._online, ONLINE), (learner._target, TARGET)):
        weight, added = network.head.last_layer
        with torch.no_grad():
            weight.copy_(torch.tensor(table).t())
            added.fill_(bias)
    learner.target.num_steps = 1
    return learner


def errors(learner: Any, batch: Any) -> Any:
    """Target minus prediction, window by window."""
    windows = learner.make_windows(batch)
    return learner.loss(windows, windows.all).error.t().tolist()


@pytest.mark.parametrize(("double", "future"), [(True, 5.0 + 1.0), (False, 7.0 + 8.0)])
def test_the_value_of_a_team_is_a_sum(double: bool, future: float) -> None:
    # Next, the first agent is in state 1 and the second one in state 2. The online network takes
    # actions 1 and 0 there, which the target network values at 5 and 1; its own best are 7 and 8.
    learner = make_table(double=double)
    batch = batch_of(
        learner, [[[0, 1], [1, 2]]], action=[[[2, 0], [1, 0]]], reward=[[[10.0, 0.0], [4.0, 0.0]]]
    )
    assert errors(learner, batch) == [[pytest.approx(7.0 + 0.5 * future - (3.0 + 9.0))]]
    summed = make_table(double=double, team_reward="sum")
    assert errors(summed, batch) == [[pytest.approx(14.0 + 0.5 * future - (3.0 + 9.0))]]


def test_rows_of_an_environment_are_a_team() -> None:
    """Each agent's neighbour in memory is of the same environment, also for several of them."""
    learner = make_table()
    states = [[[0, 3], [0, 3]], [[1, 3], [1, 3]], [[2, 3], [3, 3]]]
    actions = [[[0, 0], [1, 0]], [[1, 0], [2, 0]], [[0, 0], [0, 0]]]
    over = [[[False, True]] * 2] * 3
    batch = batch_of(
        learner,
        states,
        action=actions,
        reward=[[[100.0, 0.0]] * 2, [[200.0, 0.0]] * 2, [[300.0, 0.0]] * 2],
        terminated=over,
        acted=[[[True, False]] * 2] * 3,
    )
    assert errors(learner, batch) == [[100.0 - 3.0], [200.0 - 10.0], [300.0 - 5.0]]
    # The same environments in the parts of two gradient steps.
    parts = list(learner.make_windows(batch).split(2))
    found = [learner.loss(learner.make_windows(batch), part).error[0].tolist() for part in parts]
    assert found == [[97.0, 190.0], [295.0]]


def test_who_is_done_adds_nothing_and_the_team_goes_on() -> None:
    learner = make_table(bias=1.0)
    flags = {
        "acted": [[[True, True], [True, False]], [[True, True], [False, False]]],
        "terminated": [[[False, False], [False, True]], [[False, False], [False, False]]],
    }
    states = [[[0, 1], [1, 2]], [[0, 1], [1, 2]]]
    reward = [[[10.0, 0.0], [4.0, 0.0]], [[10.0, 0.0], [0.0, 0.0]]]
    batch = batch_of(learner, states, reward=reward, **flags)
    # What is in the memory of agents that are gone does not matter.
    batch.data.obs[0, 3] = batch.data.obs[1, 3] = np.nan
    # First: the second agent has acted, and is done then. Second: it was done before.
    assert errors(learner, batch) == [[7.0 + 0.5 * 6.0 - (2.0 + 1.0)], [10.0 + 0.5 * 6.0 - 2.0]]


def test_a_time_limit_bootstraps_from_all_that_it_stopped() -> None:
    learner = make_table()
    batch = batch_of(
        learner,
        [[[0, 1], [1, 2]]] * 2,
        reward=[[[10.0, 0.0], [10.0, 0.0]]] * 2,
        acted=[[[True, False], [True, False]]] * 2,
        truncated=[[[False, True], [False, True]], [[False, False], [False, False]]],
        terminated=[[[False, False], [False, False]], [[False, True], [False, True]]],
    )
    assert errors(learner, batch) == [[10.0 + 0.5 * 6.0 - 1.0], [10.0 - 1.0]]


def mixture(mixer: MixingNetwork, value: list[float], state: list[float]) -> float:
    """The mixture by plain arithmetic."""
    layers = {name: x.detach().numpy().astype(float) for name, x in mixer.named_parameters()}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        out: np.ndarray = layers[f"{name}.weight"] @ x + layers[f"{name}.bias"]
        return out

    seen = np.array(state)
    units = mixer.shape[1]
    hidden = linear("bias_1", seen)
    for agent, x in enumerate(value):
        hidden = hidden + x * abs(linear("weight_1", seen)[agent * units : (agent + 1) * units])
    hidden = np.where(hidden > 0, hidden, np.exp(np.minimum(hidden, 0)) - 1)
    last = linear("bias_2.2", np.maximum(linear("bias_2.0", seen), 0))
    return float(hidden @ abs(linear("weight_2", seen)) + last[0])


def test_qmix_mixes_by_the_state_of_the_right_tick() -> None:
    learner = make_table(QMIX, hypernetwork_size=0, mixing_units=3)
    now, later = [[0.5, -1.0], [2.0, 0.3]], [[-0.7, 0.2], [1.0, 1.5]]
    batch = batch_of(
        learner,
        [[[0, 1], [1, 2]], [[2, 0], [0, 1]]],
        action=[[[2, 0], [1, 0]], [[1, 0], [2, 0]]],
        reward=[[[10.0, 0.0], [10.0, 0.0]]] * 2,
        env_state=[[now[0], later[0]], [now[1], later[1]]],
    )
    online = learner.own_modules["mixer"]
    target = learner.target.module["own"]["mixer"]
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(0.3)
    expected = [
        10.0 + 0.5 * mixture(target, best, later[i]) - mixture(online, taken, now[i])
        for i, (taken, best) in enumerate([([3.0, 9.0], [5.0, 1.0]), ([4.0, 3.0], [0.0, 5.0])])
    ]
    assert [x[0] for x in errors(learner, batch)] == pytest.approx(expected, rel=1e-4)


def test_the_mixture_is_that_of_torchrl() -> None:
    known = json.loads(Path(__file__).with_name("torchrl_mixing.json").read_text())
    value = torch.tensor(known["value"], requires_grad=True)
    state = torch.tensor(known["state"])
    team = TeamSpec(num_agents=value.shape[1], env_state=ArraySpec(shape=state.shape[1:]))
    central = CentralInput(AGENT, team, "state", normalize=False)
    units = len(known["weights"]["hyper_b_1.bias"])
    mixer = MixingNetwork(central, QNetworkConfig(), units=units, hypernetwork_size=0)
    own = {"hyper_w_1": "weight_1", "hyper_w_final": "weight_2", "hyper_b_1": "bias_1"}
    own |= {"V.0": "bias_2.0", "V.2": "bias_2.2"}
    weights = {}
    for name, numbers in known["weights"].items():
        layer, _, part = name.rpartition(".")
        weights[f"{own[layer]}.{part}"] = torch.tensor(numbers)
    mixer.load_state_dict(weights)
    present = torch.ones_like(value, dtype=torch.bool)

    class Shown:
        class sequences:
            env_state = state.unsqueeze(1)

    where = torch.arange(len(state)).unsqueeze(1)
    mixed = mixer(value.unsqueeze(1), present.unsqueeze(1), Shown, where).squeeze(1)
    torch.testing.assert_close(mixed, torch.tensor(known["mixed"]))
    mixed.sum().backward()
    torch.testing.assert_close(value.grad, torch.tensor(known["gradient"]))


@pytest.mark.parametrize("seed", [0, 1])
def test_vdn_ends_at_7_and_qmix_at_8(seed: int) -> None:
    """The two-step game of the QMIX paper. Seen over seeds 0 to 4: from 20 updates on."""
    settings = {"learning_rate": 3e-3, "gradient_steps": 8, "target_steps": 50}
    for kind, best in ((VDN, 7.0), (QMIX, 8.0)):
        policy, rng = game_policy(seed=seed), np.random.default_rng(seed)
        learner = kind(policy, kind.Config(**settings), seed=seed)
        for _ in range(40):
            *_, result = learner.update(game_batch(learner, 8 * 64, rng), 0.0)
        assert greedy_return(policy) == best
        # No sum of values fits the game; a mixture does.
        assert result is not None
        assert (result.metrics["td_error"] < 0.1) == (kind is QMIX)


def test_what_teams_see_has_zeros_for_those_who_are_gone() -> None:
    learner = make(QMIX, {"normalize_obs": True}, mixing_input="observations")
    batch = random_batch(learner.policy, learner.config, envs=4, seed=1)
    learn(learner, batch)
    windows = learner.make_windows(batch)
    teams: Teams = windows.teams
    central = learner.own_modules["mixer"].central
    where = torch.arange(windows.sequences.ticks * teams.envs).view(-1, teams.envs)
    seen = central.leaves(teams, where)
    assert list(seen) == ["team.0", "team.1"]
    for agent, leaf in enumerate(seen.values()):
        present = teams.present[..., agent].flatten()
        assert (leaf[~present] == 0).all()
        assert (leaf[present] != 0).all()
        raw = torch.from_numpy(batch.data.obs).view(-1, 2, 4)[:, agent]
        normalized = central.obs_norm({"": raw})[""]
        torch.testing.assert_close(leaf[present], normalized[present])
    assert not teams.present.all()


@pytest.mark.parametrize("name", KINDS)
def test_targets_move_with_all_networks_and_only_when_due(name: str) -> None:
    kind, network, settings = KINDS[name]
    learner = make(kind, network, **{**settings, "target_steps": 3, "tau": 1.0})

    def distance() -> list[float]:
        pairs = zip(learner.target.module.parameters(), learner.trained.parameters(), strict=True)
        return [float((a - b).detach().abs().max()) for a, b in pairs]

    seen = []
    for step in range(4):
        batch = random_batch(learner.policy, learner.config, envs=16, seed=step)
        before = [p.clone() for p in learner.target.module.parameters()]
        learn(learner, batch)
        after = learner.target.module.parameters()
        seen.append(any(bool((a != b).any()) for a, b in zip(after, before, strict=True)))
        moved = distance()
        # Every tensor of every network is trained, those of the mixing network, too.
        assert min(moved) > 0
    assert seen == [False, False, False, True]


@pytest.mark.parametrize("name", KINDS)
def test_an_update_can_be_rolled_back_and_resumed(name: str) -> None:
    kind, network, settings = KINDS[name]
    settings = {"gradient_steps": 2, "target_steps": 3, **settings}
    first, second = make(kind, network, **settings), make(kind, network, **settings)
    batches = [random_batch(first.policy, first.config, envs=8, seed=seed) for seed in range(4)]
    for batch in batches[:2]:
        learn(first, batch)
    first.backup()
    before = dump_state(first.state()), dump_state(weights(first))
    learn(first, batches[3])
    assert dump_state(first.state()) != before[0]
    first.rollback()
    assert (dump_state(first.state()), dump_state(weights(first))) == before
    second.policy.load_state_dict(first.policy.state_dict())
    second.restore(parse_state(dump_state(first.state())))
    for learner in (first, second):
        for batch in batches[2:]:
            learn(learner, batch)
    assert dump_state(first.state()) == dump_state(second.state())
    assert dump_state(weights(first)) == dump_state(weights(second))


def weights(learner: Any) -> dict[str, np.ndarray]:
    return {name: x.numpy().copy() for name, x in learner.policy.state_dict().items()}


def test_what_the_learner_alone_has_is_not_published() -> None:
    learner = make(QMIX)
    assert not any("mixer" in name or "weight_1" in name for name in learner.policy.state_dict())
    assert any("mixer.weight_1" in name for name in learner.state()["modules"])
    assert "modules" not in make(VDN).state()


def test_first_weights_of_the_mixing_network_come_from_the_seed() -> None:
    torch.manual_seed(5)
    first = make(QMIX).state()
    torch.manual_seed(6)
    assert dump_state(make(QMIX).state()) == dump_state(first)


@pytest.mark.parametrize("name", KINDS)
def test_any_number_of_trainers_learns_the_same(name: str) -> None:
    kind, network, settings = KINDS[name]
    alone = make(kind, network, **settings)
    batches = [
        random_batch(alone.policy, alone.config, envs=4, seed=seed, num_fragments=2)
        for seed in range(3)
    ]

    def work(rank: int, learner: Any) -> Any:
        for batch in batches:
            learn(learner, part_of(batch, rank))
        return learner

    found = together([make(kind, network, **settings) for _ in range(2)], work)
    for batch in batches:
        learn(alone, batch)
    for learner in found:
        for one, other in zip(
            alone.trained.parameters(), learner.trained.parameters(), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def part_of(batch: Any, rank: int) -> Any:
    part = split_batch(batch, rank, 2)
    part.num_agents, part.bootstrap = batch.num_agents, batch.bootstrap
    return part


def test_priorities_and_weights_are_those_of_windows() -> None:
    learner = make_table(sequence_length=2, learning_rate=1e-9)
    batch = batch_of(
        learner,
        [[[0, 0, 3], [0, 0, 3]], [[3, 3, 3], [3, 3, 3]]],
        row=KEYED,
        reward=[[[2.0, 12.0, 0.0]] * 2, [[1.0, 1.0, 0.0]] * 2],
        terminated=[[[False, False, True]] * 2] * 2,
        acted=[[[True, True, False]] * 2] * 2,
    )
    batch.data.row["weight"][...] = [0.25, 0.25, 1.0, 1.0]
    windows = learner.make_windows(batch)
    windows.weigh(1.0, learner.collective)
    # Errors: 2 + 0.5 * 0 - 2 = 0 and 12 - 2 = 10; 1 + 0.5 * 6 and 1.
    assert windows.all.weight is not None
    assert windows.all.weight.tolist() == [0.25, 1.0]
    priorities = learn(learner, batch).priorities
    first, second = 0.9 * 10 + 0.1 * 5, 0.9 * 4 + 0.1 * 2.5
    np.testing.assert_allclose(priorities, [first, first, second, second], rtol=1e-5)


def test_what_cannot_work_is_refused() -> None:
    def check(kind: type[VDN], team: TeamSpec, network: Any = None, **settings: Any) -> None:
        policy = QNetwork(AGENT, QNetworkConfig(**(network or {})))
        kind.check(kind.Config(**settings), with_team(policy, team))

    with pytest.raises(ConfigError, match=r"VDN expects a team .*one agent.*pad"):
        check(VDN, TeamSpec())
    with pytest.raises(ConfigError, match="QMIX expects agents that act at the same ticks"):
        check(QMIX, TeamSpec(num_agents=2, turn_based=True))
    with pytest.raises(ConfigError, match=r"num_quantiles: expected 0 for VDN"):
        check(VDN, TEAM, {"num_quantiles": 5})
    with pytest.raises(ConfigError, match=r"mixing_input.*global state"):
        check(QMIX, TeamSpec(num_agents=2), mixing_input="state")
    with pytest.raises(ConfigError, match=r"sequence_length: expected at least 2"):
        check(VDN, TEAM, {"recurrent": "lstm"})
    box = AgentSpec(obs=STATE, action=Box((1,), (-1.0,), (1.0,)))
    actor = with_team(ActorCritic(box, ActorCriticConfig()))
    with pytest.raises(ConfigError, match=r"QMIX expects one discrete action"):
        QMIX.check(QMIXConfig(), actor)
    for wrong in ({"team_reward": "min"}, {"mixing_input": "all"}, {"mixing_units": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            QMIXConfig(**wrong)
    with pytest.raises(ConfigError, match="hypernetwork_size"):
        QMIXConfig(hypernetwork_size=-1)
    assert VDNConfig().huber_delta is None
    assert math.isclose(QMIXConfig().gamma, 0.99)
