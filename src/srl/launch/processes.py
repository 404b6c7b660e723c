"""The process launcher: every process of the plan, watched, replaced, cleaned up."""

from __future__ import annotations

import select
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from srl.arena.shm import CONTROLLER, Bell
from srl.errors import RunError, SrlError, WorkerError
from srl.launch.children import EXIT_SECONDS
from srl.launch.controller import ENV_CALLS, Controller, Ending
from srl.launch.fleet import Fleet
from srl.launch.last_words import failed, last_words, log_tail
from srl.launch.pace import Pace
from srl.launch.places import Exit
from srl.launch.planning import Draft, read_answer
from srl.launch.restarts import Restarts
from srl.launch.saving import Saving
from srl.launch.scaling import Scaling
from srl.launch.signals import StopSignals
from srl.launch.status import StatusFile
from srl.launch.wake import Wake
from srl.services.checkpoints import Checkpoint
from srl.services.messages import Note
from srl.services.metrics_client import MetricsServer
from srl.streams import inference, sample
from srl.workers.wiring import Plan

PLAN_SECONDS = 60.0
"""How long a plan is waited for; a process that was stopped says nothing."""
TURN_SECONDS = 0.05
STOP_SECONDS = 2.5
"""How long trainers may take to write the last checkpoint."""


