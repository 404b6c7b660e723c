"""The episode rules as invariants, over random environments, cuts and carriers.

Each test plays a real actor (see `scripted`), and compares the fragments that came out with what
went in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scripted import BatchRecord, Play, Setup

from srl.arena.arena import HeapArena
from srl.arena.shm import RunFolder, ShmArena
from srl.data.records import Trajectory
from srl.data.stacking import stack_index
from srl.data.tree import leaves

SINGLE = "srl.testing.envs:ScriptedEnv"
PARALLEL = "srl.testing.team_envs:ScriptedParallelEnv"
AEC = "srl.testing.team_envs:ScriptedAecEnv"
ONE_TEAM = {"all": ("early", "steady", "late")}
TWO_TEAMS = {"first": ("late", "early"), "second": ("steady",)}


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int]:
    """Length, burn-in and the spacing of policy states."""
    every = draw(st.integers(1, 3))
    return {
        "state_every": every,
        "length": every * draw(st.integers(1, 4)),
        "burn_in": every * draw(st.integers(0, 2)),
    }


@st.composite
def single_setups(draw: st.DrawFn) -> Setup:
    cut = draw(st.sampled_from(["fixed", "episode"]))
    age = draw(st.sampled_from([0, 1, None]))
    return Setup(
        env=SINGLE,
        env_args={
            "min_length": 1,
            "max_length": draw(st.integers(1, 7)),
            "mask": draw(st.booleans()),
        },
        num_envs=1 if cut == "episode" else draw(st.integers(1, 3)),
        num_groups=draw(st.integers(1, 2)),
        cut=cut,
        stack=draw(st.integers(1, 4)),
        age=age,
        bootstrap=draw(st.integers(1, 5)) if age is None and cut == "fixed" else 1,
        seed=draw(st.integers(0, 10_000)),
        packs=draw(st.booleans()),
        background=draw(st.booleans()),
        **draw(shapes()),
    )


@st.composite
def team_setups(draw: st.DrawFn, env: str) -> Setup:
    cut = draw(st.sampled_from(["fixed", "fixed", "episode"]))
    age = draw(st.sampled_from([0, 1, None]))
    may_look_ahead = env == PARALLEL and age is None and cut == "fixed"
    return Setup(
        env=env,
        policy_agents=draw(st.sampled_from([ONE_TEAM, TWO_TEAMS])),
        num_envs=1 if cut == "episode" else draw(st.integers(1, 3)),
        num_groups=draw(st.integers(1, 2)) if cut == "fixed" else 1,
        cut=cut,
        stack=draw(st.integers(1, 3)) if env == PARALLEL else 1,
        age=age,
        bootstrap=draw(st.integers(1, 5)) if may_look_ahead else 1,
        seed=draw(st.integers(0, 10_000)),
        background=draw(st.booleans()),
        **draw(shapes()),
    )


@contextmanager
def played(setup: Setup, carrier: str, fragments: int = 8) -> Iterator[Play]:
    folder = RunFolder() if carrier == "shm" else None
    arena = ShmArena(folder.path, "here") if folder is not None else HeapArena()
    play = Play(setup, arena)
    try:
        play.run(fragments)
        yield play
    finally:
        play.close()
        if folder is not None:
            arena.close()
            folder.remove()


CARRIERS = st.sampled_from(["inline", "shm"])
EXAMPLES = hypothesis_settings(max_examples=50)


@given(setup=single_setups(), carrier=CARRIERS)
@EXAMPLES
def test_one_agent_an_environment(setup: Setup, carrier: str) -> None:
    with played(setup, carrier) as play:
        check_all(play)


@given(setup=team_setups(PARALLEL), carrier=CARRIERS)
@EXAMPLES
def test_agents_that_come_and_go(setup: Setup, carrier: str) -> None:
    with played(setup, carrier) as play:
        check_all(play)


@given(setup=team_setups(AEC), carrier=CARRIERS)
@hypothesis_settings(max_examples=70)
def test_agents_that_take_turns(setup: Setup, carrier: str) -> None:
    with played(setup, carrier) as play:
        check_all(play)


def assert_same(got: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    assert got.shape == expected.shape, what
    assert (got == expected).all(), (what, got, expected)


# -- the rules -----------------------------------------------------------------------------------


def check_all(play: Play) -> None:
    for index, group in enumerate(play.records):
        for policy, record in group.items():
            check_sequence(play.setup, record)
            for number, (fragment, length) in enumerate(record.fragments):
                check_flags(fragment, length)
                check_asked(play.setup, record, fragment, length)
                check_states(play.setup, record, fragment, length)
                check_stacks(play.setup, record, fragment, length)
                if number:
                    check_overlap(play, record, number)
            check_actions_and_rewards(play, record)
            check_sum_of_rewards(play, index, policy, record)
            check_ticks(play, record)
            check_policy_states(record)


def check_sequence(setup: Setup, record: BatchRecord) -> None:
    """A fragment says whether it goes on where the last one of its agent batch ended."""
    assert len({info.origin for info in record.infos}) <= 1
    for number, (before, after) in enumerate(pairwise(record.infos)):
        goes_on = not (cuts(setup, *record.fragments[number]) or dropped(setup, record, number + 1))
        assert (after.sequence == before.sequence + 1) == goes_on
        assert after.sequence > before.sequence


def check_flags(fragment: Trajectory, length: int) -> None:
    """Along a row's life: an end, then a beginning; and nothing is done at an end."""
    final = (fragment.terminated | fragment.truncated)[:length]
    acted, alive, first = (x[:length] for x in (fragment.acted, fragment.alive, fragment.is_first))
    assert not (fragment.terminated & fragment.truncated)[:length].any()
    assert not (final & acted).any(), "no action at a final observation"
    assert not (acted & ~alive).any()
    assert not (final & ~alive).any()
    assert (fragment.reward[:length][final] == 0).all(), "a final observation earns nothing"
    assert (fragment.reward[:length][~acted] == 0).all(), "only actions earn"
    for row in range(final.shape[1]):
        ticks = np.flatnonzero(alive[:, row])
        assert_same(final[ticks[:-1], row], first[ticks[1:], row])


