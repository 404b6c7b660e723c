"""`srl list`, `srl settings`, `srl check` and `srl plot`."""

from __future__ import annotations

from srl.cli import main
from srl.recipes import RECIPES


def test_list_names_every_recipe_algorithm_and_policy(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for name in (*RECIPES, "ppo", "actor_critic", "random", "envpool:", "pettingzoo:"):
        assert name in text


def test_list_of_environments_has_ids_that_work(capsys):
    assert main(["list", "--envs"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out.splitlines()


def test_settings_show_a_recipe_s_values_and_can_be_searched(capsys):
    assert main(["settings", "pong", "--search", "clip"]) == 0
    text = capsys.readouterr().out
    assert "algorithm.clip = 0.1" in text
    assert "algorithm.clip_reward = sign" in text
    assert "actor.envs" not in text


def test_check_passes_a_good_environment_and_fails_a_bad_one(capsys, tmp_path):
    assert main(["check", "CartPole-v1"]) == 0
    assert "0 errors" in capsys.readouterr().out
    file = tmp_path / "bad.py"
    file.write_text(
        "import gymnasium, numpy as np\n"
        "from gymnasium import spaces\n"
        "class Bad(gymnasium.Env):\n"
        "    observation_space = spaces.Box(0, 1, (2,), np.float32)\n"
        "    action_space = spaces.Discrete(2)\n"
        "    def reset(self, seed=None, options=None):\n"
        "        return np.zeros(3, np.float32), {}\n"
        "    def step(self, action):\n"
        "        return np.zeros(3, np.float32), 0.0, False, False, {}\n"
    )
    assert main(["check", f"{file}:Bad"]) == 1
    out = capsys.readouterr().out
    assert "error" in out
    assert "->" in out
