"""Errors of users end with the right exit code and state what was given, why it fails, and what to do."""

import functools
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from tests.bad_input_cases import (
    CHASE,
    DATA,
    DEEP,
    DRY,
    GATE,
    LONG,
    PLAY,
    SERVICE,
    USAGE,
    Case,
    a_baseline,
    a_damaged_checkpoint,
    a_run,
    a_run_with,
    a_torn_checkpoint,
    append,
    deep,
    deep_in_run,
    tool_of,
    without,
    write,
)

RECIPES = [
    Case("no such recipe", ("train", "none.toml"), USAGE, ("no recipe at none.toml", "sparring init")),
    Case(
        "a recipe that is not TOML",
        DRY,
        USAGE,
        ("not valid TOML", "line 1", "need quotes"),
        write("toy/recipe.toml", "[model\n"),
    ),
    Case(
        "a misspelled key",
        (*DRY, "batch.grup_size=2"),
        USAGE,
        ("batch.grup_size", "the nearest one is 'batch.group_size'"),
    ),
    Case("a misspelled section", (*DRY, "bach.group_size=2"), USAGE, ("bach", "nearest one is 'batch'")),
    Case(
        "a value of the wrong type",
        (*DRY, "batch.group_size=many"),
        USAGE,
        ("batch.group_size", "'many'", "valid integer"),
    ),
    Case(
        "a value out of range",
        (*DRY, "optimizer.learning_rate=-1"),
        USAGE,
        ("optimizer.learning_rate", "is -1", "greater than 0"),
    ),
    Case(
        "several mistakes at once",
        (*DRY, "batch.group_size=0", "model.precision=fp8", "schedule.steps=3"),
        USAGE,
        ("3 problems", "batch.group_size", "model.precision", "schedule.steps"),
    ),
    Case(
        "truncated sampling in training",
        (*DRY, "sampling.sampling_top_p=0.9"),
        USAGE,
        ("sampling_top_p", "biased", "use 1.0"),
    ),
    Case(
        "a group of one",
        (*DRY, "batch.group_size=1"),
        USAGE,
        ("batch.group_size", "compares the episodes", "at least 2"),
    ),
    Case("an override without value", (*DRY, "batch.group_size"), USAGE, ("batch.group_size", "section.key=value")),
    Case(
        "a recipe without an environment",
        DRY,
        USAGE,
        ("environment", "missing"),
        write("toy/recipe.toml", "[reward]\nreward = 'a:b'\n"),
    ),
    Case("a target without colon", (*DRY, "environment.target=Chase"), USAGE, ("'Chase'", "'module:name'")),
    Case(
        "a module that is not there",
        (*DRY, "environment.target=nowhere:Chase"),
        USAGE,
        ("'nowhere'", "importable", "Check the name"),
    ),
    Case(
        "a misspelled class",
        (*DRY, "environment.target=environment:PointerChas"),
        USAGE,
        ("'PointerChas'", "did you mean 'PointerChase'"),
    ),
    Case(
        "a target that is no environment",
        (*DRY, "environment.target=environment:reward"),
        USAGE,
        ("not a class derived", "derive it"),
    ),
    Case(
        "options that the class does not take",
        (*DRY, "environment.options={depth=3}"),
        USAGE,
        ("'depth'", "do not fit PointerChase", "__init__"),
    ),
    Case(
        "code that does not compile",
        DRY,
        USAGE,
        ("'environment' cannot be imported", "SyntaxError", "Fix it"),
        append("toy/environment.py", "\ndef (:\n"),
    ),
]

