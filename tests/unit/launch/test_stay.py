"""What an agent tells of a process that has ended."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path

from srl.arena.arena import HeapArena
from srl.arena.shm import ShmArena
from srl.envs.registry import probe
from srl.launch.control import Brief, Exited, Kill, Message, Start, Started, Welcome
from srl.launch.plan import encode_plan, make_plan, settle
from srl.launch.stay import Stay
from srl.run import assemble
from srl.services.board import Board


def told(stay: Stay) -> list[Message]:
    """What the head is told next."""
    return [packet.message for packet in stay.channel.packets(time.monotonic())]


def test_the_end_of_a_process_tells_what_its_workers_said_last(tmp_path: Path) -> None:
    wanted = assemble("CartPole-v1", layout="shared")
    plan, _ = make_plan(settle(wanted, 2, "cpu"), probe(wanted.env), "cpu")
    packed = zlib.compress(encode_plan(plan))
    stay = Stay(Welcome(token="", name="a", incarnation=1), "session", "127.0.0.1")
    arena = ShmArena(stay.folder.path, "test", gated=True, lazy=True)
    try:
        stay.handle(Brief(plan=packed, run_dir=str(tmp_path), probe=""))
        stay.handle(Start(process="actor-0", incarnation=4, modules=()))
        (started,) = (message for message in told(stay) if isinstance(message, Started))
        assert stay.beat(time.monotonic()) is not None
        # After the last beat, and before the end is seen:
        board = Board(arena, tuple(worker.name for worker in plan.workers))
        board.rows["actor/0"].set("count_env_steps", 7)
        stay.handle(Kill(process="actor-0", incarnation=4))
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
        stay.turn()
        (ended,) = (message for message in told(stay) if isinstance(message, Exited))
    finally:
        arena.close()
        stay.end()
        stay.close()
    assert (ended.process, ended.incarnation, ended.code) == ("actor-0", 4, -9)
    (row,) = ended.rows
    there = Board(HeapArena(), (row.worker,)).rows[row.worker]
    there.load(row.cells, 0)
    assert (row.worker, there.get("count_env_steps")) == ("actor/0", 7)
