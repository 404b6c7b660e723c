"""Arrays in slots, and fragments in batches."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.data.batching import BatchBuilder
from srl.data.memory_layout import ALIGNMENT, Shape, layout_bytes, layout_views, mark_unwritten
from srl.data.records import Trajectory
from srl.data.spec import (
    AgentSpec,
    ArraySpec,
    Box,
    Discrete,
    EnvSpec,
    MultiBinary,
    MultiDiscrete,
    action_array,
    check,
    from_plain,
    mask_size,
)
from srl.data.stacking import push_frame, stack_index
from srl.data.trajectory import TrajectorySpec, to_tree
from srl.data.tree import leaves
from srl.errors import ConfigError, SpecError

AGENT = AgentSpec(obs={"x": ArraySpec(shape=(2,), stack=3), "y": ArraySpec()}, action=Discrete(3))


def spec_of(**changes: Any) -> TrajectorySpec:
    base: dict[str, Any] = {
        "length": 4,
        "rows": 2,
        "envs": 1,
        "agent": AGENT,
        "extras": {"v": ArraySpec()},
        "policy_state": {"h": ArraySpec(shape=(3,))},
        "env_state": ArraySpec(shape=(5,)),
        "row": {"key": ArraySpec(dtype="int64")},
        "cut": "episode",
    }
    return TrajectorySpec(**{**base, **changes})


def with_ticks(trajectory: Trajectory) -> list[np.ndarray]:
    """All arrays but those of the rows."""
    tree = to_tree(trajectory)
    del tree["row"]
    return leaves(tree)


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 5), max_size=3).map(tuple),
            st.sampled_from(["bool", "uint8", "int64", "float32"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_arrays_of_a_layout_share_no_byte_and_start_at_cache_lines(
    shapes: list[tuple[tuple[int, ...], str]],
) -> None:
    tree = {str(i): Shape(shape, dtype) for i, (shape, dtype) in enumerate(shapes)}
    raw = np.zeros(layout_bytes(tree) + ALIGNMENT, np.uint8)
    memory = raw[-raw.ctypes.data % ALIGNMENT :][: layout_bytes(tree)]
    views = layout_views(tree, memory)
    for i, (name, shape) in enumerate(tree.items()):
        assert views[name].shape == shape.shape
        assert views[name].dtype == shape.dtype
        if views[name].size:
            assert views[name].ctypes.data % ALIGNMENT == 0
        views[name].fill(i % 2)
    for i, name in enumerate(tree):
        assert (views[name] == i % 2).all()


def test_unwritten_memory_is_loud() -> None:
    arrays = {"f": np.zeros(3, np.float16), "i": np.zeros(3, np.int32), "b": np.zeros(2, bool)}
    mark_unwritten(arrays)
    assert np.isnan(arrays["f"]).all()
    assert (arrays["i"] == np.iinfo(np.int32).min).all()
    assert not arrays["b"].any()


def test_a_batch_holds_its_fragments_side_by_side() -> None:
    spec = spec_of(rows=2, cut="fixed")
    builder = BatchBuilder(spec, 3)
    for number in range(3):
        assert not builder.full
        fragment = spec.allocate()
        for array in leaves(to_tree(fragment)):
            array.fill(number if array.dtype != bool else bool(number % 2))
        builder.add(fragment, spec.capacity, 7)
    assert builder.full
    assert builder.num_env_steps == 21
    batch = builder.batch()
    assert batch.num_fragments == 3
    assert batch.data.row["key"].tolist() == [0, 0, 1, 1, 2, 2]
    for array in with_ticks(batch.data):
        width = array.shape[1] // 3
        for number in range(3):
            part = array[:, number * width : (number + 1) * width]
            assert (part == (number if array.dtype != bool else number % 2)).all()
    builder.clear()
    assert not builder.full
    assert builder.num_env_steps == 0


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_what_lies_beyond_a_short_fragment_is_blank(length: int) -> None:
    """Its slot may hold NaN there, and NaN times a mask of 0 is NaN."""
    spec = spec_of(state_every=2, burn_in=0)
    builder = BatchBuilder(spec, 2)
    whole, short = spec.allocate(), spec.allocate()
    for array in leaves(to_tree(whole)):
        array.fill(1)
    mark_unwritten(to_tree(short))
    short.row["key"].fill(7)
    for name in ("alive", "acted", "is_first", "terminated", "truncated"):
        getattr(short, name).fill(True)
    builder.add(whole, spec.capacity, 1)
    builder.add(short, length, 1)
    data = builder.batch().data
    assert data.row["key"].tolist() == [1, 1, 7, 7], "data of rows does not depend on the length"
    for array in with_ticks(data):
        width = array.shape[1] // 2
        assert (array[:, :width] == 1).all(), "the other fragment is untouched"
    short_columns = slice(2, 4)
    for name in ("alive", "acted", "is_first", "terminated", "truncated"):
        flag = getattr(data, name)[:, short_columns]
        assert flag[:length].all()
        assert not flag[length:].any()
    assert (data.policy_version[length:, short_columns] == -1).all()
    for array in (data.obs["y"], data.reward, data.action, data.extras["v"]):
        assert (array[length:, short_columns] == 0).all()
    assert np.isnan(data.obs["x"][: length + 2, short_columns]).all()
    assert (data.obs["x"][length + 2 :, short_columns] == 0).all()
    assert (data.policy_state["h"][-(-length // 2) :, short_columns] == 0).all()
    assert (data.env_state[length:, 1] == 0).all()


def test_a_half_full_batch_goes_on_after_a_restore() -> None:
    spec = spec_of(cut="fixed")
    builder, other = BatchBuilder(spec, 2), BatchBuilder(spec, 2)
    fragment = spec.allocate()
    fragment.reward.fill(3.0)
    builder.add(fragment, spec.capacity, 9)
    other.restore(builder.state())
    other.add(fragment, spec.capacity, 9)
    assert other.full
    assert other.num_env_steps == 18
    assert other.batch().num_fragments == 2
    assert (other.batch().data.reward == 3.0).all()


def test_trajectories_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"multiples of state_every, got length 4.*every 3"):
        spec_of(state_every=3)
    with pytest.raises(ConfigError, match="one environment per group, got 2"):
        spec_of(envs=2)
    with pytest.raises(ConfigError, match="turn-based"):
        spec_of(turn_based=True)


@given(
    data=st.data(),
    stack=st.integers(2, 4),
    ticks=st.integers(1, 12),
)
def test_stacks_put_together_on_read_are_the_live_ones(
    data: st.DataObject, stack: int, ticks: int
) -> None:
    rows = 2
    is_first = np.array(
        data.draw(st.lists(st.booleans(), min_size=ticks * rows, max_size=ticks * rows))
    )
    is_first = is_first.reshape(ticks, rows)
    is_first[0] = True
    frames = np.arange(ticks * rows).reshape(ticks, rows)
    stored = np.concatenate([np.zeros((stack - 1, rows), int), frames])
    index = stack_index(is_first, stack)
    live = np.zeros((rows, stack), int)
    for t in range(ticks):
        push_frame(live, frames[t], is_first[t])
        for row in range(rows):
            assert (stored[index[t, row], row] == live[row]).all()


# -- specs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "shape", "dtype", "mask"),
    [
        (Discrete(4), (), "int64", 4),
        (MultiDiscrete((2, 3)), (2,), "int64", 5),
        (MultiBinary(3), (3,), "int8", 6),
        (Box((2,), (0.0, 0.0), (1.0, 1.0)), (2,), "float32", None),
    ],
)
def test_how_actions_are_stored(action: Any, shape: Any, dtype: str, mask: int | None) -> None:
    stored = action_array(action)
    assert (stored.shape, stored.dtype) == (shape, dtype)
    if mask is None:
        with pytest.raises(SpecError, match="Remove the mask"):
            mask_size(action)
    else:
        assert mask_size(action) == mask
        agent = AgentSpec(obs=ArraySpec(), action=action, has_action_mask=True)
        assert agent.action_mask == ArraySpec(shape=(mask,), dtype="bool")


def test_specs_travel_as_json() -> None:
    spec = EnvSpec(
        agents={
            "a": AgentSpec(
                obs={"shape": ArraySpec(shape=(2,)), "dtype": {"deep": ArraySpec(stack=4)}},
                action=Box((1,), (-np.inf,), (2.0,)),
                has_action_mask=False,
            )
        },
        env_state={"s": ArraySpec()},
        turn_based=True,
    )
    assert msgspec.json.decode(msgspec.json.encode(spec), type=EnvSpec) == spec
    assert from_plain(None) is None


def test_a_value_that_breaks_its_spec_is_named() -> None:
    check(np.zeros((3, 2), np.float32), ArraySpec(shape=(2,)), "obs", "env 1")
    with pytest.raises(
        SpecError, match=r"obs\.x: expected float32\[2\], got float64\[3\], from env 1"
    ):
        check(np.zeros((3, 3)), ArraySpec(shape=(2,)), "obs.x", "env 1")
    assert str(ArraySpec(shape=(84, 84), dtype="uint8", stack=4)) == "uint8[84,84] stacked 4"
