import copy

import pytest

from srl.reporting.bottleneck import Machine, diagnose
from srl.services.worker_times import WorkerTimes, shares, since

SECONDS = 100.0
MACHINE = Machine(cores=4, seconds=SECONDS)
SETTINGS = {
    "actor.count": 2,
    "actor.envs": 16,
    "actor.groups": 2,
    "inference.count": 1,
    "trainer.threads": 1,
    "sample.slots": 6,
    "algorithm.max_policy_age": 1,
}


def worker(kind, busy, cpu=None, process="", index=0, counters=None, **waits):
    """Times are in per cent; CPU time is busy time unless said otherwise."""
    return WorkerTimes(
        kind=kind,
        name=f"{kind}/{index}",
        process=process or f"{kind}/{index}",
        busy_seconds=float(busy),
        waits={name: float(waited) for name, waited in waits.items()},
        cpu_seconds=float(busy if cpu is None else cpu),
        counters=counters or {},
    )


def shape(actor, policy, trainer, actors=2):
    return [
        *(worker("actor", **actor, index=i) for i in range(actors)),
        worker("policy", **policy),
        worker("trainer", **trainer),
    ]


SHAPES = {
    "slow environments": (
        shape(
            {"busy": 95, "inference": 5, "cpu": 40},
            {"busy": 10, "requests": 90},
            {"busy": 29, "samples": 71},
        ),
        ("environments", "actor.count=4", "trainer waits for samples 71 % of the time: env"),
    ),
    "slow forward": (
        shape(
            {"busy": 15, "inference": 85},
            {"busy": 97, "requests": 3},
            {"busy": 20, "samples": 80},
        ),
        ("inference", "inference.count=2", "actors for inference 85 %"),
    ),
    "round trips": (
        shape(
            {"busy": 30, "inference": 70},
            {"busy": 30, "requests": 70},
            {"busy": 20, "samples": 80},
        ),
        ("groups", "actor.groups=4", "round trips"),
    ),
    "slow learner, full slots": (
        shape(
            {"busy": 30, "slots": 70},
            {"busy": 10, "requests": 90},
            {"busy": 98, "samples": 2},
        ),
        ("trainer", "trainer.threads=2", "actors wait for it 70 %: the trainer is the limit"),
    ),
    "slow learner, age bound": (
        shape(
            {"busy": 30, "policy_age": 70},
            {"busy": 10, "requests": 90},
            {"busy": 98, "samples": 2},
        ),
        ("trainer", "trainer.threads=2", "the trainer is the limit"),
    ),
    "too few slots": (
        shape(
            {"busy": 50, "slots": 50},
            {"busy": 10, "requests": 90},
            {"busy": 45, "samples": 55},
        ),
        ("slots", "sample.slots=12", "too few slots"),
    ),
    "lock-step": (
        shape(
            {"busy": 55, "policy_age": 45},
            {"busy": 10, "requests": 90},
            {"busy": 45, "samples": 55},
        ),
        ("policy_age", "algorithm.max_policy_age=2", "they run in turn"),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_planted_bottleneck_is_named_with_its_setting(name):
    times, (part, setting, text) = SHAPES[name]
    found = diagnose(times, MACHINE, SETTINGS)
    assert found.part == part
    assert found.setting == setting
    assert text in found.text
    assert f"(--set {setting})" in found.text
    assert not found.cores_full


def test_samples_are_not_made_older_where_the_algorithm_needs_new_ones():
    settings = {k: v for k, v in SETTINGS.items() if k != "algorithm.max_policy_age"}
    found = diagnose(SHAPES["lock-step"][0], MACHINE, settings)
    assert found.setting is None
    assert found.text.endswith(
        "because the algorithm learns only from samples of the newest policy"
    )


@pytest.mark.parametrize("name", SHAPES)
def test_full_cores_are_said_and_no_setting_is_promised(name):
    times, (part, *_) = copy.deepcopy(SHAPES[name])
    used = sum(w.cpu_seconds for w in times)
    machine = Machine(cores=1, seconds=used / 0.95)
    for w in times:
        w.waits = {key: value * machine.seconds / SECONDS for key, value in w.waits.items()}
        w.busy_seconds *= machine.seconds / SECONDS
    found = diagnose(times, machine, SETTINGS)
    assert found.part == part
    assert found.cores_full
    assert found.setting is None
    assert "the cores are full (95 % of 1 in use)" in found.text
    assert "--set" not in found.text


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_is_promised_where_the_cores_have_little_room(name):
    """Pong on two cores: `trainer.threads=2` was measured at 0.83 of the speed."""
    times, (part, *_) = SHAPES[name]
    found = diagnose(times, Machine(cores=4, seconds=SECONDS, used=0.85), SETTINGS)
    assert (found.part, found.setting, found.cores_full) == (part, None, False)
    assert "85 % of 4 cores are in use" in found.text


def test_more_actors_divide_the_environments():
    times = SHAPES["slow environments"][0]
    cases = {(2, 12): "actor.count=4", (2, 10): "actor.count=5", (4, 12): "actor.count=12"}
    cases |= {(3, 7): "actor.count=7", (8, 8): "actor.envs=16"}
    for (count, envs), setting in cases.items():
        settings = {"actor.count": count, "actor.envs": envs}
        assert diagnose(times, MACHINE, settings).setting == setting
    assert diagnose(times, MACHINE, {}).setting == "actor.count=2"


def test_inference_inside_the_actors_is_part_of_their_work():
    times = [
        worker("actor", 20, index=0, process="actor/0", inference=60),
        worker("policy", 60, index=0, process="actor/0", requests=20),
        worker("trainer", 20, samples=80),
    ]
    found = diagnose(times, MACHINE, SETTINGS)
    assert found.setting == "actor.count=4"
    assert found.part == "inference"
    assert "75 % of their work is inference" in found.text


def test_actors_are_not_advised_where_they_would_only_make_inference_dearer():
    """CartPole in EnvPool on two cores: `actor.count=2` was measured at two thirds of the speed."""
    times = [
        worker("actor", 42, cpu=98, process="actor/0", inference=58),
        worker("policy", 58, cpu=0, process="actor/0", requests=42),
        worker("trainer", 44, samples=56),
    ]
    settings = {**SETTINGS, "actor.count": 1, "actor.envs": 64}
    found = diagnose(times, Machine(cores=2, seconds=SECONDS), settings)
    assert (found.part, found.setting) == ("inference", None)
    assert "58 % of their work is inference" in found.text
    assert "more actors would not help: 71 % of 2 cores are in use" in found.text
    assert diagnose(times, MACHINE, settings).setting == "actor.count=2"


def test_inference_inside_the_actors_may_be_counted_by_them():
    counted = {"inference_seconds": 19.0}
    times = [worker("actor", 95, counters=counted), worker("trainer", 20, samples=80)]
    found = diagnose(times, MACHINE, SETTINGS)
    assert found.part == "environments"
    assert "20 % of their work is inference" in found.text


def test_a_replay_beside_a_busy_trainer_is_told_to_leave():
    settings = {**SETTINGS, "algorithm.replay_beside_trainer": True}
    times = [
        worker("actor", 10, slots=90),
        worker("trainer", 80, samples=20, process="trainer-0"),
        worker("replay", 15, samples=85, process="trainer-0"),
    ]
    found = diagnose(times, MACHINE, settings)
    assert found.setting == "algorithm.replay_beside_trainer=false"
    assert "replay and trainer take turns in one process" in found.text


def test_one_thread_is_told_to_spread():
    times = [
        worker("actor", 52, process="serial"),
        worker("policy", 20, process="serial"),
        worker("trainer", 28, process="serial"),
    ]
    found = diagnose(times, MACHINE, SETTINGS)
    assert found.part == "environments"
    assert found.setting == "layout=inline"
    assert "environments take 52 % of it" in found.text
    alone = diagnose(times, Machine(cores=1, seconds=SECONDS), SETTINGS)
    assert alone.cores_full
    assert alone.setting is None
    assert "only one core" in alone.text


def test_threads_that_cannot_help_are_not_promised():
    times = SHAPES["slow learner, full slots"][0]
    threads = {**SETTINGS, "trainer.threads": 4}
    found = diagnose(times, MACHINE, threads)
    assert (found.part, found.setting) == ("trainer", None)
    assert "a thread for every core" in found.text
    small = [*times[:-1], worker("trainer", 98, samples=2, counters={"minibatches": 50_000})]
    found = diagnose(small, MACHINE, SETTINGS)
    assert (found.part, found.setting) == ("trainer", None)
    assert "steps of 2.0 ms are too small" in found.text
    large = [*times[:-1], worker("trainer", 98, samples=2, counters={"minibatches": 500})]
    assert diagnose(large, MACHINE, SETTINGS).setting == "trainer.threads=2"
    on_device = [*times[:-1], worker("trainer", 98, cpu=5, samples=2)]
    found = diagnose(on_device, MACHINE, SETTINGS)
    assert (found.part, found.setting) == ("trainer", None)
    assert "waits for its device" in found.text


def test_a_worker_of_the_users_own_kind_may_be_the_limit():
    times = [
        worker("actor", 40, slots=60),
        worker("relabeller", 96, samples=4),
        worker("trainer", 30, samples=70),
    ]
    assert diagnose(times, MACHINE, SETTINGS).part == "relabeller"
    assert diagnose(times, MACHINE, SETTINGS).setting is None
    found = diagnose(times, MACHINE, {**SETTINGS, "relabeller.count": 1})
    assert found.setting == "relabeller.count=2"


def test_balance_is_not_blamed_on_anyone():
    times = [worker("actor", 97, slots=3), worker("trainer", 90, samples=10)]
    found = diagnose(times, Machine(cores=2, seconds=SECONDS), SETTINGS)
    assert "neither waits much" in found.text
    assert found.cores_full


def test_nothing_measured_and_no_trainer():
    assert diagnose([], MACHINE, {}).part == "unknown"
    assert diagnose([worker("actor", 0)], Machine(cores=0, seconds=0), {}).part == "unknown"
    assert diagnose([worker("evaluator", 90, weights=10)], MACHINE, {}).part == "evaluator"


def test_details_hold_the_shares():
    details = diagnose(SHAPES["too few slots"][0], MACHINE, SETTINGS).details
    assert details["actor.wait.slots"] == pytest.approx(0.5)
    assert details["trainer.busy"] == pytest.approx(0.45)
    assert details["cores"] == pytest.approx(155 / 400)


def test_shares_are_of_the_life_of_a_worker_that_started_late():
    late = worker("actor", 5, slots=5)
    assert shares([late], SECONDS)["actor"].busy == 0.5
    assert shares([late], SECONDS)["actor"].longest_wait == "slots"
    assert shares([worker("actor", 5, index=i) for i in range(2)], SECONDS)["actor"].busy == 1.0
    crowd = [worker("actor", 5, process="serial"), worker("trainer", 5, process="serial")]
    assert shares(crowd, SECONDS)["actor"].busy == 0.05


def test_since_counts_a_restarted_worker_from_zero():
    before = [worker("actor", 50, slots=10), worker("trainer", 40)]
    now = [worker("actor", 60, slots=15), worker("trainer", 3), worker("policy", 1)]
    actor, trainer, policy = since(now, before)
    assert (actor.busy_seconds, actor.waits, actor.cpu_seconds) == (10, {"slots": 5}, 10)
    assert (trainer.busy_seconds, policy.busy_seconds) == (3, 1)
