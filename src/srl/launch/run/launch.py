"""Starts a run: resolves and checks its settings, plans it, and runs it in its layout."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from srl.arena.arena import HeapArena
from srl.arena.shm import ShmArena
from srl.data.records import Snapshot
from srl.data.spec import RESCALE_ADVICE, action_bounds_warning
from srl.errors import RunError, SrlError
from srl.experiment import Experiment, build_graph
from srl.graph import check_graph
from srl.launch.backends.choose import host_requests, make_backend
from srl.launch.directory.run_dir import RunDir
from srl.launch.plan.build import (
    available_cores,
    choose_device,
    filled_in,
    first_processes,
    make_plan,
    process_names,
    resolve_settings,
    with_weights,
)
from srl.launch.plan.memory import available_memory, check_memory, memory_needs
from srl.launch.plan.placement import Placed, Placement
from srl.launch.plan.preloaded import modules_of, modules_with_torch
from srl.launch.plan.probing import probe_groups
from srl.launch.process.allocator import keep_large_buffers
from srl.launch.process.descriptors import raise_descriptor_limit
from srl.launch.process.planning import Draft
from srl.launch.run.callbacks import Callbacks, named_callbacks
from srl.launch.run.controller import Controller, Ending
from srl.launch.run.goals import already_over, how_to_go_further
from srl.launch.run.kept_data import kept_data_texts
from srl.launch.run.process_table import ProcessTable
from srl.launch.run.processes import ProcessRun
from srl.launch.run.serial import SerialRun
from srl.launch.run.signals import Interrupted, StopSignals
from srl.plan import Plan
from srl.reporting.sinks.supervisor import check_sinks
from srl.reporting.summary import SUMMARY_FILE, Summary, write_summary
from srl.services.checkpoints import Checkpoint, CheckpointStore
from srl.services.messages import Note
from srl.services.parameters import ParameterWriter
from srl.settings import to_plain
from srl.tracebacks import described

if TYPE_CHECKING:
    from srl.policies.protocol import Policy


def launch(
    experiment: Experiment,
    run_dir: Path,
    *,
    quiet: bool = False,
    begun: float | None = None,
    callbacks: Sequence[Any] = (),
) -> Summary:
    """Runs an experiment to its end, resuming it if the run directory has a checkpoint.

    `callbacks` are called besides those that the experiment names. `begun` is the time
    (`time.monotonic`) at which the user started the command; by default it is now.
    """
    begun = time.monotonic() if begun is None else begun
    # First of all, so that config.yaml has all settings even if the run ends early.
    experiment = filled_in(experiment)
    raise_descriptor_limit()
    directory = RunDir(run_dir)
    signals = StopSignals()
    with directory.locked(), signals.installed():
        return _Launch(experiment, directory, signals, quiet, begun, callbacks).run()


class _Launch:
    """The steps from an experiment to its summary."""

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDir,
        signals: StopSignals,
        quiet: bool,
        begun: float,
        callbacks: Sequence[Any],
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
        self.callbacks = callbacks

    def run(self) -> Summary:
        """Does all steps, and at the end cleans up everything that was started."""
        with ExitStack() as started:
            try:
                with self.signals.interrupting():
                    started.enter_context(_log_file(self.directory.logs / "controller.log"))
                    store, note = self._prepare()
                    if (over := self._already_over(store)) is not None:
                        return over
                    controller, run = self._start(started, store, note)
            except Interrupted as interrupted:
                return self._end_early("stopped", str(interrupted))
            except SrlError as error:
                self._end_early("failed", str(error))
                raise
            except OSError as error:
                known = self._system_error(error)
                self._end_early("failed", str(known))
                raise known from error
            except Exception as error:
                failed = RunError(f"the run could not start: {described(error)}")
                self._end_early("failed", str(failed))
                raise failed from error
            return self._watch(controller, run)

    def _prepare(self) -> tuple[CheckpointStore, str]:
        """Resolves and checks the experiment, and finds the checkpoint to go on from.

        Returns the store of checkpoints, and a warning for the user (empty if there is none).
        """
        self.device = self.device or choose_device(self.experiment.trainer.device)
        self.experiment = resolve_settings(self.experiment, self.cores, self.device)
        check_graph(build_graph(self.experiment))
        check_sinks(self.experiment.logging.sinks)
        named = named_callbacks(self.experiment.logging.callbacks)
        self._all_callbacks = Callbacks([*named, *self.callbacks])
        store = CheckpointStore(self.directory.checkpoints, self.experiment.checkpoint)
        store.remove_leftovers()
        self.checkpoint, note = store.latest_valid()
        if self.checkpoint is not None:
            return store, note
        if self.directory.exists:
            note = f"{self.directory.path} has no checkpoint: training starts from the beginning"
        loaded = build_graph(self.experiment).loaded()
        self.directory.forget_sources(self.experiment, loaded)
        self.directory.write_config(self.experiment)
        return store, note

    def _already_over(self, store: CheckpointStore) -> Summary | None:
        """The summary, if the run had already reached its limits."""
        if self.checkpoint is None:
            return None
        experiment, path = self.experiment, self.directory.path
        before = self.directory.read_config()
        over = already_over(experiment, before, path, store, self.checkpoint)
        if over is not None and not self.quiet:
            print(how_to_go_further(experiment, over, path), flush=True)
        return over

    def _start(
        self, started: ExitStack, store: CheckpointStore, note: str
    ) -> tuple[Controller, SerialRun | ProcessRun]:
        """Makes the controller and the run that it watches; `started` gets the clean-up of what
        runs by then."""
        if self.experiment.layout == "serial":
            import torch

            plan, policies = self._plan()
            torch.set_num_threads(self.experiment.trainer.threads)
            keep_large_buffers()
            arena = HeapArena()
            controller = self._controller(plan, policies, arena, store, note)
            return controller, SerialRun(controller, arena, self.checkpoint, self.signals)
        placed = process_names(build_graph(self.experiment), self.experiment)
        apart = self.experiment.trainer.trust_network
        placement = Placement(placed, self.experiment.hosts, apart=apart)
        with self.signals.held():
            processes = ProcessRun(
                self._process_table(placed, placement), self.directory.path, self.signals
            )
            started.callback(processes.close)
        # This process makes policies that are not trained, because it publishes them: so it plans.
        all_learn = all(p.mode == "train" for p in self.experiment.policies.values())
        all_learn = all_learn and not build_graph(self.experiment).loaded()
        plan, policies = self._plan(processes if all_learn else None, placed)
        controller = self._controller(plan, policies, processes.arena, store, note)
        processes.attach(controller, self.checkpoint)
        return controller, processes

    def _process_table(self, placed: Placed, placement: Placement) -> ProcessTable:
        """Starts the processes of this host; opens the head's socket if there are other hosts."""
        experiment, path = self.experiment, self.directory.path
        head = None
        if experiment.hosts or experiment.listen:
            # Imported here: a run on one machine does not need sockets.
            from srl.launch.cluster.head import Head

            requests = host_requests(experiment, placed, placement)
            backend = make_backend(experiment, path)
            try:
                head = Head(experiment, path, backend, requests)
            except BaseException:
                backend.close()
                raise
        try:
            wanted = first_processes(placed)
            return ProcessTable(modules_of(placed, experiment), placement, wanted, path, head)
        except BaseException:
            if head is not None:
                head.close()
            raise

    def _plan(
        self, processes: ProcessRun | None = None, placed: Placed | None = None
    ) -> tuple[Plan, dict[str, Policy]]:
        """The plan, and the policies if they were made in this process.

        With `processes`, a process that a template forks makes the plan. This process makes the
        plan if that one ends before, or if there are no templates.
        """
        declared = probe_groups(self.experiment)
        spec = declared.spec
        versions = self.checkpoint.manifest.policy_versions if self.checkpoint else {}
        policies: dict[str, Policy] = {}
        planned = None
        if processes is not None and placed is not None:
            draft = Draft(
                experiment=to_plain(self.experiment),
                env_spec=spec,
                device=self.device,
                base_versions=versions,
                folder=str(processes.process_table.folder.path),
            )
            planned = processes.plan(draft, modules_with_torch(placed, self.experiment))
        if planned is None:
            planned, policies = make_plan(
                self.experiment, spec, self.device, base_versions=versions
            )
        wanted = {n: policy.origin for n, policy in self.experiment.policies.items()}
        loaded = build_graph(self.experiment).loaded()
        wanted |= {name: (source, "") for name, (source, _) in loaded.items()}
        sources = {
            name: self.directory.keep_source(
                source, policy, name, planned.policies[name].parameters.shapes
            )
            for name, (source, policy) in wanted.items()
            if source
        }
        # Only now: a resumed run keeps its old settings until the new ones are known to work.
        self.directory.write_config(self.experiment)
        self.directory.write_spaces(declared)
        (self.directory.path / SUMMARY_FILE).unlink(missing_ok=True)
        return with_weights(planned, policies, sources), policies

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
        check_memory(plan, available_memory())
        controller = Controller(
            experiment=self.experiment,
            plan=plan,
            run_dir=self.directory.path,
            arena=arena,
            store=store,
            fixed_weights={n: w for n, w in fixed.items() if n in self.experiment.policies},
            cores=self.cores,
            quiet=self.quiet,
            begun=self.begun,
            callbacks=self._all_callbacks,
        )
        controller.announce(f"memory: {memory_needs(plan)}")
        # Policies that are not trained are published once, here.
        for name, weights in fixed.items():
            ParameterWriter(plan.policies[name].parameters, arena).publish(Snapshot(0, weights))
        if self.checkpoint is not None:
            controller.restore(self.checkpoint)
            self._say(controller, "info", f"resuming from checkpoint {self.checkpoint.number}")
        far = action_bounds_warning(plan.env_spec)
        for text in kept_data_texts(plan, self.experiment.checkpoint, self.checkpoint):
            self._say(controller, "info", text)
        for warning in (note, f"{far}. {RESCALE_ADVICE}" if far else ""):
            if warning:
                self._say(controller, "warning", warning)
        return controller

    def _say(self, controller: Controller, level: str, text: str) -> None:
        controller.collector.add(Note("controller", level, text))  # type: ignore[arg-type]

    def _watch(self, controller: Controller, run: SerialRun | ProcessRun) -> Summary:
        """Trains, and writes the summary whether that succeeds or fails."""
        logger = logging.getLogger("srl")
        logger.info("memory: %s", memory_needs(controller.plan))
        begun = time.monotonic()
        try:
            return controller.finish(controller.check_learned(run.run()))
        except Exception as error:
            logger.error(
                "failed after %.1f s: %s",
                time.monotonic() - begun,
                error,
                exc_info=not isinstance(error, SrlError),
            )
            # The processes end first, so that the summary counts everything that they did.
            try:
                run.end()
            except (SrlError, OSError) as second:
                logger.error("not all processes could be told to end: %s", second)
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
        return RunError(f"the controller failed: {described(error)}")

    def _system_error(self, error: OSError) -> RunError:
        what = error.strerror or str(error)
        return RunError(f"the run cannot go on: {what} ({error.filename or 'no file'}).")

    def _end_early(self, status: Literal["stopped", "failed"], text: str) -> Summary:
        """Writes and returns the summary of a run that ended before it had a controller."""
        logger = logging.getLogger("srl")
        if status == "failed" and logger.handlers:
            logger.error("failed before the start: %s", text)
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
            logger.error("%s", second)
        return summary


class _LogFile(logging.FileHandler):
    """A log file that ignores errors of writing: a full disk must not end the run here."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Does nothing: other code that fails because of the disk reports the error itself."""


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Also writes the log of `srl` into a file."""
    handler = _LogFile(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("srl")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with suppress(OSError):
            handler.close()
