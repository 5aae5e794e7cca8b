"""A recipe becomes typed sections, or an error that names every problem at once."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.config import Config, key_from, load_config, read_recipe, resolved_toml, resolved_view, validate
from sparring.errors import ConfigError, UsageError
from sparring.types import EngineCapabilities

ROOT = Path(__file__).parents[1]

NEEDED = {"environment": {"target": "environment:Shop"}, "reward": {"reward": "environment:reward"}}


def problems_of(*overrides: str, recipe: dict[str, object] | None = None) -> dict[str, str]:
    """What is wrong with a recipe, by key path; empty when nothing is."""
    try:
        validate(NEEDED if recipe is None else recipe, overrides)
    except ConfigError as error:
        return {problem.key: problem.message for problem in error.problems}
    return {}


def test_what_is_not_given_has_the_default() -> None:
    config = validate(NEEDED)
    assert (config.batch.global_batch_size, config.batch.group_size) == (128, 8)
    assert (config.algorithm.loss_fn, config.optimizer.learning_rate) == ("ppo", 4e-5)
    assert config.warm_start is None


def test_an_override_wins_over_the_recipe_and_the_last_override_over_the_first() -> None:
    recipe = {**NEEDED, "batch": {"group_size": 4, "global_batch_size": 2}}
    config = validate(recipe, ["batch.group_size=6", "batch.group_size=16"])
    assert (config.batch.group_size, config.batch.global_batch_size) == (16, 2)
    assert recipe["batch"] == {"group_size": 4, "global_batch_size": 2}, "the recipe itself was changed"


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("model.name=./my model", "model", "name", "./my model"),
        ('model.name="quoted"', "model", "name", "quoted"),
        ("model.name=a=b", "model", "name", "a=b"),
        ("model.name=", "model", "name", ""),
        ("optimizer.learning_rate=1", "optimizer", "learning_rate", 1.0),
        ("optimizer.learning_rate=3e-4", "optimizer", "learning_rate", 3e-4),
        ("tracking.mlflow=true", "tracking", "mlflow", True),
        ('model.lora_targets=["q_proj"]', "model", "lora_targets", ("q_proj",)),
        ("environment.options.size=3", "environment", "options", {"size": 3}),
    ],
)
def test_an_override_is_read_as_toml_and_else_as_text(override: str, section: str, key: str, value: object) -> None:
    assert getattr(getattr(validate(NEEDED, [override]), section), key) == value


def test_an_override_creates_a_section_that_the_recipe_does_not_have() -> None:
    warm_start = validate(NEEDED, ["warm_start.steps=5"]).warm_start
    assert warm_start is not None
    assert warm_start.steps == 5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch.group_size=true", "is True, but it should be a valid integer"),
        ("batch.group_size=4.0", "is 4.0, but it should be a valid integer"),
        ('batch.group_size="4"', "is '4', but it should be a valid integer"),
        ("tracking.mlflow=1", "is 1, but it should be a valid boolean"),
        ("optimizer.learning_rate=nan", "is nan, but it should be a finite number"),
        ("rollout.rollout_timeout=inf", "is inf, but it should be a finite number"),
        ("rollout.max_steps_off_policy=11", "is 11, but it should be less than or equal to 10"),
        (
            "algorithm.loss_fn=grpo",
            "is 'grpo', which is not known; the nearest one is 'gspo'; choose from importance_sampling, ppo, ",
        ),
        ("algorithm.advantage_method=gae", "is 'gae', which is not known; choose from group_based, "),
        ("batch.grup_size=4", "is not a known key; the nearest one is 'batch.group_size'"),
        ("algorithm.group_size=4", "is not a known key; the nearest one is 'batch.group_size'"),
        ("optimizer.lr=1", "is not a known key"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(override: str, message: str) -> None:
    key = override.partition("=")[0]
    found = problems_of(override)
    assert list(found) == [key]
    assert found[key].startswith(message)


@pytest.mark.parametrize("override", ["group_size", "group_size=4", "=4", "batch=4"])
def test_an_override_that_names_no_key_of_a_section_is_refused(override: str) -> None:
    (message,) = problems_of(override).values()
    assert "section.key=value" in message


def test_a_value_where_a_section_belongs_is_refused() -> None:
    assert "dictionary" in problems_of(recipe={**NEEDED, "batch": 4})["batch"]
    assert problems_of("batch.group_size=4", recipe={**NEEDED, "batch": 4})["batch.group_size"] == (
        "batch is a value, not a section."
    )


ENDPOINT = ("engine.type=openai", "engine.base_url=http://localhost:8000/v1", "engine.model=m")
BUYER = ("policies.buyer.role=endpoint", "policies.buyer.base_url=http://localhost/v1", "policies.buyer.model=m")
LISTENING = ["environment.listen='0.0.0.0:7700'"]
UNREADABLE = [
    (["algorithm.loss_fn=importance_sampling", "algorithm.clip_low_threshold=0.8"], "algorithm.clip_low_threshold"),
    (["algorithm.loss_fn=importance_sampling", "algorithm.clip_high_threshold=2"], "algorithm.clip_high_threshold"),
    (["algorithm.clip_low_threshold=1", "algorithm.clip_high_threshold=1"], "algorithm.clip_high_threshold"),
    (
        ["algorithm.advantage_method=rloo", "algorithm.advantage_normalization=true"],
        "algorithm.advantage_normalization",
    ),
    (["batch.group_size=1"], "batch.group_size"),
    (["sampling.sampling_top_p=0.9"], "sampling.sampling_top_p"),
    (["model.trained_weights=full", "model.lora_rank=32"], "model.lora_rank"),
    (["rollout.max_steps_off_policy=0", "rollout.staleness_window=2"], "rollout.staleness_window"),
    # Two of 4 groups a step may overtake 9 others: ceil(8 / 4) = 2 steps of waiting, over a bound of 1.
    (
        ["rollout.max_steps_off_policy=1", "rollout.staleness_window=9", "batch.global_batch_size=4"],
        "rollout.staleness_window",
    ),
    (["rollout.max_steps_off_policy=0", "rollout.session_weights=latest"], "rollout.session_weights"),
    (["engine.deterministic=true", "rollout.max_steps_off_policy=1"], "engine.deterministic"),
    (
        ["engine.deterministic=true", "rollout.max_steps_off_policy=0", *BUYER],
        "engine.deterministic",
    ),
    ([*ENDPOINT, "engine.deterministic=true"], "engine.deterministic"),
    (["rollout.max_steps_off_policy=0", "rollout.rollout_max_concurrency=7"], "rollout.rollout_max_concurrency"),
    (["data.validation=v.jsonl", "data.validation_fraction=0.1"], "data.validation_fraction"),
    (["data.held_out=h.jsonl", "data.held_out_fraction=0.1"], "data.held_out_fraction"),
    (["data.validation_fraction=0.5", "data.held_out_fraction=0.5"], "data.validation_fraction"),
    (["evaluation.pass_k_values=[1, 2]"], "evaluation.pass_k_values"),
    (["evaluation.pass_k_values=[0]"], "evaluation.pass_k_values.0"),
    (["evaluation.val_top_p=0.9"], "evaluation.val_top_p"),
    (["batch.refill_groups=4", "algorithm.advantage_method=reinforce_pp_baseline"], "batch.refill_groups"),
    (["evaluation.success_threshold=1.01"], "evaluation.success_threshold"),
    (["evaluation.success_threshold=-0.01"], "evaluation.success_threshold"),
    (["detectors.reaction=roll_back", "schedule.save_every=0"], "detectors.reaction"),
    ([*ENDPOINT, "detectors.reaction=stop"], "detectors.reaction"),
    (["tracking.mlflow_uri=http://localhost:5000"], "tracking.mlflow_uri"),
    (["tracking.mlflow_experiment_name=mine"], "tracking.mlflow_experiment_name"),
    (["tracking.wandb_project=mine"], "tracking.wandb_project"),
    (["tracking.wandb_mode=offline", "tracking.wandb=false"], "tracking.wandb_mode"),
    (["run.copy_to=backup"], "run.copy_to"),
    (["run.copy_to=s3://key:secret@bucket/runs"], "run.copy_to"),
    (["run.copy_to=memory://runs"], "run.copy_to"),
    (["sampling.sampling_max_tokens=2048"], "sampling.sampling_max_tokens"),
    (["sampling.sampling_max_tokens=64", "rollout.rollout_max_tokens=512"], "rollout.rollout_max_tokens"),
    (["agent.gateway_host=0.0.0.0"], "agent.gateway_host"),
    (["environment.worker_timeout=5"], "environment.worker_timeout"),
    (["environment.workers=2", "environment.listen_timeout=5"], "environment.listen_timeout"),
    (["environment.listen=7700"], "environment.listen"),
    (["environment.listen='node1:77000'"], "environment.listen"),
    ([*LISTENING, "environment.api_key_env=sk-secret"], "environment.api_key_env"),
    ([*LISTENING, "environment.tls_certificate=run.pem"], "environment.tls_key"),
    (["run.ray_address=node1:6379"], "run.ray_address"),
    (["run.launcher=ray"], "run.launcher"),
    (["run.launcher=ray", "learner.type=group", "learner.base_urls=['http://node1:8200']"], "run.launcher"),
    (
        ["learner.type=group", "learner.base_urls=['http://node1:8200']", "learner.shard_weights=true"],
        "learner.shard_weights",
    ),
    (["learner.shard_weights=true"], "learner.shard_weights"),
    ([*LISTENING, "environment.tls_key=key.pem"], "environment.tls_certificate"),
    (["engine.base_url=http://localhost:8000/v1"], "engine.base_url"),
    (["engine.type=scripted"], "engine.script"),
    (["engine.type=scripted", "engine.script=s.jsonl", "engine.max_running=3"], "engine.max_running"),
    ([*ENDPOINT, "engine.kv_cache_tokens=999"], "engine.kv_cache_tokens"),
    ([*ENDPOINT, "model.name=mine"], "model.name"),
    ([*ENDPOINT, "optimizer.learning_rate=1e-3"], "optimizer.learning_rate"),
    ([*ENDPOINT, "rollout.max_steps_off_policy=0"], "rollout.max_steps_off_policy"),
    ([*ENDPOINT, "engine.base_url=ftp://localhost"], "engine.base_url"),
    ([*ENDPOINT, "engine.base_url=https://me:secret@localhost/v1"], "engine.base_url"),
    ([*ENDPOINT, "engine.api_key_env=sk-secret"], "engine.api_key_env"),
]


@pytest.mark.parametrize(("overrides", "key"), UNREADABLE, ids=lambda value: " ".join(value) if value else "")
def test_what_cannot_work_together_or_would_be_read_by_nothing_is_refused(overrides: list[str], key: str) -> None:
    assert list(problems_of(*overrides)) == [key]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.loss_fn=cispo", "algorithm.clip_low_threshold=0", "algorithm.clip_high_threshold=4"],
        ["algorithm.clip_low_threshold=1", "algorithm.clip_high_threshold=1.2"],
        ["model.trained_weights=full"],
        ["environment.workers=2", "environment.worker_timeout=5"],
        [*LISTENING, "environment.worker_timeout=5", "environment.listen_timeout=5"],
        ["run.launcher=ray", "run.ray_address=node1:6379", "environment.workers=2"],
        ["run.launcher=ray", "learner.type=group", "learner.shard_weights=true"],
        ["learner.type=group", "learner.base_urls=['http://node1:8200', 'http://node2:8200']", "learner.min_ranks=2"],
        ["environment.listen='[::]:0'", "environment.tls_certificate=run.pem", "environment.tls_key=key.pem"],
        ["rollout.max_steps_off_policy=2", "rollout.staleness_window=9", "batch.global_batch_size=4"],
        ["rollout.max_steps_off_policy=0", "rollout.rollout_max_concurrency=7", "engine.deterministic=false"],
        ["rollout.max_steps_off_policy=0", "engine.deterministic=false", *BUYER],
        ["rollout.max_steps_off_policy=0", "engine.deterministic=true", "policies.buyer.role=frozen"],
        ["data.validation=v.jsonl", "data.held_out_fraction=0.95"],
        ["evaluation.pass_k_values=[1, 2]", "evaluation.eval_group_size=2"],
        ["evaluation.success_threshold=0"],
        ["evaluation.success_threshold=1"],
        ["detectors.reaction=roll_back", "schedule.save_every=0", "warm_start.steps=1"],
        ["tracking.mlflow=true", "tracking.mlflow_uri=http://localhost:5000"],
        ["tracking.wandb=true", "tracking.wandb_mode=offline", "tracking.wandb_entity=team"],
        ["sampling.sampling_max_tokens=2047"],
        ["sampling.sampling_max_tokens=64", "rollout.rollout_max_tokens=511"],
        [*ENDPOINT, "sampling.sampling_max_tokens=9999", "rollout.rollout_max_concurrency=1", "engine.max_running=1"],
        ["engine.type=scripted", "engine.script=expert:act", "curriculum.kind_field=kind"],
    ],
    ids=" ".join,
)
def test_their_neighbors_that_can_work_are_taken(overrides: list[str]) -> None:
    assert problems_of(*overrides) == {}


@pytest.mark.parametrize(
    ("agent", "refused"),
    [
        ({"pull": True}, []),
        ({"pull": True, "gateway_host": "0.0.0.0", "gateway_port": 8000}, []),
        ({"url": "http://agent/rollout", "gateway_host": "10.0.0.5", "gateway_port": 8000}, []),
        ({"url": "http://agent/rollout", "gateway_host": "0.0.0.0"}, ["agent.gateway_host"]),
        ({"function": "play:play", "gateway_host": "0.0.0.0"}, ["agent.gateway_host"]),
        ({"command": ["play"], "gateway_port": 8000}, ["agent.gateway_port"]),
        ({"url": "http://agent/rollout", "pull": True}, ["agent.pull"]),
        ({"function": "play:play", "pull": True}, ["agent.pull"]),
        ({"pull": True, "tps_limit": 1.0}, ["agent.tps_limit"]),
        ({"command": ["play"], "variables": ["SEARCH_KEY", "REGION=eu"]}, []),
        ({"command": ["play"], "variables": ["two words"]}, ["agent.variables.0"]),
        ({"pull": True, "variables": ["SEARCH_KEY"]}, ["agent.variables"]),
        ({"pull": False}, ["environment.target", "reward.reward"]),
        ({"pull": True, "max_turns": 2}, ["rollout.rollout_max_tokens"]),
    ],
)
def test_one_agent_plays_and_the_gateway_is_placed_for_those_elsewhere(agent: dict, refused: list[str]) -> None:
    # 2 turns of 1024 tokens never sample more than 2048; more turns may.
    assert list(problems_of(recipe={"agent": agent, "rollout": {"rollout_max_tokens": 2048}})) == refused


def test_workers_need_something_to_run() -> None:
    for key, value in (("workers", 1), ("listen", "127.0.0.1:0")):
        agent = {"agent": {"pull": True}, "environment": {key: value}}
        assert list(problems_of(recipe=agent)) == [f"environment.{key}"]
        assert problems_of(recipe={**agent, "reward": {"scorer": "judge:score"}}) == {}


def test_another_engine_by_override_sets_aside_what_the_recipe_sets_for_its_own_and_in_a_recipe_refuses_it() -> None:
    own = {"model": {"name": "mine"}, "engine": {"kv_cache_tokens": 999, "max_running": 7}, "warm_start": {"steps": 3}}
    config = validate({**NEEDED, **own}, ENDPOINT)
    assert (config.model, config.warm_start) == (Config().model, None)
    assert (config.engine.model, config.engine.max_running, config.engine.model_fields_set & {"kv_cache_tokens"}) == (
        "m",
        7,
        set(),
    )
    written = {**own, "engine": {**own["engine"], "type": "openai", "base_url": "http://localhost/v1", "model": "m"}}
    refused = problems_of(recipe={**NEEDED, **written})
    assert sorted(refused) == ["engine.kv_cache_tokens", "model.name", "warm_start.steps"]


def test_no_message_shows_what_may_be_a_key() -> None:
    given = ["engine.base_url=https://me:secret@localhost/v1", "engine.api_key_env=sk-secret"]
    assert "secret" not in str(problems_of(*ENDPOINT, *given))


def test_unknown_keys_wrong_values_and_conflicts_are_all_named_at_once() -> None:
    found = problems_of(
        "optimizer.learning_rate=-1",
        "schedule.steps=3",
        "batch.group_size=1",
        "colour.sky=blue",
        "oops",
        recipe={"environment": {}, "sampling": {"sampling_top_p": 0.5}},
    )
    assert set(found) == {
        "optimizer.learning_rate",
        "schedule.steps",
        "batch.group_size",
        "colour",
        "oops",
        "environment.target",
        "reward.reward",
        "sampling.sampling_top_p",
    }


def test_a_rule_is_not_checked_with_a_value_that_is_wrong_itself() -> None:
    # With the default of 3 in place of "never", deterministic rollouts would be refused for a reason that is not in the recipe.
    assert list(problems_of("engine.deterministic=true", "rollout.max_steps_off_policy=never")) == [
        "rollout.max_steps_off_policy"
    ]


@pytest.mark.parametrize(("loss_fn", "bounds"), [("ppo", (0.8, 1.2)), ("cispo", (0.0, 5.0))])
def test_each_loss_has_clip_bounds_of_its_own(loss_fn: str, bounds: tuple[float, float]) -> None:
    values = validate(NEEDED, [f"algorithm.loss_fn={loss_fn}"]).algorithm_in_effect()
    assert (values["clip_low_threshold"], values["clip_high_threshold"]) == bounds


def test_one_clip_bound_given_leaves_the_other_at_its_default() -> None:
    config = validate(NEEDED, ["algorithm.clip_high_threshold=1.3"])
    assert config.loss_config()["clip_high_threshold"] == 1.3
    assert "clip_low_threshold" not in config.loss_config()
    assert config.algorithm_in_effect()["clip_low_threshold"] == 0.8


def test_the_view_shows_where_every_value_comes_from() -> None:
    recipe = {**NEEDED, "batch": {"group_size": 4, "global_batch_size": 2}}
    overrides = ["batch.group_size=6"]
    view = {
        key: (value, origin) for key, value, origin in resolved_view(recipe, overrides, validate(recipe, overrides))
    }
    assert view["batch.group_size"] == (6, "override")
    assert view["batch.global_batch_size"] == (2, "recipe")
    assert view["schedule.max_steps"] == (50, "default")


def test_the_view_knows_nested_overrides_and_both_spellings_of_a_bound() -> None:
    recipe = {**NEEDED, "algorithm": {"clip_low_epsilon": 0.3}}
    overrides = ["environment.options.size=3", "algorithm.clip_high_epsilon=0.5"]
    view = {
        key: (value, origin) for key, value, origin in resolved_view(recipe, overrides, validate(recipe, overrides))
    }
    assert view["environment.options"] == ({"size": 3}, "override")
    assert view["algorithm.clip_low_threshold"] == (0.7, "recipe")
    assert view["algorithm.clip_high_threshold"] == (1.5, "override")


@pytest.mark.parametrize("name", ["quickstart", "pointer_chase"])
def test_a_resolved_recipe_loads_again_to_the_same_values_and_the_same_given_keys(name: str, tmp_path: Path) -> None:
    config = load_config(ROOT / "recipes" / name, ["batch.group_size=16", "run.name=x"])
    (tmp_path / "run.toml").write_text(resolved_toml(config), "utf-8")
    again = load_config(tmp_path / "run.toml")
    assert again == config
    assert again.batch.model_fields_set == config.batch.model_fields_set


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.integers(2, 10**6),
    st.floats(1e-12, 1),
)
@settings(max_examples=50, deadline=None)
def test_any_text_and_number_survives_being_written(text: str, size: int, rate: float) -> None:
    recipe = {**NEEDED, "model": {"name": text}, "batch": {"group_size": size}, "optimizer": {"learning_rate": rate}}
    recipe["rollout"] = {"rollout_max_concurrency": size}
    config = validate(recipe)
    assert validate(tomllib.loads(resolved_toml(config))) == config


def test_a_recipe_is_found_in_its_folder_and_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b"\xef\xbb\xbf[batch]\r\ngroup_size = 4\r\n")
    assert read_recipe(tmp_path) == {"batch": {"group_size": 4}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[batch]\ngroup_size = four\n", r"not valid TOML: .*line 2, column 14"),
        (b"[batch]\n[batch]\n", r"not valid TOML: .*line 2"),
        (b"name = '\xff'\n", r"cannot be read: .*Give the path of a TOML file"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_with_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "recipe.toml").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load_config(tmp_path)


def test_sections_cannot_be_changed_after_they_were_checked() -> None:
    config: Config = validate(NEEDED)
    with pytest.raises(ValueError, match="frozen"):
        config.batch.group_size = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_overrides_do_not_reach_into_the_recipe_that_was_passed() -> None:
    recipe = {**NEEDED, "environment": {"target": "environment:Shop", "options": {"size": 1}}}
    assert validate(recipe, ["environment.options.size=2"]).environment.options == {"size": 2}
    assert recipe["environment"] == {"target": "environment:Shop", "options": {"size": 1}}


def test_options_survive_being_written_whatever_toml_can_say() -> None:
    overrides = [
        "environment.options.cap=inf",
        "environment.options.day=2026-01-02",
        "environment.options.many=[1, [2]]",
    ]
    config = validate(NEEDED, overrides)
    assert validate(tomllib.loads(resolved_toml(config))).environment.options == config.environment.options


def test_further_policies_have_sections_of_their_own_and_every_key_counts() -> None:
    recipe = {**NEEDED, "policies": {"customer": {"temperature": 0.5}, "judge": {"role": "trained"}, "plain": {}}}
    overrides = ["policies.customer.max_tokens=64"]
    config = validate(recipe, overrides)
    assert list(config.policies) == ["customer", "judge", "plain"]
    view = {key: (value, origin) for key, value, origin in resolved_view(recipe, overrides, config)}
    assert view["policies.customer.temperature"] == (0.5, "recipe")
    assert view["policies.customer.max_tokens"] == (64, "override")
    assert view["policies.plain.role"] == ("frozen", "default")
    again = validate(tomllib.loads(resolved_toml(config)))
    assert again == config
    assert again.policies["customer"].model_fields_set == {"temperature", "max_tokens"}


ELSEWHERE = {"role": "endpoint", "base_url": "http://here/v1", "model": "m"}


def test_without_training_only_endpoints_are_further_policies() -> None:
    """A frozen policy would need the model that is not loaded."""
    for role, refused in ((ELSEWHERE, []), ({"role": "frozen"}, ["policies.customer.role"])):
        assert list(problems_of(*ENDPOINT, recipe={**NEEDED, "policies": {"customer": role}})) == refused


@pytest.mark.parametrize(
    ("policies", "key", "message"),
    [
        ({"customer": {"rool": "frozen"}}, "policies.customer.rool", "the nearest one is 'policies.customer.role'"),
        ({"customer": {"role": "frosen"}}, "policies.customer.role", "it should be 'trained', 'frozen' or 'endpoint'"),
        ({"policy": {}}, "policies.policy", "is a name of the policy in training"),
        ({"Your Customer": {}}, "policies.Your Customer", "is not a valid name of a policy"),
        ({"rival": {"role": "trained", "weights": "base"}}, "policies.rival.weights", "uses the policy in training"),
        ({"rival": {"role": "trained", "temperature": 1}}, "policies.rival.temperature", "leave it out"),
        ({"customer": {"weights": "warm_start"}}, "policies.customer.weights", "the recipe has no [warm_start]"),
        ({"customer": {"max_tokens": 2048}}, "policies.customer.max_tokens", "also includes the prompt"),
        ({"customer": 3}, "policies.customer", "is 3"),
        ({"customer": {"role": "endpoint", "base_url": "http://here/v1"}}, "policies.customer.model", "is missing"),
        ({"customer": {"role": "endpoint", "model": "m"}}, "policies.customer.base_url", "is missing"),
        (
            {"customer": {**ELSEWHERE, "weights": "base"}},
            "policies.customer.weights",
            "role = 'endpoint' does not read it",
        ),
        ({"customer": {**ELSEWHERE, "api_key_env": "sk-1"}}, "policies.customer.api_key_env", "environment variable"),
        (
            {"customer": {"base_url": "http://here/v1"}},
            "policies.customer.base_url",
            "role = 'frozen' does not read it",
        ),
    ],
)
def test_a_policy_that_cannot_be_is_refused(policies: dict[str, object], key: str, message: str) -> None:
    found = problems_of(recipe={**NEEDED, "policies": policies})
    assert list(found) == [key]
    assert message in found[key]


@pytest.mark.parametrize("key", ["", "sk-secret\r", "sk-secret\n", "sk secret", "sk-s\u00e9cret"])
def test_what_no_header_can_have_is_no_key_and_is_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDPOINT_KEY", key)
    with pytest.raises(UsageError, match="ENDPOINT_KEY") as refusal:
        key_from("ENDPOINT_KEY")
    assert "sk" not in str(refusal.value)


@pytest.mark.parametrize(
    "recipe",
    [
        {"agent": {"pull": True}},
        {**NEEDED, "policies": {"judge": ELSEWHERE}},
    ],
)
def test_a_few_workers_suffice_for_a_group_where_no_episode_runs_in_rounds(recipe: dict[str, Any]) -> None:
    few = ["rollout.max_steps_off_policy=0", "rollout.rollout_max_concurrency=4"]
    assert validate(recipe, few).runs_in_rounds is False
    with pytest.raises(ConfigError, match="run a whole group at once"):
        validate(recipe, [*few, "engine.deterministic=true"])


def test_settings_beyond_what_the_engine_can_do_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asynchronous = ["rollout.max_steps_off_policy=1", "rollout.session_weights=pinned"]
    synchronous = ["rollout.max_steps_off_policy=0", "engine.deterministic=true"]
    assert problems_of(*asynchronous) == problems_of(*synchronous) == {}
    assert validate(NEEDED, ["rollout.max_steps_off_policy=0"]).runs_in_rounds
    tokens_only = EngineCapabilities(reports_token_ids=True)
    monkeypatch.setattr("sparring.config.sections.config.ENGINE_CAPABILITIES", {"torch": tokens_only})
    assert "use 'latest'" in problems_of(*asynchronous)["rollout.session_weights"]
    assert "rounds that depend only on the seed" in problems_of(*synchronous)["engine.deterministic"]
    assert not validate(NEEDED, ["rollout.max_steps_off_policy=0"]).runs_in_rounds
    monkeypatch.setattr("sparring.config.sections.config.ENGINE_CAPABILITIES", {"torch": EngineCapabilities()})
    assert not Config().is_trainable


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ('tracking.prices."Qwen/Qwen2.5-7B:train"=0.4', "Qwen/Qwen2.5-7B:train"),
        ("tracking.prices.'Qwen/Qwen2.5-7B:train' = 0.4", "Qwen/Qwen2.5-7B:train"),
        ('tracking.prices."m@127.0.0.1:9:read"=0.4', "m@127.0.0.1:9:read"),
        ('tracking.prices."a=b:sample"=0.4', "a=b:sample"),
        ("tracking.prices.org/m:train=0.4", "org/m:train"),
        ("tracking.prices.it's:train=0.4", "it's:train"),
        ('tracking.prices={"Qwen/Qwen2.5-7B:train" = 0.4}', "Qwen/Qwen2.5-7B:train"),
    ],
)
def test_a_key_with_dots_is_written_in_quotes_as_in_toml(override: str, name: str) -> None:
    config = validate(NEEDED, [override])
    assert dict(config.tracking.prices) == {name: 0.4}
    assert tomllib.loads(resolved_toml(config))["tracking"]["prices"] == {name: 0.4}


def test_a_value_with_quotes_and_equal_signs_is_not_a_part_of_the_key() -> None:
    config = validate(NEEDED, ['environment.options.text="a.b=c"', "model.name='x=y'"])
    assert (config.environment.options["text"], config.model.name) == ("a.b=c", "x=y")