def check_asked(setup: Setup, record: BatchRecord, fragment: Trajectory, length: int) -> None:
    """What was done was asked for, and so was the worth of what was cut short."""
    asked = fragment.policy_version[:length] >= 0
    assert asked[fragment.acted[:length]].all()
    assert asked[fragment.truncated[:length]].all(), (
        "a truncated tick has a value to bootstrap from"
    )
    for t, row in zip(*np.nonzero(asked), strict=True):
        entry = record.asked[int(fragment.extras["id"][t, row])]
        assert entry.row == row
        assert entry.action == fragment.action[t, row]
        assert entry.version == fragment.policy_version[t, row]
        if setup.stack == 1:
            for stored, seen in zip(leaves(fragment.obs), entry.obs, strict=True):
                assert_same(stored[t, row], seen)


def check_states(setup: Setup, record: BatchRecord, fragment: Trajectory, length: int) -> None:
    """The state at the start of every chunk is the one that was fed in there."""
    stored = fragment.policy_state["h"]
    assert len(stored) == -(-setup.capacity // setup.state_every)
    asked = fragment.policy_version[:length] >= 0
    for t, row in zip(*np.nonzero(asked), strict=True):
        if t % setup.state_every == 0:
            entry = record.asked[int(fragment.extras["id"][t, row])]
            assert_same(stored[t // setup.state_every, row], entry.fed)
    # A chunk that starts where a row is not asked holds what the row's next question is fed with,
    # unless an episode begins in between.
    for chunk in range(len(stored)):
        start = chunk * setup.state_every
        if start < setup.burn_in or start >= length:
            continue
        for row in range(asked.shape[1]):
            later = np.flatnonzero(asked[start:, row])
            if not later.size or not fragment.alive[start, row]:
                continue
            if fragment.is_first[start + 1 : start + later[0] + 1, row].any():
                continue
            entry = record.asked[int(fragment.extras["id"][start + later[0], row])]
            assert_same(stored[chunk, row], entry.fed)


def check_stacks(setup: Setup, record: BatchRecord, fragment: Trajectory, length: int) -> None:
    """Frames are stored once, and put together again they are what the policy saw."""
    if setup.stack == 1:
        return
    index = stack_index(fragment.is_first, setup.stack)
    asked = (fragment.policy_version[:length] >= 0) & fragment.alive[:length]
    for t, row in zip(*np.nonzero(asked), strict=True):
        entry = record.asked[int(fragment.extras["id"][t, row])]
        for stored, seen in zip(leaves(fragment.obs), entry.obs, strict=True):
            assert len(stored) == len(fragment.reward) + setup.stack - 1
            assert_same(stored[index[t, row], row], seen)


def check_overlap(play: Play, record: BatchRecord, number: int) -> None:
    """The last ticks of a fragment, with what burns in before them, open the next one."""
    setup = play.setup
    (old, old_length), (new, _) = record.fragments[number - 1 : number + 1]
    if cuts(setup, old, old_length):
        assert not new.alive[: setup.burn_in].any()
        return
    ticks = setup.overlap
    start = old_length - ticks
    # An action that has to wait on moves on, and its place in the newer fragment is empty. Without
    # an action that is too old, its row begins later.
    moved = old.alive[start:old_length] & ~new.alive[:ticks]
    without = list(dropped(setup, record, number))
    assert play.env_spec.turn_based or not moved.any()
    assert not new.alive[:ticks, without].any()
    moved[:, without] = True
    kept = np.delete(np.arange(moved.shape[1]), without)
    assert not moved[:-1, kept].any()
    for name in ("is_first", "terminated", "truncated", "alive", "acted"):
        shared, opens = getattr(old, name)[start:old_length], getattr(new, name)[:ticks]
        assert_same(shared[~moved], opens[~moved], name)
    for name in ("action", "reward", "policy_version"):
        shared, opens = getattr(old, name)[start : old_length - 1], getattr(new, name)[: ticks - 1]
        assert_same(shared[:, kept], opens[:, kept], name)
    for a, b in zip(leaves(old.obs), leaves(new.obs), strict=True):
        depth = len(a) - len(old.reward)
        assert_same(a[start + depth : old_length + depth], b[depth:][:ticks])
    for a, b in zip(leaves(old.policy_state), leaves(new.policy_state), strict=True):
        assert_same(
            a[start // setup.state_every : (old_length - 1) // setup.state_every + 1, kept],
            b[: -(-ticks // setup.state_every), kept],
        )


def cuts(setup: Setup, fragment: Trajectory, length: int) -> bool:
    """Whether an episode ends with this fragment, in the mode that cuts there."""
    t = length - 1
    final = fragment.terminated[t] | fragment.truncated[t]
    return setup.cut == "episode" and bool(final.any() and (final | ~fragment.alive[t]).all())


def dropped(setup: Setup, record: BatchRecord, number: int) -> dict[int, int]:
    """The actions that a fragment lacks because they are too old: ids by row."""
    if number == 0:
        return {}
    return missing_actions(setup, record, record.fragments[number - 1], record.fragments[number])


def missing_actions(
    setup: Setup, record: BatchRecord, before: tuple[Trajectory, int], after: tuple[Trajectory, int]
) -> dict[int, int]:
    """The actions that `before` ends with, that were done, and that `after` does not hold."""
    (old, end), (new, length) = before, after
    if cuts(setup, old, end):
        return {}
    found = {}
    for row in np.flatnonzero(old.acted[end - 1] & ~new.acted[setup.overlap - 1]):
        action = int(old.extras["id"][end - 1, row])
        asked = record.asked[action]
        # It may have been inferred again, or have moved on to the next cut.
        done = record.executed[asked.tick][asked.row] is asked
        held = new.extras["id"][:length, row][new.acted[:length, row]]
        if done and action not in held:
            found[int(row)] = action
    return found


def dropped_ids(setup: Setup, record: BatchRecord) -> set[int]:
    """The ids of all actions that no loss sees, because they are too old. Younger ones are kept."""
    found: set[int] = set()
    for number, version in enumerate(record.consumed_at):
        for action in dropped(setup, record, number).values():
            assert setup.age is not None
            assert record.asked[action].version < version - setup.age
            found.add(action)
    return found


def check_actions_and_rewards(play: Play, record: BatchRecord) -> None:
    """Every action is in exactly one fragment's loss, with all that it earned."""
    setup = play.setup
    too_old = dropped_ids(setup, record)
    rows = record.ticks[0].turn.size
    for row in range(rows):
        seen = [
            (int(f.extras["id"][t, row]), float(f.reward[t, row]))
            for f, length in record.fragments
            for t in range(setup.burn_in, length - setup.bootstrap)
            if f.acted[t, row]
        ]
        expected = [entry for entry in earned(record, row) if entry[0] not in too_old]
        assert seen == expected[: len(seen)]
        # What is missing at most is in the last fragment's bootstrap, or in the open one.
        done = sum(length - setup.overlap for _, length in record.fragments)
        waiting = [t for t in range(done) if record.ticks[t].turn[row]]
        missing = 1 + len(too_old) + len(record.fragments) * (setup.cut == "episode")
        assert len(seen) >= len(waiting) - missing


def earned(record: BatchRecord, row: int) -> list[tuple[int, float]]:
    """From the outside: each action's id, and the rewards until the row's next one."""
    ids = {(asked.tick, asked.row): number for number, asked in record.asked.items()}
    found: list[list[float]] = []
    current: list[float] | None = None
    for tick, step in enumerate(record.ticks):
        if current is not None:
            current[1] += float(step.reward[row])
        if step.is_first[row]:
            current = None
        if step.turn[row]:
            if (tick, row) not in ids:
                break  # The last tick's question is still open.
            current = [ids[tick, row], 0.0]
            found.append(current)
    return [(int(number), reward) for number, reward in found]


def check_sum_of_rewards(play: Play, group: int, policy: str, record: BatchRecord) -> None:
    """What the environments paid for actions is what comes out, fragments and open one together,
    but for actions that were too old."""
    setup = play.setup
    too_old = dropped_ids(setup, record)
    out = sum(
        float(f.reward[setup.burn_in : length - setup.bootstrap].sum())
        for f, length in record.fragments
    )
    batch = play.actor._batch_of[policy, group]
    assert batch.writer is not None
    if batch.writer.is_open:
        slot, end = batch.writer.slot, batch.writer.tick + 1
        missing = missing_actions(setup, record, record.fragments[-1], (slot, end))
        too_old |= set(missing.values())
    else:
        slot, end = batch.writer._carry, setup.overlap
    out += float(slot.reward[setup.burn_in : end].sum())
    paid = sum(
        reward
        for row in range(record.ticks[0].turn.size)
        for action, reward in earned(record, row)
        if action not in too_old
    )
    assert out == paid
    assert play.actor.stats.get("count_dropped_actions") >= len(too_old)
    if not play.env_spec.turn_based:
        assert not too_old
        assert paid == sum(float(step.reward.sum()) for step in record.ticks)


def check_ticks(play: Play, record: BatchRecord) -> None:
    """Tick for tick, a fragment holds what the environments showed."""
    setup, turn_based = play.setup, play.env_spec.turn_based
    start = 0
    for fragment, length in record.fragments:
        for t in range(setup.burn_in, length):
            step = record.ticks[start + t - setup.burn_in]
            # An action that waits for its reward moves to the cut, and its old place is empty.
            same = np.ones(step.alive.size, bool)
            if turn_based:
                same = (fragment.acted[t] == step.turn) & (fragment.alive[t] == step.alive)
            for name in ("is_first", "terminated", "truncated", "alive"):
                assert_same(getattr(fragment, name)[t][same], getattr(step, name)[same], name)
            assert_same(fragment.acted[t][same], step.turn[same])
            for stored, shown in zip(leaves(fragment.obs), leaves(step.obs), strict=True):
                depth = len(stored) - len(fragment.reward)
                assert_same(stored[t + depth][same], shown[same])
            if step.action_mask is not None:
                assert_same(fragment.action_mask[t][same], step.action_mask[same])
            for stored, shown in zip(
                leaves(fragment.env_state), leaves(step.env_state), strict=True
            ):
                assert_same(stored[t], shown)
        advance = length - setup.overlap
        first, start = start, start + advance + cuts(setup, fragment, length)
        if setup.cut == "episode":
            assert length == setup.capacity or cuts(setup, fragment, length)
            for step in record.ticks[first : first + advance]:
                final = step.terminated | step.truncated
                over = final.any() and (final | ~step.alive).all()
                assert not over, "no episode ends before its fragment does"
        else:
            assert length == setup.capacity


def check_policy_states(record: BatchRecord) -> None:
    """A row is fed what its last answer returned, and nothing of the episode before."""
    for row in range(record.ticks[0].turn.size):
        last: np.ndarray | None = None
        begun = True
        for tick, step in enumerate(record.ticks):
            begun |= bool(step.is_first[row])
            entry = record.executed.get(tick, {}).get(row)
            if entry is None:
                continue
            if not step.alive[row]:
                continue
            if begun:
                assert entry.is_first, "the policy is told that an episode begins"
                assert not entry.fed.any()
            else:
                assert not entry.is_first
                assert last is not None
                assert_same(entry.fed, last)
            last, begun = entry.state, False


# -- cases by name -------------------------------------------------------------------------------


def test_agent_batches_have_origins_of_their_own() -> None:
    setup = Setup(env=PARALLEL, policy_agents=TWO_TEAMS, num_groups=2)
    with played(setup, "inline") as play:
        for policy in TWO_TEAMS:
            origins = [{info.origin for info in group[policy].infos} for group in play.records]
            assert origins[0].isdisjoint(origins[1])


def test_a_single_tick_fragment() -> None:
    with played(Setup(length=1, num_envs=1), "inline") as play:
        check_all(play)


def test_actions_that_wait_for_their_reward_are_moved_at_all() -> None:
    """The turn-based cases above are not vacuous: actions do move across cuts."""
    setup = Setup(env=AEC, policy_agents=ONE_TEAM, num_envs=2, length=2, age=None)
    with played(setup, "inline", fragments=30) as play:
        record = play.records[0]["all"]
        moved = 0
        for fragment, _ in record.fragments:
            for row in np.flatnonzero(fragment.acted[0]):
                entry = record.asked[int(fragment.extras["id"][0, row])]
                obs_tick = int(leaves(fragment.obs)[0][0, row][1])
                moved += entry.tick % 2 == 1 or obs_tick != int(entry.obs[0][1])
        assert moved > 5
        taken = [
            record.asked[int(action)]
            for fragment, length in record.fragments
            for action in fragment.extras["id"][: length - 1][fragment.acted[: length - 1]]
        ]
        env_steps = {(asked.tick, asked.row // len(ONE_TEAM["all"])) for asked in taken}
        assert sum(info.env_steps for info in record.infos) == len(env_steps)


@pytest.mark.parametrize("age", [0, 1])
def test_actions_that_are_too_old_when_their_reward_comes_are_dropped(age: int) -> None:
    """The bound also holds for actions that move, and what is dropped is counted."""
    setup = Setup(env=AEC, policy_agents=ONE_TEAM, num_envs=2, length=2, burn_in=2, age=age)
    with played(setup, "inline", fragments=30) as play:
        record = play.records[0]["all"]
        too_old = dropped_ids(setup, record)
        assert len(too_old) > 5
        assert play.actor.stats.get("count_dropped_actions") >= len(too_old)
        for (fragment, length), version in zip(record.fragments, record.consumed_at, strict=True):
            used = slice(setup.burn_in, length - 1)
            versions = fragment.policy_version[used][fragment.acted[used]]
            assert (versions >= version - age).all()


def test_synchronous_data_is_never_behind() -> None:
    with played(Setup(age=0, num_envs=2, length=3), "inline", fragments=20) as play:
        for number, (fragment, _) in enumerate(play.records[0]["main"].fragments):
            used = fragment.policy_version[:-1][fragment.acted[:-1]]
            assert (used == number).all()


@pytest.mark.parametrize("age", [1, 2])
def test_asynchronous_data_is_ahead_as_far_as_it_may(age: int) -> None:
    with played(Setup(age=age, num_envs=2, length=3), "inline", fragments=20) as play:
        for number, (fragment, _) in enumerate(play.records[0]["main"].fragments):
            used = fragment.policy_version[:-1][fragment.acted[:-1]]
            assert used.min() >= number - age
