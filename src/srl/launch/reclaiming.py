"""Taking back what a dead process held: requests, replies and slots of every stream it was at."""

from __future__ import annotations

from srl.arena.arena import Arena
from srl.services.trainers import Trainers
from srl.streams.inference import reclaim_client, reclaim_server
from srl.streams.sample_books import reclaim_reader, reclaim_writer
from srl.workers.wiring import Plan


def reclaim(plan: Plan, arena: Arena, process: str) -> None:
    """Frees what a process held. Only for one that was reaped: its death is certain."""
    for member in plan.processes[process]:
        for asked in plan.inference.values():
            if asked.carrier == "inline":
                continue
            if member.name in asked.servers:
                reclaim_server(asked.spec, arena, asked.servers.index(member.name))
            if member.name in asked.clients:
                reclaim_client(asked.spec, arena, asked.clients.index(member.name))
        for stream in plan.samples.values():
            if stream.carrier == "inline":
                continue
            if member.name in stream.writers:
                reclaim_writer(stream.spec, arena, stream.writers.index(member.name))
            if member.name in stream.readers:
                reclaim_reader(stream.spec, arena, stream.readers.index(member.name))
        for policy in member.trains:
            others = [w for w in plan.workers if w.group == member.group]
            if len(others) > 1:
                Trainers(arena, policy, len(others)).remove(member.index)
                arena.ring(*(other.process for other in others))


def reclaim_relayed(plan: Plan, arena: Arena) -> None:
    """Gives back requests that a dead gate had taken in place of servers on other hosts."""
    for asked in plan.inference.values():
        if asked.carrier != "inline":
            reclaim_server(asked.spec, arena, len(asked.spec.servers))
