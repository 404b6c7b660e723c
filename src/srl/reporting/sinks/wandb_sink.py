"""Sends metrics to Weights & Biases, or keeps them in the run directory for `wandb sync`."""

from __future__ import annotations

import os
from typing import Any

from srl.reporting.sinks.sink import Ended, SinkOrder


class WandbSink:
    """A run at W&B. Offline, unless the user has logged in or has set WANDB_MODE."""

    def __init__(self, wandb: Any, order: SinkOrder, tracker_id: str) -> None:
        mode = os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")
        # W&B's own watching of the machine, the terminal and the source would cost processor time.
        settings = wandb.Settings(
            x_disable_stats=True, console="off", silent=True, save_code=False, disable_git=True
        )
        self._run = wandb.init(
            project=order.project,
            name=order.name,
            dir=order.run_dir,
            config=order.settings(),
            id=tracker_id or None,
            resume="allow",
            mode=mode,
            settings=settings,
        )
        self.tracker_id: str = self._run.id
        # A resumed run may repeat environment steps, and W&B's own step never goes back.
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, values: dict[str, float], wall: float, step: int) -> None:
        """Adds one point to every curve."""
        self._run.log({**values, "time": wall})

    def close(self, ended: Ended) -> None:
        """Ends the run at W&B."""
        self._run.finish(exit_code=0 if ended in ("finished", "stopped") else 1)
