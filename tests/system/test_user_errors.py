"""What a user's code raises is shown with file, line and message, in every layout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import FAULTY, SMALL, read_summary

from srl.cli import main

pytestmark = pytest.mark.runs

CASES = {
    "environment": ("FailingEnv", (f"{FAULTY}:FailingEnv",), "actor/0"),
    "exit": ("ExitingEnv", (f"{FAULTY}:ExitingEnv",), "actor/0"),
    "policy": ("RaisingPolicy", ("--set", f"network.name={FAULTY}:RaisingPolicy"), "policy/0"),
    "algorithm": ("RaisingLoss", ("--algorithm", f"{FAULTY}:RaisingLoss"), "trainer/0"),
    "worker": ("RaisingRelabeller", ("--set", f"dataflow={FAULTY}:relabelled"), "relabeller/0"),
}


def line_in(name: str) -> int:
    """The line at which a class of `faulty.py` raises."""
    lines = FAULTY.read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith(f"class {name}"))
    return 1 + next(n for n in range(begin, len(lines)) if "raise " in lines[n])


@pytest.mark.parametrize(
    ("case", "layout"),
    [(case, "serial") for case in CASES]
    + [
        ("environment", "inline"),
        ("exit", "inline"),
        ("policy", "shared"),
        ("algorithm", "shared"),
        ("worker", "inline"),
    ],
)
def test_user_code_that_raises(
    case: str, layout: str, tmp_path: Path, shm: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name, options, worker = CASES[case]
    target = options if case in ("environment", "exit") else ("CartPole-v1", *options)
    run = tmp_path / "run"
    code = main(
        ["train", *target, "--layout", layout, *SMALL, "--set", "actor.count=1", "--steps",
         "100_000", "--run-dir", str(run), "--quiet"]
    )  # fmt: skip
    printed = capfd.readouterr().err
    assert code == 1
    assert printed.startswith(f"srl: {worker}: ")
    where = f'File "{FAULTY}", line {line_in(name)}'
    said = f"{name} raises on purpose"
    log = (run / "logs" / "controller.log").read_text()
    for text in (printed, log, read_summary(run)["error"]):
        assert where in text
        assert said in text
    assert "Traceback" not in printed


SCRIPT = """
import sys
import srl
from faulty import ScriptedEnv

class Mine(ScriptedEnv):
    pass

with open(sys.argv[0] + ".started", "a") as file:
    print(__name__, file=file)
srl.train(TARGET, layout=sys.argv[2], steps=1000, run_dir=sys.argv[1])
"""
REGISTERED = """
import gymnasium
gymnasium.register("Mine-v0", entry_point="script:Mine")
"""


@pytest.mark.parametrize("layout", ["serial", "inline"])
@pytest.mark.parametrize(
    "text",
    [SCRIPT.replace("TARGET", "Mine"), REGISTERED + SCRIPT.replace("TARGET", "'Mine-v0'")],
    ids=["class", "registered"],
)
def test_a_script_without_a_guard_is_told_so_and_starts_nothing(
    text: str, layout: str, tmp_path: Path, shm: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run"), layout],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={"PYTHONPATH": str(FAULTY.parent), "SRL_SHM_DIR": str(shm)},
    )
    assert done.returncode == 1
    assert 'if __name__ == "__main__":' in done.stderr.splitlines()[-1]
    # Itself, and once more for the class that it defines: no process of a run did.
    assert len((tmp_path / "script.py.started").read_text().splitlines()) == 2
    assert list(shm.iterdir()) == []
    assert not (tmp_path / "run").exists()
