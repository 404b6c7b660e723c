"""Runs on several hosts: agents of this machine that are killed, stopped and left alone."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from chaos import bridges_and_agents
from harness import LIMIT_SECONDS, SMALL, Training, checkpoints, read_summary, started_by, wait_for
from test_worker_deaths import assert_books_add_up, replaced

from srl.arena.shm import sweep
from srl.cli import main
from srl.launch.run.status import RunStatus, read_status

pytestmark = pytest.mark.machines

Start = Callable[..., Training]
COMMAND = "import sys; from srl.cli import main; sys.exit(main())"


def agents(training: Training) -> dict[str, psutil.Process]:
    """The agents of a run on this machine, by the names of their hosts."""
    found = {}
    for child in psutil.Process(training.process.pid).children(recursive=True):
        training.seen[child.pid] = child
        try:
            line = child.cmdline()
        except psutil.Error:
            continue
        if "worker" in line and "--name" in line:
            found[line[line.index("--name") + 1]] = child
    return found


def log_of(training: Training) -> str:
    path = training.run_dir / "logs" / "controller.log"
    return path.read_text() if path.exists() else ""


def status_of(training: Training) -> RunStatus:
    training.check_running()
    wait_for((training.run_dir / "status.json").exists, "a status")
    return read_status(training.run_dir)


def test_the_remote_layout_learns_and_leaves_nothing(start: Start, shm: Path) -> None:
    training = start(
        "cartpole", "--layout", "remote", "--until", "return>=120", "--steps", "200_000"
    )
    training.wait_for_updates(1)
    status = status_of(training)
    assert {w.name: w.host for w in status.workers} == {
        "trainer/0": "home", "policy/0": "host-2", "actor/0": "host-1",
    }  # fmt: skip
    assert {host.name: host.state for host in status.hosts} == dict.fromkeys(
        ("home", "host-1", "host-2"), "here"
    )
    agents(training)
    training.workers()

    assert training.wait() == 0, training.printed
    summary = read_summary(training.run_dir)
    assert summary["reason"] == "reached return>=120"
    assert_books_add_up(training.run_dir)
    wait_for(lambda: not training.survivors(), "everyone's end")
    assert list(shm.iterdir()) == []


def test_agents_and_their_workers_may_die_stop_and_come_back(start: Start, shm: Path) -> None:
    training = start(
        "CartPole-v1", "--layout", "remote", "--steps", "1e9", *SMALL, "--set", "actor.count=2",
        "--set", "hosts={a: [actor], b: [actor], c: [policy]}",
        "--set", "host_silence_seconds=4", "--set", "stopped_seconds=1000",
        "--set", "max_restarts=10",
    )  # fmt: skip
    training.wait_for_updates(2)

    # A worker of an agent is killed: the agent says so, and it is started again there.
    pid = training.workers()["policy-0"].pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: replaced(training, "policy-0", pid), "a new policy-0")
    training.wait_for_updates(3)
    assert "policy/0: was killed (SIGKILL)" in log_of(training)

    # An agent that is stopped for a moment goes on.
    agent = agents(training)["a"]
    agent.suspend()
    wait_for(lambda: "silent" in _state(training, "a"), "a silent host")
    agent.resume()
    wait_for(lambda: _state(training, "a") == "here", "the host's return")
    training.wait_for_updates(2)
    assert "is gone" not in log_of(training)

    # One that stays so is given up; its actor runs elsewhere. It comes back, and so does the actor.
    agent.suspend()
    wait_for(lambda: "host a is gone: silent for" in log_of(training), "a lost host")
    training.wait_for_updates(2)
    wait_for(lambda: _hosts(training).get("actor/0") == "b", "the actor's move")
    agent.resume()
    wait_for(lambda: "host a joined again" in log_of(training), "the host's return")
    wait_for(lambda: _hosts(training).get("actor/0") == "a", "the actor's return")
    training.wait_for_updates(2)

    # An agent that is killed is started again, with what ran there.
    agents(training)["b"].kill()
    wait_for(lambda: "host b joined again" in log_of(training), "another agent")
    wait_for(lambda: _hosts(training).get("actor/1") == "b", "the actor's return")
    training.wait_for_updates(2)

    training.workers()
    assert training.stop(signal.SIGINT) == 130
    assert_books_add_up(training.run_dir)
    wait_for(lambda: not training.survivors(), "everyone's end")
    assert list(shm.iterdir()) == []


def test_bridges_and_agents_that_are_stopped_are_replaced(start: Start, shm: Path) -> None:
    training = start("CartPole-v1", "--layout", "remote", "--steps", "1e9", *SMALL)
    training.wait_for_updates(2)
    for name in ("bridge-home", "bridge-host-1", "agent-host-2"):
        pid = bridges_and_agents(training)[name].pid
        os.kill(pid, signal.SIGSTOP)

        def is_new(name: str = name, pid: int = pid) -> bool:
            training.check_running()
            training.workers()
            found = bridges_and_agents(training).get(name)
            return found is not None and found.pid != pid

        wait_for(is_new, f"a new {name}: {log_of(training)}")
        training.wait_for_updates(3)
    assert training.stop(signal.SIGINT) == 130
    assert_books_add_up(training.run_dir)
    wait_for(lambda: not training.survivors(), "everyone's end")
    sweep(shm)
    assert list(shm.iterdir()) == []


def _state(training: Training, host: str) -> str:
    return {h.name: h.state for h in status_of(training).hosts}[host]


def _hosts(training: Training) -> dict[str, str]:
    return {w.name: w.host for w in status_of(training).workers if w.state != "to be started"}


def test_a_head_that_dies_ends_everything_and_the_run_can_be_resumed(
    start: Start, shm: Path
) -> None:
    training = start("CartPole-v1", "--layout", "remote", "--steps", "1e9", *SMALL)
    training.wait_for_updates(2)
    wait_for(lambda: checkpoints(training.run_dir), "a checkpoint")
    agents(training)
    training.workers()

    training.process.kill()

    wait_for(lambda: not training.survivors(), "everyone's end")
    # The agents have removed their own; the head's is for the next run.
    assert len(list(shm.iterdir())) <= 1
    steps = json.loads((checkpoints(training.run_dir)[-1] / "manifest.json").read_text())
    goal = steps["env_steps"] + 2000
    again = start("", "--steps", str(goal), verb="resume")
    assert again.wait() == 0, again.printed
    summary = read_summary(training.run_dir)
    assert summary["status"] == "finished"
    assert summary["env_steps"] >= goal
    assert list(shm.iterdir()) == []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def listening(parent: psutil.Process) -> set[int]:
    """Ports at which those listen that a launcher or an agent has started."""
    found = set()
    for child in started_by(parent):
        with suppress(psutil.Error):
            connections = child.net_connections("tcp")
            found |= {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def join(run_dir: Path, *arguments: str) -> subprocess.Popen[str]:
    """An agent that a person starts."""
    head = json.loads((run_dir / "head.json").read_text())
    where = ("--join", head["address"], "--key-file", head["key_file"])
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "worker", *where, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_hosts_that_people_start(start: Start, tmp_path: Path) -> None:
    bridge_port = free_port()
    training = start(
        "CartPole-v1", "--layout", "remote", "--launcher", "manual", *SMALL, "--steps", "20_000",
        "--set", "hosts={box: [actor, policy]}", "--set", f"bridge_port={bridge_port}",
    )  # fmt: skip
    wait_for(lambda: "waiting for host box" in log_of(training), "a call for the host")
    assert re.search(r"srl worker --join 127.0.0.1:\d+ --key-file \S+ --name box", log_of(training))

    # A stranger with a key of another run is not let in.
    key = json.loads((training.run_dir / "keys" / "join.key").read_text())
    stranger = tmp_path / "stranger.key"
    stranger.write_text(json.dumps({**key, "public": key["head"]}))
    stranger.chmod(0o600)
    refused = join(training.run_dir, "--key-file", str(stranger), "--wait", "2", "--name", "box")
    assert refused.wait(LIMIT_SECONDS) == 1
    assert "could not join 127.0.0.1" in refused.stdout.read()

    port = free_port()
    box = join(training.run_dir, "--name", "box", "--bind", f"127.0.0.1:{port}")
    try:
        wait_for(lambda: port in listening(psutil.Process(box.pid)), "a bridge at that port")
        assert bridge_port in listening(psutil.Process(training.process.pid))
        assert training.wait() == 0, training.printed
        assert box.wait(LIMIT_SECONDS) == 0
    finally:
        box.kill()
    assert "host box joined" in log_of(training)


@pytest.mark.parametrize("layout", ["shared", "remote"])
def test_workers_join_and_leave_a_running_experiment(
    layout: str, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    training = start(
        "CartPole-v1", "--layout", layout, "--steps", "1e9", *SMALL,
        "--set", "actor.count=1", "--set", "actor.max_count=3",
    )  # fmt: skip
    training.wait_for_updates(2)
    run = str(training.run_dir)
    assert [w for w in training.workers() if w.startswith("actor")] == ["actor-0"]

    assert main(["scale", run, "actor=3"]) == 0
    assert "actor=3" in capsys.readouterr().out
    wait_for(lambda: sum(w.startswith("actor") for w in training.workers()) == 3, "three actors")
    wait_for(lambda: all(_steps(training, i) > 0 for i in range(3)), "steps of all three")
    training.wait_for_updates(2)

    assert main(["scale", run, "actor=1"]) == 0
    wait_for(lambda: sum(w.startswith("actor") for w in training.workers()) == 1, "one actor")
    training.wait_for_updates(3)

    assert main(["scale", run, "actor=4"]) == 2
    assert "expected 1 to 3 workers of 'actor', got 4" in capsys.readouterr().err
    assert main(["scale", run, "painter=4"]) == 2
    # Why the head refuses comes to who asks.
    assert main(["scale", run, "actor=1", "trainer=2"]) == 2
    refusal = capsys.readouterr().err
    assert "expected 1 to 1 workers of 'trainer', got 2" in refusal
    assert f"srl resume {run} --set trainer.count=2" in refusal
    wait_for(lambda: "workers of 'trainer', got 2" in log_of(training), "a line in the log")
    assert main(["status", run]) == 0
    printed = capsys.readouterr().out
    assert "actor/0" in printed
    assert "actor/1" not in printed

    assert training.stop(signal.SIGINT) == 130
    assert_books_add_up(training.run_dir)


def test_a_run_without_room_says_how_to_get_it_and_that_works(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    training = start("CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL)
    training.wait_for_updates(2)
    run = str(training.run_dir)
    wait_for((training.run_dir / "status.json").exists, "a status")
    assert main(["scale", run, "actor=4"]) == 2
    refusal = capsys.readouterr().err
    resume, scale = re.findall(r"`srl (.*?)`", refusal)
    assert training.stop(signal.SIGINT) == 130

    verb, where, *settings = shlex.split(resume)
    assert (verb, where) == ("resume", run)
    again = start("", *settings, verb=verb)
    again.wait_for_updates(2)
    assert main(shlex.split(scale)) == 0
    wait_for(lambda: sum(w.startswith("actor") for w in again.workers()) == 4, "four actors")
    assert again.stop(signal.SIGINT) == 130
    assert_books_add_up(again.run_dir)


def _steps(training: Training, index: int) -> float:
    rates = {w.name: w.rate for w in status_of(training).workers}
    return rates.get(f"actor/{index}", 0.0)
