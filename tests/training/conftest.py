"""A tiny random Llama, and trajectories without a model."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.models.policy import LoraSettings, Policy
from sparring.types import Outcome, Reward, Sampling, StopReason, Task, Trajectory, TrajectoryGroup, Turn

EVERY_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def tiny_policy():
    """policy(lora_targets, tied=True) -> a Llama of 2 layers and 50 tokens; no targets train every weight.

    Query heads are twice the key heads, so that the parts of the fused matrices have different heights.
    """

    def policy(lora_targets=EVERY_LINEAR, *, tied=True):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=tied,
            initializer_range=0.3,
        )
        lora = LoraSettings(rank=3, alpha=6, targets=lora_targets) if lora_targets else None
        made = Policy(LlamaForCausalLM(config), None, lora=lora)
        with torch.no_grad():
            for name, parameter in made.trained.items():
                if ".lora_B." in name:  # peft starts them at zero, where half of the gradients vanish
                    parameter.normal_(std=0.2)
        return made

    return policy


@pytest.fixture
def turn():
    """turn(id, parent, prompt, answer) -> a Turn whose answer was sampled at log-probability -1 a token."""

    def make(id, parent, prompt, answer, *, temperature=1.0, sampled=-1.0):
        return Turn(
            id=id,
            parent=parent,
            branch_reason=None if parent is not None or id == 0 else "edited_history",
            prompt_ids=tuple(prompt),
            token_ids=tuple(answer),
            sampled_logprobs=(sampled,) * len(answer),
            versions=((0, len(answer)),),
            fingerprint="",
            stop_reason=StopReason.STOP,
            sampling=Sampling(temperature=temperature),
            message={"role": "assistant", "content": ""},
            num_computed_tokens=0,
            seconds=0.0,
        )

    return make


@pytest.fixture
def group():
    """group(name, *turns of each member) -> a TrajectoryGroup with members `name-0`, `name-1`, ..."""

    def make(name, *members):
        task = Task(id=name, messages=())
        trajectories = tuple(
            Trajectory(
                id=f"{name}-{attempt}",
                task=task,
                attempt=attempt,
                turns=tuple(turns),
                messages=(),
                outcome=Outcome.FINISHED,
                reward=Reward(total=0.0),
                score=None,
            )
            for attempt, turns in enumerate(members)
        )
        return TrajectoryGroup(task=task, trajectories=trajectories)

    return make
