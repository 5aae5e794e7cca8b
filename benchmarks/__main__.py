"""List the benchmarks; run one with `python -m benchmarks.NAME`."""

import ast
from pathlib import Path

here = Path(__file__).parent
files = {file.stem: file for file in here.glob("[!_]*.py") if file.stem != "report"}
files |= {file.parent.name: file for file in here.glob("*/__main__.py")}
for name, file in sorted(files.items()):
    summary = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").partition("\n")[0]
    print(f"python -m benchmarks.{name:16} {summary}")
