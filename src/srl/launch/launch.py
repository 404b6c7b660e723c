"""Starting a run: settle, plan, check, write down, and hand it to the launcher of its layout."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from srl.algorithms.registry import ALGORITHMS
from srl.arena.arena import HeapArena
from srl.arena.shm import ShmArena
from srl.data.records import Snapshot
from srl.data.spec import RESCALE, out_of_reach
from srl.envs.registry import probe
from srl.errors import RunError, SrlError
from srl.experiment import Experiment, build_graph, check_graph
from srl.launch.allocator import keep_large_buffers
from srl.launch.controller import Controller, Ending
from srl.launch.fleet import Fleet
from srl.launch.joining import host_requests, make_engine
from srl.launch.placement import Placed, Placement
from srl.launch.places import HOME
from srl.launch.plan import (
    algorithm_settings,
    available_cores,
    choose_device,
    first_processes,
    make_plan,
    network_settings,
    process_names,
    settle,
)
from srl.launch.planning import Draft
from srl.launch.processes import ProcessRun
from srl.launch.run_dir import RunDir
from srl.launch.serial import SerialRun
from srl.launch.signals import Interrupted, StopSignals
from srl.policies.registry import POLICIES
from srl.services.checkpoints import Checkpoint, CheckpointStore
from srl.services.messages import Note
from srl.services.parameters import ParameterWriter
from srl.services.summary import Summary, write_summary
from srl.settings import to_plain
from srl.workers.wiring import Plan

if TYPE_CHECKING:
    from srl.policies.protocol import Policy


def launch(
    experiment: Experiment, run_dir: Path, *, quiet: bool = False, begun: float | None = None
) -> Summary:
    """Runs an experiment to its end, resuming it if the run directory has a checkpoint.

    `begun` is the `time.monotonic()` at which the user asked for it, now if left out.
    """
    begun = time.monotonic() if begun is None else begun
    directory = RunDir(run_dir)
    signals = StopSignals()
    with directory.locked(), signals.installed():
        return _Launch(experiment, directory, signals, quiet, begun).run()


class _Launch:
    """The steps from an experiment to its summary."""

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDir,
        signals: StopSignals,
        quiet: bool,
        begun: float,
    ) -> None:
        self.cores = available_cores()
        device = experiment.trainer.device
        self.device = device if device != "auto" and experiment.layout != "auto" else ""
        self.directory = directory
        self.signals = signals
        self.quiet = quiet
        self.begun = begun
        self.experiment = experiment
        self.checkpoint: Checkpoint | None = None

    def run(self) -> Summary:
        """Everything, with whatever was started cleaned up at the end."""
        with ExitStack() as started:
            try:
                with self.signals.interrupting():
                    controller, run = self._start(started)
            except Interrupted as interrupted:
                return self._end_early("stopped", str(interrupted))
            except SrlError as error:
                self._end_early("failed", str(error))
                raise
            except OSError as error:
                known = self._system_error(error)
                self._end_early("failed", str(known))
                raise known from error
            return self._watch(controller, run)

    def _start(self, started: ExitStack) -> tuple[Controller, SerialRun | ProcessRun]:
        """A controller, and what it watches; `started` knows how to end what runs by then."""
        self.device = self.device or choose_device(self.experiment.trainer.device)
        self.experiment = settle(self.experiment, self.cores, self.device)
        graph = build_graph(self.experiment)
        check_graph(graph)
        store = CheckpointStore(self.directory.checkpoints, self.experiment.checkpoint)
        store.remove_leftovers()
        self.checkpoint, note = store.latest_valid()
        if self.experiment.layout == "serial":
            import torch

            plan, policies = self._plan()
            torch.set_num_threads(self.experiment.trainer.threads)
            keep_large_buffers()
            arena = HeapArena()
            controller = self._controller(plan, policies, arena, store, note)
            return controller, SerialRun(controller, arena, self.checkpoint, self.signals)
        placed = process_names(graph, self.experiment)
        apart = self.experiment.trainer.trust_network
        placement = Placement(placed, self.experiment.hosts, apart=apart)
        with self.signals.held():
            processes = ProcessRun(
                self._fleet(placed, placement), self.directory.path, self.signals
            )
            started.callback(processes.close)
        everyone_learns = all(p.mode == "train" for p in self.experiment.policies.values())
        planner = _planner(placed, placement) if everyone_learns else ""
        plan, policies = self._plan(processes, planner)
        controller = self._controller(plan, policies, processes.arena, store, note)
        processes.attach(controller, self.checkpoint)
        return controller, processes

    def _fleet(self, placed: Placed, placement: Placement) -> Fleet:
        """The processes of this host, started; and a place where others join, if there are any."""
        experiment, path = self.experiment, self.directory.path
        head = None
        if experiment.hosts or experiment.listen:
            # A run on one machine is spared the import of sockets.
            from srl.launch.head import Head

            requests = host_requests(experiment, placed, placement)
            engine = make_engine(experiment, path)
            try:
                head = Head(experiment, path, engine, requests)
            except BaseException:
                engine.close()
                raise
        try:
            wanted = first_processes(placed)
            return Fleet(_modules(placed, experiment), placement, wanted, path, head)
        except BaseException:
            if head is not None:
                head.close()
            raise

    def _plan(
        self, processes: ProcessRun | None = None, planner: str = ""
    ) -> tuple[Plan, dict[str, Policy]]:
        """The plan, and the policies if they were made here.

        With a `planner`, that process makes the plan: it has to import torch in any case. If it
        does not live to, or where nobody trains a policy, which is then published from here, the
        plan is made here.
        """
        spec = probe(self.experiment.env)
        versions = self.checkpoint.manifest.policy_versions if self.checkpoint else {}
        weights = {
            name: str(self.directory.keep_source(policy.source, policy.source_policy, name))
            for name, policy in self.experiment.policies.items()
            if policy.source
        }
        policies: dict[str, Policy] = {}
        planned = None
        if processes is not None and planner:
            planned = processes.plan(
                planner,
                Draft(
                    experiment=to_plain(self.experiment),
                    env_spec=spec,
                    device=self.device,
                    base_versions=versions,
                    weights=weights,
                    folder=str(processes.fleet.folder.path),
                ),
            )
        if planned is not None:
            plan, algorithm, network = planned
        else:
            plan, policies = make_plan(
                self.experiment, spec, self.device, base_versions=versions, weights=weights
            )
            algorithm = algorithm_settings(self.experiment)
            network = network_settings(self.experiment)
        self.experiment = dataclasses.replace(self.experiment, algorithm=algorithm, network=network)
        self.directory.write_config(self.experiment)
        return plan, policies

    def _controller(
        self,
        plan: Plan,
        policies: dict[str, Policy],
        arena: HeapArena | ShmArena,
        store: CheckpointStore,
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
            begun=self.begun,
        )
        # Policies that nobody trains are published once, here.
        for name, weights in fixed.items():
            ParameterWriter(plan.policies[name].parameters, arena).publish(Snapshot(0, weights))
        if self.checkpoint is not None:
            controller.restore(self.checkpoint)
            self._say(controller, "info", f"resuming from checkpoint {self.checkpoint.number}")
        far = out_of_reach(plan.env_spec)
        for warning in (note, f"{far}. {RESCALE}" if far else ""):
            if warning:
                self._say(controller, "warning", warning)
        return controller

    def _say(self, controller: Controller, level: str, text: str) -> None:
        controller.collector.add(Note("controller", level, text))  # type: ignore[arg-type]

    def _watch(self, controller: Controller, run: SerialRun | ProcessRun) -> Summary:
        """Trains, and writes the summary however that ends."""
        logger = logging.getLogger("srl")
        with _log_file(self.directory.logs / "controller.log"):
            begun = time.monotonic()
            try:
                return controller.finish(run.run())
            except Exception as error:
                logger.error(
                    "failed after %.1f s: %s",
                    time.monotonic() - begun,
                    error,
                    exc_info=not isinstance(error, SrlError),
                )
                # Everyone leaves first: the summary counts what they did up to their end.
                try:
                    run.end()
                except (SrlError, OSError) as second:
                    logger.error("not everyone could be told to end: %s", second)
                known = error if isinstance(error, SrlError) else self._unexpected(error)
                self._finish_failed(controller, known)
                if known is error:
                    raise
                raise known from error
            finally:
                controller.close()

    def _finish_failed(self, controller: Controller, error: SrlError) -> None:
        try:
            controller.finish(Ending("failed", str(error)))
        except (SrlError, OSError) as second:
            logging.getLogger("srl").error("the summary could not be written: %s", second)

    def _unexpected(self, error: Exception) -> SrlError:
        if isinstance(error, OSError):
            return self._system_error(error)
        return RunError(
            f"the controller failed: {type(error).__name__}: {error}. The traceback is in "
            f"{self.directory.logs / 'controller.log'}."
        )

    def _system_error(self, error: OSError) -> RunError:
        what = error.strerror or str(error)
        return RunError(f"the run cannot go on: {what} ({error.filename or 'no file'}).")

    def _end_early(self, status: Literal["stopped", "failed"], text: str) -> Summary:
        """The summary of a run that ended before it had a controller."""
        manifest = self.checkpoint.manifest if self.checkpoint else None
        summary = Summary(
            status=status,
            reason=text if status == "stopped" else "",
            error=text if status == "failed" else None,
            name=self.experiment.name,
            seed=self.experiment.seed,
            env_steps=manifest.env_steps if manifest else 0,
            episodes=manifest.episodes if manifest else 0,
            seconds=manifest.seconds if manifest else 0.0,
            policy_version=max(manifest.policy_versions.values(), default=0) if manifest else 0,
        )
        try:
            if not self.directory.exists:
                self.directory.write_config(self.experiment)
            write_summary(self.directory.path, summary)
        except (SrlError, OSError) as second:
            logging.getLogger("srl").error("%s", second)
        return summary


def _modules(placed: Placed, experiment: Experiment) -> dict[str, tuple[str, ...]]:
    """Modules of ours that each process can import before it has the plan."""
    policy = POLICIES.get(experiment.network["name"], "")
    algorithm = ALGORITHMS.get(experiment.algorithm["name"], "")
    modules = {}
    for process, members in placed.items():
        wanted = {group.kind for _, group, _ in members}
        if any(group.serves or group.trains for _, group, _ in members):
            wanted.add(policy)
        if any(group.trains for _, group, _ in members):
            wanted.add(algorithm)
        if any(group.asks for _, group, _ in members):
            # The smallest that brings Gymnasium and what groups of any kind share.
            wanted.add("srl.envs.vector_group:VectorGroup")
        ours = {path.partition(":")[0] for path in wanted if path.startswith("srl.")}
        modules[process] = tuple(sorted(ours))
    return modules


def _planner(placed: Placed, placement: Placement) -> str:
    """The first process of this host that trains, or none."""
    for process, members in placed.items():
        if placement.preferred[process] == HOME and any(g.trains for _, g, _ in members):
            return process
    return ""


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """What `srl` logs goes into a file as well."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("srl")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
