"""A core for a process whose threads take turns.

An actor with one group waits while EnvPool's thread steps, and that one waits until there are
actions, whoever chooses them. Left alone, the kernel wakes each on an idle core, and to wake a core
that sleeps takes longer than to step a tiny environment. On one core the two hand over by a mere
switch, and what they use stays in its caches.
"""

from __future__ import annotations

import errno
import logging
import os
import socket

from srl.envs.protocol import EnvConfig
from srl.envs.weight import pool_threads
from srl.settings import convert
from srl.workers.wiring import Plan, WorkerPlan

log = logging.getLogger("srl")

CLAIMS = "srl-core"
"""What the names begin with by which the runs of a machine claim cores."""


def take_turns(members: list[WorkerPlan], plan: Plan) -> bool:
    """Whether never more than one thread of a process has something to do, of a few that wake each
    other often."""
    steps = any(member.asks for member in members) and plan.num_groups == 1
    if not steps or any(member.threads > 1 for member in members):
        return False
    return pool_threads(convert(plan.experiment["env"], EnvConfig, "env")) == 1


def keep_to_one_core() -> socket.socket | None:
    """Keeps this thread, and those that it starts, on a core that no other process keeps to.

    The core is this process's for as long as it lives and holds what is returned. None where there
    is no core to be had.
    """
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) == 1:
        return None
    for core in sorted(os.sched_getaffinity(0)):
        claim = _claim(core)
        if claim is not None:
            os.sched_setaffinity(0, {core})
            log.info("keeps to core %d", core)
            return claim
    return None


def _claim(core: int) -> socket.socket | None:
    """A name that one process of the machine can have at a time, and that goes with it."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0{CLAIMS}-{core}")
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return claim
