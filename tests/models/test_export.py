"""What is exported loads with plain peft and plain transformers, and computes the same."""

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.models.export import save_adapter, save_merged
from sparring.models.policy import LoraSettings, Policy

IDS = torch.tensor([[1, 2, 3, 4, 5]])


@pytest.fixture
def tuned(tmp_path):
    """tuned(lora_targets) -> the folder of a base model and a policy on it with a trained-looking adapter."""

    def make(lora_targets=("q_proj", "up_proj")):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=20,
            hidden_size=8,
            intermediate_size=12,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            initializer_range=0.3,
            bos_token_id=0,
            eos_token_id=0,
        )
        model = LlamaForCausalLM(config)
        model.save_pretrained(tmp_path / "base")
        words = Tokenizer(WordLevel({str(i): i for i in range(20)}, unk_token="0"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
        lora = LoraSettings(rank=2, alpha=4, targets=lora_targets) if lora_targets else None
        policy = Policy(model, tokenizer, lora=lora)
        with torch.no_grad():
            for parameter in policy.trained.values():
                parameter.normal_(std=0.3)
        return tmp_path / "base", policy

    return make


def test_an_adapter_loads_with_plain_peft(tuned, tmp_path):
    base, policy = tuned()
    save_adapter(policy, tmp_path / "adapter", base_model=str(base))
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in tensors
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter")
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, policy.module(IDS).logits)


def test_an_adapter_is_saved_without_looking_its_base_model_up(tuned, tmp_path, recwarn):
    _, policy = tuned()
    save_adapter(policy, tmp_path / "adapter", base_model="no-such-model")
    assert [str(one.message) for one in recwarn if "no-such-model" in str(one.message)] == []


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("targets", [("q_proj", "up_proj"), ("q_proj", "lm_head"), ()])
def test_merged_weights_load_with_plain_transformers_and_leave_the_policy_alone(tuned, tmp_path, targets):
    _, policy = tuned(targets)
    with torch.no_grad():
        expected = policy.module(IDS).logits
        save_merged(policy, tmp_path / "merged")
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        assert torch.allclose(loaded(IDS).logits, expected, atol=1e-5)
        assert torch.equal(policy.module(IDS).logits, expected)
    assert loaded.config.tie_word_embeddings is ("lm_head" not in targets)
