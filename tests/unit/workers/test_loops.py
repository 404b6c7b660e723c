"""The loop that workers run in, and what they do when others leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scripted import Play, Setup

from srl.arena.arena import HeapArena
from srl.data.records import Snapshot
from srl.errors import EnvError, SharedMemoryError
from srl.launch.process.build import close_workers
from srl.services.messages import Episodes
from srl.services.metrics_client import MetricsServer, SocketMetrics
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
from srl.services.worker_stats import StatsTable
from srl.workers.policy import ServedPolicy
from srl.workers.wiring import Context
from srl.workers.worker import DONE, PROGRESS, CurrentWorker, ProcessLoop, StepResult, Wait, Worker


class Scripted(Worker):
    """Returns what it was told, one result a step."""

    def __init__(
        self, name: str, results: list[StepResult | Wait], stats_table: StatsTable
    ) -> None:
        self.name = name
        self.results = results
        self.stats = stats_table.rows[name]
        self.closed = False

    @classmethod
    def build(cls, context: Context) -> Scripted:
        raise NotImplementedError

    def step(self) -> StepResult | Wait:
        return self.results.pop(0)

    def close(self) -> None:
        self.closed = True


class Recording:
    """A wake-up pipe that says how long it was told to wait."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def wait(self, timeout_seconds: float) -> bool:
        self.waited.append(timeout_seconds)
        return True


def host_of(
    **scripts: list[StepResult | Wait],
) -> tuple[ProcessLoop, StatsTable, Recording, list[str]]:
    stats_table, wake_pipe = StatsTable(HeapArena(), tuple(scripts)), Recording()
    written: list[str] = []
    workers = [Scripted(name, results, stats_table) for name, results in scripts.items()]
    host = ProcessLoop(
        workers,
        stats_table,
        wake_pipe,
        lambda worker, n: written.append(worker.name),
        CurrentWorker("here"),
    )
    return host, stats_table, wake_pipe, written


def test_a_host_sleeps_only_when_no_worker_gets_on() -> None:
    host, stats_table, wake_pipe, _ = host_of(
        a=[Wait("samples"), PROGRESS, Wait("samples"), DONE],
        b=[PROGRESS, Wait("slots"), Wait("slots", 0.25), DONE],
    )
    host.run()
    assert wake_pipe.waited == [0.25], "once, for the shortest of their times"
    assert host.done
    assert stats_table.rows["a"].activity == "finished"


def test_time_is_counted_for_what_was_waited_for() -> None:
    host, stats_table, _, _ = host_of(a=[Wait("samples"), Wait("strange"), PROGRESS, DONE])
    host.run()
    row = stats_table.rows["a"]
    assert row.get("wait_samples") > 0
    assert row.get("wait_other") > 0
    assert row.get("wait_slots") == 0
    assert row.get("busy_ns") > 0
    assert row.get("heartbeat_ns") > 0


def test_a_stop_ends_the_loop_and_the_asked_for_checkpoint_is_still_written() -> None:
    host, stats_table, _, written = host_of(a=[PROGRESS] * 100, b=[PROGRESS] * 100)
    stats_table.checkpoint = 3
    stats_table.stop = True
    host.run()
    assert written == ["a", "b"]
    assert stats_table.rows["b"].get("checkpoint") == 3
    assert host.workers[0].stopping()


def test_a_process_that_is_to_leave_does_so_while_the_run_goes_on() -> None:
    host, stats_table, _, _ = host_of(a=[PROGRESS] * 100)
    rounds = iter([False, False, True])
    host.leaving = lambda: next(rounds)
    host.run()
    assert len(host.workers[0].results) == 98  # type: ignore[attr-defined]
    assert not stats_table.stop


def test_where_others_may_come_back_a_worker_without_them_waits() -> None:
    host, stats_table, _, _ = host_of(a=[DONE, DONE, PROGRESS, Wait("samples")])
    host.waits_for_return = True
    assert host.round() is not None
    assert host.waiting() == {"a": "workers"}
    assert host.round() is not None
    assert host.round() is None
    assert not host.done
    assert stats_table.rows["a"].get("wait_workers") > 0


def test_an_idle_host_says_what_its_workers_wait_for() -> None:
    host, _, _, _ = host_of(a=[Wait("samples")], b=[Wait("slots")])
    assert host.round() == 1.0
    assert host.waiting() == {"a": "samples", "b": "slots"}


@pytest.mark.parametrize("error", [EnvError, SystemExit])
def test_every_worker_is_closed_even_if_one_fails_to(error: type[BaseException]) -> None:
    host, _, _, _ = host_of(a=[], b=[])

    def fail() -> None:
        raise error("it does not close")

    host.workers[0].close = fail  # type: ignore[method-assign]
    close_workers(host.workers)
    assert host.workers[1].closed  # type: ignore[attr-defined]


def test_the_board_is_shared_by_all_who_name_the_same_workers() -> None:
    arena = HeapArena()
    mine, theirs = StatsTable(arena, ("a", "b")), StatsTable(arena, ("a", "b"))
    mine.rows["b"].enter("step", 7)
    mine.rows["b"].add("count_env_steps", 5)
    mine.stop = True
    row = theirs.rows["b"]
    assert (row.activity, row.get("env_index"), row.get("count_env_steps")) == ("step", 7, 5)
    assert theirs.rows["a"].activity == "starting"
    assert theirs.stop


# -- actors --------------------------------------------------------------------------------------