HUGE = [
    *(
        Case(
            f"a recipe with {given}",
            DRY,
            USAGE,
            parts,
            write("toy/recipe.toml", text),
        )
        for given, text, parts in (
            ("deep lists", f"a = {'[' * DEEP}{']' * DEEP}", ("cannot be used as a recipe", "deeper than 50 levels")),
            ("deep tables", f"a = {'{a=' * 60}1{'}' * 60}", ("cannot be used as a recipe", "deeper than 50 levels")),
            ("a header of 20,000 parts", f"[{'.'.join(['a'] * 20_000)}]", ("more than 50 parts", "shorten it")),
            ("a key of 20,000 parts", " . ".join(["a"] * 20_000) + "=1", ("more than 50 parts", "shorten it")),
            ("an integer of 100,000 digits", f"[batch]\ngroup_size = {'9' * 100_000}", ("cannot be used", "digits")),
            ("20,000 unknown sections", "\n".join(f"[s{n}]" for n in range(20_000)), ("is not a known key", "more")),
            (
                "20,000 unknown keys",
                "[batch]\n" + "\n".join(f"k{n} = 1" for n in range(20_000)),
                ("20002 problems", "batch.k0: is not a known key", "and 19,982 more"),
            ),
            ("a key of 100,000 characters", f"[batch]\n{'k' * 100_000} = 1", ("batch.kkk", "is not a known key")),
            ("a value of 100,000 characters", f"[batch]\ngroup_size = '{'k' * 100_000}'", ("valid integer",)),
        )
    ),
    Case(
        "an override with deep lists", (*DRY, f"batch.group_size={'[' * DEEP}"), USAGE, ("batch.group_size", "shorten")
    ),
    Case("an override with a long key", (*DRY, f"{'a.' * 20_000}a=1"), USAGE, ("more than 50 parts",)),
    Case("an override with a large integer", (*DRY, f"batch.group_size={'9' * 100_000}"), USAGE, ("digits", "shorten")),
    *(
        Case(
            f"a long value of {key}",
            (*DRY, f"{key}={value * 100_000}"),
            code,
            parts,
        )
        for key, value, code, parts in (
            ("model.name", "k", USAGE, ("characters) ...", "Give a shorter name")),
            ("environment.target", "k", USAGE, ("characters) ...", "'module:name'")),
            ("reward.reward", "k", USAGE, ("characters) ...", "'module:name'")),
            ("data.train", "k", DATA, ("characters) ...", ".jsonl")),
            ("engine.type", "k", USAGE, ("kkk...", "'torch'")),
            ("algorithm.loss_fn", "k", USAGE, ("kkk", "cispo")),
        )
    ),
    Case("deep JSON in a line", (*DRY, "data.train=t.jsonl"), DATA, ("t.jsonl, line 1", "nested"), deep("toy/t.jsonl")),
    Case("deep JSON in a file", (*DRY, "data.train=t.json"), DATA, ("t.json", "nested too deeply"), deep("toy/t.json")),
    Case(
        "JSON that is too deep to be used",
        (*DRY, "data.train=t.jsonl"),
        DATA,
        ("t.jsonl, line 1", "deeper than 200 levels"),
        deep("toy/t.jsonl", levels=300),
    ),
    *(
        Case(
            f"deep JSON in a run's {file}, for {command[0]}",
            command,
            DATA,
            (file, "nested too deeply"),
            deep_in_run(file),
        )
        for file, command in (
            ("manifest.json", ("eval", "old")),
            ("status.json", ("runs", "show", "old")),
            ("metrics.jsonl", ("runs", "show", "old")),
            ("metrics.jsonl", ("report", "old")),
            ("manifest.json", ("export", "old", "out")),
        )
    ),
    *(
        Case(f"a long name, for {' '.join(one[:30] for one in command)}", command, code, ("horter",))
        for command, code in (
            (("train", "toy", "--name", LONG), DATA),
            (("train", LONG), USAGE),
            (("train", "--resume", LONG), USAGE),
            (("eval", LONG), USAGE),
            (("check", LONG), USAGE),
            (("export", LONG, "out"), USAGE),
            (("serve", LONG), USAGE),
            (("review", LONG), USAGE),
            (("replay", LONG), USAGE),
            (("diagnose", LONG), USAGE),
            (("report", LONG), USAGE),
            (("verify", LONG), USAGE),
            (("plan", LONG), USAGE),
            (("init", LONG), USAGE),
            (("runs", "show", LONG), USAGE),
            (("runs", "stop", LONG), USAGE),
            (("runs", "copy", LONG, "file:///tmp"), USAGE),
            (("runs", "branch", LONG), USAGE),
            (("runs", "list", "--runs-dir", LONG), USAGE),
        )
    ),
    Case("a long name of run.runs_dir", (*PLAY, f"run.runs_dir={LONG}"), DATA, ("too long", "set run.runs_dir")),
    Case("a long name of an export", ("export", "old", LONG, "--merge"), USAGE, ("shorter name",), a_run),
    Case("a long name of a report", ("report", "old", "--out", LONG), USAGE, ("--out", "too long"), a_run),
    *(
        Case(f"NUL in {key}", (*DRY, f'{key}="a\\u0000b"'), USAGE, (key, "NUL", "remove it"))
        for key in ("data.train", "model.name", "environment.target", "run.runs_dir")
    ),
]

