"""Hosts of our own: network namespaces joined by a switch, with links that can be slow or cut.

A link is a veth pair; one with latency is a pair of tap devices, between which a thread holds every
frame back for a while (the kernel's own way to delay, netem, is not in every kernel).
"""

from __future__ import annotations

import fcntl
import heapq
import os
import secrets
import select
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

INSTALL = Path(__file__).with_name("install_debian.sh")
COMMAND = "import sys; from srl.cli import main; sys.exit(main())"
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Network:
    """A switch, and hosts at it: 10.77.0.1, 10.77.0.2, ... as they were added."""

    def __init__(self) -> None:
        self._tag = secrets.token_hex(2)
        self._switch = f"srl-{self._tag}"
        self._hosts: dict[str, str] = {}
        self._delays: list[DelayingWire] = []
        run("ip", "netns", "add", self._switch)
        try:
            run("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
            run("ip", "-n", self._switch, "link", "set", "br0", "up")
        except BaseException:
            self.close()
            raise

    def add(self, name: str, *, delay_seconds: float = 0.0, mbit: float = 0.0) -> str:
        """A host; its address."""
        space, port = f"{self._switch}-{name}", f"p{len(self._hosts)}"
        address = f"10.77.0.{len(self._hosts) + 1}"
        run("ip", "netns", "add", space)
        self._hosts[name] = space
        far = f"t{self._tag}{len(self._delays)}f"
        if delay_seconds:
            near = f"t{self._tag}{len(self._delays)}n"
            self._delays.append(DelayingWire(near, far, delay_seconds))
            run("ip", "link", "set", near, "netns", self._switch, "name", port)
            run("ip", "link", "set", far, "netns", space, "name", "eth0")
        else:
            peer = ("type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "-n", self._switch, "link", "add", port, *peer)
        run("ip", "-n", self._switch, "link", "set", port, "master", "br0", "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", space, "link", "set", "eth0", "up")
        if mbit:
            limit = ("tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms")
            run("tc", "-n", self._switch, "qdisc", "add", "dev", port, "root", *limit)
            run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", *limit)
        return address

    def inside(self, name: str) -> tuple[str, ...]:
        """What comes before a command to run it on a host."""
        return ("ip", "netns", "exec", self._hosts[name])

    def cut(self, name: str) -> None:
        """Takes a host off the network."""
        self._set(name, "down")

    def mend(self, name: str) -> None:
        """Puts it back."""
        self._set(name, "up")

    def _set(self, name: str, state: str) -> None:
        port = f"p{list(self._hosts).index(name)}"
        run("ip", "-n", self._switch, "link", "set", port, state)

    def join(self, name: str, head: str, key_file: Path, *options: str) -> subprocess.Popen[bytes]:
        """Starts an agent on a host."""
        arguments = ("worker", "--join", head, "--key-file", str(key_file), "--name", name)
        return subprocess.Popen(
            [*self.inside(name), sys.executable, "-c", COMMAND, *arguments, *options]
        )

    def close(self) -> None:
        for space in (*self._hosts.values(), self._switch):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
        for wire in self._delays:
            wire.close()


class DelayingWire(threading.Thread):
    """Two tap devices; what goes in at one comes out at the other after a while."""

    def __init__(self, near: str, far: str, delay_seconds: float) -> None:
        super().__init__(daemon=True)
        self._ends = (_open_tap(near), _open_tap(far))
        self._delay = delay_seconds
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        number = 0
        while not self._over.is_set():
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, end, frame = heapq.heappop(waiting)
                _put(end, frame)
            pause = min(waiting[0][0] - now, 0.1) if waiting else 0.1
            for end in select.select(self._ends, [], [], pause)[0]:
                other = self._ends[1 - self._ends.index(end)]
                number += 1
                due = time.monotonic() + self._delay
                try:
                    frame = os.read(end, 4096)
                except OSError:
                    return  # The device went with its host.
                heapq.heappush(waiting, (due, number, other, frame))

    def close(self) -> None:
        self._over.set()
        self.join()
        for end in self._ends:
            os.close(end)


def _put(end: int, frame: bytes) -> None:
    try:
        os.write(end, frame)
    except OSError:
        # The device is down: so is the wire.
        return


def _open_tap(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return fd


def require_namespaces() -> None:
    """Skips where hosts of our own cannot be had, and says why."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    done = subprocess.run(["sh", str(INSTALL), "iproute2"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no iproute2: {done.stderr.strip()}")
    try:
        network = Network()
        network.add("probe", mbit=20.0)
    except (RuntimeError, OSError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    network.close()
