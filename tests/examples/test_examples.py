"""Every example runs as it stands, and what it prints is what it promises."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import srl

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMISES = {
    "01_train.py": {r"evaluation: (\S+) on average": (450, 500), r"by hand: (\S+)": (200, 500)},
    "02_own_environment.py": {r"return: (\S+),": (0.5, 1.0), r"at random: (\S+)": (-1.0, 0.0)},
    "03_own_policy.py": {r"return: (\S+),": (300, 500)},
    "04_own_algorithm.py": {r"return: (\S+),": (300, 500)},
    "05_own_dataflow.py": {
        r"with curiosity: return (\S+),": (0.9, 1.0),
        r"without: return (\S+),": (-0.1, 0.1),
    },
    "06_two_hosts.py": {r"return: (\S+),": (400, 500)},
    "07_policy_from_scratch.py": {r"return: (\S+),": (300, 500)},
    "08_algorithm_from_scratch.py": {r"return: (\S+),": (300, 500)},
    "09_dqn_with_replay.py": {r"return: (\S+),": (80, 500)},
    "10_callbacks.py": {
        r"episodes: (\d+)": (100, 3000),
        r"evaluations: (\d+)": (1, 1000),
        r"best evaluation: (\S+)": (300, 500),
    },
}
"""What each example prints, and between which numbers it lies. Seen: 500 and 500; 0.79 and -0.56;
500; 500; 0.99 and 0.00; 500; 500; 500; 122 to 500 with ten seeds; 500."""
PROTOCOLS = {
    *("srl", "srl.algorithms.protocol", "srl.policies.protocol"),
    *("srl.algorithms.learning.adam", "srl.data.records", "srl.data.spec"),
}
"""What an algorithm of one's own builds upon, as docs/how-to/own-code.md lists it."""


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("[0-9]*.py")} == set(PROMISES)


def test_an_algorithm_from_scratch_is_short_and_needs_no_ppo() -> None:
    text = (EXAMPLES / "08_algorithm_from_scratch.py").read_text()
    assert len(text.splitlines()) < 120
    assert "algorithms.ppo" not in text


def test_dqn_with_a_replay_is_short_and_built_upon_public_protocols() -> None:
    text = (EXAMPLES / "09_dqn_with_replay.py").read_text()
    assert len(text.splitlines()) <= 150
    tree = ast.parse(text)
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    imported |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert {name for name in imported if name.startswith("srl")} <= PROTOCOLS
    names = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "srl"
    }
    assert names <= set(srl.__all__)
    guide = (EXAMPLES.parent / "docs" / "how-to" / "own-code.md").read_text()
    assert [name for name in PROTOCOLS if f"`{name}`" not in guide] == []


@pytest.mark.parametrize("name", PROMISES)
def test_example(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / name), str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)

    assert done.returncode == 0, done.stderr
    for pattern, (least, most) in PROMISES[name].items():
        found = re.search(pattern, done.stdout)
        assert found is not None, done.stdout
        assert least <= float(found[1]) <= most, done.stdout