DATASETS = [
    Case(
        "a dataset that is not there",
        (*DRY, "data.train=none.jsonl"),
        DATA,
        ("none.jsonl does not exist", "relative to the recipe"),
    ),
    Case(
        "a dataset in an unknown format",
        (*DRY, "data.train=tasks.xlsx"),
        DATA,
        ("files with '.xlsx' cannot be read", ".parquet"),
        write("toy/tasks.xlsx", ""),
    ),
    Case(
        "a row cut off",
        (*DRY, "data.train=t.jsonl"),
        DATA,
        ("t.jsonl, line 2", "incomplete", "remove that line"),
        write("toy/t.jsonl", '{"prompt": "a"}\n{"pro'),
    ),
    Case(
        "half of a character",
        (*DRY, "data.train=t.jsonl"),
        DATA,
        ("t.jsonl, line 2", "half of a surrogate pair", "write the whole character"),
        write("toy/t.jsonl", '{"prompt": "a"}\n{"prompt": "\\ud800"}\n'),
    ),
    Case(
        "two tasks with one id",
        (*DRY, "data.train=t.csv"),
        DATA,
        ("row 2", "id = 'x' is already the id of row 1", "its own id"),
        write("toy/t.csv", "id,prompt\nx,a\nx,b\n"),
    ),
    Case(
        "an empty dataset",
        (*DRY, "data.train=t.jsonl"),
        DATA,
        ("has no rows", "one task per row"),
        write("toy/t.jsonl", ""),
    ),
    Case(
        "a trained task that is also held out",
        (*DRY, "data.train=t.jsonl", "data.held_out=t.jsonl"),
        DATA,
        ("task id '1' is in train and in held_out", "one split"),
        write("toy/t.jsonl", '{"prompt": "a"}\n'),
    ),
    Case(
        "a function that returns no tasks",
        (*DRY, "data.train=environment:pairs_of_nothing"),
        DATA,
        ("returned int", "list of sparring.types.Task"),
        append("toy/environment.py", "\ndef pairs_of_nothing():\n    return 3\n"),
    ),
    Case(
        "no training data",
        DRY,
        USAGE,
        ("data.train is missing", "set it to a dataset"),
        lambda: without("toy/recipe.toml", 'train = "environment:train_tasks"'),
    ),
]

TOOLS = [
    Case(
        "a tool argument without type",
        (*DRY, "environment.target=shop:Shop"),
        USAGE,
        ("get", "item", "no type hint"),
        tool_of("self, item"),
    ),
    Case(
        "a tool argument of a type without schema",
        (*DRY, "environment.target=shop:Shop"),
        USAGE,
        ("item", "no JSON schema", "use"),
        tool_of("self, item: complex"),
    ),
    Case(
        "a tool with *args",
        (*DRY, "environment.target=shop:Shop"),
        USAGE,
        ("items", "declare each parameter separately"),
        tool_of("self, *items: str"),
    ),
]

REWARDS = [
    Case(
        "a reward function that is not there",
        (*DRY, "reward.reward=environment:rewrd"),
        USAGE,
        ("'rewrd'", "did you mean 'reward'"),
    ),
    Case(
        "a reward that is a text",
        (*PLAY, "reward.reward=judge:reward"),
        1,
        ("'good'", "not a number", "return a float"),
        write("toy/judge.py", "def reward(trajectory):\n    return 'good'\n"),
    ),
    Case(
        "a reward that is not finite",
        (*PLAY, "reward.reward=judge:reward"),
        1,
        ("nan", "cannot be learned from", "finite number"),
        write("toy/judge.py", "def reward(trajectory):\n    return float('nan')\n"),
    ),
    Case(
        "a reward that raises",
        (*PLAY, "reward.reward=judge:reward"),
        1,
        ("KeyError('total')", "needs a number"),
        write("toy/judge.py", "def reward(trajectory):\n    raise KeyError('total')\n"),
    ),
    Case(
        "a baseline without any success",
        (*PLAY, "evaluation.allow_zero_baseline=false", "reward.scorer=judge:scorer"),
        GATE,
        ("none of 2 validation episodes succeeded", "RL amplifies", "warm_start"),
        write("toy/judge.py", "def scorer(trajectory):\n    return 0.0\n"),
    ),
]

