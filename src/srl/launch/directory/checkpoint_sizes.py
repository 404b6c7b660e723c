"""Limits the size of checkpoints that another user's run may have, before they are read."""

from __future__ import annotations

from srl.errors import CheckpointError
from srl.experiment import Experiment
from srl.launch.directory.run_dir import RunDir
from srl.launch.directory.trust import named_code
from srl.launch.plan.build import available_cores, make_plan, resolve_settings
from srl.launch.plan.memory import memory_needs
from srl.launch.plan.probing import probe_groups

TIMES = 8
"""A checkpoint may be this many times as large as the run's data in memory. SRL's own checkpoints
have at most all streams, a trainer's batches, and six copies of the weights where the plan counts
two. Settings may have been larger before a resume."""
KEPT_TIMES = 3
"""It may be this many times as large as what workers keep, like a replay: the segment of the oldest
fragments may have some that are gone, and there are priorities beside them."""
MORE_BYTES = 1 << 26
"""Additional bytes for counters, metrics, and the states of environments."""


def check_sizes(directory: RunDir) -> None:
    """Raises if a run is not this user's, and a checkpoint of it is larger than the run needs.

    Runs with their own code are not checked: their sizes are unknown, and the user has agreed to
    that code.
    """
    experiment = directory.read_config()
    if directory.is_own or named_code(experiment):
        return
    most = most_bytes(experiment)
    for checkpoint in directory.store().list():
        size = sum(part.bytes for part in checkpoint.manifest.files)
        if size > most:
            raise CheckpointError(
                f"{checkpoint.path}: expected at most {most:,} bytes for a run with these "
                f"settings, got {size:,}. The run was not made by this user on this machine; "
                "remove that checkpoint first."
            )


def most_bytes(experiment: Experiment) -> int:
    """Bytes that a checkpoint of a run with these settings may have."""
    # The device makes no difference to the size.
    settled = resolve_settings(experiment, available_cores(), "cpu")
    plan, _ = make_plan(settled, probe_groups(settled).spec, "cpu")
    needs = memory_needs(plan)
    kept = sum(needs.kept.values())
    return TIMES * needs.in_checkpoints + KEPT_TIMES * kept + MORE_BYTES
