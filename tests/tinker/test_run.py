"""Runs that train and sample on a real server: `sparring serve --tinker` in a process, through the package `tinker`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sparring.config import Config, load_config
from sparring.errors import ConfigError, ServiceError
from sparring.tinker.formulas import Formula
from tests.contracts.cases import ADAPTER, make_policy
from tests.tinker.fake_service import Deviations, FakeService
from tests.tinker.servers import ROOT, Server
from tests.tinker.whole_runs import EXACT, LEAVES_SOCKETS, build_settings, check, compare, run_everything, train

LOSSES = ("ppo", "importance_sampling", "cispo", "gspo")
"""`gspo` is not computed by the server: its gradient, like that of every loss of a recipe, is computed by the client."""
SETTINGS = (
    "engine.type=tinker", "learner.type=tinker", "learner.base_url=http://127.0.0.1:9", "learner.model=base",
    "model.trained_weights=lora", "model.lora_rank=4", "model.lora_alpha=32",
)  # fmt: skip


@LEAVES_SOCKETS
@pytest.mark.parametrize("loss_fn", LOSSES)
def test_a_run_of_each_loss_takes_the_steps_of_the_learner_in_this_process(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss_fn: str
) -> None:
    comparison = compare(monkeypatch, own_server)
    trained = train(build_settings(own_server, tmp_path, f"algorithm.loss_fn={loss_fn}"))
    assert (trained.step, trained.status) == (2, "completed")
    check(comparison, trained.run, ["cross_entropy"] * 2 + [loss_fn] * 2, EXACT)


@LEAVES_SOCKETS
def test_a_run_whose_server_is_killed_resumes_and_its_adapter_is_exported_and_evaluated(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = compare(monkeypatch, own_server)
    run_everything(own_server, comparison, tmp_path, monkeypatch, EXACT)
    assert "its loss is a plain sum over all tokens." in capsys.readouterr().err


SKYRL = Deviations(formula=Formula(row="weights", whole="rows"), clips_gradients=False, sampling_restores=True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("optimizer.adam_grad_clip_norm=1", "does not clip gradients"),
        ("rollout.max_steps_off_policy=1", "puts earlier weights back into training"),
    ],
)
def test_a_recipe_that_the_service_cannot_follow_is_refused(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, expected: str
) -> None:
    """Sparring's own server does neither, so the service is the fake one."""
    service = FakeService(partial(make_policy, lora=True), ADAPTER, SKYRL)
    monkeypatch.setattr("sparring.assembly.tinker.connect_service", lambda config: service)
    overrides = [*SETTINGS, f"model.name={model_folder}", f"model.lora_rank={ADAPTER.rank}", f"run.runs_dir={tmp_path}"]
    with pytest.raises(ServiceError, match=expected):
        train([*overrides, "optimizer.adam_grad_clip_norm=0", change])
    assert service.log[-1] == "close"


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
        ('model.lora_targets=["q_proj", "v_proj"]', "each as a whole"),
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
