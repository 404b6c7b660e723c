"""The example notebook runs as it stands, in a kernel, and what it shows suits a notebook."""

from __future__ import annotations

import re
from pathlib import Path

import nbclient
import nbformat

import srl

NOTEBOOK = Path(__file__).parents[2] / "examples" / "11_notebook.ipynb"


def test_the_notebook_trains_on_a_class_of_its_cells(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "keep outputs out of git"
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=200, resources=where).execute()

    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    shown = [out for out in outputs if out.output_type == "display_data"]
    assert len(shown) == 1, "one picture, which updates replace"
    assert "<pre" in shown[0].data["text/html"]
    text = "".join(out.text for out in outputs if out.output_type == "stream")
    assert len(text.splitlines()) < 25, text
    found = re.search(r"return: (\S+); at random: (\S+)", text)
    assert found is not None, text
    assert float(found[1]) > 0.5 > 0.0 > float(found[2])

    # A process without the notebook finds its code in the run.
    run = srl.load(tmp_path / "runs" / "example_11")
    assert run.evaluate(episodes=5).mean > 0.5
