"""Which processes stand still for certain."""

from __future__ import annotations

from srl.launch.process.process_state import Condition
from srl.launch.run.liveness import LOOPS, MOST_BETWEEN_LOOKS, Liveness, Verdict

LOOK = 0.25
HEARD = 1_000_000_000
P = "trainer-0"


class Watched:
    """One process, looked at four times a second."""

    def __init__(self, limit: float = 60.0, stopped: float = 2.0) -> None:
        self.silence = Liveness(limit, stopped)
        self.now = HEARD / 1e9
        self.heard = HEARD

    def look(self, condition: Condition, *, excused: bool = False, after: float = LOOK) -> Verdict:
        self.now += after
        now = int(self.now * 1e9)
        self.silence.begin(now)
        if not self.silence.is_silent(P, self.heard):
            return ""
        return self.silence.judge(P, self.heard, condition, excused=excused)

    def beat(self) -> None:
        """The process's loop goes on."""
        self.heard = int(self.now * 1e9)
        self.look("working")

    def until(self, condition: Condition, seconds: float, *, excused: bool = False) -> float:
        """Seconds until there is a verdict, at most so many; infinite if there is none."""
        begun = self.now
        while self.now < begun + seconds:
            if self.look(condition, excused=excused) in ("stopped", "silent"):
                return self.now - begun
        return float("inf")


def test_a_stopped_process_is_given_seconds_and_not_the_time_for_silence() -> None:
    assert 2.0 < Watched().until("stopped", 60.0) < 4.0
    assert Watched(limit=1.0).until("stopped", 60.0) < 2.5, "never more than a sleeping one"


def test_a_stop_is_no_excuse_for_being_stopped_and_a_debugger_is() -> None:
    assert Watched().until("stopped", 60.0, excused=True) < 4.0
    assert Watched().until("traced", 10_000.0) == float("inf")


def test_a_stop_that_is_over_in_time_is_forgiven() -> None:
    watched = Watched()
    for _ in range(10):
        assert watched.until("stopped", 1.5) == float("inf")
        watched.beat()


def test_a_process_that_works_is_never_killed_but_mentioned_once() -> None:
    watched = Watched(limit=5.0)
    told = [watched.look("working") for _ in range(10_000)]
    assert set(told) == {"", "slow"}
    assert told.count("slow") == 1


def test_a_process_that_works_now_and_then_is_not_silent() -> None:
    watched = Watched(limit=5.0)
    for _ in range(100):
        assert watched.until("asleep", 4.0) == float("inf")
        watched.look("working")


def test_one_that_sleeps_is_given_the_limit_or_ten_of_its_own_loops() -> None:
    assert 5.0 < Watched(limit=5.0).until("asleep", 1000.0) < 6.5

    slow = Watched(limit=5.0)
    for _ in range(3):
        assert slow.until("asleep", 4.0) == float("inf")
        slow.beat()
    assert slow.silence.limit(P) >= LOOPS * 3.5
    assert slow.until("asleep", 1000.0) > LOOPS * 3.5


def test_a_stop_or_an_excuse_teaches_nothing_about_the_loop() -> None:
    watched = Watched(limit=5.0)
    watched.until("stopped", 1.5)
    watched.beat()
    watched.until("working", 100.0, excused=True)
    watched.beat()
    assert watched.silence.limit(P) == 5.0


def test_one_in_a_call_with_a_limit_of_its_own_is_not_silent() -> None:
    watched = Watched(limit=5.0)
    assert watched.until("asleep", 100.0, excused=True) == float("inf")
    assert watched.until("asleep", 100.0) > 4.0, "it counts from the end of the excuse"


def test_who_was_away_himself_has_seen_nothing() -> None:
    """As where the whole machine was suspended: everyone's last heartbeat is old then."""
    watched = Watched(limit=5.0)
    watched.look("asleep")
    assert watched.look("asleep", after=3600.0) == ""
    watched.beat()
    assert watched.silence.limit(P) == 5.0, "nobody saw a loop of an hour"
    assert watched.look("asleep", after=3600.0) == ""
    assert watched.look("stopped", after=3600.0) == ""
    assert MOST_BETWEEN_LOOKS < 2.0


def test_times_of_another_host_may_tremble() -> None:
    watched = Watched()
    begun = watched.now
    while watched.look("stopped") != "stopped":
        # Its clock is translated anew with every message.
        watched.heard = HEARD + int(watched.now * 1e9) % 7 * 30_000_000
        assert watched.now < begun + 10.0
