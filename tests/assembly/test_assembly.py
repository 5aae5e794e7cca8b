"""What a recipe is wired to."""

import asyncio
import itertools
import json
import shutil
from pathlib import Path

import pytest

from sparring.assembly import (
    TrainingParts,
    build_frozen_engine,
    build_scheduler,
    load_algorithm,
    load_curriculum,
    load_demonstrations,
    load_graders,
    load_training_parts,
)
from sparring.config import Config, PolicySection, load_config
from sparring.errors import DataError, UsageError
from sparring.ledger import Ledger
from sparring.rollouts import NamedPolicy
from sparring.runtime import event_loop
from sparring.trainer import MultiTurnRLTrainer
from sparring.training import checkpoints
from sparring.types import Outcome, Reward, Sampling, StopReason, Task, Trajectory, TrajectoryGroup, Turn, Weights

RECIPE = Path(__file__).parents[2] / "recipes" / "pointer_chase" / "recipe.toml"


def test_the_bound_on_staleness_counts_from_the_step_that_a_run_is_resumed_at() -> None:
    config = load_config(RECIPE, ["schedule.max_epochs=1", "batch.global_batch_size=1", "batch.group_size=2"])

    async def main() -> tuple[int, int]:
        with Ledger() as ledger:
            parts = load_training_parts(config, RECIPE.parent, ledger)
            # The engine still has version 0, which a synchronous run at step 1 must not learn from; one group is left.
            curriculum = load_curriculum(config, parts.tasks.train)
            list(itertools.islice(curriculum, len(parts.tasks.train) - 1))
            scheduler = build_scheduler(parts, curriculum, version=1)
            async with scheduler:
                batch = await scheduler.next_batch()
            await parts.engine.close()
            return len(batch), scheduler.num_stale

    assert asyncio.run(main()) == (0, 1)


