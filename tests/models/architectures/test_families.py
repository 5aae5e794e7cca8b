"""Each family of models does all that a run needs: it loads, samples, calls tools, trains, is exported and loads again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import renderers.gpt_oss
import torch

from sparring.chat.choice import choose_format, create_chat
from sparring.engines.torch_engine import TorchEngine
from sparring.models.architectures.families import FAMILIES, Family
from sparring.models.export import save_adapter, save_merged
from sparring.models.policy import LoraSettings, Policy
from sparring.models.pretrained import load_pretrained
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_batch, build_demonstration_batch
from sparring.types import Completion, Outcome, SampleRequest, Sampling, Task, Trajectory, TrajectoryGroup, Turn
from tests.models.architectures.small_models import FAMILY_OF, SMALL_MODELS, HarmonyText, save_small_model

BY_NAME = {family.name: family for family in FAMILIES}
REASONING = ("gpt-oss", "Qwen3.6", "Qwen3", "Qwen3 MoE")
"""The families that reason before they call."""
QUESTION = {"role": "user", "content": "look b up"}
RESULT = {"role": "tool", "content": "b leads to f", "name": "look_up", "tool_call_id": "call_0"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Follows a key.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "look_up", "arguments": {"key": "b"}}}],
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More threads only wait for each other in models of this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=list(FAMILY_OF))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def family(name: str) -> Family:
    return BY_NAME[FAMILY_OF[name]]


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_small_model(name, path)
    return path


@pytest.fixture
def policy(family: Family, folder: Path) -> Policy:
    model, tokenizer = load_pretrained(str(folder))
    targets = (*family.lora_targets, *family.expert_targets) if family.expert_targets else ()
    return Policy(model, tokenizer, max_positions=1024, lora=LoraSettings(rank=8, alpha=16, targets=targets))


@pytest.fixture
def chat(family: Family, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> Any:
    stand_in = HarmonyText(policy.tokenizer)
    monkeypatch.setattr(renderers.gpt_oss, "load_harmony_encoding", lambda name: stand_in)
    # A folder of this family uses its own template.
    return create_chat(policy.tokenizer, None if family.name == "Qwen3 MoE" else family.example)


def sample(policy: Policy, prompts: Sequence[tuple[int, ...]], stop_ids: frozenset[int], **sampling: Any) -> list[Any]:
    """Sample an answer to each prompt at the same time."""

    async def scenario() -> list[Completion]:
        engine = TorchEngine(policy, policy.snapshot())
        requests = [
            SampleRequest(
                session_id=str(index),
                prompt_ids=prompt,
                sampling=Sampling(**sampling),
                stop_ids=stop_ids,
                seed=index,
            )
            for index, prompt in enumerate(prompts)
        ]
        try:
            return list(await asyncio.gather(*map(engine.sample, requests)))
        finally:
            await engine.close()

    return asyncio.run(scenario())


def turn(number: int, prompt: tuple[int, ...], answer: Completion) -> Turn:
    return Turn(
        id=number,
        parent=number - 1 if number else None,
        branch_reason=None,
        prompt_ids=prompt,
        token_ids=answer.token_ids,
        sampled_logprobs=answer.sampled_logprobs,
        versions=answer.versions,
        fingerprint=answer.fingerprint,
        stop_reason=answer.stop_reason,
        sampling=Sampling(temperature=0.8, max_tokens=12),
        message={"role": "assistant", "content": ""},
        num_computed_tokens=answer.num_computed_tokens,
        seconds=0.0,
    )


def played(policy: Policy) -> TrajectoryGroup:
    """Two episodes of two turns with one prompt; the second prompt continues the first answer token for token."""
    prompt, more = (tuple(policy.tokenizer.encode(text)) for text in ("look up the key b", "and go on"))
    first = sample(policy, [prompt, prompt], frozenset(), temperature=0.8, max_tokens=12)
    following = [prompt + answer.token_ids + more for answer in first]
    second = sample(policy, following, frozenset(), temperature=0.8, max_tokens=12)
    task = Task(id="task", messages=(QUESTION,))
    return TrajectoryGroup(
        task=task,
        trajectories=tuple(
            Trajectory(
                id=str(index),
                task=task,
                attempt=index,
                turns=(turn(0, prompt, first[index]), turn(1, following[index], second[index])),
                messages=(),
                outcome=Outcome.FINISHED,
                reward=None,
                score=None,
            )
            for index in range(2)
        ),
    )


def randomize(policy: Policy) -> None:
    """Give the adapter any weights, as after some steps; a new one changes nothing."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.trained.values():
            parameter.normal_(std=0.1)


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(3, 43)[None]
    with torch.no_grad():
        return model(input_ids=ids).logits


