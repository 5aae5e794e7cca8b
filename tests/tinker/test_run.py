"""Runs that train and sample on a service, with the fake one in place of a connection."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparring.config import Config, load_config
from sparring.errors import ConfigError, ServiceError
from sparring.ledger import Ledger
from sparring.models.adapter_files import AdapterShape
from sparring.models.policy import LoraSettings, Policy
from sparring.tinker.formulas import Formula
from sparring.trainer import MultiTurnRLTrainer, TrainResult
from tests.tinker.fake_service import Deviations, FakeService

ROOT = Path(__file__).parents[2]
SHAPE = AdapterShape(rank=4, alpha=32)
SKYRL = Deviations(formula=Formula(row="weights", whole="rows"), clips_gradients=False, sampling_restores=True)
SETTINGS = (
    "engine.type=tinker", "learner.type=tinker", "learner.base_url=http://127.0.0.1:9", "learner.model=base",
    "model.trained_weights=lora", "model.lora_rank=4", "model.lora_alpha=32",
)  # fmt: skip


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, model_folder: Path) -> Callable[[Deviations], FakeService]:
    def build() -> Policy:
        model, tokenizer = (
            AutoModelForCausalLM.from_pretrained(model_folder),
            AutoTokenizer.from_pretrained(model_folder),
        )
        lora = LoraSettings(rank=SHAPE.rank, alpha=SHAPE.alpha, targets=("q_proj", "v_proj", "down_proj"))
        return Policy(model, tokenizer, max_positions=256, lora=lora)

    def opened(deviations: Deviations) -> FakeService:
        service = FakeService(build, SHAPE, deviations)
        monkeypatch.setattr("sparring.assembly.tinker.connect_service", lambda config: service)
        return service

    return opened


def settings(model: Path, runs: Path, *more: str) -> list[str]:
    return [
        *SETTINGS, f"model.name={model}", f"run.runs_dir={runs}", "run.name=run", "optimizer.adam_grad_clip_norm=0",
        "warm_start.num_demonstrations=8", "warm_start.steps=2", "warm_start.batch_size=4", "schedule.max_steps=2",
        "schedule.save_every=1", "schedule.val_every=0", "batch.global_batch_size=1", "batch.group_size=4",
        "evaluation.val_num_tasks=2", "evaluation.allow_zero_baseline=true", "environment.max_turns=2",
        "sampling.sampling_max_tokens=4", *more,
    ]  # fmt: skip


def test_a_run_trains_on_a_service_and_resumes(
    connect: Callable[[Deviations], FakeService], model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = connect(SKYRL)
    trained = train(settings(model_folder, tmp_path))
    assert "(compensated); it does not clip gradients; sampling with earlier weights" in capsys.readouterr().err
    assert (trained.step, trained.status) == (2, "completed")
    assert any(one.endswith("importance_sampling") for one in service.log)
    state = json.loads((trained.run / "checkpoints/000002/tinker.json").read_text("utf-8"))["state"]
    assert state in service.stored

    service.log.clear()
    resumed = MultiTurnRLTrainer.attach(trained.run, overrides=["schedule.max_steps=3"]).train(resume=True)
    assert resumed is not None
    assert (resumed.step, service.log.count("restore")) == (3, 1)
    with Ledger(trained.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
        assert sorted(ledger.consumed()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["optimizer.adam_grad_clip_norm=1"], "does not clip gradients"),
        (["rollout.max_steps_off_policy=1"], "puts earlier weights back into training"),
    ],
)
def test_a_recipe_that_the_service_cannot_follow_is_refused(
    connect: Callable[[Deviations], FakeService], model_folder: Path, tmp_path: Path, changes: list[str], expected: str
) -> None:
    service = connect(SKYRL)
    with pytest.raises(ServiceError, match=expected):
        train(settings(model_folder, tmp_path, *changes))
    assert service.log[-1] == "close"


def train(overrides: list[str]) -> TrainResult:
    result = MultiTurnRLTrainer(ROOT / "recipes/pointer_chase", overrides=overrides, check=False).train()
    assert result is not None
    return result


def load(*changes: str) -> Config:
    return load_config(ROOT / "recipes/pointer_chase/recipe.toml", [*SETTINGS, *changes])


def test_an_engine_and_a_learner_on_a_service_are_a_recipe() -> None:
    config = load()
    assert config.is_trainable
    assert not config.runs_in_rounds
    assert config.off_policy_correction == "token_tis"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("learner.type=here", "engine.type"),
        ("model.trained_weights=full", "trains adapters"),
        ("sampling.temperature=0.7", "at temperature 1"),
        ("algorithm.entropy_coef=0.1", "no entropies"),
        ("optimizer.lora_plus_lr_ratio=4", "one learning rate"),
        ("model.lora_layers=1", "adapts all layers"),
        ("rollout.session_weights=pinned", "cannot keep an episode"),
    ],
)
def test_settings_that_no_service_can_follow_are_refused(change: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load(change)


def test_an_address_and_a_model_are_needed() -> None:
    with pytest.raises(ConfigError, match=r"learner\.base_url.*\n.*learner\.model"):
        load_config(
            ROOT / "recipes/pointer_chase/recipe.toml",
            [one for one in SETTINGS if "learner." not in one or "type" in one],
        )
