"""The wheel trains where nothing is installed but the packages that it declares."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from srl.errors import DISTRIBUTION, install_command
from srl.version import VERSION

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "srl"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the source: a build leaves files in the folder that it builds."""
    copy = tmp_path_factory.mktemp("source of the wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(SOURCE, copy / "src" / "srl", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", copy, copy)
    (found,) = copy.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel and what the wheel requires, and no other package."""
    folder = tmp_path_factory.mktemp("another place") / "the environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    pip("--python", python, "install", "--no-deps", wheel)
    for name in required(wheel):
        link_files(importlib.metadata.distribution(name), Path(packages.stdout.strip()))
    return folder


def pip(*arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def required(wheel: Path) -> set[str]:
    """The distributions that the wheel requires without extras, directly or indirectly."""
    (own,) = importlib.metadata.distributions(path=[str(wheel)])
    found: set[tuple[str, str]] = set()
    todo = [(line, "") for line in own.requires or ()]
    while todo:
        line, extra = todo.pop()
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in {"", *requirement.extras}:
            if (name, wanted) not in found:
                found.add((name, wanted))
                lines = importlib.metadata.requires(name) or ()
                todo += [(each, wanted) for each in lines]
    return {name for name, _ in found}


def link_files(distribution: importlib.metadata.Distribution, packages: Path) -> None:
    """Makes an installed distribution's files visible in another environment too."""
    for file in distribution.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            link = packages / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(str(distribution.locate_file(file))).resolve())


def srl(environment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the installed command in a folder of its own, without this test's environment."""
    folder = environment.parent / "a folder"
    folder.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [environment / "bin" / "srl", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=kept,
    )


def test_the_wheel_has_every_file_of_the_source(wheel: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=SOURCE, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"srl/{name}" for name in tracked.stdout.splitlines()} <= names


def test_the_wheel_trains_with_the_packages_that_it_declares(environment: Path) -> None:
    trained = srl(environment, "train", "cartpole", "--steps", "3000", "--run-dir", "a run")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "Finished" in trained.stdout + trained.stderr
    evaluated = srl(environment, "eval", "a run", "--episodes", "1")
    assert evaluated.returncode == 0, evaluated.stdout + evaluated.stderr
    missing = srl(environment, "train", "pong", "--steps", "3000")
    assert missing.returncode == 2
    assert install_command("atari") in missing.stderr, missing.stdout + missing.stderr

    code = (
        "import importlib.metadata, srl;"
        f"print(importlib.metadata.version({DISTRIBUTION!r}), srl.__version__, srl.__file__)"
    )
    asked = subprocess.run(
        [environment / "bin" / "python", "-I", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    installed, version, file = asked.stdout.strip().split(" ", 2)
    assert installed == version == VERSION
    assert Path(file).is_relative_to(environment)
