"""The notebooks of the recipes run from the first cell to the last, as a reader runs them."""

import json
import shutil
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "recipes").glob("*/*.ipynb"))


def read_cells(notebook: Path) -> list[str]:
    content = json.loads(notebook.read_text("utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.parent.name)
def test_a_notebook_runs_and_what_it_shows_can_be_shown(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(notebook.parent, tmp_path / notebook.parent.name)
    monkeypatch.chdir(folder)
    names: dict[str, object] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(read_cells(notebook), start=1):
        *lines, last = cell.splitlines()
        exec(compile("\n".join(lines), f"cell {number}", "exec"), names)
        # A notebook shows the value of the last line.
        value = eval(compile(last, f"cell {number}, last line", "eval"), names)
        if hasattr(value, "_repr_html_"):
            shown.append(value._repr_html_())
    assert len(shown) == 5
    assert "<svg" in shown[1]
    assert all(one in shown[2] for one in ("rollout/reward/mean", "training/entropy"))
    assert "finished" in shown[3] or "max_t" in shown[3]
    assert shown[4] == (folder / "reward.svg").read_text("utf-8")


def test_notebooks_are_stored_without_outputs() -> None:
    assert NOTEBOOKS
    for notebook in NOTEBOOKS:
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
            assert not cell.get("outputs"), notebook