MODELS = [
    Case(
        "a model that is not there",
        (*DRY, "model.name=smollm"),
        SERVICE,
        ("model.name = 'smollm'", "nor a folder", "Check the spelling"),
    ),
    Case(
        "a folder that holds no model",
        (*DRY, "model.name=hollow"),
        SERVICE,
        ("model.name = 'hollow'", "could not be loaded", "config.json"),
        lambda: Path("hollow").mkdir(),
    ),
    Case(
        "adapter targets that match no layer",
        (*DRY, "model.trained_weights=lora", 'model.lora_targets=["nope"]'),
        USAGE,
        ("model.lora_targets", "matches no layer", "q_proj"),
    ),
]

CHECKPOINTS = [
    Case("a folder that is no run", ("export", "toy", "out"), DATA, ("toy contains no run.toml", "sparring runs list")),
    Case(
        "a recipe whose run has the same name",
        ("diagnose", "toy"),
        DATA,
        ("toy contains no run.toml", "the run of this name is runs/toy"),
        lambda: shutil.copytree("toy", "runs/toy") and Path("runs/toy/recipe.toml").rename("runs/toy/run.toml"),
    ),
    Case(
        "a recipe that was not trained", ("eval", "toy"), USAGE, ("a model of its own: train it", "engine.type=openai")
    ),
    Case("a run that is not there", ("export", "none", "out"), DATA, ("none does not exist", "sparring train")),
    Case(
        "a run without checkpoint",
        ("export", "runs/old", "out", "--merge"),
        DATA,
        ("contains no checkpoint", "train the run first"),
        a_run,
    ),
    Case(
        "a checkpoint cut off while it was written",
        ("export", "runs/old", "out", "--merge"),
        DATA,
        ("000001", "manifest.json", "not a complete checkpoint"),
        a_torn_checkpoint,
    ),
    Case(
        "a damaged checkpoint",
        ("export", "runs/old", "out", "--merge"),
        DATA,
        ("weights.safetensors", "damaged", "another checkpoint"),
        a_damaged_checkpoint,
    ),
    Case(
        "resuming a run without checkpoint", ("train", "--resume", "runs/old"), DATA, ("contains no checkpoint",), a_run
    ),
    *(
        Case(
            f"a manifest whose {name} is no {kind}",
            ("runs", "show", "old"),
            DATA,
            ("manifest.json", name, "restore the file"),
            functools.partial(a_run_with, name),
        )
        for name, kind in (("created", "time"), ("versions", "object"), ("checked", "list"))
    ),
    Case(
        "a status file that is not JSON",
        ("runs", "show", "old"),
        DATA,
        ("status.json is not JSON", "delete it"),
        lambda: (a_run().path / "status.json").write_text("{"),
    ),
    Case(
        "a status file of another shape",
        ("runs", "show", "old"),
        DATA,
        ("status.json is not the status of a run", "delete it"),
        lambda: (a_run().path / "status.json").write_text("[]"),
    ),
    Case(
        "a status without a process",
        ("runs", "stop", "old"),
        DATA,
        ("status.json is not the status of a run", "delete it"),
        lambda: (a_run().path / "status.json").write_text('{"status": "running", "process": null}'),
    ),
    Case(
        "metrics that are not UTF-8",
        ("runs", "show", "old"),
        DATA,
        ("metrics.jsonl, line 1", "Remove the line"),
        lambda: (a_run().path / "metrics.jsonl").write_bytes(b'{"metrics": {"\xff": 1}}\n'),
    ),
    *(
        Case(
            f"a run whose recipe is damaged, for {command[0]}",
            command,
            DATA,
            ("runs/old cannot be loaded", "not valid TOML", "fix its recipe"),
            lambda: a_run().recipe.write_text("[model\n"),
        )
        for command in (("eval", "old"), ("export", "old", "out"), ("serve", "old"), ("train", "--resume", "old"))
    ),
    Case(
        "metrics that are damaged",
        ("runs", "show", "old"),
        DATA,
        ("metrics.jsonl, line 1", "Remove the line"),
        lambda: (a_run().path / "metrics.jsonl").write_text("x\n"),
    ),
]

