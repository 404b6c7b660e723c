"""Several agents: who is in the game, whose turn it is, and that every reward comes out once."""

from __future__ import annotations

import numpy as np
import pytest
from playing import check_episode_rules, group_of, play, stacked

from srl.envs.check import random_actions
from srl.errors import ConfigError, EnvError

pytest.importorskip("pettingzoo")
from srl.testing.team_envs import AGENTS, ScriptedParallelEnv, TeamScript

PARALLEL = "srl.testing.team_envs:ScriptedParallelEnv"
AEC = "srl.testing.team_envs:ScriptedAecEnv"
TEAM = {"team": AGENTS}
SPLIT = {"a": ("late",), "b": ("early", "steady")}


@pytest.mark.parametrize("policy_agents", [TEAM, SPLIT])
@pytest.mark.parametrize("seed", range(4))
def test_parallel_agents_come_and_go_as_scripted(policy_agents: dict, seed: int) -> None:
    played = play(group_of(PARALLEL, 2, policy_agents), 40, seed)
    for policy_rows, agents in policy_agents.items():
        check_episode_rules(played, policy_rows)
        for row in range(2 * len(agents)):
            index, column = divmod(row, len(agents))
            agent = agents[column]
            alive, final, reward, first = [], [], [], []
            episode = 0
            while len(alive) <= 40:
                script = TeamScript(seed + index, episode)
                for tick in range(max(script.done.values()) + 1):
                    inside = script.enters[agent] <= tick <= script.done[agent]
                    alive.append(inside)
                    final.append(tick == script.done[agent])
                    first.append(tick == script.enters[agent])
                    earns = inside and tick > script.enters[agent]
                    reward.append(int(script.rewards[tick, AGENTS.index(agent)]) if earns else 0)
                episode += 1
            ends = stacked(played, policy_rows, "terminated") | stacked(
                played, policy_rows, "truncated"
            )
            assert stacked(played, policy_rows, "alive")[:, row].tolist() == alive[:41]
            assert stacked(played, policy_rows, "is_first")[:, row].tolist() == first[:41]
            assert ends[:, row].tolist() == final[:41]
            assert stacked(played, policy_rows, "reward")[:, row].tolist() == reward[:41]


def test_parallel_rows_are_env_major_and_show_their_agent() -> None:
    for step in play(group_of(PARALLEL, 3, TEAM), 20):
        team = step["team"]
        expected = np.tile(np.arange(3), 3)
        assert (team["obs"][team["alive"], 2] == expected[team["alive"]]).all()
        assert (team["obs"][~team["alive"]] == 0).all()
        # Alive agents of one environment agree on tick and episode, and so does the global state.
        times = team["obs"][:, :2].reshape(3, 3, 2)
        for index in range(3):
            inside = team["alive"].reshape(3, 3)[index]
            assert (times[index][inside] == team["env_state"][index]).all()


def test_parallel_time_limit() -> None:
    played = play(group_of(PARALLEL, 1, TEAM, max_episode_steps=2), 6)
    over = stacked(played, "team", "terminated") | stacked(played, "team", "truncated")
    assert (over[2] == stacked(played, "team", "alive")[2]).all()
    assert stacked(played, "team", "is_first")[3].any()


def test_mpe_simple_tag() -> None:
    pytest.importorskip("mpe2")
    policy_agents = {"hunters": ("adversary_0", "adversary_1", "adversary_2"), "prey": ("agent_0",)}
    group = group_of("pettingzoo:mpe2.simple_tag_v3", 2, policy_agents)
    played = play(group, 60)
    for policy_rows in policy_agents:
        check_episode_rules(played, policy_rows)
        truncated = stacked(played, policy_rows, "truncated")
        assert np.flatnonzero(truncated[:, 0]).tolist() == [25, 51]
    assert group.spec.env_state is not None
    assert played[3]["prey"]["env_state"].shape == (2, *group.spec.env_state.shape)
    seen = played[3]["prey"]["obs"][0]
    assert (played[3]["prey"]["env_state"][0][-len(seen) :] == seen).all()
    with pytest.raises(ConfigError, match="equal spaces"):
        group_of("pettingzoo:mpe2.simple_tag_v3", 1, {"all": tuple(group.spec.agents)})
    group.close()


@pytest.mark.parametrize("policy_agents", [TEAM, SPLIT])
@pytest.mark.parametrize("seed", range(4))
def test_aec_pays_every_reward_once(policy_agents: dict, seed: int) -> None:
    group = group_of(AEC, 2, policy_agents)
    assert group.spec.turn_based
    played = play(group, 80, seed)
    for index in range(2):
        paid = group._envs[index].paid
        turns = np.zeros(81, int)
        for policy_rows, agents in policy_agents.items():
            check_episode_rules(played, policy_rows)
            for column, agent in enumerate(agents):
                row = index * len(agents) + column
                reward = stacked(played, policy_rows, "reward")[:, row]
                alive = stacked(played, policy_rows, "alive")[:, row]
                first = stacked(played, policy_rows, "is_first")[:, row]
                turns += stacked(played, policy_rows, "turn")[:, row]
                starts = np.flatnonzero(first)
                assert (reward[~alive] == 0).all()
                assert len(starts) == len(paid)
                ends = [*starts[1:], 81]
                for episode, (start, end) in enumerate(zip(starts, ends, strict=True)):
                    assert reward[start:end].sum() == paid[episode][agent]
        assert set(turns.tolist()) == {0, 1}
        # Nobody is on turn only where the last observation of an episode is shown.
        over = [
            tick
            for tick in np.flatnonzero(turns == 0)
            if tick + 1 < 81 and not _starts(played[tick + 1], policy_agents, index)
        ]
        assert not over


