"""All of SRL is imported, and trains on one machine, without what only Linux has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.runs

IMPORTS = """
import os, sys
import importlib, pkgutil
import srl
assert sys.platform == "darwin" and not os.path.exists("/proc")
for module in pkgutil.walk_packages(srl.__path__, "srl."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
TRAINS = """
import sys
import srl
if __name__ == "__main__":
    layout, run_dir = sys.argv[1:]
    run = srl.train(
        "CartPole-v1", layout=layout, steps=600, run_dir=run_dir, set={"actor.envs": 4}
    )
    assert run.summary.status == "finished", run.summary
    assert run.evaluate(episodes=1).mean > 0
"""


@pytest.mark.parametrize(
    ("program", "args"),
    [(IMPORTS, ()), (TRAINS, ("serial",)), (TRAINS, ("inline",))],
    ids=["imports", "serial", "inline"],
)
def test_without_what_only_linux_has(program: str, args: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(program)
    run_dir = [str(tmp_path / "run")] if args else []
    paths = [str(Path(__file__).parent / "not_linux"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(file), *args, *run_dir],
        env={
            **{name: text for name, text in os.environ.items() if name != "SRL_SHM_DIR"},
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TMPDIR": str(tmp_path),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
