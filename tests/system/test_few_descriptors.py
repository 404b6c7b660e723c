"""A stranger who holds more connections than the processes of a run may have descriptors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness import SMALL, Training, checkpoints, read_summary, wait_for
from test_hosts import join, listening

pytestmark = pytest.mark.machines

FEW = ("bash", "-c", 'ulimit -n 256 && exec "$0" "$@"')
"""A command that runs another with few descriptors, for good."""
HOLD = """
import select, socket, sys
held, poll, told = {}, select.poll(), False
while True:
    while len(held) < 800:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", int(sys.argv[1 + len(held) % (len(sys.argv) - 1)])))
        held[one.fileno()] = one
        poll.register(one, select.POLLIN)
    if not told:
        told = print("holds", flush=True) is None
    for fd, events in poll.poll():
        try:
            data = held[fd].recv(4096)
        except OSError:
            data = b""
        if not data:
            poll.unregister(fd)
            held.pop(fd).close()
"""
"""Holds 800 connections to some ports, and dials anew when one is cut."""


def test_a_run_with_few_descriptors_goes_on_and_ends_well(tmp_path: Path, shm: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = (
        "train", "CartPole-v1", "--run-dir", str(run_dir), "--quiet", "--layout", "remote",
        "--launcher", "manual", "--set", "hosts={far: [actor]}", "--steps", "1e9", *SMALL,
        "--set", "checkpoint.every_seconds=1000",
    )  # fmt: skip
    training = Training(run_dir, arguments, before=FEW)
    ended: list[subprocess.Popen[str]] = []
    try:
        wait_for((run_dir / "head.json").exists, "a head")
        launcher = psutil.Process(training.process.pid)
        (bridge,) = wait_for(lambda: listening(launcher), "a bridge")
        head = json.loads((run_dir / "head.json").read_text())["address"].rpartition(":")[2]
        command = [sys.executable, "-c", HOLD, head, str(bridge)]
        stranger = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ended.append(stranger)
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "holds\n"
        ended.append(join(run_dir, "--name", "far", "--wait", "120"))
        training.wait_for_updates(3)
        assert training.stop(signal.SIGINT) == 130, training.printed
    finally:
        training.kill()
        for process in ended:
            process.kill()
            process.communicate()
    assert read_summary(run_dir)["status"] == "stopped"
    assert len(checkpoints(run_dir)) == 1