def test_an_actor_finishes_when_nobody_reads_its_fragments() -> None:
    play = Play(Setup(age=None))
    play.run(fragments=2)
    play.sources["main"].close()
    for _ in range(200):
        result = play.actor.step()
        play._serve("main")
        if result is DONE:
            break
    assert result is DONE
    play.close()


def test_groups_that_step_by_themselves_are_waited_for_last() -> None:
    play = Play(Setup(num_groups=2, background=True, age=None))
    play.run(fragments=4)
    open_at_once = [0]
    for call, _ in play.calls:
        open_at_once.append(open_at_once[-1] + (1 if call == "begin" else -1))
    assert max(open_at_once) == 2, "one group is set going while the other steps"
    finished = [group for call, group in play.calls if call == "finish"]
    begun = [group for call, group in play.calls if call == "begin"]
    assert finished == begun[: len(finished)], "the first begun is waited for first"
    play.close()


def test_an_actor_that_leaves_gives_back_its_slots_and_is_not_asked_for_again() -> None:
    play = Play(Setup())
    play.run(fragments=2)
    play.close()
    assert play.sources["main"].take() is None
    assert play.sources["main"].closed
    assert play.servers["main"].closed


def test_an_actor_goes_on_exactly_from_its_state() -> None:
    """Saved in the middle of fragments and questions, with the streams' memory beside it."""
    whole = Play(Setup(num_envs=2, num_groups=2, length=5, burn_in=2, stack=2, seed=3))
    whole.run(fragments=2)
    for _ in range(3):  # Into the middle of a fragment.
        whole.actor.step()
        whole._serve("main")
    state = whole.actor.state(exact=True)
    memory = whole.arena.state()  # type: ignore[union-attr]
    assert whole.actor.restorable
    groups = state["groups"]
    batches = [batch for group in groups for batch in group["agent_batches"]]
    assert any(batch["writer"]["open"] is not None for batch in batches)
    other = Play(Setup(num_envs=2, num_groups=2, length=5, burn_in=2, stack=2, seed=3))
    other.arena.restore(memory)  # type: ignore[union-attr]
    for group, saved in zip(other.actor.groups, groups, strict=True):
        for batch, kept in zip(group.batches, saved["agent_batches"], strict=True):
            batch.restore(kept)
            mine = next(x for x in whole.actor.groups if batch.index == x.batches[0].index).batches[
                0
            ]
            assert batch.phase == mine.phase
            assert batch.writer is not None
            assert mine.writer is not None
            assert batch.writer.is_open == mine.writer.is_open
            if batch.writer.is_open:
                assert batch.writer.tick == mine.writer.tick
                np.testing.assert_array_equal(batch.writer.slot.reward, mine.writer.slot.reward)
            np.testing.assert_array_equal(batch.policy_state["h"], mine.policy_state["h"])
    whole.close()
    other.close()


# -- weights -------------------------------------------------------------------------------------


def test_a_policy_worker_copies_weights_only_when_they_moved() -> None:
    arena = HeapArena()
    packed = []
    policy = torch.nn.Linear(2, 1)
    policy.pack = lambda: packed.append(float(policy.weight[0, 0]))
    shapes = {name: (tuple(t.shape), "float32") for name, t in policy.state_dict().items()}
    spec = ParameterSpec(policy="p", shapes=shapes)
    writer, reader = ParameterWriter(spec, arena), CountingReader(spec, arena)
    served = ServedPolicy("p", policy, None, reader, torch.Generator(), torch.device("cpu"))  # type: ignore[arg-type]
    weights = {"weight": np.full((1, 2), 3.0, np.float32), "bias": np.zeros(1, np.float32)}
    for version in (0, 1):
        writer.publish(Snapshot(version, weights))
        for _ in range(5):
            served.refresh()
        assert served.version == version
        assert reader.copies == version + 1
    assert (policy.weight == 3.0).all()
    assert packed == [3.0, 3.0], "told of each version, once it is there"


class CountingReader(ParameterReader):
    copies = 0

    def read(self, into: object) -> int:
        if into:
            self.copies += 1
        return super().read(into)  # type: ignore[arg-type]


# -- metrics -------------------------------------------------------------------------------------


def test_a_folder_too_deep_for_a_socket_is_named_with_the_setting(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(SharedMemoryError, match="SRL_SHM_DIR"):
        MetricsServer(deep)


def test_episodes_of_thousands_of_environments_all_arrive(tmp_path: Path) -> None:
    """However many end at once, no message is larger than a datagram may be."""
    server, client = MetricsServer(tmp_path), SocketMetrics(tmp_path)
    count = 40_000
    returns = [float(i) for i in range(count)]
    agents = [i % 3 for i in range(count)]
    client.episodes("actor/0", "p", returns, list(range(count)), {"score": list(returns)}, agents)
    got: list[Episodes] = []
    for _ in range(1000):
        client.flush()
        got += [message for message in server.receive() if isinstance(message, Episodes)]
        if sum(len(message.returns) for message in got) >= count:
            break
    assert [x for message in got for x in message.returns] == returns
    assert [x for message in got for x in message.lengths] == list(range(count))
    assert [x for message in got for x in message.metrics["score"]] == returns
    assert [x for message in got for x in message.agents] == [i % 3 for i in range(count)]
    client.close()
    server.close()


def test_a_collector_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    server, client = MetricsServer(tmp_path), SocketMetrics(tmp_path)
    server.close()
    client.send(Episodes("a", "p", [1.0], [1], {}))
    client.close()