def test_what_loads_is_the_text_part_of_the_saved_model(name: str, family: Family, tmp_path: Path) -> None:
    saved = save_small_model(name, tmp_path)
    loaded, _ = load_pretrained(str(tmp_path))
    assert loaded.config.model_type in family.model_types
    assert torch.allclose(logits(loaded), logits(saved), atol=1e-5)
    assert not any("vision" in name for name, _ in loaded.named_parameters())


def test_every_family_is_covered() -> None:
    assert {FAMILY_OF[name] for name in SMALL_MODELS} == set(BY_NAME)


def test_the_forward_is_that_of_the_table_and_a_window_needs_the_one_of_transformers(
    name: str, family: Family, policy: Policy
) -> None:
    assert policy.is_lean == (family.forward == "lean" and name != "Mistral with a window")


def test_the_format_of_a_folder_is_that_of_its_template(family: Family, policy: Policy) -> None:
    assert choose_format(policy.tokenizer, family.example) == family.chat
    # The tokenizer's own template of these can do the same as the library's format.
    assert choose_format(policy.tokenizer) == ("template" if family.chat == "qwen3" else family.chat)


def test_the_learner_computes_the_logprobs_that_the_engine_sampled(policy: Policy) -> None:
    randomize(policy)
    group = played(policy)
    batch = build_batch([group], {"0": [1.0, 1.0], "1": [-1.0, 0.5]})
    learner = TorchLearner(policy)
    sampled = [
        value
        for segment in batch.segments
        for value, is_sampled in zip(segment.sampled_logprobs, segment.mask, strict=True)
        if is_sampled
    ]
    assert len(sampled) == 2 * 2 * 12
    assert learner.logprobs(batch) == pytest.approx(sampled, abs=2e-5)
    # The loss reaches every adapter, and with them the next weights.
    learner.forward_backward(batch, "importance_sampling", {})
    without = [name for name, one in policy.trained.items() if one.grad is None or not one.grad.any()]
    assert without == []
    before = policy.snapshot().fingerprint
    assert learner.optim_step(0.01)["training/grad_norm"] > 0
    assert policy.snapshot().fingerprint != before


def test_a_learned_tool_call_is_sampled_and_parsed(family: Family, folder: Path, chat: Any) -> None:
    policy = Policy(*load_pretrained(str(folder)), max_positions=1024)
    message = CALL | ({"reasoning_content": "b"} if family.name in REASONING else {})
    prompt, answer = chat.render([QUESTION], []), chat.answer(message, [])
    lesson = build_demonstration_batch([(prompt + answer, [False] * len(prompt) + [True] * len(answer))])
    learner = TorchLearner(policy)
    for _ in range(60):
        loss = learner.forward_backward(lesson, "cross_entropy", {})["training/loss"]
        learner.optim_step(0.01)
        if loss < 0.1:
            break
    (completion,) = sample(policy, [prompt], chat.stop_ids, temperature=0.0, max_tokens=len(answer) + 5)
    assert completion.token_ids == answer
    (call,) = chat.parse(completion.token_ids, [TOOL])["tool_calls"]
    assert call["function"] == {"name": "look_up", "arguments": '{"key": "b"}'}
    # The tool's result follows the sampled tokens, which stay as they are.
    following = chat.extend(prompt + answer, [RESULT], [TOOL], stopped=True)
    assert "b leads to f" in chat.decode(following)


def test_a_prompt_shows_the_tools(chat: Any) -> None:
    assert "look_up" in chat.decode(chat.render([QUESTION], [TOOL]))


def test_an_export_loads_with_the_same_logits(folder: Path, policy: Policy, tmp_path: Path) -> None:
    randomize(policy)
    expected = logits(policy.module)
    assert (expected - logits(load_pretrained(str(folder))[0])).abs().max() > 0.1
    save_merged(policy, tmp_path / "merged")
    save_adapter(policy, tmp_path / "adapter", base_model=str(folder))
    for name in ("merged", "adapter"):
        model, _ = load_pretrained(str(tmp_path / name))
        assert (logits(model) - expected).abs().max() < 1e-3, name
    assert torch.equal(logits(policy.module), expected)
