"""What a template imports for an environment: the modules of its family, and none of a user's."""

from __future__ import annotations

import gymnasium
import pytest

from srl.envs.packages import packages_of


def test_a_family_brings_its_modules() -> None:
    assert "envpool" in packages_of("envpool:Pong-v5")
    assert "ale_py" in packages_of("ALE/Pong-v5")
    assert "gymnasium.envs.classic_control.cartpole" in packages_of("CartPole-v1")
    assert packages_of("hide_and_seek") == ("srl.envs.hide_and_seek.group",)


@pytest.mark.parametrize(
    "id",
    ["mine:Env", "mine.py:Env", "mine:Env-v0", "NoSuchEnv-v0", "jax:gymnax:CartPole-v1"],
)
def test_a_users_environment_brings_none(id: str) -> None:
    assert packages_of(id) == ()


def test_a_users_registration_brings_none() -> None:
    gymnasium.register("OfAUser-v0", entry_point="user_module:Env")
    try:
        assert packages_of("OfAUser-v0") == ()
    finally:
        del gymnasium.registry["OfAUser-v0"]
