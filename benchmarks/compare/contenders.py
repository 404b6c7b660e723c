"""Who is compared: each peer's environment, runner, workloads, and the layouts worth trying.

The layout that a peer runs in is the best found for it, in `layouts.json` (written by `search.py`).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import venvs
from workloads import WORKLOADS

HERE = Path(__file__).parent
LAYOUTS = HERE / "layouts.json"
OURS = "srl"

Layout = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """One contender that is not ours."""

    venv: str
    script: str
    workloads: tuple[str, ...]
    candidates: tuple[Layout, ...]
    """Layouts to search, the best guess first."""

    def command(self, target: str, layout: Layout, *arguments: str) -> list[str]:
        """Runs this peer on a workload or a task."""
        pairs = [f"{key}={value}" for key, value in layout.items()]
        script = str(HERE / "runners" / self.script)
        return [str(venvs.python_of(self.venv)), script, target, *arguments, "--layout", *pairs]


def _layouts(**values: tuple[Any, ...]) -> tuple[Layout, ...]:
    """Every combination."""
    found: list[Layout] = [{}]
    for key, choices in values.items():
        found = [{**one, key: choice} for one in found for choice in choices]
    return tuple(found)


_FLAT = ("W1a", "W1b", "W2a", "W2b", "W3a", "W3b")
_SF_GYM = _layouts(envs=("gym",), mode=("async", "sync"), workers=(2,), splits=(2, 1))
_SF_POOL = _layouts(envs=("envpool",), mode=("async", "serial"), workers=(1,), splits=(1,))
_RLLIB = _layouts(algo=("ppo",), runners=(2, 0), threads=(1, 2))

PEERS: dict[str, Peer] = {
    "cleanrl_envpool": Peer(
        "single",
        "run_cleanrl.py",
        (*_FLAT, "W4"),
        _layouts(vec=("envpool",), threads=(1, 2), env_threads=(2, 1)),
    ),
    "cleanrl": Peer(
        "single",
        "run_cleanrl.py",
        (*_FLAT, "W4", "W5"),
        _layouts(vec=("sync", "async"), threads=(1, 2)),
    ),
    "sb3": Peer(
        "single",
        "run_sb3.py",
        (*_FLAT, "W4"),
        (*_layouts(vec=("envpool", "dummy"), threads=(1, 2)), {"vec": "subproc", "threads": 1}),
    ),
    "torchrl": Peer(
        "single",
        "run_torchrl.py",
        _FLAT,
        _layouts(vec=("envpool", "serial", "parallel"), threads=(1, 2)),
    ),
    "sample_factory": Peer("sample_factory", "run_sf.py", (*_FLAT, "W4"), _SF_POOL),
    "sample_factory_gym": Peer(
        "sample_factory", "run_sf.py", ("W1a", "W1b", "W3a", "W3b", "W4"), _SF_GYM
    ),
    "rllib_ppo": Peer("rllib", "run_rllib.py", (*_FLAT, "W4", "W5"), _RLLIB),
    "rllib_impala": Peer(
        "rllib", "run_rllib.py", ("W1a", "W2a", "W3a"), _layouts(algo=("impala",), runners=(1, 2))
    ),
    "pufferlib": Peer(
        "pufferlib",
        "run_puffer.py",
        (*_FLAT, "W4"),
        (*_layouts(vec=("envpool",), threads=(1, 2)), {"vec": "workers", "threads": 1}),
    ),
    "random": Peer("single", "run_random.py", (), _layouts(vec=("envpool",))),
}


def found_layouts() -> dict[str, dict[str, Any]]:
    """What was found for each peer on each workload: the layout, what was tried, and how."""
    table: dict[str, dict[str, Any]] = json.loads(LAYOUTS.read_text()) if LAYOUTS.is_file() else {}
    return table


def unsearched(peers: list[str], workload: str) -> list[str]:
    """Peers whose layout on a workload was never searched."""
    table = found_layouts()
    return [peer for peer in peers if workload not in table.get(peer, {})]


def chosen_layout(peer: str, workload: str) -> Layout:
    """The best layout found for a peer on a workload."""
    layout: Layout = found_layouts()[peer][workload]["layout"]
    return layout


def untried(peer: str, workload: str) -> list[Layout]:
    """Candidates of a peer that were not tried on a workload."""
    entry = found_layouts().get(peer, {}).get(workload, {"tried": []})
    tried = [one["layout"] for one in entry["tried"]]
    return [layout for layout in PEERS[peer].candidates if layout not in tried]


def search_note(peer: str, workload: str) -> str:
    """How the layout of a peer was found, in a line."""
    entry = found_layouts()[peer][workload]
    left = len(untried(peer, workload))
    tried = f"{len(PEERS[peer].candidates) - left} of {len(PEERS[peer].candidates)} layouts tried"
    return f"{peer}: {tried}, {entry['about']}"


def peers_of(workload: str) -> list[str]:
    """Peers that can run a workload."""
    assert workload in WORKLOADS
    return [name for name, peer in PEERS.items() if workload in peer.workloads]


def our_command(*arguments: str) -> list[str]:
    """Runs `srl` with this interpreter."""
    return [
        sys.executable,
        "-c",
        "import sys; from srl.cli import main; sys.exit(main())",
        *arguments,
    ]
