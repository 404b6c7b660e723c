"""The search for the fastest settings, with runs that are made up."""

from __future__ import annotations

import shlex

import pytest

from srl.bench.tune import TURNS, Attempt, Search, as_record, command, search, table
from srl.bench.workloads import find_target
from srl.errors import RunError
from srl.experiment import Experiment
from srl.launch.plan.build import resolve_settings
from srl.overrides import parse_pairs

CORES = 4


def speed(experiment: Experiment) -> float:
    """Shared is faster, four actors are, and everything else costs a little."""
    rate = 1000.0 * {"serial": 1, "inline": 2, "shared": 3}[experiment.layout]
    return rate * {1: 1.0, 3: 1.2, 4: 2.0}.get(experiment.actor.count, 1.5)


def searched(
    measure=speed, *, seconds: float = 60.0, fixed: dict | None = None, target: str = "W1a"
) -> Search:
    found = Search()
    experiment = find_target(target, None, fixed or {})
    whole = search(
        experiment,
        measure,
        resolve_settings=lambda changed: resolve_settings(changed, CORES, "cpu"),
        cores=CORES,
        seconds=seconds,
        fixed=set(fixed or {}),
        say=lambda text: None,
        found=found,
    )
    assert whole == (seconds > 0)
    return found


def test_the_fastest_settings_are_found_and_printed_as_a_command() -> None:
    found = searched()
    assert found.best.settings == {"layout": "shared", "actor.count": 4}
    line = command("train", "cartpole", found, {"seed": 3})
    assert line == "srl train cartpole --layout shared --set seed=3 --set actor.count=4"
    assert table(found).splitlines()[1].strip().startswith("6,000")
    record = as_record("cartpole", line, found)
    assert (record["command"], record["steps_per_second"]) == (line, 6000.0)
    # As it is: inline with two actors, for 64 environments cannot be spread over three.
    assert record["steps_per_second_before"] == record["tried"][0]["steps_per_second"] == 3000.0


def test_the_printed_command_can_be_given_to_a_shell() -> None:
    given = {"network.hidden_sizes": [64, 64], "algorithm.value_clip": None, "layout": "serial"}
    line = command("train", "cartpole", Search([Attempt({}, 1.0)]), given)
    words = shlex.split(line)
    assert words[:5] == ["srl", "train", "cartpole", "--layout", "serial"]
    line = command("train", "own.py:Own", Search([Attempt({}, 1.0)]), {}, ["names=[a, b]"])
    assert shlex.split(line)[3:] == ["--env-arg", "names=[a, b]"]
    pairs = parse_pairs([word for word in words[5:] if word != "--set"], "--set")
    assert pairs == {"network.hidden_sizes": [64, 64], "algorithm.value_clip": None}


def test_what_changes_learning_stays_as_it_is() -> None:
    tried: list[Experiment] = []

    def measure(experiment: Experiment) -> float:
        tried.append(experiment)
        return speed(experiment)

    searched(measure)
    assert len(tried) > 5
    assert {e.actor.envs for e in tried} == {64}
    assert all(e.algorithm == tried[0].algorithm for e in tried)
    assert all(e.network == tried[0].network for e in tried)


def test_nothing_is_tried_twice_before_the_turns_at_the_end() -> None:
    tried: list[Experiment] = []

    def measure(experiment: Experiment) -> float:
        tried.append(experiment)
        return speed(experiment)

    found = searched(measure)
    once = tried[: len(found.attempts)]
    assert all(experiment not in once[:n] for n, experiment in enumerate(once))
    first, best = once[0], max(once, key=speed)
    assert tried[len(once) :] == [first, best] * TURNS


def test_the_gain_is_measured_again_by_turns_and_said_with_its_spread() -> None:
    found = searched()
    assert found.gains == [2.0] * TURNS
    assert "2.00 times as fast as the run as it is (2.00-2.00 in 2 turns)" in found.gain
    assert as_record("cartpole", "", found)["gains"] == [2.0] * TURNS


def test_what_is_not_faster_when_measured_again_is_not_used() -> None:
    seen: list[Experiment] = []

    def lucky_once(experiment: Experiment) -> float:
        again = experiment in seen
        seen.append(experiment)
        return 900.0 if again and experiment.layout == "shared" else speed(experiment)

    found = searched(lucky_once)
    assert found.fastest.settings
    assert found.best.settings == {}
    assert "the run as it is stays" in found.gain


def test_threads_of_environments_follow_the_actors() -> None:
    def together(experiment: Experiment) -> float:
        both = experiment.actor.count == CORES and experiment.env.threads == 1
        return 2000.0 if both else 1000.0 - experiment.actor.count

    found = searched(together, target="W2a", fixed={"layout": "inline"})
    assert found.best.settings == {"actor.count": CORES}
    kept = searched(together, target="W2a", fixed={"layout": "inline", "env.threads": 2})
    assert all("env.threads" not in attempt.settings for attempt in kept.attempts)


def test_policy_workers_are_counted_where_they_are_apart() -> None:
    tried: list[Experiment] = []

    def more_is_better(experiment: Experiment) -> float:
        tried.append(experiment)
        return speed(experiment) + experiment.inference.count

    searched(more_is_better, fixed={"layout": "shared"})
    assert max(experiment.inference.count for experiment in tried) == CORES
    tried.clear()
    searched(more_is_better, fixed={"layout": "inline"})
    assert {experiment.inference.count for experiment in tried} == {1}


def test_what_the_user_has_decided_is_kept() -> None:
    found = searched(fixed={"layout": "serial"})
    assert all("layout" not in attempt.settings for attempt in found.attempts)


def test_noise_does_not_change_anything() -> None:
    rates = iter([1000.0, *[1000.0 + n for n in range(1000)]])
    assert searched(lambda experiment: next(rates)).best.settings == {}


def test_a_run_that_fails_is_not_the_best_but_the_first_must_work() -> None:
    def fails_in_shared(experiment: Experiment) -> float:
        if experiment.layout == "shared":
            raise RunError("no shared memory")
        return speed(experiment)

    found = searched(fails_in_shared)
    assert found.best.steps_per_second == 4000.0
    assert any(attempt.note == "no shared memory" for attempt in found.attempts)
    with pytest.raises(RunError):
        searched(lambda experiment: (_ for _ in ()).throw(RunError("broken")))


def test_the_time_is_kept() -> None:
    assert len(searched(seconds=0.0).attempts) == 1


def test_an_interruption_leaves_the_best_so_far() -> None:
    found = Search([Attempt({}, 10.0), Attempt({"layout": "shared"}, 20.0)])
    assert found.best.settings == {"layout": "shared"}
