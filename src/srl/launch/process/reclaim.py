"""Reclaims what a dead process held: its requests, replies and slots in all of its streams."""

from __future__ import annotations

from srl.arena.arena import Arena
from srl.plan import Plan
from srl.services.trainer_table import TrainerTable
from srl.streams.inference import reclaim_client, reclaim_server
from srl.streams.sample import reclaim_reader, reclaim_writer


def reclaim(plan: Plan, arena: Arena, process: str) -> None:
    """Frees what a process held. The process must be reaped, so that its death is certain."""
    for member in plan.processes[process]:
        for asked in plan.inference.values():
            if asked.carrier == "inline":
                continue
            if member.name in asked.servers:
                reclaim_server(asked.spec, arena, asked.servers.index(member.name))
            if member.name in asked.clients:
                reclaim_client(asked.spec, arena, asked.clients.index(member.name))
        for stream in plan.samples.values():
            if member.name in stream.writers:
                reclaim_writer(stream.spec, arena, stream.writers.index(member.name))
            if member.name in stream.readers:
                reclaim_reader(stream.spec, arena, stream.readers.index(member.name))
        for policy in member.trains:
            others = [w for w in plan.workers if w.group == member.group]
            if len(others) > 1:
                TrainerTable(arena, policy, len(others)).remove(member.index)
                arena.wake(*(other.process for other in others))


def reclaim_relayed(plan: Plan, arena: Arena) -> None:
    """Returns requests that a dead bridge had taken for servers on other hosts to their stream."""
    for asked in plan.inference.values():
        if asked.carrier != "inline":
            reclaim_server(asked.spec, arena, len(asked.spec.servers))
