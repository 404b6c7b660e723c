"""Three hosts with a network between them that is slow, goes away and comes back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import LIMIT_SECONDS, SMALL, Training, read_summary, wait_for
from network import Network, require_namespaces
from test_hosts import log_of, status_of
from test_worker_deaths import assert_books_add_up

from srl.net.peers import read_peers

pytestmark = [pytest.mark.machines, pytest.mark.xdist_group("network")]

HOSTS = {"actors": ["actor"], "policies": ["policy"]}


class ThreeHosts:
    """The head on one host with what the others do not hold, and these: by default actors on one,
    policy workers on the other."""

    def __init__(
        self, folder: Path, holds: dict[str, list[str]] | None = None, **link: float
    ) -> None:
        self.holds = holds or HOSTS
        self.network = Network()
        self.run_dir = folder / "run"
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self.head = f"{self.network.add('head', **link)}:5555"
            for name in self.holds:
                self.network.add(name, **link)
        except BaseException:
            self.network.close()
            raise

    def train(self, *arguments: str) -> Training:
        """Starts a run on the three."""
        inside = self.network.inside("head")
        training = Training(
            self.run_dir,
            ("train", "cartpole", "--run-dir", str(self.run_dir), "--quiet", "--layout", "remote",
             "--launcher", "manual", "--listen", self.head,
             "--set", f"hosts={json.dumps(self.holds)}", *arguments),
            inside,
        )  # fmt: skip
        key = self.run_dir / "keys" / "join.key"
        wait_for(key.exists, "a key to join with")
        for name in self.holds:
            self.agents[name] = self.network.join(name, self.head, key)
        return training

    def close(self) -> None:
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.terminate()
        for agent in self.agents.values():
            try:
                agent.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        self.network.close()


@pytest.fixture
def hosts(tmp_path: Path, shm: Path) -> Iterator[Callable[..., ThreeHosts]]:
    require_namespaces()
    made = []

    def make(holds: dict[str, list[str]] | None = None, **link: float) -> ThreeHosts:
        made.append(ThreeHosts(tmp_path, holds, **link))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_host_may_be_cut_off_and_another_lost_for_good(
    hosts: Callable[..., ThreeHosts], shm: Path
) -> None:
    three = hosts()
    training = three.train("--steps", "1e9", "--until", "none", *SMALL,
                           "--set", "host_silence_seconds=13")  # fmt: skip
    try:
        training.wait_for_updates(2)
        where = {w.name: w.host for w in status_of(training).workers}
        assert where == {"trainer/0": "home", "actor/0": "actors", "policy/0": "policies"}

        # Ten seconds off the network: it is waited for, and goes on as what it was.
        three.network.cut("actors")
        time.sleep(10.0)
        three.network.mend("actors")
        wait_for(lambda: _state(training, "actors") == "here", "the host's return")
        training.wait_for_updates(3)
        assert "is gone" not in log_of(training)
        assert "starting it again" not in log_of(training)

        # Gone for good: its worker runs elsewhere.
        three.network.cut("policies")
        wait_for(lambda: "host policies is gone: silent" in log_of(training), "a lost host")
        training.wait_for_updates(3)

        def is_home() -> bool:
            return "home" in {w.host for w in status_of(training).workers if w.name == "policy/0"}

        wait_for(is_home, "a policy worker at home")
        # The agent there is alone; told to go, it goes.
        three.agents["policies"].terminate()
        assert three.agents["policies"].wait(LIMIT_SECONDS) == 0

        assert training.stop(signal.SIGINT) == 130
        assert_books_add_up(three.run_dir)
        assert three.agents["actors"].wait(LIMIT_SECONDS) == 0
        assert list(shm.iterdir()) == []
    finally:
        training.kill()


def test_trainers_on_a_host_of_their_own_go_on_at_home_when_it_is_cut_off(
    hosts: Callable[..., ThreeHosts], shm: Path
) -> None:
    three = hosts({"gpu": ["trainer"], "rest": ["actor", "policy"]})
    training = three.train("--steps", "1e9", "--until", "none", *SMALL,
                           "--set", "host_silence_seconds=4")  # fmt: skip
    try:
        training.wait_for_updates(3)
        assert {w.name: w.host for w in status_of(training).workers} == {
            "trainer/0": "gpu", "actor/0": "rest", "policy/0": "rest",
        }  # fmt: skip

        # The trainer there goes on by itself, and publishes what nobody hears.
        three.network.cut("gpu")
        text = "trainer-0 continues on host home: host gpu is gone"
        wait_for(lambda: text in log_of(training), "a trainer at home")
        training.wait_for_updates(3)

        three.network.mend("gpu")
        wait_for(lambda: "host gpu joined again" in log_of(training), "the host's return")
        training.wait_for_updates(3)
        where = {w.name: w.host for w in status_of(training).workers}
        assert where["trainer/0"] == "home", "the samples are there now"

        assert training.stop(signal.SIGINT) == 130
        assert_books_add_up(three.run_dir)
        assert [agent.wait(LIMIT_SECONDS) for agent in three.agents.values()] == [0, 0]
        assert list(shm.iterdir()) == []
    finally:
        training.kill()


def test_a_replay_on_two_hosts_goes_on_when_one_of_them_is_lost(
    hosts: Callable[..., ThreeHosts], shm: Path
) -> None:
    """The share of that host is lost, counted, and filled anew elsewhere."""
    three = hosts({"left": ["replay"], "right": ["replay"]})
    training = three.train(
        "--algorithm", "dqn", "--steps", "1e9", "--until", "none",
        "--set", "algorithm.replay_workers=2", "--set", "algorithm.learning_starts=400",
        "--set", "checkpoint.replay=never", "--set", "host_silence_seconds=4",
        "--set", "logging.interval_seconds=0.1",
    )  # fmt: skip
    try:
        training.wait_for_updates(5)
        where = {w.name: w.host for w in status_of(training).workers}
        assert (where["replay/0"], where["replay/1"]) == ("left", "right")
        # Hosts report what their replays hold now and then; both have, once it is this much.
        wait_for(lambda: training.metrics()["replay.replay.stored"] >= 2000, "reports of both")

        three.network.cut("right")
        wait_for(lambda: "host right is gone: silent" in log_of(training), "a lost host")
        training.wait_for_updates(3)
        lost = "environment steps of the replay were lost"
        wait_for(lambda: lost in log_of(training), "a count")
        wait_for(lambda: training.metrics()["replay.replay.lost"] >= 200, "its share's loss")
        before = training.metrics()["replay.replay.stored"]
        wait_for(lambda: training.metrics()["replay.replay.stored"] > before, "new fragments")
        where = {w.name: w.host for w in status_of(training).workers}
        assert where["replay/1"] != "right"
        training.wait_for_updates(3)

        three.agents["right"].terminate()
        assert three.agents["right"].wait(LIMIT_SECONDS) == 0
        assert training.stop(signal.SIGINT) == 130
        assert_books_add_up(three.run_dir)
        assert three.agents["left"].wait(LIMIT_SECONDS) == 0
        assert list(shm.iterdir()) == []
    finally:
        training.kill()


def _state(training: Training, host: str) -> str:
    return {h.name: h.state for h in status_of(training).hosts}[host]


def test_a_slow_network_is_learned_over(hosts: Callable[..., ThreeHosts]) -> None:
    """20 ms each way and 20 Mbit/s; the long form solves the task (benchmarks/soak_hosts.py)."""
    three = hosts(delay_seconds=0.02, mbit=20.0)
    training = three.train(
        "--until", "return>=40", "--steps", "200_000",
        "--set", "actor.envs=64", "--set", "algorithm.rollout_length=32",
    )  # fmt: skip
    try:
        assert training.wait() == 0, training.printed
        assert read_summary(three.run_dir)["reason"] == "reached return>=40"
        assert_books_add_up(three.run_dir)
    finally:
        training.kill()


GARBAGE = """
import os, socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
connection.settimeout(20)
try:
    connection.sendall(os.urandom(100_000))
    while connection.recv(4096):
        pass
