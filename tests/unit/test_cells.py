"""Code of a notebook's cells becomes a module that needs nothing of the notebook."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from srl.cells import module_source
from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.launch.directory import notebook_code as code
from srl.resolve import resolve


def run_cells(*cells: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        exec(cell, namespace)
    return namespace


def module_of(*cells: str, name: str = "Wanted") -> dict[str, Any]:
    source = module_source([name], cells, run_cells(*cells))
    made: dict[str, Any] = {"__name__": "made"}
    exec(source, made)
    return made


def test_what_a_class_uses_comes_with_it_and_nothing_else() -> None:
    made = module_of(
        "import os.path\nimport os\nfrom math import pi as PI, e\nEPS = 0.5\nunused = object()",
        "def helper(x):\n    return inner(x) + EPS\n\ndef inner(x):\n    return PI * x",
        "def marked(kind):\n    kind.mark = 3\n    return kind",
        "class Base:\n    pass",
        "@marked\nclass Wanted(Base):\n    other: 'Later'\n"
        "    def value(self, unused=1):\n        return helper(2), os.path.sep, [e for e in 'ab']",
    )
    found = made["Wanted"]()
    assert found.value()[0] == pytest.approx(2 * 3.14159265 + 0.5)
    assert (found.mark, "unused" in made) == (3, False)


def test_the_last_definition_counts_also_of_a_base_that_was_run_again() -> None:
    base, derived = "class Base:\n    size = {}", "class Wanted(Base):\n    pass"
    made = module_of(base.format(1), derived, base.format(2))
    assert made["Wanted"].size == 2
    with_an_error = [derived, base.format(1), "this is no Python"]
    assert "no Python" not in module_source(["Wanted"], with_an_error, {})


def test_a_constant_has_the_value_of_now() -> None:
    cells = ["sizes = []\ncount = 1", "count += 4\nfor size in (8, 9):\n    sizes.append(size)"]
    made = module_of(*cells, "def Wanted():\n    return count, sizes, size")
    assert made["Wanted"]() == (5, [8, 9], 9)


def test_functions_that_call_each_other() -> None:
    even = "def even(n):\n    return n == 0 or odd(n - 1)"
    odd = "def odd(n):\n    return n != 0 and even(n - 1)"
    assert module_of(f"{even}\n{odd}", name="even")["even"](10) is True


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["import numpy as np", "x = np.zeros(2)", "x = x + 1", "def Wanted(): return x"], "'x'"),
        (["def Wanted(): return hidden"], "'hidden' to be defined in a cell"),
    ],
)
def test_what_cannot_be_copied_is_refused(cells: list[str], message: str) -> None:
    namespace = {**run_cells(*cells), "hidden": object()}
    with pytest.raises(ConfigError, match=message):
        module_source(["Wanted"], cells, namespace)


def _experiment(layout: Any) -> Experiment:
    return Experiment(env=EnvConfig(id="__main__:Env"), layout=layout)


def test_a_run_names_the_code_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (1, 2):
        cell = f"class Env:\n    size = {size}"
        monkeypatch.setattr(code, "notebook_cells", lambda cell=cell: [cell])
        named, content = code.notebook_code(_experiment("inline"), tmp_path)
        code.write_notebook_code(content, tmp_path)
        assert named.env.id == f"{tmp_path / code.NOTEBOOK_FILE}:Env"
        # Also if this process has imported the file of the run before.
        assert resolve(named.env.id).size == size


def test_a_prompt_without_source_trains_in_serial_only(tmp_path: Path) -> None:
    assert "IPython" not in sys.modules or not code.notebook_cells()
    experiment = _experiment("serial")
    assert code.notebook_code(experiment, tmp_path) == (experiment, b"")
    with pytest.raises(ConfigError, match=r'Env: .*prompt.*layout="serial".*\.py file'):
        code.notebook_code(_experiment("inline"), tmp_path)
