"""A place file sets where a recipe runs: it wins over the recipe, and what the recipe is stays the same."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sparring.assembly import find_overrides
from sparring.cli import app
from sparring.config import (
    PLACE_KEYS,
    PLACES,
    Config,
    load_config,
    places_of,
    read_place,
    recipe_hash,
    settings_of,
    validate,
)
from sparring.config.sections import section_class
from sparring.errors import ConfigError, UsageError
from sparring.evaluation.job import Job, Plan
from sparring.evaluator import MultiTurnRLEvaluator
from sparring.run_folders import RunFolder
from sparring.run_folders.family_folder import Origin
from tests.place_table import place_table

ROOT = Path(__file__).parents[1]
TINY = Path(__file__).parent / "faults" / "recipe"
NEEDED = {"environment": {"target": "environment:Shop"}, "reward": {"reward": "environment:reward"}}
RECIPE = """
[environment]
target = "environment:Shop"
[reward]
reward = "environment:reward"
[engine]
max_running = 7
kv_cache_tokens = 999
"""

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "engine.max_running": st.integers(1, 500),
    "engine.kv_cache_tokens": st.integers(64, 10**6),
    "engine.prefill_chunk_tokens": st.integers(16, 10**4),
    "engine.deterministic": st.just(False),
    "learner.type": st.just("here"),
    "model.device": st.sampled_from(["cpu", "cuda"]),
    "optimizer.max_tokens_per_microbatch": st.integers(1, 10**5),
    "environment.workers": st.integers(0, 64),
    "run.num_threads": st.integers(1, 64),
    "run.copy_to": st.sampled_from(["s3://bucket/folder", "file:///folder"]),
}
"""Values of the places that a recipe with a model of its own reads."""


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def problems_of(path: Path, text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as refused:
        read_place(write(path / "place.toml", text))
    return {problem.key: problem.message for problem in refused.value.problems}


def test_an_override_wins_over_the_place_and_the_place_over_the_recipe(tmp_path: Path) -> None:
    recipe = write(tmp_path / "recipe.toml", RECIPE)
    place = read_place(
        write(
            tmp_path / "place.toml",
            "[engine]\nmax_running = 20\nprefill_chunk_tokens = 64\n[learner]\ndevice = 'cpu'\n[launch]\nnum_threads = 3",
        )
    )
    changes = ["engine.prefill_chunk_tokens=32"]
    config = load_config(recipe, [*place.overrides(recipe, changes), *changes])
    engine = config.engine
    assert (engine.max_running, engine.kv_cache_tokens, engine.prefill_chunk_tokens) == (20, 999, 32)
    assert (config.model.device, config.run.num_threads) == ("cpu", 3)
    assert recipe.read_text("utf-8") == RECIPE


def test_every_problem_of_a_place_file_is_named_with_what_would_work(tmp_path: Path) -> None:
    found = problems_of(
        tmp_path,
        "loose = 1\n"
        "[engine]\nmax_runing = 3\nkv_cache_tokens = 'many'\n"
        "[optimizer]\nlearning_rate = 1.0\nmax_tokens_per_microbatch = 5\n"
        "[environment]\ntarget = 'a:B'\n[learner]\ndevise = 'cpu'\n[launch]\ngateway_port = 99999\n[zoo]\nx = 1\n",
    )
    assert {key: message.partition(";")[2] or message for key, message in found.items()} == {
        "loose": "is not in a section; a place file has [engine], [learner], ...".partition(";")[2],
        "engine.max_runing": " the nearest one is 'engine.max_running'.",
        "engine.kv_cache_tokens": "is 'many', but it should be a valid integer.",
        "optimizer.learning_rate": found["optimizer.learning_rate"],
        "optimizer.max_tokens_per_microbatch": "is called 'learner.max_tokens_per_microbatch' in a place file.",
        "environment.target": found["environment.target"],
        "learner.devise": " the nearest one is 'learner.device'.",
        "launch.gateway_port": "is 99999, but it should be less than or equal to 65535.",
        "zoo.x": " docs/places.md lists all keys.",
    }
    assert "what is learned or evaluated, not where" in found["optimizer.learning_rate"]
    assert "optimizer.learning_rate=VALUE on the command line" in found["optimizer.learning_rate"]
    assert "what is learned or evaluated, not where" in found["environment.target"]


def test_a_place_file_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "[engine]\ntype = 'openai'\nkv_cache_tokens = 4096\nbase_url = 'http://me:key@host'")
    assert set(found) == {"engine.kv_cache_tokens", "engine.base_url"}
    assert "key@host" not in str(found)


RANKS = "[learner]\ntype = 'group'\nnum_ranks = 2\nmin_ranks = 3\n"
ADDRESS = "[launch]\nray_address = 'head:6379'\n"
CLUSTER = "[launch]\non = 'ray'\n"


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (
            "[learner]\ntype = 'group'\nbase_urls = ['http://a:1', 'http://b:1']\nnum_ranks = 2\nmin_ranks = 3\n",
            "learner.min_ranks",
            "the group has only 2 ranks",
        ),
        (
            f"{CLUSTER}[engine]\ntype = 'torch'\n[learner]\ntype = 'here'\n[environment]\nworkers = 0\n",
            "launch.on",
            "nothing is started there",
        ),
        (f"{ADDRESS}on = 'processes'\n", "launch.ray_address", "launch.on in a place file"),
    ],
    ids=["ranks", "cluster", "address"],
)
def test_settings_of_a_place_file_that_exclude_each_other_are_problems_of_this_file(
    tmp_path: Path, text: str, key: str, message: str
) -> None:
    assert message in problems_of(tmp_path, text)[key]


@pytest.mark.parametrize(
    ("text", "key", "recipe_text"),
    [
        (RANKS, "learner.min_ranks", "[learner]\ntype = 'group'\nnum_ranks = 4\n"),
        (ADDRESS, "launch.ray_address", "[run]\nname = 'a'\n"),
        (CLUSTER, "launch.on", "[run]\nname = 'a'\n"),
    ],
    ids=["ranks", "address", "cluster"],
)
def test_settings_of_a_place_file_that_need_others_than_the_defaults_are_problems_of_this_file(
    tmp_path: Path, text: str, key: str, recipe_text: str
) -> None:
    recipe, place = write(tmp_path / "recipe.toml", RECIPE + recipe_text), write(tmp_path / "place.toml", text)
    with pytest.raises(ConfigError) as refused:
        read_place(place).overrides(recipe)
    assert [problem.key for problem in refused.value.problems] == [key]
    assert f"in {place}:" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "changes", "recipe_text", "key"),
    [
        (RANKS, ["learner.min_ranks=4"], "", "learner.min_ranks"),
        (CLUSTER, [], "[environment]\nworkers = 0\n", "run.launcher"),
        (ADDRESS, ["run.launcher=processes"], "", "run.ray_address"),
    ],
    ids=["changed", "in the recipe", "changed to the default"],
)
def test_settings_of_a_place_file_that_conflict_with_others_are_problems_of_both(
    tmp_path: Path, text: str, changes: list[str], recipe_text: str, key: str
) -> None:
    needed = RECIPE.replace("[environment]\n", recipe_text or "[environment]\n")
    recipe, place = write(tmp_path / "recipe.toml", needed), write(tmp_path / "place.toml", text)
    overrides = [*read_place(place).overrides(recipe, changes), *changes]
    with pytest.raises(ConfigError) as refused:
        load_config(recipe, overrides)
    assert key in [problem.key for problem in refused.value.problems]


def test_a_place_file_with_an_endpoint_may_name_the_device_of_a_learner(tmp_path: Path) -> None:
    text = "[engine]\ntype = 'openai'\nbase_url = 'http://a/v1'\nmodel = 'm'\n[learner]\ndevice = 'cpu'\n"
    recipe = write(tmp_path / "recipe.toml", RECIPE)
    place = read_place(write(tmp_path / "place.toml", text))
    assert "model.device" not in str(place.overrides(recipe))


def test_a_cluster_serves_a_recipe_that_starts_something_there(tmp_path: Path) -> None:
    recipe = write(tmp_path / "recipe.toml", RECIPE.replace("[environment]\n", "[environment]\nworkers = 2\n"))
    place = read_place(write(tmp_path / "place.toml", CLUSTER))
    assert load_config(recipe, place.overrides(recipe)).run.launcher == "ray"


def test_the_workers_of_a_cluster_have_a_time_limit_of_their_own(tmp_path: Path) -> None:
    recipe = write(tmp_path / "recipe.toml", RECIPE)
    workers = "[environment]\nworkers = 2\nlisten_timeout = 30\n"
    place = read_place(write(tmp_path / "place.toml", f"{CLUSTER}{workers}"))
    assert load_config(recipe, place.overrides(recipe)).environment.listen_timeout == 30
    here = read_place(write(tmp_path / "place.toml", workers))
    assert (
        load_config(recipe, here.overrides(recipe)).environment.listen_timeout == 300
    )  # nothing connects, so it is unread


def test_a_place_file_may_name_a_learner_elsewhere(tmp_path: Path) -> None:
    recipe = write(tmp_path / "recipe.toml", RECIPE)
    place = write(tmp_path / "place.toml", "[learner]\ntype = 'remote'\nbase_url = 'http://host:8200'\n")
    assert load_config(recipe, read_place(place).overrides(recipe)).learner.base_url == "http://host:8200"
    found = problems_of(tmp_path, "[learner]\ntype = 'here'\nbase_url = 'http://host:8200'")
    assert "learner.type = 'here' does not read it" in found["learner.base_url"]
    with pytest.raises(ConfigError, match="needs it"):
        load_config(recipe, ["learner.type=remote"])


def test_a_place_serves_recipes_that_have_no_use_for_all_of_it(tmp_path: Path) -> None:
    place = read_place(
        write(
            tmp_path / "place.toml",
            "[engine]\nkv_cache_tokens = 4096\n[environment]\nworkers = 4\nworker_timeout = 5.0\n"
            "[launch]\ngateway_port = 7000\n[learner]\ndevice = 'cpu'\n",
        )
    )
    recipe = write(tmp_path / "recipe.toml", RECIPE)
    assert set(place.overrides(recipe)) == {
        "engine.kv_cache_tokens=4096",
        "environment.workers=4",
        "environment.worker_timeout=5.0",
        'model.device="cpu"',
    }
    assert "environment.worker_timeout=5.0" not in place.overrides(recipe, ["environment.workers=0"])

    endpoint = ["engine.type=openai", "engine.base_url=http://host/v1", "engine.model=m"]
    config = load_config(recipe, [*place.overrides(recipe, endpoint), *endpoint])
    assert (config.engine.type, config.environment.workers, config.agent.gateway_port) == ("openai", 4, 0)

    program = write(tmp_path / "program.toml", "[agent]\npull = true\n")
    assert place.overrides(program) == [
        "engine.kv_cache_tokens=4096",
        "agent.gateway_port=7000",
        'model.device="cpu"',
    ]


RECIPES = sorted(path for path in (ROOT / "recipes").glob("*/recipe.toml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("changes", [[], ["rollout.max_steps_off_policy=2"]], ids=["synchronous", "asynchronous"])
def test_every_recipe_is_unchanged_in_a_place_with_vllm_servers(
    recipe: Path, changes: list[str], tmp_path: Path
) -> None:
    place = read_place(write(tmp_path / "place.toml", '[engine]\ntype = "vllm"\nnum_servers = 2\n'))
    here = load_config(recipe, changes)
    placed = load_config(recipe, [*place.overrides(recipe, changes), *changes])
    assert placed.starts_servers
    assert placed.engine.max_running == here.engine.max_running
    assert recipe_hash(placed) == recipe_hash(here)


def test_a_place_without_rounds_refuses_a_recipe_that_requires_them(tmp_path: Path) -> None:
    recipe = write(tmp_path / "recipe.toml", RECIPE + "deterministic = true\n")
    place = read_place(write(tmp_path / "place.toml", '[engine]\ntype = "vllm"\n'))
    with pytest.raises(ConfigError, match="cannot sample in rounds that depend only on the seed"):
        load_config(recipe, place.overrides(recipe))


def test_a_key_that_a_recipe_s_own_engine_does_not_read_is_still_refused(tmp_path: Path) -> None:
    recipe = write(tmp_path / "recipe.toml", RECIPE + 'type = "vllm"\n')
    with pytest.raises(ConfigError, match=r"kv_cache_tokens: is given, but engine.type = 'vllm' does not read it"):
        load_config(recipe)
    with pytest.raises(ConfigError, match=r"kv_cache_tokens: is given, but engine.type = 'vllm' does not read it"):
        load_config(write(recipe, RECIPE), ["engine.type=vllm", "engine.kv_cache_tokens=512"])


def test_what_cannot_work_in_a_place_is_refused_with_the_recipe(tmp_path: Path) -> None:
    recipe = write(tmp_path / "recipe.toml", RECIPE)
    place = read_place(write(tmp_path / "place.toml", "[engine]\ndeterministic = true\n"))
    with pytest.raises(ConfigError, match="asynchronous rollouts depend on timing"):
        load_config(recipe, place.overrides(recipe))


@given(st.fixed_dictionaries({}, optional=VALUES))
@settings(max_examples=60, deadline=None)
def test_a_recipe_is_the_same_wherever_it_runs(place: dict[str, Any]) -> None:
    here = validate(NEEDED)
    there = validate(NEEDED, [f"{key}={json.dumps(value)}" for key, value in place.items()])
    assert recipe_hash(there) == recipe_hash(here)
    assert find_overrides(here, there) == {}
    assert {key: places_of(there.model_dump(mode="json"))[key] for key in place} == place
    assert (
        Origin(recipe=Path(), config=here.model_dump(mode="json"), files={}).differences(
            Origin(recipe=Path(), config=there.model_dump(mode="json"), files={})
        )
        == []
    )


@pytest.mark.parametrize("override", ["optimizer.learning_rate=1e-3", "environment.options.size=3", "run.seed=1"])
def test_another_recipe_has_another_hash(override: str) -> None:
    assert recipe_hash(validate(NEEDED, [override])) != recipe_hash(validate(NEEDED))


def test_every_setting_is_either_a_place_or_a_part_of_the_recipe() -> None:
    dumped = validate(NEEDED, ["warm_start.steps=5"]).model_dump(mode="json")
    keys = {
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        if section != "policies"
        for key in section_class(field.annotation).model_fields
    }
    what, where = set(settings_of(dumped)), set(places_of(dumped))
    assert where == PLACE_KEYS
    assert what | where == keys - {"run.name", "run.runs_dir"}
    assert not what & where


def test_the_docs_have_the_table_of_the_keys_that_are_places() -> None:
    page = (ROOT / "docs" / "places.md").read_text("utf-8")
    assert place_table() in page, "python -m tests.place_table"
    assert len(PLACES) == len(PLACE_KEYS)


def test_the_example_of_the_docs_is_a_place(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "places.md").read_text("utf-8").partition("```toml\n")[2].partition("```")[0]
    assert read_place(write(tmp_path / "place.toml", text)).settings["environment.workers"] == 8


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no place file at .*none\.toml"):
        read_place(tmp_path / "none.toml")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return shutil.copytree(TINY, tmp_path / "recipe", ignore=shutil.ignore_patterns("__pycache__"))


def invoke(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result


def test_a_run_is_trained_in_a_place_resumed_in_another_and_evaluated_in_a_third(recipe: Path, tmp_path: Path) -> None:
    first = write(
        tmp_path / "first.toml",
        "[engine]\nmax_running = 3\nkv_cache_tokens = 1024\n[launch]\nnum_threads = 1\ngateway_port = 7000\n",
    )
    second = write(tmp_path / "second.toml", "[engine]\nmax_running = 5\n[environment]\nworkers = 1\n")
    common = [f"run.runs_dir={tmp_path}", "schedule.max_steps=1"]
    alone = ["--no-check", "--no-supervise"]
    before = (recipe / "recipe.toml").read_bytes()

    shown = invoke(
        "train", recipe, "--on", first, *common, "engine.max_running=4", "--dry-run", "--no-supervise", "--json"
    )
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(shown.stdout)}
    assert (rows["run.num_threads"], rows["engine.max_running"]) == ((1, "place"), (4, "override"))
    assert rows["agent.gateway_port"] == (0, "default")

    invoke("train", recipe, "--on", first, *common, "engine.kv_cache_tokens=512", "--name", "run", *alone)
    run = RunFolder(tmp_path / "run")
    assert (recipe / "recipe.toml").read_bytes() == before
    engine = run.config().engine
    assert (engine.max_running, engine.kv_cache_tokens, run.config().run.num_threads) == (3, 512, 1)
    trained = run.manifest()
    assert trained["config"]["engine"]["max_running"] == 3
    assert trained["recipe_sha256"] == recipe_hash(load_config(recipe, common))

    invoke("train", "--resume", run.path, "--on", second, "schedule.max_steps=2", "--no-supervise")
    changes = run.manifest()["resumed"][-1]["changes"]
    assert changes["places.engine.max_running"] == [3, 5]
    assert changes["places.environment.workers"] == [0, 1]
    assert set(changes) - {"places.engine.max_running", "places.environment.workers"} == {"config.schedule.max_steps"}

    # Back in the first place: the other one need not be named again.
    invoke("train", "--resume", run.path, "schedule.max_steps=3", "--no-supervise")
    assert run.manifest()["resumed"][-1]["changes"]["places.engine.max_running"] == [5, 3]

    invoke("eval", run.path, "--on", second, "--policy", "tuned", "--temperature", "0")
    (report,) = run.evaluations.glob("held_out-*.json")
    assert [one["overrides"] for one in json.loads(report.read_text())["evaluations"]] == [{}]


def test_a_plan_is_for_the_place(tmp_path: Path) -> None:
    place = write(tmp_path / "place.toml", "[engine]\nkv_cache_tokens = 4096\n")
    wide, narrow = (
        json.loads(invoke("plan", ROOT / "recipes" / "quickstart", "--gpu", "H100:1", "--json", *on).stdout)
        for on in ((), ("--on", place))
    )
    sizes = [one["tables"][0]["lines"]["KV cache"] for one in (wide, narrow)]
    assert sizes[1] < sizes[0]


def test_an_interrupted_evaluation_goes_on_in_another_place_but_with_no_other_settings(
    recipe: Path, tmp_path: Path
) -> None:
    run = RunFolder.create(load_config(recipe, [f"run.runs_dir={tmp_path}"]), recipe, name="run")
    plan = Plan(
        overrides=("batch.group_size=3", "engine.max_running=3"), policies=(), temperatures=None, api_key_env=None
    )
    job = Job.new(run, plan)
    (job.folder / "episodes.jsonl").write_text("{}\n")  # kept when the job ends before its report
    job.close()
    evaluator = MultiTurnRLEvaluator(run.path, resume=True, overrides=["engine.max_running=5"])
    assert (evaluator.config.engine.max_running, evaluator.config.batch.group_size) == (5, 3)
    assert evaluator._job is not None
    evaluator._job.close()
    with pytest.raises(UsageError, match="change only where it runs"):
        MultiTurnRLEvaluator(run.path, resume=True, overrides=["batch.group_size=4"])


LOCAL = 'type = "vllm"\nnum_servers = 2\nserver_arguments = ["--enable-sleep-mode"]\n'
RUNNING = 'type = "vllm"\nbase_urls = ["http://a:8000"]\napi_key_env = "A_KEY"\n'


@pytest.mark.parametrize(("before", "after"), [(LOCAL, RUNNING), (RUNNING, LOCAL)], ids=["running", "local"])
def test_a_run_with_vllm_servers_goes_on_with_other_servers(before: str, after: str, tmp_path: Path) -> None:
    recipe = write(tmp_path / "run.toml", RECIPE.partition("[engine]")[0] + f"[engine]\n{before}")
    place = read_place(write(tmp_path / "place.toml", f"[engine]\n{after}"))
    config = load_config(recipe, place.overrides(recipe))
    assert config.engine == read_engine(after)


def read_engine(text: str) -> Any:
    return validate({**NEEDED, "engine": tomllib.loads(text)}).engine


def test_servers_of_both_kinds_are_refused(tmp_path: Path) -> None:
    recipe = write(tmp_path / "recipe.toml", RECIPE)
    with pytest.raises(ConfigError, match="is for servers that are started on this machine"):
        load_config(recipe, ["engine.type=vllm", "engine.base_urls=['http://a:1']", "engine.num_servers=2"])
    with pytest.raises(ConfigError, match=r"engine\.base_urls: names a server twice"):
        load_config(recipe, ["engine.type=vllm", "engine.base_urls=['http://a:1', 'http://a:1/v1/']"])


@pytest.mark.parametrize("override", ["engine.type=['vllm']", "engine.type=3", "learner.type={a=1}", "engine=3"])
def test_a_type_that_is_no_text_is_refused(override: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine|learner"):
        load_config(write(tmp_path / "recipe.toml", RECIPE), [override])


@pytest.mark.parametrize(
    "after", ['type = "torch"\nkv_cache_tokens = 512\n', LOCAL, RUNNING], ids=["torch", "local", "running"]
)
def test_an_interrupted_evaluation_with_vllm_servers_goes_on_elsewhere(
    after: str, tmp_path: Path, recipe: Path
) -> None:
    run = RunFolder.create(load_config(recipe, [f"run.runs_dir={tmp_path}"]), recipe, name="run")
    for before in (LOCAL, RUNNING):
        placed = read_place(write(tmp_path / "before.toml", f"[engine]\n{before}")).overrides(run.recipe)
        job = Job.new(
            run, Plan(overrides=("batch.group_size=4", *placed), policies=(), temperatures=None, api_key_env=None)
        )
        (job.folder / "episodes.jsonl").write_text("{}\n")
        job.close()
        place = read_place(write(tmp_path / "place.toml", f"[engine]\n{after}"))
        evaluator = MultiTurnRLEvaluator(run.path, resume=True, overrides=place.overrides(run.recipe))
        expected = read_engine(after).model_dump(exclude_unset=True)
        assert evaluator.config.engine.model_dump(exclude_unset=True) == expected
        assert evaluator.config.batch.group_size == 4
        assert evaluator._job is not None
        evaluator._job.close()
        shutil.rmtree(job.folder)
