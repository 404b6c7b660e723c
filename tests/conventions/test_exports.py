"""What `import srl` offers: every name is there, explains itself, and costs nothing until used."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import srl


@pytest.mark.parametrize("name", srl.__all__)
def test_every_exported_name_is_there_and_explained(name: str) -> None:
    thing = getattr(srl, name)
    assert inspect.getdoc(thing), f"srl.{name} has no docstring"
    assert name in dir(srl)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = srl.no_such_name


def test_importing_srl_imports_nothing_heavy() -> None:
    code = (
        "import sys, srl\n"
        "heavy = {'torch', 'gymnasium', 'numpy', 'rich', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"importing srl imports {done.stderr}"