def test_demonstrations_come_from_a_file_or_a_recording_each_conversation_with_its_own_tools(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "find a 0?"}, {"role": "assistant", "content": "ans a"}]
    tool = {"type": "function", "function": {"name": "peek", "parameters": {"type": "object", "properties": {}}}}
    (tmp_path / "own.jsonl").write_text(json.dumps({"messages": messages}) + "\n", "utf-8")
    (tmp_path / "none.jsonl").write_text('{"messages": "none"}\n', "utf-8")
    wrong = [messages[0], {**messages[1], "tool_calls": [1]}]
    (tmp_path / "calls.jsonl").write_text(json.dumps({"messages": wrong}) + "\n", "utf-8")
    folder = tmp_path / "taped" / "trajectories"
    folder.mkdir(parents=True)
    for number in (1, 2):
        row = {"messages": messages, "task": {"fields": {"tools": [tool]}}}
        (folder / f"recorded-{number}.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    (folder / "held_out-1.jsonl").write_text(json.dumps({"messages": messages}) + "\n", "utf-8")

    with Ledger() as ledger:
        parts = load_training_parts(load_config(RECIPE, ["run.num_threads=1"]), RECIPE.parent, ledger)
        (own,) = load_demonstrations(parts, 9, str(tmp_path / "own.jsonl"))
        taped = load_demonstrations(parts, 9, str(tmp_path / "taped"))
        problems = {
            "none.jsonl": "line 1",
            "calls.jsonl": r"line 1, message 2: tool_calls\[0\] is 1",
            "nowhere": "does not exist",
            "": "sparring record",
        }
        for source, problem in problems.items():
            with pytest.raises(DataError, match=problem):
                load_demonstrations(parts, 9, str(tmp_path / source))
        asyncio.run(parts.engine.close())
    # The recipe's tools stand in its prompt; a recording's are described where they were offered.
    assert "peek" not in parts.chat.decode(own[0])
    assert ["peek" in parts.chat.decode(ids) for ids, _ in taped] == [True, True]
    assert {sum(mask) for _, mask in (own, *taped)} == {sum(own[1])}


def test_a_function_returns_conversations_with_or_without_their_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [{"role": "user", "content": "find a 0?"}, {"role": "assistant", "content": "ans a"}]
    tool = {"type": "function", "function": {"name": "peek", "parameters": {"type": "object", "properties": {}}}}
    rows = [messages, {"messages": messages, "tools": [tool]}, {"messages": messages}]
    source = (
        f"def log(number, seed):\n    return {rows!r}\n\ndef none(number, seed):\n    return [{messages!r}, 'none']\n"
    )
    (tmp_path / "clerks_with_tools.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with Ledger() as ledger:
        parts = load_training_parts(load_config(RECIPE, ["run.num_threads=1"]), RECIPE.parent, ledger)
        logged = load_demonstrations(parts, 9, "clerks_with_tools:log")
        with pytest.raises(DataError, match="row 2: there is no list 'messages'"):
            load_demonstrations(parts, 9, "clerks_with_tools:none")
        asyncio.run(parts.engine.close())
    assert ["peek" in parts.chat.decode(ids) for ids, _ in logged] == [False, True, False]


def test_a_dataset_that_raises_stop_iteration_ends_the_training_and_does_not_hang_it(tmp_path: Path) -> None:
    for file in RECIPE.parent.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text("utf-8"), "utf-8")
    (tmp_path / "recipe.toml").write_text(RECIPE.read_text("utf-8"), "utf-8")
    (tmp_path / "none.py").write_text("def tasks():\n    return [next(iter(()))]\n", "utf-8")
    settings = [f"run.runs_dir={tmp_path / 'runs'}", "data.train=none:tasks"]
    trainer = MultiTurnRLTrainer(tmp_path / "recipe.toml", overrides=settings, quiet=True, check=False)
    trainer.train(wait=False)
    with pytest.raises(RuntimeError, match="the code raised StopIteration"):
        trainer.wait(timeout=60)


def test_demonstrations_that_no_sequence_can_hold_are_refused_by_their_length(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "find a 0?"}, {"role": "assistant", "content": "ans a"}]
    long = [{"role": "user", "content": "find a 0? " * 60}, {"role": "assistant", "content": "ans a"}]
    lines = "".join(json.dumps({"messages": one}) + "\n" for one in (messages, long))
    (tmp_path / "two.jsonl").write_text(lines, "utf-8")
    with Ledger() as ledger:
        parts = load_training_parts(load_config(RECIPE, ["run.num_threads=1"]), RECIPE.parent, ledger)
        with pytest.raises(
            DataError, match=r"1 of 2 demonstrations .* longer .* = \d+; the longest, demonstration 2, has"
        ):
            load_demonstrations(parts, 9, str(tmp_path / "two.jsonl"))
        asyncio.run(parts.engine.close())


def test_demonstrations_that_the_model_has_no_positions_for_are_refused(tmp_path: Path) -> None:
    # A recipe may allow longer sequences than the model knows positions for: 512 in this one.
    long = [{"role": "user", "content": "find a 0? " * 200}, {"role": "assistant", "content": "ans a"}]
    (tmp_path / "one.jsonl").write_text(json.dumps({"messages": long}) + "\n", "utf-8")
    with Ledger() as ledger:
        settings = ["run.num_threads=1", "model.max_sequence_length=4096"]
        parts = load_training_parts(load_config(RECIPE, settings), RECIPE.parent, ledger)
        limit = parts.model.max_positions
        assert limit < 4096
        with pytest.raises(
            DataError, match=rf"1 of 1 demonstrations .* longer than the {limit} positions of model.name"
        ):
            load_demonstrations(parts, 9, str(tmp_path / "one.jsonl"))
        asyncio.run(parts.engine.close())