COMMANDS = [
    Case("no recipe", ("train",), USAGE, ("no recipe was given", "sparring init")),
    Case("an unknown command", ("trian",), USAGE, ("trian",)),
    Case("an unknown command of 5,000 characters", ("x" * 5000,), USAGE, ("No such command", "characters) ...")),
    Case("a word of 5,000 characters too many", ("runs", "show", "old", "x" * 5000), USAGE, ("characters) ...",)),
    Case("an option with control characters", ("train", "--\x1b[2J"), USAGE, (r"--\x1b[2J",)),
    Case("a recipe that is a pipe", ("train", "pipe"), USAGE, ("pipe or a device",), lambda: os.mkfifo("pipe")),
    Case("a place file without end", (*DRY, "--on", "/dev/zero"), USAGE, ("pipe or a device",)),
    Case("an unknown option", ("train", "toy", "--fast"), USAGE, ("--fast",)),
    Case(
        "a run name that is taken",
        (*PLAY, "--name", "old"),
        DATA,
        ("old exists", "never overwritten", "--resume"),
        a_run,
    ),
    Case("a run name with a slash", (*PLAY, "--name", "a/b"), DATA, ("'a/b'", "without slashes")),
    Case(
        "a new name for a resumed run",
        ("train", "--resume", "old", "--name", "new"),
        USAGE,
        ("--name", "leave one of them out"),
        a_run,
    ),
    Case(
        "a recipe for a resumed run",
        ("train", "toy", "--resume", "old"),
        USAGE,
        ("'toy' cannot be used", "its own recipe"),
        a_run,
    ),
    Case(
        "resuming a run that is running",
        ("train", "--resume", "old"),
        USAGE,
        ("is already running", "runs stop"),
        lambda: a_run(status="running"),
    ),
    *(
        Case(
            f"a baseline, for {command[0]}",
            command,
            USAGE,
            ("script is a baseline", "'scripted'", "no policy to load", "`sparring train`"),
            a_baseline,
        )
        for command in (("serve", "script"), ("export", "script", "out"))
    ),
    Case("stopping a run that is over", ("runs", "stop", "old"), USAGE, ("is completed, not running",), a_run),
    Case(
        "a runs folder that is a file",
        ("runs", "list", "--runs-dir", "toy/recipe.toml"),
        USAGE,
        ("toy/recipe.toml is not a folder", "specify the folder"),
    ),
    Case(
        "an export of an adapter that was not trained",
        ("export", "old", "out"),
        USAGE,
        ("trained every weight", "no adapter", "--merge"),
        a_run,
    ),
    Case(
        "an export into a full folder",
        ("export", "old", "toy"),
        DATA,
        ("toy exists and is not empty", "specify another"),
        a_run,
    ),
    Case(
        "a new recipe in a full folder", ("init", "toy"), USAGE, ("toy exists and is not empty", "specify a new folder")
    ),
    Case("a port that does not exist", ("serve", "smollm2-135m-instruct", "--port", "70000"), USAGE, ("65535",)),
    Case("serving a model that is not there", ("serve", "smollm"), SERVICE, ("'smollm'", "Check the spelling")),
]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a recipe in `toy/`: pointer chase, without its warm start."""
    shutil.copytree(CHASE, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__", "README.md"))
    monkeypatch.chdir(tmp_path)
    recipe = Path("toy/recipe.toml").read_text("utf-8")
    head, _, rest = recipe.partition("[warm_start]")
    Path("toy/recipe.toml").write_text(head + rest[rest.index("\n[") :], "utf-8")


@pytest.mark.parametrize(
    "case",
    [*RECIPES, *HUGE, *DATASETS, *TOOLS, *REWARDS, *MODELS, *CHECKPOINTS, *COMMANDS],
    ids=lambda case: case.given,
)
def test_bad_input_is_refused_with_what_why_and_what_to_do(case: Case) -> None:
    case.arrange()
    # In this process, where what it prints is read.
    unsupervised = ["--no-supervise"] if case.arguments[0] == "train" else []
    result = CliRunner().invoke(app, [*case.arguments, *unsupervised], terminal_width=200)
    assert result.exit_code == case.exit_code, result.output
    for part in case.parts:
        assert part in result.output
    assert "Traceback" not in result.output
    assert "This error is unexpected" not in result.output
    assert len(result.stderr) < 4000


def test_the_recipe_that_these_cases_spoil_is_good() -> None:
    result = CliRunner().invoke(app, [*PLAY, "--no-supervise"])
    assert result.exit_code == 0, result.output
