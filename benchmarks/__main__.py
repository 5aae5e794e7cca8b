"""List the benchmarks; run one with `python -m benchmarks.NAME`."""

import ast
from pathlib import Path

for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
    summary = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").partition("\n")[0]
    if file.stem != "report":
        print(f"python -m benchmarks.{file.stem:16} {summary}")
