"""A policy that is exported as GGUF answers in llama.cpp, and in transformers' reader of GGUF, as it does here."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from typer.testing import CliRunner

from sparring.chat import create_chat
from sparring.cli import app
from sparring.errors import ServiceError, UsageError
from sparring.models.export_files import verify
from sparring.models.gguf_vocabulary import read_vocabulary
from sparring.models.gguf_weights import check_gguf, save_gguf
from sparring.models.ollama import modelfile, read_fixed_texts
from sparring.models.policy import LoraSettings, Policy
from sparring.models.pretrained import load_pretrained
from sparring.models.small import CHAT_TEMPLATE, SPECIAL_TOKENS
from sparring.trainer import MultiTurnRLTrainer

LLAMA_CPP = os.environ.get("SPARRING_TEST_LLAMA_CPP")
"""The folder of a virtual environment with llama-cpp-python; `make llama-cpp` creates it."""
TINY = Path(__file__).parents[1] / "faults" / "recipe"
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_SPLIT = QWEN_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
TEXTS = (
    "It's 12345 o'clock,  and\tthe café — naïve — has: 3 + 4 = 7!\n\n  Done.\n",
    "WE'LL meet you're there\r\n  αβγ 你好 🚀🚀 1 22 333 4444 x_1=2;",
)
SPLITS = {
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "qwen2": [
        pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
    "llama-bpe": [
        pre_tokenizers.Split(Regex(LLAMA_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


def build_tokenizer(split: str = "gpt-2") -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the merges of `TEXTS`."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=split == "llama-bpe"))
    parts = SPLITS[split]
    tokenizer.pre_tokenizer = parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)
    tokenizer.normalizer = normalizers.NFC() if split == "qwen2" else None
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|pad|>", chat_template=CHAT_TEMPLATE
    )


def build_model(kind: str, vocab_size: int, **changes: Any) -> Any:
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[kind]
    torch.manual_seed(0)
    config = config_class(
        **{
            "vocab_size": vocab_size,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "tie_word_embeddings": kind != "qwen2",
            "initializer_range": 0.15,
            "bos_token_id": None,
            "eos_token_id": 2,
            **({"head_dim": 128} if kind == "qwen3" else {}),
            **changes,
        }
    )
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases, which would be ones and zeros
                parameter.add_(torch.randn_like(parameter) * 0.2)

    return model


def save(policy: Policy, path: Path, precision: Any = "f32") -> Path:
    stop_ids = create_chat(policy.tokenizer).stop_ids
    save_gguf(policy, path, precision=precision, name="model", stop_ids=stop_ids)
    return path


def greedy(model: Any, ids: list[int], num_tokens: int = 20) -> list[int]:
    found, new, past = [], ids, None
    with torch.no_grad():
        for _ in range(num_tokens):
            out = model(torch.tensor([new]), past_key_values=past, use_cache=True)
            new, past = [int(out.logits[0, -1].argmax())], out.past_key_values
            found += new
    return found


CASES = {
    "llama": ("llama", "gpt-2", {}),
    "smollm": ("llama", "smollm", {}),
    "llama 3": (
        "llama",
        "llama-bpe",
        {
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "llama linear": (
        "llama",
        "gpt-2",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "qwen2": ("qwen2", "qwen2", {}),
    "qwen3": ("qwen3", "qwen2", {}),
}


def build_policy(case: str, **options: Any) -> Policy:
    kind, split, changes = CASES[case]
    tokenizer = build_tokenizer(split)
    return Policy(build_model(kind, len(tokenizer), **changes), tokenizer, **options)


@pytest.mark.parametrize("case", ["llama", "smollm", "qwen2", "qwen3"])
def test_transformers_reads_a_gguf_file_as_the_same_model(case: str, tmp_path: Path) -> None:
    # Its reader ignores the kinds of positions of the other cases.
    policy = build_policy(case)
    save(policy, tmp_path / "model.gguf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    ids = policy.tokenizer.encode(TEXTS[0])
    with torch.no_grad():
        expected, found = policy.base(torch.tensor([ids])).logits, loaded(torch.tensor([ids])).logits
    assert torch.allclose(found, expected, atol=1e-4)
    assert greedy(loaded, ids) == greedy(policy.base, ids)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert policy.tokenizer.get_vocab().items() <= tokenizer.get_vocab().items()


@pytest.mark.parametrize(("precision", "tolerance"), [("f16", 1e-3), ("bf16", 1e-2), ("q8_0", 1e-2)])
def test_matrices_have_the_given_precision_and_vectors_stay_exact(
    precision: str, tolerance: float, tmp_path: Path
) -> None:
    from gguf import dequantize

    policy = build_policy("qwen2")
    exact, rounded = (
        {one.name: one for one in GGUFReader(save(policy, tmp_path / f"{name}.gguf", name)).tensors}
        for name in ("f32", precision)
    )
    assert exact.keys() == rounded.keys()
    kinds = {one.tensor_type.name for one in rounded.values() if len(one.shape) > 1}
    assert kinds == {precision.upper()}
    for name, one in rounded.items():
        values, expected = dequantize(one.data, one.tensor_type), exact[name].data
        assert np.allclose(values, expected, rtol=tolerance, atol=tolerance if len(one.shape) > 1 else 0)


def test_rows_that_do_not_fit_the_blocks_of_a_precision_are_stored_in_f16(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    policy = Policy(build_model("llama", len(tokenizer), intermediate_size=40), tokenizer)
    tensors = {one.name: one for one in GGUFReader(save(policy, tmp_path / "model.gguf", "q8_0")).tensors}
    assert tensors["blk.0.ffn_down.weight"].tensor_type.name == "F16"
    assert tensors["blk.0.ffn_up.weight"].tensor_type.name == "Q8_0"


def test_a_model_or_tokenizer_that_llama_cpp_would_compute_differently_is_refused_with_the_way_through_its_converter() -> (
    None
):
    tokenizer = build_tokenizer()
    with pytest.raises(UsageError, match=r"llama model with this configuration.*convert_hf_to_gguf\.py"):
        check_gguf(Policy(build_model("llama", len(tokenizer), attention_bias=True), tokenizer))
    rope = CASES["llama 3"][2]["rope_parameters"]
    with pytest.raises(UsageError, match="does not rotate positions"):
        check_gguf(Policy(build_model("qwen2", len(tokenizer), rope_parameters=rope), tokenizer))
    with pytest.raises(UsageError, match="only 300 embeddings"):
        check_gguf(Policy(build_model("llama", 300), tokenizer))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("7", behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    with pytest.raises(UsageError, match="splits or normalizes texts"):
        check_gguf(Policy(build_model("llama", len(tokenizer)), tokenizer))


def test_ids_without_a_token_are_padded_so_that_the_vocabulary_has_the_size_of_the_embedding() -> None:
    found = read_vocabulary(build_tokenizer(), size=500)
    assert not isinstance(found, str)
    assert (found.tokens[3], found.tokens[499], found.types[499]) == ("!", "[PAD499]", 5)
    assert found.types[:4] == (3, 3, 3, 1)


def test_a_modelfile_renders_what_the_chat_template_renders() -> None:
    tokenizer = build_tokenizer()
    texts = read_fixed_texts(tokenizer)
    assert texts is not None
    assert set(texts.around) == {"user", "assistant", "system", "tool"}
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "tool", "content": "c"}]
    assert texts.render(talk) == tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    text = modelfile(tokenizer, weights="model.gguf", stops=["<|im_end|>"], temperature=0.8)
    assert text.startswith(
        'FROM ./model.gguf\nTEMPLATE """{{ range .Messages }}{{ if eq .Role "user" }}<|im_start|>user\n'
    )
    assert '{{ end }}{{ end }}<|im_start|>assistant\n"""\nPARAMETER stop "<|im_end|>"\n' in text


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ loop.index }}{{ m.role }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}{% endfor %}",
        "{% for m in messages %}{{ '{{' }}{{ m.role }}: {{ m.content }}{% endfor %}",
        "{{ raise_exception('never') }}",
    ],
)
def test_a_template_that_does_more_than_to_surround_messages_is_left_to_ollama(template: str) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    assert read_fixed_texts(tokenizer) is None
    assert "TEMPLATE" not in modelfile(tokenizer, weights="model.gguf", stops=[], temperature=1)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step of LoRA, on a model that can be written as GGUF."""
    folder = tmp_path_factory.mktemp("gguf")
    tokenizer = build_tokenizer()
    build_model("llama", len(tokenizer)).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    overrides = [
        f"run.runs_dir={folder / 'runs'}",
        f"model.name={folder / 'base'}",
        "model.trained_weights=lora",
        "model.lora_rank=2",
        "schedule.max_steps=1",
    ]
    with MultiTurnRLTrainer(TINY, overrides=overrides, name="run", check=False, quiet=True) as trainer:
        trainer.train()
    return folder / "runs" / "run"


def test_the_command_writes_the_file_its_modelfile_and_a_card(tuned: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = CliRunner().invoke(app, ["export", str(tuned), str(folder), "--gguf", "f16", "--license", "mit"])
    assert done.exit_code == 0, done.output
    assert "wrote the GGUF model from step 1" in done.output
    manifest = verify(folder)
    assert set(manifest["files"]) == {"README.md", "recipe.toml", "model.gguf", "Modelfile"}
    card = (folder / "README.md").read_text()
    assert 'license: "mit"\n' in card
    assert "llama-server -m model.gguf" in card
    with pytest.raises(ServiceError, match=r"GGUF export, which llama\.cpp and Ollama load"):
        load_pretrained(str(folder))
    both = CliRunner().invoke(app, ["export", str(tuned), str(tmp_path / "no"), "--gguf", "f16", "--merge"])
    assert both.exit_code == 2
    assert "a GGUF file is always merged" in re.sub(r"\s+", " ", both.output)


def in_llama_cpp(*arguments: str) -> Any:
    program = Path(__file__).parent / "answer_with_llama_cpp.py"
    command = [f"{LLAMA_CPP}/bin/python", str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


needs_llama_cpp = pytest.mark.skipif(not LLAMA_CPP, reason="needs llama-cpp-python, which `make llama-cpp` installs")


@needs_llama_cpp
@pytest.mark.parametrize("case", CASES)
def test_llama_cpp_answers_greedily_with_the_same_tokens(case: str, tmp_path: Path) -> None:
    lora = LoraSettings(rank=2, alpha=4, targets=("q_proj", "down_proj"))
    policy = build_policy(case, lora=lora)
    with torch.no_grad():
        for parameter in policy.trained.values():
            parameter.normal_(std=0.1)
    ids = [policy.tokenizer.encode(text) for text in TEXTS]
    found = in_llama_cpp(str(save(policy, tmp_path / "model.gguf")), json.dumps([*TEXTS]))
    assert found["ids"] == ids
    assert found["answers"] == [greedy(policy.module, one) for one in ids]


@needs_llama_cpp
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_the_embedded_model_answers_in_llama_cpp_with_the_same_first_20_tokens(precision: str, tmp_path: Path) -> None:
    policy = Policy(*load_pretrained("smollm2-135m-instruct"))
    text = policy.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Write three facts about the moon in 2024."}],
        tokenize=False,
        add_generation_prompt=True,
    )
    found = in_llama_cpp(str(save(policy, tmp_path / "model.gguf", precision)), json.dumps([text]))
    ids = policy.tokenizer.encode(text)
    assert found["ids"] == [ids]
    assert found["answers"] == [greedy(policy.base, ids)]
    assert found["stops"]["eos"] == policy.tokenizer.eos_token_id
