"""Trains a small run in this folder and packs it as test data: python store.py FILE.tar.xz

README.md has the commands. This program uses nothing but the command line, so it works with earlier versions too.
"""

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

RECIPE = Path(__file__).parents[2] / "faults" / "recipe"
FEWER_WEIGHTS = {"hidden_size=16": "hidden_size=4", "intermediate_size=16": "intermediate_size=4"}
SETTINGS = ("schedule.max_steps=2", "evaluation.eval_num_tasks=2", "warm_start.steps=1", "reward.scorer=tiny:reward")


def main(packed: Path) -> None:
    shutil.copytree(RECIPE, "recipe", ignore=shutil.ignore_patterns("__pycache__", "owner.py"))
    text = Path("recipe/tiny.py").read_text("utf-8")
    for old, new in FEWER_WEIGHTS.items():
        assert old in text
        text = text.replace(old, new)
    Path("recipe/tiny.py").write_text(text, "utf-8")
    sparring("train", "recipe", "--no-check", "--no-supervise", "--name", "stored", *SETTINGS)
    sparring("eval", "runs/stored", "--temperature", "1")
    replace("manifest.json", lambda content: content["hardware"].update(system="example", processor="example"))
    replace("status.json", lambda content: content.get("process", {}).update(host="example"))
    for name in ("lock", "digests"):
        remove(Path("runs/stored", name))
    with tarfile.open(packed, "w:xz", preset=9) as archive:
        archive.add("runs/stored", "stored", filter=anonymous)


def sparring(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "sparring", *arguments], check=True)


def replace(name, change) -> None:
    path = Path("runs/stored", name)
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return None if "__pycache__" in member.name else member


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