except ConnectionError:
    pass
"""
"""Ends well once the other side has hung up."""
LOGS = ("bridge", "bridge-policies")


def _refused(training: Training) -> dict[str, int]:
    return {host.name: host.bridge.get("refused", 0) for host in status_of(training).hosts}


def _told(training: Training) -> bool:
    """Whether the logs say so; those of other hosts come in their own time."""
    logs = [training.run_dir / "logs" / f"{name}.log" for name in LOGS]
    said = [log_of(training), *(log.read_text() for log in logs if log.exists())]
    refused = "refused a connection: it did not show a key of this run"
    return len(said) == 1 + len(LOGS) and all(refused in log for log in said)


def test_strangers_on_the_network_are_turned_away(
    hosts: Callable[..., ThreeHosts], shm: Path
) -> None:
    """At the control socket, and at the bridges of two hosts."""
    three = hosts()
    training = three.train("--steps", "1e9", "--until", "none", *SMALL)
    try:
        training.wait_for_updates(1)
        book = read_peers(next(shm.glob("*/peers.json")).parent)
        assert book is not None
        doors = [three.head, *(book.by_host[name].address for name in ("home", "policies"))]
        before = _refused(training)
        inside = three.network.inside("actors")
        for authenticator in doors:
            address, _, port = authenticator.removeprefix("tcp://").rpartition(":")
            for _ in range(5):
                command = [*inside, sys.executable, "-c", GARBAGE, address, port]
                subprocess.run(command, check=True, timeout=60)
        for host, count in (("home", 10), ("policies", 5)):
            least = before[host] + count
            wait_for(lambda h=host, n=least: _refused(training)[h] >= n, f"{count} at {host}")
        wait_for(lambda: _told(training), "what was refused in the logs")
        training.wait_for_updates(2)
        assert training.stop(signal.SIGINT) == 130
        assert read_summary(three.run_dir)["metrics"]["between_hosts.refused"] >= 15
    finally:
        training.kill()
