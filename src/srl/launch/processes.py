"""The process launcher: every process of the plan on this host, watched, replaced, cleaned up."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from srl.arena.shm import Bell, RunFolder, ShmArena
from srl.errors import RunError, SrlError, WorkerError
from srl.launch.controller import ENV_CALLS, Controller, Ending
from srl.launch.last_words import failed, last_words, log_tail
from srl.launch.planning import CONTROLLER, Draft, read_answer
from srl.launch.reclaiming import reclaim
from srl.launch.signals import StopSignals
from srl.launch.worker import Orders, checkpoint_path
from srl.services.checkpoints import Checkpoint
from srl.services.messages import Note
from srl.services.metrics_client import MetricsServer
from srl.services.names import Names
from srl.streams import inference, sample
from srl.workers.wiring import Plan, WorkerPlan

log = logging.getLogger("srl")

STOP_SECONDS = 2.5
"""How long trainers may take to write the last checkpoint."""
EXIT_SECONDS = 0.8
"""How long processes may take to leave after that, before they are killed."""


@dataclass
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    incarnation: int = 0


class ProcessRun:
    """The processes of one run."""

    def __init__(
        self, names: dict[str, tuple[str, ...]], run_dir: Path, signals: StopSignals
    ) -> None:
        """Starts the processes at once; they import what they need while the plan is made.

        `names` maps each process to the modules it will need.
        """
        self.folder = RunFolder()
        self.arena = ShmArena(self.folder.path, CONTROLLER)
        self._run_dir = run_dir
        self._signals = signals
        self._modules = names
        self._names = Names(self.folder.path)
        self._children: dict[str, _Child] = {}
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)
        try:
            for name in names:
                self._children[name] = _Child(name, self._spawn(name))
        except BaseException:
            self.close()
            raise

    def _spawn(self, name: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        with (self._run_dir / "logs" / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "srl.launch.worker", name, *self._modules[name]],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C is for the parent; it tells the workers what to do.
                start_new_session=True,
            )

    def plan(self, process: str, draft: Draft) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
        """The plan as a process makes it, and the algorithm's and the network's settings."""
        child = self._children[process]
        bell = Bell(self.folder.path, CONTROLLER)
        try:
            self._tell(child, draft)
            while (answer := read_answer(self.folder.path)) is None:
                if not self._is_alive(process):
                    raise self._ended_early(child)
                bell.wait(0.1)
        finally:
            bell.close()
        return answer.plan, answer.algorithm, answer.network

    def _ended_early(self, child: _Child) -> WorkerError:
        failure = last_words(self.folder.path, child.name)
        if failure is not None:
            return failed(failure, self._run_dir, child.name)
        how = f"ended while it started (exit code {child.process.returncode})"
        return WorkerError(f"{child.name} {how}.{log_tail(self._run_dir, child.name)}")

    def attach(self, controller: Controller, checkpoint: Checkpoint | None) -> None:
        """Makes the streams of the controller's plan."""
        self._controller = controller
        self._plan: Plan = controller.plan
        self._checkpoint = checkpoint
        self._server = MetricsServer(self.folder.path)
        self._pending: tuple[int, Path] | None = None
        self._restarts: dict[str, int] = {}
        self._kept = [w for w in self._plan.workers if w.in_every_checkpoint]
        for plan in self._plan.inference.values():
            if plan.carrier == "shm":
                inference.create_inference(plan.spec, self.arena)
        for stream in self._plan.samples.values():
            if stream.carrier == "shm":
                sample.create_sample(stream.spec, self.arena)

    def run(self) -> Ending:
        """Hands out the plan and watches until the run is over."""
        controller = self._controller
        with _Wake() as wake:

            def stop() -> None:
                reason = self._signals.reason
                controller.ending = controller.ending or Ending("stopped", reason)
                wake.ring()

            with self._signals.calling(stop):
                for child in self._children.values():
                    self._order(child)
                try:
                    while controller.ending is None:
                        self._turn(wake)
                except SrlError:
                    self._rescue()
                    raise
                self._stop()
        return controller.ending

    def _order(self, child: _Child) -> None:
        orders = Orders(
            plan=self._plan,
            process=child.name,
            folder=str(self.folder.path),
            run_dir=str(self._run_dir),
            checkpoint=str(self._checkpoint.path) if self._checkpoint else "",
            incarnation=child.incarnation,
        )
        self._tell(child, orders)

    def _tell(self, child: _Child, message: Draft | Orders) -> None:
        """Writes a line to a process; one that has ended is noticed elsewhere."""
        assert child.process.stdin is not None
        with suppress(BrokenPipeError):
            child.process.stdin.write(msgspec.json.encode(message) + b"\n")
            child.process.stdin.flush()

    # -- while it runs -----------------------------------------------------------------------------

    def _turn(self, wake: _Wake) -> None:
        select.select([self._server.fileno(), wake.fileno()], [], [], 0.05)
        self._receive()
        for child in list(self._children.values()):
            code = child.process.poll()
            if code is not None:
                self._handle_exit(child, code)
        self._kill_silent()
        self._controller.poll()
        self._checkpoint_step()

    def _receive(self) -> None:
        for message in self._server.receive():
            self._controller.collector.add(message)

    def _handle_exit(self, child: _Child, code: int) -> None:
        if child.process.stdin is not None:
            with suppress(OSError):
                child.process.stdin.close()
        failure = last_words(self.folder.path, child.name)
        if failure is not None:
            raise failed(failure, self._run_dir, child.name)
        del self._children[child.name]
        if code == 0:
            if not self._children:
                raise RunError("nothing is left to do: all workers have finished.")
            return
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"exited with {code}"
        reclaim(self._plan, self.arena, child.name)
        self._restart(child, how)

    def _restart(self, child: _Child, how: str) -> None:
        members = self._plan.processes[child.name]
        count = self._restarts.get(child.name, 0)
        names = ", ".join(member.name for member in members)
        tail = log_tail(self._run_dir, child.name)
        if not all(member.restarts for member in members):
            raise WorkerError(
                f"{names} {how} and cannot be replaced while the run goes on. Its last checkpoint "
                f"is kept: continue with `srl resume {self._run_dir}`.{tail}"
            )
        if count >= self._controller.experiment.max_restarts:
            raise WorkerError(
                f"{names} {how}, after {count} restarts. Look at what kills it, or raise "
                f"max_restarts.{tail}"
            )
        self._restarts[child.name] = count + 1
        self._note("warning", names, f"{how}{self._forget(child.name)}; starting it again")
        for member in members:
            self._controller.board.rows[member.name].enter("starting")
        again = _Child(child.name, self._spawn(child.name), child.incarnation + 1)
        self._children[child.name] = again
        self._order(again)

    def _forget(self, process: str) -> str:
        """Removes the names of a dead process, and says where it was."""
        where = ""
        for member in self._plan.processes[process]:
            entry = self._names.lookup(member.name)
            if entry is not None:
                where = f" (pid {entry.pid} on {entry.host})"
            self._names.remove(member.name)
        return where

    def _kill_silent(self) -> None:
        """Kills processes whose loop stands still, so that their slots can be taken back for
        certain.

        A long environment call has limits of its own, unless the whole process was stopped.
        """
        now = time.monotonic_ns()
        limit = self._controller.experiment.silence_seconds
        self._controller.suspended.clear()
        for child in self._children.values():
            members = self._plan.processes[child.name]
            rows = [self._controller.board.rows[member.name] for member in members]
            silent = (now - max(row.get("heartbeat_ns") for row in rows)) / 1e9
            if silent < min(limit, 1.0) or any(row.activity == "starting" for row in rows):
                continue
            stopped = _is_stopped(child.process.pid)
            if stopped:
                self._controller.suspended.update(member.name for member in members)
            in_env = any(row.activity in ENV_CALLS for row in rows)
            if silent > limit and (stopped or not in_env):
                names = ", ".join(member.name for member in members)
                self._note("warning", names, f"silent for {silent:.0f} s; killed")
                for row in rows:
                    row.enter("starting")
                child.process.kill()

    def _note(self, level: str, worker: str, text: str) -> None:
        self._controller.collector.add(Note(worker, level, text))  # type: ignore[arg-type]

    # -- checkpoints -------------------------------------------------------------------------------

    def _checkpoint_step(self) -> None:
        controller = self._controller
        if self._pending is None:
            if controller.checkpoint_due() and self._trainers_ready():
                self._ask_checkpoint()
            return
        number, folder = self._pending
        if self._written(number):
            self._pending = None
            # Workers that are started again go on from the newest one.
            self._checkpoint = controller.commit_checkpoint(number, folder, exact=False)

    def _trainers_ready(self) -> bool:
        """Trainers have started; before that there is nothing to write."""
        rows = self._controller.board.rows
        return all(rows[w.name].activity in ("running", "waiting") for w in self._kept if w.trains)

    def _ask_checkpoint(self) -> None:
        number, folder = self._controller.begin_checkpoint()
        checkpoint_path(self.folder.path).write_text(str(folder))
        self._controller.board.checkpoint = number
        self._pending = (number, folder)
        for child in self._children:
            self.arena.ring(child)

    def _written(self, number: int) -> bool:
        rows = self._controller.board.rows
        return all(rows[worker.name].get("checkpoint") >= number for worker in self._writers())

    def _writers(self) -> list[WorkerPlan]:
        """Workers whose parts make a checkpoint whole; one that has finished writes none."""
        return [w for w in self._kept if w.trains or w.process in self._children]

    # -- the end -----------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Asks for the last checkpoint, waits for it, and lets everyone leave."""
        controller = self._controller
        self._checkpoint_step()
        if self._pending is None and self._trainers_ready():
            self._ask_checkpoint()
        # A learner step that is under way is given up, so that parts are written at once.
        controller.board.stop = True
        self._ring_all()
        if self._pending is not None:
            failed = self._finish_pending(time.monotonic() + STOP_SECONDS)
            if failed is not None:
                raise failed
        self.leave(EXIT_SECONDS)
        self._receive()

    def _rescue(self) -> None:
        """Keeps what was learned, where what failed is not the learning itself."""
        with suppress(SrlError, OSError):
            if self._pending is None and self._trainers_ready():
                self._ask_checkpoint()
            self._controller.board.stop = True
            self._ring_all()
            if self._pending is not None:
                self._finish_pending(time.monotonic() + STOP_SECONDS)

    def _finish_pending(self, deadline: float) -> WorkerError | None:
        """Waits until the checkpoint is written, and gives it up if a writer fails or is slow."""
        assert self._pending is not None
        (number, folder), self._pending = self._pending, None
        writers = {worker.process for worker in self._writers()}
        gone: list[str] = []
        while not self._written(number) and not gone and time.monotonic() < deadline:
            select.select([self._server], [], [], 0.01)
            self._receive()
            gone = [name for name in writers if not self._is_alive(name)]
        if self._written(number):
            self._controller.commit_checkpoint(number, folder, exact=False)
            return None
        self._controller.store.abort(folder)
        self._note("warning", "controller", "the last checkpoint was not written in time")
        failures = [(name, last_words(self.folder.path, name)) for name in gone]
        return next((failed(words, self._run_dir, name) for name, words in failures if words), None)

    def _is_alive(self, name: str) -> bool:
        child = self._children.get(name)
        return child is not None and child.process.poll() is None

    def _ring_all(self) -> None:
        for child in self._children:
            self.arena.ring(child)

    def leave(self, seconds: float) -> None:
        """Waits for the processes to end, and kills those that do not."""
        deadline = time.monotonic() + seconds
        for child in self._children.values():
            if child.process.stdin is not None:
                with suppress(OSError):
                    child.process.stdin.close()
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
        for child in self._children.values():
            if child.process.poll() is None:
                child.process.kill()
            child.process.wait()

    def end(self) -> None:
        """Ends every process; what they wrote into shared memory stays."""
        with suppress(SrlError, OSError):
            if hasattr(self, "_controller"):
                self._controller.board.stop = True
                self._ring_all()
        self.leave(EXIT_SECONDS)

    def close(self) -> None:
        """Ends every process and removes the shared memory, whatever happened before."""
        self.end()
        if hasattr(self, "_server"):
            self._server.close()
        self.arena.close()
        self.folder.remove()


class _Wake:
    """A pipe that ends the controller's sleep, from a signal handler too."""

    def __enter__(self) -> _Wake:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        return self

    def fileno(self) -> int:
        """For waiting together with other things."""
        return self._reading

    def ring(self) -> None:
        """Ends the sleep."""
        with suppress(BlockingIOError):
            os.write(self._writing, b"\0")

    def __exit__(self, *raised: object) -> None:
        os.close(self._reading)
        os.close(self._writing)


def _is_stopped(pid: int) -> bool:
    """Whether the system has stopped a process (SIGSTOP, a debugger); False where it is unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")
