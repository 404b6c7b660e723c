"""Makes the peers' virtual environments, pinned, one for each set of peers that fit together.

PyTorch goes in first and alone, and everything after it is constrained to that version: a range
that admits another one would pull gigabytes of CUDA packages. A finished environment is kept until
its requirements change. They lie in `.venvs` beside this file, or where SRL_COMPARE_VENVS says.

    python benchmarks/compare/venvs.py [single sample_factory rllib ...]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements"
TORCH = REQUIREMENTS / "torch.txt"
PUFFERLIB = "pufferlib==3.0.0"
NAMES = sorted(path.stem for path in REQUIREMENTS.glob("*.txt") if path != TORCH)


def folder() -> Path:
    """Where the environments are."""
    return Path(os.environ.get("SRL_COMPARE_VENVS") or HERE / ".venvs")


def python_of(name: str) -> Path:
    """The interpreter of an environment, whether it is there or not."""
    return folder() / name / "bin" / "python"


def fingerprint(name: str) -> str:
    """What an environment's content follows from."""
    text = TORCH.read_text() + (REQUIREMENTS / f"{name}.txt").read_text()
    return hashlib.sha256(text.encode()).hexdigest()


def is_ready(name: str) -> bool:
    """Whether an environment is finished and made from the requirements as they are now."""
    stamp = folder() / name / ".installed"
    return stamp.is_file() and stamp.read_text() == fingerprint(name)


def make(name: str) -> None:
    """Makes one environment, or brings it up to its requirements."""
    python = python_of(name)
    if not python.exists():
        python.parent.parent.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder() / name)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(TORCH)], check=True)
    required = str(REQUIREMENTS / f"{name}.txt")
    subprocess.run([*pip, "-c", str(TORCH), "-r", required], check=True)
    if name == "pufferlib":
        # Its requirements are ours to choose, and its build needs to be told what to leave out.
        build = {"NO_OCEAN": "1", "PYTHONPATH": str(HERE / "pufferlib_build")}
        command = [*pip, "--no-build-isolation", "--no-deps", PUFFERLIB]
        subprocess.run(command, check=True, env={**os.environ, **build})
    (folder() / name / ".installed").write_text(fingerprint(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"expected some of {', '.join(NAMES)}, got {', '.join(unknown)}")
    failed = []
    for name in options.names or NAMES:
        if is_ready(name):
            print(f"{name}: ready", flush=True)
            continue
        print(f"{name}: installing into {folder() / name}", flush=True)
        try:
            make(name)
        except subprocess.CalledProcessError as error:
            failed.append(name)
            print(f"{name}: failed ({error})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