class ProcessRun:
    """The processes of one run, from the launcher's side."""

    def __init__(self, fleet: Fleet, run_dir: Path, signals: StopSignals) -> None:
        self.fleet = fleet
        self.arena = fleet.arena
        self._run_dir = run_dir
        self._signals = signals

    def plan(
        self, process: str, draft: Draft
    ) -> tuple[Plan, dict[str, Any], dict[str, Any]] | None:
        """The plan as a process makes it, and the algorithm's and the network's settings; None if
        it was killed or stopped meanwhile. What becomes of it then is seen to once the run has
        begun."""
        folder = self.fleet.folder.path
        bell = Bell(folder, CONTROLLER)
        try:
            self.fleet.home.draft(process, draft)
            end = time.monotonic() + PLAN_SECONDS
            while (answer := read_answer(folder)) is None:
                if not self.fleet.is_alive(process):
                    failure = last_words(folder, process)
                    if failure is not None:
                        raise failed(failure, self._run_dir, process)
                    return None
                if time.monotonic() > end:
                    return None
                self.fleet.hear()
                bell.wait(0.1)
        finally:
            bell.close()
        return answer.plan, answer.algorithm, answer.network

    def attach(self, controller: Controller, checkpoint: Checkpoint | None) -> None:
        """Makes the streams of the controller's plan."""
        self._controller = controller
        self._plan: Plan = controller.plan
        self._members = controller.plan.processes
        rows = controller.board.rows
        self._rows = {
            process: [rows[member.name] for member in members]
            for process, members in self._members.items()
        }
        experiment = controller.experiment
        self._restarts = Restarts(experiment.restart_window_seconds)
        self._server = MetricsServer(self.fleet.folder.path)
        for plan in self._plan.inference.values():
            if plan.carrier != "inline":
                inference.create_inference(plan.spec, self.arena)
        for stream in self._plan.samples.values():
            if stream.carrier != "inline":
                granted = not self.fleet.reads_here(stream)
                sample.create_sample(stream.spec, self.arena, granted=granted)
        self.fleet.checkpoint = str(checkpoint.path.absolute()) if checkpoint else ""
        self.fleet.attach(self._plan, controller.board)
        self._saving = Saving(controller, self.fleet)
        self._scaling = Scaling(self._run_dir, controller, self.fleet)
        self._steps_before: dict[str, int] = {}
        """Environment steps that each worker had made when it was last started."""
        self._pace = Pace(TURN_SECONDS)
        self._held_up: dict[str, int] = {}
        """When a process of each host was last seen to be stopped."""
        controller.tolerates = self._tolerates
        controller.books = self.fleet.books
        controller.collector.between_hosts = self.fleet.between_hosts
        self._status = StatusFile(self._run_dir, controller, self.fleet, self._restarts)

    def run(self) -> Ending:
        """Hands out the plan and watches until the run is over."""
        controller = self._controller
        with Wake() as wake:

            def stop() -> None:
                reason = self._signals.reason
                controller.ending = controller.ending or Ending("stopped", reason)
                wake.ring()

            with self._signals.calling(stop):
                for row in controller.board.rows.values():
                    row.enter("starting")
                self.fleet.give_orders()
                try:
                    while controller.ending is None:
                        self._turn(wake)
                except Exception:
                    self._rescue()
                    raise
                self._stop()
        return controller.ending

    # -- while it runs -----------------------------------------------------------------------------

    def _turn(self, wake: Wake) -> None:
        waited = [self._server.fileno(), wake.fileno()]
        patience = TURN_SECONDS
        if self.fleet.head is not None:
            hosts = self.fleet.head.hosts
            waited.append(hosts.fileno())
            # The socket rings only for what is new.
            patience = 0.0 if hosts.is_behind else patience
        select.select(waited, [], [], patience)
        self.fleet.turn()
        self._receive()
        # Whoever failed is the reason why others have finished.
        for ended in sorted(self.fleet.exits(), key=lambda ended: ended.code == 0):
            self._handle_exit(ended)
        self._pace.step(self._kill_silent)
        self._controller.poll()
        self._saving.step()
        self._scaling.step()
        self._status.step()

    def _receive(self) -> None:
        for message in self._server.receive():
            self._controller.collector.add(message)
        head = self.fleet.head
        while head is not None and head.hosts.reports:
            self._controller.collector.add(head.hosts.reports.popleft())
        while self.fleet.news:
            self._note("info", "controller", self.fleet.news.pop(0))

    def _handle_exit(self, ended: Exit) -> None:
        if ended.failure is not None:
            raise failed(ended.failure, self._run_dir, ended.process)
        if ended.code == 0 and not self.fleet.is_sent_away(ended.process):
            if not self.fleet.left(ended.process) and self.fleet.all_ended:
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
                f"{names} {ended.how} and cannot be replaced while the run goes on. Its last "
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
        if process not in self.fleet.wanted:
            self.fleet.left(process)
            return
        gone = ended.lost or ended.code == 0
        if gone and any(member.in_every_checkpoint for member in members):
            self._saving.give_up()
        delay = self._restarts.add(process, now)
        when = f" in {delay:g} s" if delay else ""
        where = f" (pid {ended.pid} on {self.fleet.where[process]})" if ended.pid else ""
        self._note("warning", names, f"{ended.how}{where}; starting it again{when}")
        for member in members:
            row = self._controller.board.rows[member.name]
            row.enter("starting")
            for policy in member.trains:
                # What was learned from last may be known before the row of a lost host says so.
                for name, steps in self._controller.collector.consumed(policy).items():
                    row.set(f"count_{name}", max(steps, row.get(f"count_{name}")))
            self._steps_before[member.name] = row.get("count_env_steps")
        self.fleet.request(process, delay)

    def _limit(self, own: int) -> int:
        return self._controller.experiment.max_restarts if own < 0 else own

    def _kill_silent(self) -> None:
        """Kills processes whose loop stands still, so that their slots can be taken back for
        certain.

        A long environment call has limits of its own, unless the whole process was stopped, and so
        has a start; a host that cannot be heard says nothing about its processes. Who waits for a
        lock that a stopped process holds is not to blame: its silence counts from the stop's end.
        """
        now = time.monotonic_ns()
        limit = self._controller.experiment.silence_seconds
        self._controller.suspended.clear()
        for process in self.fleet.where:
            members, own = self._members[process], self._rows[process]
            heard = max(row.get("heartbeat_ns") for row in own)
            silent = (now - heard) / 1e9
            if silent < min(limit / 4, 1.0):
                continue
            place = self.fleet.place_of(process)
            if place is None or not place.is_alive(process):
                continue
            away = self.fleet.is_cut_off(process)
            stopped = place.is_stopped(process)
            if stopped:
                self._held_up[place.name] = now
            else:
                silent = (now - max(heard, self._held_up.get(place.name, 0))) / 1e9
            if not stopped and any(row.activity == "starting" for row in own):
                # How long imports take is nobody's to say.
                continue
            if stopped or away:
                self._controller.suspended.update(member.name for member in members)
            in_env = any(row.activity in ENV_CALLS for row in own)
            if silent > limit and not away and (stopped or not in_env):
                names = ", ".join(member.name for member in members)
                self._note("warning", names, f"silent for {silent:.0f} s; killed")
                for row in own:
                    row.enter("starting")
                place.kill(process)

    def _tolerates(self, worker: str, text: str) -> bool:
        """Kills a worker whose environment hangs after it had worked well; it is started again."""
        row = self._controller.board.rows[worker]
        made = row.get("count_env_steps") - self._steps_before.get(worker, 0)
        config = self._controller.experiment.env
        process = next(w.process for w in self._plan.workers if w.name == worker)
        place = self.fleet.place_of(process)
        if made < config.failure_steps or not config.max_failures or place is None:
            return False
        self._note("warning", worker, f"{text} Killed.")
        row.add("count_env_failures", 1)
        row.enter("starting")
        place.kill(process)
        return True

    def _note(self, level: str, worker: str, text: str) -> None:
        self._controller.collector.add(Note(worker, level, text))  # type: ignore[arg-type]

    # -- the end -----------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Lets everyone leave, with a last checkpoint."""
        failure = self._save_last()
        if failure is not None:
            raise failure

    def _rescue(self) -> None:
        """Keeps what was learned, where what failed is not the learning itself."""
        try:
            failure: Exception | None = self._save_last()
        except (SrlError, OSError) as error:
            failure = error
        if failure is not None:
            # What the user is told is why the run ends; this comes beside it.
            self._note("error", "controller", f"the last checkpoint failed: {failure}")

    def _save_last(self) -> WorkerError | None:
        """Stops everyone, and keeps what they have learned by then and what they tell last."""
        self._saving.step()
        # Parts of one that is under way may be older than what was learned since.
        self._saving.give_up()
        self._saving.ask()
        failure = self._finish_saving()
        # Episodes that ended last are told by who leaves; a resumed run is to count them, too.
        self._leave()
        self._receive()
        self._saving.commit()
        return failure

    def _finish_saving(self) -> WorkerError | None:
        """Stops everyone, and waits for the parts of the checkpoint that is pending."""
        # A learner step that is under way is given up, so that parts are written at once.
        self._controller.board.stop = True
        self.fleet.notify(self._controller.board)
        for process in self._saving.finish(STOP_SECONDS, self._pause):
            words = last_words(self.fleet.folder.path, process)
            if words is not None:
                return failed(words, self._run_dir, process)
        return None

    def _pause(self) -> None:
        select.select([self._server], [], [], 0.01)
        self.fleet.hear()
        self._receive()

    def _leave(self) -> None:
        self.fleet.end(EXIT_SECONDS)

    def end(self) -> None:
        """Ends every process; what they wrote into shared memory stays."""
        with suppress(SrlError, OSError):
            if hasattr(self, "_controller"):
                self._controller.board.stop = True
                self.fleet.notify(self._controller.board)
        self._leave()

    def close(self) -> None:
        """Ends every process and removes the shared memory, whatever happened before."""
        try:
            self.end()
        finally:
            if hasattr(self, "_server"):
                self._server.close()
            self.fleet.close()
