"""Starting a run: settle, plan, check, write down, and hand it to the launcher that its layout asks for."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from srl.arena.arena import HeapArena
from srl.arena.shm import ShmArena
from srl.data.records import Snapshot
from srl.envs.registry import probe
from srl.errors import RunError, SrlError
from srl.experiment import Experiment, build_graph, check_graph
from srl.launch.controller import Controller, Ending
from srl.launch.plan import (
    algorithm_settings,
    available_cores,
    choose_device,
    make_plan,
    network_settings,
    process_names,
    settle,
)
from srl.launch.processes import ProcessRun
from srl.launch.run_dir import RunDir, weights_of
from srl.launch.serial import SerialRun
from srl.services.checkpoints import Checkpoint, CheckpointStore
from srl.services.messages import Note
from srl.services.parameters import ParameterWriter
from srl.services.summary import Summary
from srl.workers.wiring import Plan

if TYPE_CHECKING:
    from srl.policies.protocol import Policy


def launch(experiment: Experiment, run_dir: Path, *, quiet: bool = False) -> Summary:
    """Runs an experiment to its end, resuming it if the run directory has a checkpoint."""
    directory = RunDir(run_dir)
    with directory.locked():
        return _Launch(experiment, directory, quiet).run()


class _Launch:
    """The steps from an experiment to its summary."""

    def __init__(self, experiment: Experiment, directory: RunDir, quiet: bool) -> None:
        self.cores = available_cores()
        device = experiment.trainer.device
        self.device = device if device != "auto" and experiment.layout != "auto" else ""
        self.directory = directory
        self.quiet = quiet
        self.experiment = experiment

    def run(self) -> Summary:
        """Everything, with whatever was started cleaned up at the end."""
        self.device = self.device or choose_device(self.experiment.trainer.device)
        self.experiment = settle(self.experiment, self.cores, self.device)
        graph = build_graph(self.experiment)
        check_graph(graph)
        store = CheckpointStore(self.directory.checkpoints, self.experiment.checkpoint)
        checkpoint, note = store.latest_valid()
        if self.experiment.layout == "serial":
            return self._serial(store, checkpoint, note)
        modules = {
            process: tuple(
                sorted(
                    {
                        group.kind.split(":")[0]
                        for _, group, _ in members
                        if group.kind.startswith("srl.")
                    }
                )
            )
            for process, members in process_names(graph, self.experiment.layout).items()
        }
        processes = ProcessRun(modules, self.directory.path)
        try:
            plan, policies = self._plan(checkpoint)
            controller = self._controller(plan, policies, processes.arena, store, checkpoint, note)
            return self._watch(controller, lambda: processes.run(controller, checkpoint), processes)
        finally:
            processes.close()

    def _serial(self, store: CheckpointStore, checkpoint: Checkpoint | None, note: str) -> Summary:
        import torch

        plan, policies = self._plan(checkpoint)
        torch.set_num_threads(self.experiment.trainer.threads)
        arena = HeapArena()
        controller = self._controller(plan, policies, arena, store, checkpoint, note)
        run = SerialRun(controller, arena, checkpoint)
        return self._watch(controller, run.run, None)

    def _plan(self, checkpoint: Checkpoint | None) -> tuple[Plan, dict[str, Policy]]:
        weights = {
            name: str(weights_of(policy.source, policy.source_policy or name))
            for name, policy in self.experiment.policies.items()
            if policy.source
        }
        plan, policies = make_plan(
            self.experiment,
            probe(self.experiment.env),
            self.device,
            base_versions=checkpoint.manifest.policy_versions if checkpoint else {},
            weights=weights,
        )
        self.experiment = dataclasses.replace(
            self.experiment,
            algorithm=algorithm_settings(self.experiment),
            network=network_settings(self.experiment),
        )
        self.directory.write_config(self.experiment)
        return plan, policies

    def _controller(
        self,
        plan: Plan,
        policies: dict[str, Policy],
        arena: HeapArena | ShmArena,
        store: CheckpointStore,
        checkpoint: Checkpoint | None,
        note: str,
    ) -> Controller:
        fixed = {
            name: {key: t.cpu().numpy() for key, t in policies[name].state_dict().items()}
            for name, policy in plan.policies.items()
            if policy.mode != "train"
        }
        controller = Controller(
            experiment=self.experiment,
            plan=plan,
            run_dir=self.directory.path,
            arena=arena,
            store=store,
            fixed_weights=fixed,
            cores=self.cores,
            quiet=self.quiet,
        )
        # Policies that nobody trains are published once, here.
        for name, weights in fixed.items():
            ParameterWriter(plan.policies[name].parameters, arena).publish(Snapshot(0, weights))
        if checkpoint is not None:
            controller.restore(checkpoint)
            self._say(controller, "info", f"resuming from checkpoint {checkpoint.number}")
        if note:
            self._say(controller, "warning", note)
        return controller

    def _say(self, controller: Controller, level: str, text: str) -> None:
        controller.collector.add(Note("controller", level, text))  # type: ignore[arg-type]

    def _watch(
        self, controller: Controller, run: Callable[[], Ending], processes: ProcessRun | None
    ) -> Summary:
        handler = logging.FileHandler(self.directory.logs / "controller.log")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger = logging.getLogger("srl")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        started = time.monotonic()
        try:
            return controller.finish(run())
        except SrlError as error:
            logger.error("failed after %.1f s: %s", time.monotonic() - started, error)
            if processes is not None:
                processes.close()
            self._finish_failed(controller, error)
            raise
        except OSError as error:
            text = f"the run cannot go on: {error.strerror} ({error.filename or 'no file'})."
            self._finish_failed(controller, RunError(text))
            raise RunError(text) from error
        finally:
            controller.close()
            logger.removeHandler(handler)
            handler.close()

    def _finish_failed(self, controller: Controller, error: SrlError) -> None:
        try:
            controller.finish(Ending("failed", str(error)))
        except (SrlError, OSError) as second:
            logging.getLogger("srl").error("the summary could not be written: %s", second)
