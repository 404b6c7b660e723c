"""The workloads of the peers are those of `srl bench`."""

from __future__ import annotations

import pytest
from workloads import WORKLOADS

from srl.bench.workloads import EQUAL
from srl.bench.workloads import WORKLOADS as OURS

ENVS = {
    "cartpole": "envpool:CartPole-v1",
    "cartpole_masked": "srl.envs.tasks.masked_pool:MaskedPool",
    "pong": "envpool:Pong-v5",
    "cheetah": "envpool:HalfCheetah-v5",
    "simple_tag": "pettingzoo:mpe2.simple_tag_v3",
}


def test_both_have_the_same_workloads() -> None:
    assert set(WORKLOADS) == set(OURS)


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_settings_are_equal(name: str) -> None:
    theirs, ours = WORKLOADS[name], OURS[name]
    assert ENVS[theirs.env] == ours.env
    for mine, yours in (
        (theirs.num_envs, ours.envs),
        (theirs.horizon, ours.horizon),
        (theirs.epochs, ours.epochs),
        (theirs.minibatches, ours.minibatches),
        (theirs.learning_rate, ours.learning_rate),
        (theirs.entropy_coefficient, ours.entropy),
        (theirs.lstm, ours.network.get("recurrent_size", 0)),
        (theirs.sequence, ours.algorithm.get("chunk_length", 0)),
    ):
        assert mine == yours
    same = ("gamma", "gae_lambda", "clip", "value_coefficient", "max_grad_norm", "adam_eps")
    assert {key: getattr(theirs, key) for key in same} == {key: EQUAL[key] for key in same}