def _starts(step: dict, policy_agents: dict, index: int) -> bool:
    return any(
        step[policy_rows]["is_first"].reshape(2, len(agents))[index].any()
        for policy_rows, agents in policy_agents.items()
    )


def test_tictactoe() -> None:
    policy_agents = {"x": ("player_1",), "o": ("player_2",)}
    group = group_of("pettingzoo:classic.tictactoe_v3", 3, policy_agents)
    random = np.random.default_rng(0)
    steps = group.reset(0)
    games = wins = 0
    for _ in range(400):
        assert not (steps["x"].turn & steps["o"].turn).any()
        for policy_rows in policy_agents:
            step = steps[policy_rows]
            empty = step.obs.sum(axis=3).reshape(3, 9) == 0
            assert (step.action_mask[step.turn] == empty[step.turn]).all()
        ended = steps["x"].terminated
        assert (ended == steps["o"].terminated).all()
        assert (steps["x"].reward == -steps["o"].reward).all()
        for index in np.flatnonzero(ended):
            games += 1
            wins += int(abs(steps["x"].reward[index]))
            assert steps["x"].reward[index] == _winner(steps["x"].obs[index])
        steps = group.step(random_actions(group.spec, steps, group.policy_agents, random))
    assert games > 100
    assert 0.5 < wins / games < 1
    group.close()


def _winner(stats_table: np.ndarray) -> int:
    """1 if the first plane has three in a row, -1 if the second, else 0."""
    for plane, sign in ((stats_table[..., 0], 1), (stats_table[..., 1], -1)):
        lines = [*plane, *plane.T, plane.diagonal(), plane[::-1].diagonal()]
        if any(line.all() for line in lines):
            return sign
    return 0


def test_aec_time_limit_truncates_everyone_in_the_game() -> None:
    played = play(group_of(AEC, 1, TEAM, max_episode_steps=1), 4)
    assert (stacked(played, "team", "truncated") | stacked(played, "team", "terminated"))[1].all()
    assert stacked(played, "team", "is_first")[2].all()


def test_agent_batches_must_cover_the_agents() -> None:
    for policy_agents, text in [
        ({"a": ("early", "steady")}, "late"),
        ({"a": AGENTS, "b": ("late",)}, "'a' and 'b'"),
        ({"a": (*AGENTS, "lat")}, "no agent 'lat'"),
    ]:
        with pytest.raises(ConfigError, match=text):
            group_of(PARALLEL, 1, policy_agents)


def test_an_agent_that_vanishes_is_an_error() -> None:
    group = group_of(PARALLEL, 1, TEAM)
    group.reset(0)
    real = group._envs[0].step

    def lose_one(actions: dict) -> tuple:
        obs, *rest = real(actions)
        obs.pop("steady")
        return obs, *rest

    group._envs[0].step = lose_one
    with pytest.raises(EnvError, match=r"'steady'.*environment 0 in step\(\)"):
        group.step({"team": np.zeros(3, np.int64)})


@pytest.mark.parametrize(
    ("id", "call"),
    [(PARALLEL, "reset"), (PARALLEL, "step"), (AEC, "reset"), (AEC, "observe"), (AEC, "step")],
)
def test_a_team_that_ends_the_program_is_named(id: str, call: str) -> None:
    group = group_of(id, 1, TEAM)
    group.reset(0)

    def leave(*_: object, **__: object) -> None:
        raise SystemExit(0)

    setattr(group._envs[0], call, leave)
    with pytest.raises(EnvError, match=rf"environment 0 raised SystemExit.*in {call}\(\)"):
        group.step({"team": np.zeros(3, np.int64)}) if call == "step" else group.reset(0)


class Unmasked(ScriptedParallelEnv):
    """Gives no masks, although it says that it does."""

    has_action_mask = True


class LateMasks(ScriptedParallelEnv):
    """Gives masks from the first step on, and none at the reset."""

    def step(self, actions):
        *rest, infos = super().step(actions)
        return *rest, {agent: {"action_mask": np.array([1, 0])} for agent in infos}


def test_masks_that_were_not_declared_are_not_passed_over() -> None:
    group = group_of(f"{__name__}:LateMasks", 1, TEAM)
    group.reset(0)
    with pytest.raises(EnvError, match=r"action_mask: expected none, because its first info"):
        group.step({"team": np.zeros(3, np.int64)})


class Counting(ScriptedParallelEnv):
    """Reports the number of its episode."""

    metrics = ("number",)

    def step(self, actions):
        *rest, infos = super().step(actions)
        over = {"number": self._episode} if not self.agents else {}
        return *rest, {agent: over for agent in infos}


def test_metrics_are_those_of_the_episode_that_ended() -> None:
    group = group_of(f"{__name__}:Counting", 1, TEAM)
    step, found = group.reset(0)["team"], []
    for _ in range(40):
        number = float(step.metrics["number"][0])
        ended = (step.terminated | step.truncated).any()
        if ended and step.alive.sum() > (step.terminated | step.truncated).sum():
            assert np.isnan(number), "others go on"
        elif ended:
            found.append(number)
        step = group.step({"team": np.zeros(3, np.int64)})["team"]
    assert len(found) > 3
    assert found == list(range(len(found)))


def test_who_is_to_act_must_have_a_mask() -> None:
    with pytest.raises(EnvError, match=r"action_mask: expected at least one allowed.*in reset"):
        group_of(f"{__name__}:Unmasked", 1, TEAM).reset(0)
