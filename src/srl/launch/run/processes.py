"""A run in processes: starts, watches, replaces and cleans up the processes of a plan."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from srl.errors import RunError, SrlError, WorkerError
from srl.launch.cluster.node import Exit, Node
from srl.launch.process.children import EXIT_SECONDS, use_templates
from srl.launch.process.descriptors import wait_readable
from srl.launch.process.failure_report import failed, failure_report, log_tail
from srl.launch.process.planning import Draft, read_answer
from srl.launch.process.process_state import Condition
from srl.launch.process.signal_pipe import SignalPipe
from srl.launch.run.checkpointing import Checkpointing
from srl.launch.run.controller import ENV_CALLS, POLL_SECONDS, Controller, Ending
from srl.launch.run.liveness import Liveness, Verdict
from srl.launch.run.process_table import ProcessTable
from srl.launch.run.requests import STOP_REASON, Requests
from srl.launch.run.restarts import Restarts
from srl.launch.run.scaling import Scaling
from srl.launch.run.signals import StopSignals
from srl.launch.run.stall import LOOK_SECONDS, StallWatch
from srl.launch.run.status_file import StatusFile
from srl.launch.run.throttle import Throttle
from srl.plan import Plan
from srl.services.checkpoints import Checkpoint
from srl.services.messages import Message, Note
from srl.services.metrics_client import MetricsServer
from srl.services.parameters import parameter_bytes
from srl.streams import inference, sample

PLANNER = "planner"
PLANNING_MODULE = "srl.launch.process.planning"
PLAN_SECONDS = 60.0
"""How long to wait for a plan: a process that is stopped never answers."""
TURN_SECONDS = 0.05
STOP_SECONDS = 2.5
"""How long trainers may take to write the last checkpoint of a small network."""
WRITTEN_BYTES_PER_SECOND = 10e6
"""Large networks get more time: one second for this many bytes of published weights. Within it the
state of the optimizer is written too."""
LEAST_SEGMENTS = 8
"""What a worker keeps has at least so many segments, of which all but one are written before."""


class ProcessRun:
    """One run in processes: starts them, watches them, and ends them."""

    def __init__(self, process_table: ProcessTable, run_dir: Path, signals: StopSignals) -> None:
        self.process_table = process_table
        self.arena = process_table.arena
        self._run_dir = run_dir
        self._signals = signals

    def plan(self, draft: Draft, modules: tuple[str, ...]) -> Plan | None:
        """Has a process make the plan, forked from the template with these modules.

        None if there are no templates, or if that process was killed or stopped.
        """
        if not use_templates():
            return None
        children = self.process_table.local_node.children
        children.start(PLANNER, 0, PLANNING_MODULE, modules=modules)
        children.tell(PLANNER, draft)
        end = time.monotonic() + PLAN_SECONDS
        while not children.wait(PLANNER, 0.1):
            if time.monotonic() > end:
                children.kill(PLANNER)
            self.process_table.hear()
        children.forget(PLANNER)
        return read_answer(self.process_table.folder.path)

    def attach(self, controller: Controller, checkpoint: Checkpoint | None) -> None:
        """Makes the streams of the controller's plan, and everything that watches the run."""
        self._controller = controller
        self._plan: Plan = controller.plan
        self._members = controller.plan.processes
        rows = controller.stats_table.rows
        self._rows = {
            process: [rows[member.name] for member in members]
            for process, members in self._members.items()
        }
        experiment = controller.experiment
        self._restarts = Restarts(experiment.restart_window_seconds)
        self._server = MetricsServer(self.process_table.folder.path)
        for plan in self._plan.inference.values():
            if plan.carrier != "inline":
                inference.create_inference(plan.spec, self.arena)
        for stream in self._plan.samples.values():
            owned_elsewhere = not self.process_table.reads_here(stream)
            sample.create_sample(stream.spec, self.arena, owned_elsewhere=owned_elsewhere)
        self.process_table.checkpoint = str(checkpoint.path.absolute()) if checkpoint else ""
        self.process_table.attach(self._plan, controller.stats_table)
        self._checkpointing = Checkpointing(controller, self.process_table)
        self._requests = Requests(
            self._run_dir,
            scale=Scaling(self._run_dir, controller, self.process_table).scale,
            checkpoint=self._checkpointing.ask_now,
            stop=self._stop_as_asked,
            refuse=lambda why: self._note("warning", "controller", why),
        )
        self._steps_before: dict[str, int] = {}
        """Environment steps of each worker at its last restart."""
        self._throttle = Throttle(TURN_SECONDS)
        self._liveness = Liveness(experiment.silence_seconds, experiment.stopped_seconds)
        controller.tolerates = self._tolerates
        controller.accounts = self.process_table.accounts
        controller.collector.between_hosts = self.process_table.between_hosts
        self._stall_throttle = Throttle(LOOK_SECONDS)
        self._stall = StallWatch(
            self._plan,
            controller.stats_table,
            experiment.stall_seconds,
            is_wanted=self.process_table.wanted.__contains__,
            is_here=self._is_here,
            carried=self._carried,
            accounts=self.process_table.accounts,
        )
        self._status = StatusFile(self._run_dir, controller, self.process_table, self._restarts)

    def run(self) -> Ending:
        """Gives all processes their orders, and watches them until the run is over."""
        controller = self._controller
        with SignalPipe() as wake:

            def stop() -> None:
                reason = self._signals.reason
                controller.ending = controller.ending or Ending("stopped", reason)
                wake.wake()

            with self._signals.calling(stop):
                for row in controller.stats_table.rows.values():
                    row.enter("starting")
                self.process_table.give_orders()
                try:
                    while controller.ending is None:
                        self._turn(wake)
                except Exception:
                    self._save_after_failure()
                    raise
                self._stop()
        return controller.ending

    # -- while it runs -----------------------------------------------------------------------------

    def _turn(self, wake: SignalPipe) -> None:
        waited = [self._server.fileno(), wake.fileno()]
        patience = min(TURN_SECONDS, POLL_SECONDS)
        if self.process_table.head is not None:
            hosts = self.process_table.head.hosts
            waited.append(hosts.fileno())
            # The socket signals only new messages, but older ones may still wait in it.
            patience = 0.0 if hosts.is_behind else patience
        wait_readable(waited, patience)
        self.process_table.turn()
        self._receive()
        # Failures first: a process that failed is the reason why others have finished.
        for ended in sorted(self.process_table.exits(), key=lambda ended: ended.code == 0):
            self._handle_exit(ended)
        self._throttle.step(self._kill_silent)
        self._stall_throttle.step(self._check_stall)
        self._controller.poll()
        self._checkpointing.step()
        self._requests.step()
        self._status.step()

    def _receive(self) -> None:
        for message in self._server.receive():
            self._take(message)
        head = self.process_table.head
        while head is not None and head.hosts.reports:
            self._take(head.hosts.reports.popleft())
        while self.process_table.news:
            self._note("info", "controller", self.process_table.news.pop(0))

    def _take(self, message: Message) -> None:
        self._controller.collector.add(message)
        if self._controller.collector.has_news:
            # At once: the next message may report another update.
            self._controller.poll()

    def _handle_exit(self, ended: Exit) -> None:
        if ended.failure is not None:
            raise failed(ended.failure, self._run_dir, ended.process)
        if ended.code == 0 and not self.process_table.is_sent_away(ended.process):
            if not self.process_table.left(ended.process) and self.process_table.all_ended:
                raise RunError("nothing is left to do: all workers have finished.")
            return
        self._restart(ended)

    def _restart(self, ended: Exit) -> None:
        process = ended.process
        members = self._members[process]
        names = ", ".join(member.name for member in members)
        tail = log_tail(self._run_dir, process)
        if not all(member.restarts for member in members):
            raise WorkerError(
                f"{names} {ended.how} and cannot be replaced while the run goes on. The run's last "
                f"checkpoint is kept: continue with `srl resume {self._run_dir}`.{tail}"
            )
        now = time.monotonic()
        count = self._restarts.recent(process, now)
        limit = min(self._limit(member.max_restarts) for member in members)
        if count >= limit:
            window = self._controller.experiment.restart_window_seconds
            raise WorkerError(
                f"{names} {ended.how}, after {count} restarts within {window:g} s. Look at what "
                f"kills it, or raise max_restarts.{tail}"
            )
        if process not in self.process_table.wanted:
            self.process_table.left(process)
            return
        gone = ended.lost or ended.code == 0
        if gone and any(member.in_every_checkpoint for member in members):
            self._checkpointing.give_up()
        delay = self._restarts.add(process, now)
        when = f" in {delay:g} s" if delay else ""
        where = f" (pid {ended.pid} on {self.process_table.where[process]})" if ended.pid else ""
        self._note("warning", names, f"{ended.how}{where}; starting it again{when}")
        for member in members:
            row = self._controller.stats_table.rows[member.name]
            row.enter("starting")
            for policy in member.trains:
                # The metrics may be newer than the last row of a lost host.
                for name, steps in self._controller.collector.consumed(policy).items():
                    row.set(f"count_{name}", max(steps, row.get(f"count_{name}")))
            self._steps_before[member.name] = row.get("count_env_steps")
        self.process_table.request(process, delay)

    def _limit(self, own: int) -> int:
        return self._controller.experiment.max_restarts if own < 0 else own

    def _kill_silent(self) -> None:
        """Kills processes that stand still for certain, so that their slots can be taken back.

        Silence is excused during an environment call or a start, which have their own limits. It is
        excused on a host that cannot be heard, and on a host where another process is stopped: the
        stopped process may hold a lock. Nothing excuses a process that is stopped itself, unless
        its host cannot be heard.
        """
        liveness, now = self._liveness, time.monotonic_ns()
        liveness.begin(now)
        self._controller.suspended.clear()
        silent: list[tuple[str, int, Node, Condition]] = []
        for process in self.process_table.where:
            heard = max(row.get("heartbeat_ns") for row in self._rows[process])
            if liveness.is_silent(process, heard):
                node = self.process_table.node_of(process)
                if node is not None and node.is_alive(process):
                    silent.append((process, heard, node, node.condition(process)))
        stopped_hosts = {node.name for _, _, node, condition in silent if condition == "stopped"}
        for process, heard, node, condition in silent:
            cut_off = self.process_table.is_cut_off(process)
            if cut_off or condition in ("stopped", "traced"):
                members = self._members[process]
                self._controller.suspended.update(member.name for member in members)
            rows = self._rows[process]
            excused = (
                cut_off
                or node.name in stopped_hosts
                or any(row.activity == "starting" or row.activity in ENV_CALLS for row in rows)
            )
            if cut_off and condition == "stopped":
                continue
            verdict = liveness.judge(process, heard, condition, excused=excused)
            if verdict:
                self._carry_out(process, node, verdict, (now - heard) / 1e9)

    def _carry_out(self, process: str, node: Node, verdict: Verdict, seconds: float) -> None:
        """Kills a process that stands still; tells the user about a process that is slow."""
        names = ", ".join(member.name for member in self._members[process])
        if verdict == "slow":
            text = f"in one step for {seconds:.0f} s, and still working; it is not killed"
            self._note("warning", names, text)
            return
        self._note("warning", names, f"{verdict} for {seconds:.0f} s; killed")
        self._liveness.forget(process)
        for row in self._rows[process]:
            row.enter("starting")
        node.kill(process)

    def _check_stall(self) -> None:
        if self._controller.ending is None:
            self._stall.look(time.monotonic())

    def _carried(self) -> float:
        """Number of data messages that hosts have received from other hosts."""
        return self.process_table.between_hosts().get("between_hosts.data_messages", 0)

    def _is_here(self, process: str) -> bool:
        """Whether a process is alive and not stopped, and its host can be heard."""
        node = self.process_table.node_of(process)
        if node is None or not node.is_alive(process) or self.process_table.is_cut_off(process):
            return False
        suspended = self._controller.suspended
        return not any(member.name in suspended for member in self._members[process])

    def _tolerates(self, worker: str, text: str) -> bool:
        """Kills a worker whose environment hangs, if it had worked well before; the worker is then
        started again. Returns whether it was killed."""
        row = self._controller.stats_table.rows[worker]
        made = row.get("count_env_steps") - self._steps_before.get(worker, 0)
        config = self._controller.experiment.env
        process = next(w.process for w in self._plan.workers if w.name == worker)
        node = self.process_table.node_of(process)
        if made < config.failure_steps or not config.max_failures or node is None:
            return False
        self._note("warning", worker, f"{text} Killed.")
        row.add("count_env_failures", 1)
        row.enter("starting")
        node.kill(process)
        return True

    def _note(self, level: str, worker: str, text: str) -> None:
        self._controller.collector.add(Note(worker, level, text))  # type: ignore[arg-type]

    def _stop_as_asked(self) -> None:
        self._controller.ending = self._controller.ending or Ending("stopped", STOP_REASON)

    # -- the end -----------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Writes the last checkpoint and ends all processes."""
        failure = self._save_last()
        if failure is not None:
            raise failure

    def _save_after_failure(self) -> None:
        """Writes the last checkpoint after a failure; only notes it if that fails too."""
        try:
            failure: Exception | None = self._save_last()
        except (SrlError, OSError) as error:
            failure = error
        if failure is not None:
            # A note only: the error that ends the run is the first failure.
            self._note("error", "controller", f"the last checkpoint failed: {failure}")

    def _save_last(self) -> WorkerError | None:
        """Stops all processes, writes the last checkpoint, and collects the last reports. Returns
        the failure of a worker that could not write its part, if there is one."""
        # Pending connections must not take the file descriptors that this needs.
        if self.process_table.head is not None:
            self.process_table.head.hosts.stop_listening()
        self._checkpointing.step()
        # A checkpoint that is under way may be older than the newest update.
        self._checkpointing.give_up()
        self._checkpointing.ask()
        failure = self._finish_saving()
        # Leaving processes report their last episodes; a resumed run must count these too.
        self._end_processes()
        self._receive()
        self._checkpointing.commit()
        return failure

    def _finish_saving(self) -> WorkerError | None:
        """Stops all workers, and waits for the parts of the pending checkpoint."""
        # Trainers abandon an unfinished update, so that parts are written at once.
        self._controller.stats_table.stop = True
        self.process_table.notify(self._controller.stats_table)
        written = sum(parameter_bytes(p.parameters) for p in self._plan.policies.values())
        # Of what a worker keeps, only a small part is not written yet.
        kept = max((w.memory_bytes for w in self._plan.workers if w.in_every_checkpoint), default=0)
        written += kept // LEAST_SEGMENTS
        seconds = STOP_SECONDS + written / WRITTEN_BYTES_PER_SECOND
        for process in self._checkpointing.finish(seconds, self._pause):
            report = failure_report(self.process_table.folder.path, process)
            if report is not None:
                return failed(report, self._run_dir, process)
        return None

    def _pause(self) -> None:
        wait_readable([self._server.fileno()], 0.01)
        self.process_table.hear()
        self._receive()

    def _end_processes(self) -> None:
        self.process_table.end(EXIT_SECONDS)

    def end(self) -> None:
        """Ends every process; shared memory keeps what they wrote."""
        with suppress(SrlError, OSError):
            if hasattr(self, "_controller"):
                self._controller.stats_table.stop = True
                self.process_table.notify(self._controller.stats_table)
        self._end_processes()

    def close(self) -> None:
        """Ends every process and removes the shared memory, whatever happened before."""
        try:
            self.end()
        finally:
            if hasattr(self, "_server"):
                self._server.close()
            self.process_table.close()
