"""What an agent tells of a process that has ended."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import msgspec
import psutil

from srl.arena.arena import HeapArena
from srl.arena.shm import ShmArena
from srl.arguments import assemble
from srl.envs.registry import probe
from srl.launch.cluster.agent_session import AgentSession
from srl.launch.cluster.protocol import Brief, Exited, Kill, Message, Start, Started, Welcome
from srl.launch.plan.build import make_plan, resolve_settings
from srl.services.worker_stats import StatsTable


def told(agent_session: AgentSession) -> list[Message]:
    """What the head is told next."""
    return [packet.message for packet in agent_session.channel.packets(time.monotonic())]


def test_the_end_of_a_process_tells_what_its_workers_said_last(tmp_path: Path) -> None:
    wanted = assemble("CartPole-v1", layout="shared")
    plan, _ = make_plan(resolve_settings(wanted, 2, "cpu"), probe(wanted.env), "cpu")
    packed = zlib.compress(msgspec.json.encode(plan))
    agent_session = AgentSession(Welcome(token="", name="a", incarnation=1), "session", "127.0.0.1")
    arena = ShmArena(agent_session.folder.path, "test", bridged=True, lazy=True)
    try:
        agent_session.handle(Brief(plan=packed, run_dir=str(tmp_path), probe=""))
        agent_session.handle(Start(process="actor-0", incarnation=4, modules=()))
        found: list[Started] = []
        while not found:
            agent_session.turn()
            found = [message for message in told(agent_session) if isinstance(message, Started)]
        (started,) = found
        process = psutil.Process(started.pid)
        assert agent_session.beat(time.monotonic()) is not None
        # After the last beat, and before the end is seen:
        stats_table = StatsTable(arena, tuple(worker.name for worker in plan.workers))
        stats_table.rows["actor/0"].set("count_env_steps", 7)
        agent_session.handle(Kill(process="actor-0", incarnation=4))
        psutil.wait_procs([process], 60.0)
        agent_session.turn()
        (ended,) = (message for message in told(agent_session) if isinstance(message, Exited))
    finally:
        arena.close()
        agent_session.end()
        agent_session.close()
    assert (ended.process, ended.incarnation, ended.code) == ("actor-0", 4, -9)
    (row,) = ended.rows
    there = StatsTable(HeapArena(), (row.worker,)).rows[row.worker]
    there.load(row.cells, 0)
    assert (row.worker, there.get("count_env_steps")) == ("actor/0", 7)