def test_demonstrations_may_end_with_a_tool_result_only_where_the_environment_ends_episodes(tmp_path: Path) -> None:
    for file in RECIPE.parent.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    call = {"id": "c", "type": "function", "function": {"name": "get", "arguments": {"key": "a"}}}
    messages = [
        {"role": "user", "content": "find a 0?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "b"},
    ]
    (tmp_path / "one.jsonl").write_text(json.dumps({"messages": messages}) + "\n", "utf-8")
    source = (
        "from environment import PointerChase\n\nclass Once(PointerChase):\n    @property\n    def is_done(self):\n"
    )
    (tmp_path / "own.py").write_text(f"{source}        return True\n", "utf-8")

    def tokens(target: str) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
        config = load_config(tmp_path / "recipe.toml", ["run.num_threads=1", f"environment.target={target}"])
        with Ledger() as ledger:
            parts = load_training_parts(config, tmp_path, ledger)
            try:
                return load_demonstrations(parts, 9, "one.jsonl")
            finally:
                asyncio.run(parts.engine.close())

    with pytest.raises(DataError, match=r"demonstration 1 of .* PointerChase never ends an episode itself"):
        tokens("environment:PointerChase")
    ((ids, mask),) = tokens("own:Once")
    assert len(ids) == len(mask)
    assert mask[-1]


MINE = """
def advantages(groups, *, gamma=1.0, alpha=1.0):
    return [[[alpha * gamma * member.total] * len(member.turn_rewards) for member in group] for group in groups]

def loss(tokens, *, alpha=1.0):
    return -alpha * tokens.ratio_M * tokens.advantages_M, {}

def two(groups, other):
    return []
"""


def mine(folder: Path, *overrides: str) -> Config:
    (folder / "mine.py").write_text(MINE, "utf-8")
    return load_config(RECIPE, [f"algorithm.{override}" for override in overrides])


def test_functions_of_the_users_own_get_the_settings_that_they_name(tmp_path: Path) -> None:
    config = mine(tmp_path, "advantage_method=mine:advantages", "loss_fn=mine:loss", "gamma=0.5", "options.alpha=3.0")
    algorithm = load_algorithm(config, tmp_path)
    task = Task(id="t", messages=())
    turn = Turn(
        id=0, parent=None, branch_reason=None, prompt_ids=(1,), token_ids=(2,), sampled_logprobs=(-1.0,),
        versions=((0, 1),), fingerprint="", stop_reason=StopReason.STOP, sampling=Sampling(),
        message={"role": "assistant", "content": ""}, num_computed_tokens=0, seconds=0.0,
    )  # fmt: skip
    played = Trajectory(
        id="a",
        task=task,
        attempt=0,
        turns=(turn,),
        messages=(),
        outcome=Outcome.FINISHED,
        reward=Reward(total=2.0),
        score=None,
    )
    assert algorithm.advantages([TrajectoryGroup(task=task, trajectories=(played,))]) == {"a": (3.0,)}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["advantage_method=mine:two"],
            "algorithm.advantage_method = 'mine:two' has the signature (groups, other); write function(groups, *, ...), ",
        ),
        (
            ["loss_fn=mine:loss", "options.beta=1"],
            "algorithm.options.beta is given, but none of the chosen functions takes a keyword argument 'beta'; leave it out",
        ),
        (
            ["loss_fn=mine:loss", "clip_low_threshold=0.5"],
            "algorithm.clip_low_threshold is given, but none of the chosen functions takes a keyword argument",
        ),
    ],
)
def test_functions_of_the_users_own_that_do_not_fit_are_refused(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        load_algorithm(mine(tmp_path, *overrides), tmp_path)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("key", ["reward.reward", "reward.scorer"])
def test_a_judge_that_cannot_be_called_is_refused_before_anything_is_played(key: str) -> None:
    with pytest.raises(UsageError, match=rf"{key} = 'environment:KEYS' is 'abcdefghijklmnop', which is not callable"):
        load_graders(load_config(RECIPE, [f"{key}=environment:KEYS"]), RECIPE.parent)


def test_a_run_keeps_the_frozen_weights_it_began_with_wherever_it_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(trainer: MultiTurnRLTrainer) -> tuple[TrainingParts, Path]:
        run = event_loop.submit(trainer._loader.load()).result()
        trainer.close()
        return run.parts, run.path

    monkeypatch.chdir(tmp_path)
    parts, teacher = opened(MultiTurnRLTrainer(RECIPE, name="teacher", quiet=True, check=False))
    first = checkpoints.save(teacher / "checkpoints", 1, parts.learner.export_state(), {"step": 1})
    overrides = ["policies.teacher.weights=runs/teacher", "policies.other.weights=base"]
    student, folder = opened(MultiTurnRLTrainer(RECIPE, overrides=overrides, name="student", quiet=True, check=False))
    wanted = student.collector.policies["teacher"].engine.fingerprint

    # The teacher learns on, and the student is continued from elsewhere.
    state = {name: tensor + 1 for name, tensor in parts.learner.export_weights().tensors.items()}
    parts.learner.load_weights(Weights(tensors=state, fingerprint="other"))
    checkpoints.save(teacher / "checkpoints", 2, parts.learner.export_state(), {"step": 2})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    kept = load_config(tmp_path / folder / "run.toml").policies
    assert (kept["teacher"].weights, kept["other"].weights) == (str(tmp_path / first), "base")
    again, _ = opened(MultiTurnRLTrainer.attach(tmp_path / folder))
    assert again.collector.policies["teacher"].engine.fingerprint == wanted


def test_a_frozen_policy_with_another_vocabulary_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with MultiTurnRLTrainer(RECIPE, name="expert", quiet=True, check=False) as trainer:
        run = event_loop.submit(trainer._loader.load()).result()
        checkpoints.save(run.path / "checkpoints", 1, run.parts.learner.export_state(), {"step": 1})
        vocabulary = run.parts.model.vocabulary()
    run.folder.write_vocabulary([*vocabulary[:3], "other", *vocabulary[4:]])
    student = MultiTurnRLTrainer(RECIPE, overrides=["policies.expert.weights=runs/expert"], quiet=True, check=False)
    with pytest.raises(DataError, match=rf"another vocabulary: token 3 is 'other' there and '{vocabulary[3]}' here"):
        student.load()


def test_a_run_with_frozen_weights_that_are_not_there_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = MultiTurnRLTrainer(RECIPE, overrides=["policies.teacher.weights=runs/none"], quiet=True, check=False)
    with pytest.raises(DataError, match="contains no checkpoint"):
        trainer.load()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["algorithm.teacher.9=expert"],
            r"names '9', but no training task has this value of 'hops'. The values are '1', '2', '3'",
        ),
        (
            ["algorithm.teacher.2=expert", "algorithm.advantage_method=none"],
            r"no teacher for '1', '3', and advantage_method = 'none' does not read rewards",
        ),
    ],
)
def test_kinds_of_tasks_and_their_teachers_must_match(
    overrides: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    more = ["policies.expert.weights=base", "curriculum.kind_field=hops", *overrides]
    trainer = MultiTurnRLTrainer(RECIPE, overrides=more, quiet=True, check=False)
    with pytest.raises(DataError, match=problem):
        trainer.load()
    assert list((tmp_path / "runs").iterdir()) == []


def test_policies_play_with_the_weights_that_their_sections_name(tmp_path: Path) -> None:
    overrides = [
        "policies.rival.role=trained",
        "policies.customer.temperature=0.5",
        "policies.customer.max_tokens=8",
        "policies.teacher.weights=warm_start",
    ]
    config = load_config(RECIPE, overrides)

    async def main() -> None:
        with Ledger() as ledger:
            parts = load_training_parts(config, RECIPE.parent, ledger)
            engine, initial = parts.engine, parts.initial_weights
            named = parts.collector.policies
            try:
                assert named["rival"] == NamedPolicy(engine=engine, chat=parts.chat, learns=True)
                customer = named["customer"]
                assert (customer.learns, customer.engine.fingerprint) == (False, initial.fingerprint)
                assert customer.sampling == Sampling(temperature=0.5, max_tokens=8)
                assert named["teacher"].engine is parts.frozen_by_warm_start[0]
                assert parts.teachers is None
                checkpoints.save(tmp_path / "checkpoints", 3, parts.learner.export_state(), {"step": 3})
                section = PolicySection(weights=str(tmp_path))
                frozen = build_frozen_engine(section, engine, parts.policy, initial)
                assert frozen is not None
                assert frozen.fingerprint == initial.fingerprint
                with pytest.raises(DataError, match="contains no checkpoint"):
                    build_frozen_engine(PolicySection(weights=str(tmp_path / "none")), engine, parts.policy, initial)
            finally:
                await engine.close()

    asyncio.run(main())
