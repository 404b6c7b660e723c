"""Optional packages: who needs one that is not installed is told the command that installs it."""

from __future__ import annotations

import importlib.abc
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from srl.errors import DISTRIBUTION, ConfigError, install_command
from srl.extras import EXTRA_OF, import_extra

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
WITHOUT = """
import importlib.abc, sys
class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
from srl.cli import main
sys.exit(main(sys.argv[2:]))
"""


def without(packages: str, *command: str) -> subprocess.CompletedProcess[str]:
    """What a command says where some packages are not installed."""
    line = [sys.executable, "-c", WITHOUT, packages, *command]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_every_extra_has_its_packages() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert project["name"] == DISTRIBUTION
    assert set(project["optional-dependencies"]) - {"dev", "docs"} == set(EXTRA_OF.values())


@pytest.mark.parametrize(
    ("package", "env"),
    [
        ("ale_py", "ALE/Pong-v5"),
        ("cv2", "pong"),
        ("mujoco", "Ant-v5"),
        ("Box2D", "LunarLander-v3"),
        ("envpool", "envpool:CartPole-v1"),
        ("pettingzoo", "pettingzoo:classic.tictactoe_v3"),
        ("mpe2", "simple_tag"),
    ],
)
def test_a_missing_package_is_named_with_its_command(package: str, env: str) -> None:
    done = without(package, "check", env)
    assert done.returncode == 1
    assert f"needs the optional package {package!r}" in done.stdout
    assert install_command(EXTRA_OF[package]) in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_the_page_names_the_command_that_installs_what_it_needs(
    package: str, tmp_path: Path
) -> None:
    done = without(package, "watch", str(tmp_path))
    assert done.returncode == 2
    assert install_command("watch") in done.stderr
    assert "Traceback" not in done.stderr


def test_the_list_leaves_out_what_needs_a_missing_package() -> None:
    missing = "ale_py,mujoco,Box2D,envpool,pettingzoo,mpe2,jax"
    listed = without(missing, "list", "--envs").stdout.split()
    assert "CartPole-v1" in listed
    assert not {"LunarLander-v3", "Ant-v5", "ALE/Pong-v5"} & set(listed)
    assert not [name for name in listed if ":" in name]


class _Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A package that is there, and whose import fails."""

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        return importlib.util.spec_from_loader(name, self) if name == "ray" else None

    def exec_module(self, module: object) -> None:
        raise ImportError("libray.so: cannot open shared object file")


def test_a_package_that_is_there_but_broken_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Broken(), *sys.meta_path])
    with pytest.raises(ConfigError, match=r"'ray' is installed, but .*libray.so"):
        import_extra("ray", "--launcher ray")
