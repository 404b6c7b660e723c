"""Keeps a process on one core if its threads work in turn.

An actor with one group waits while EnvPool's thread steps, and this thread waits for actions. By
default the kernel wakes each of the two threads on an idle core. To wake a sleeping core takes
longer than to step a tiny environment. On one core a thread switch is enough, and the data stays
in the caches of that core.
"""

from __future__ import annotations

import errno
import logging
import os
import socket

from srl.envs.cost_hints import pool_threads
from srl.envs.protocol import EnvConfig
from srl.plan import Plan, WorkerPlan
from srl.settings import convert

log = logging.getLogger("srl")

CLAIMS = "srl-core"
"""Prefix of the socket names by which the runs of a machine claim cores."""


def take_turns(members: list[WorkerPlan], plan: Plan) -> bool:
    """Whether the threads of a process work one at a time, and wake each other often."""
    steps = any(member.requests for member in members) and plan.num_groups == 1
    if not steps or any(member.threads > 1 for member in members):
        return False
    return pool_threads(convert(plan.experiment["env"], EnvConfig, "env")) == 1


def keep_to_one_core() -> socket.socket | None:
    """Binds this thread, and threads that it starts, to a core that no other process has claimed.

    The claim lasts until the process ends or closes the returned socket. None if no core is free,
    or if the process cannot choose a core.
    """
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) == 1:
        return None
    for core in sorted(os.sched_getaffinity(0)):
        claim = _claim(core)
        if claim is not None:
            os.sched_setaffinity(0, {core})
            log.info("runs on core %d only", core)
            return claim
    return None


def _claim(core: int) -> socket.socket | None:
    """Claims a core: binds a socket name that only one process can hold; None if it is taken."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0{CLAIMS}-{core}")
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return claim
