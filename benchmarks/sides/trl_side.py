"""TRL's side: trains the same recipe with `GRPOTrainer` and an environment factory."""

# pyright: reportMissingImports=false
# TRL and datasets come with the extra "benchmarks", which the checks of the code do not install.
from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.sides.measured import Forwards, Measured, num_trained, peak_memory_gib
from sparring.assembly import load_curriculum, load_environment, load_tasks
from sparring.config import Config, load_config
from sparring.environments import Environment
from sparring.environments.tools import tools_of
from sparring.models.architectures.families import choose_lora_targets
from sparring.models.precision import resolve_precision
from sparring.runtime.machine import default_threads
from sparring.types import Task

# TRL needs a template with tool calls, which SmolLM2's own template lacks. This template renders all other messages to
# the same text, and renders calls in the same way as Sparring, so that both sides give the model the same ids.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
    "{% for call in message.tool_calls or [] %}"
    """{{ '<tool_call>{"name":"' + call.function.name + '","arguments":' + call.function.arguments | tojson }}"""
    "{{ '}</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# With this schema, transformers parses calls in text from that template.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}
REWARDS = (0.1, 0.4, 0.7, 1.0)
"""Rewards are drawn per episode, as in the recipe's `shuffled_reward`, so that every group trains on both sides."""


def environment_factory(environment_class: type[Environment], tasks: Sequence[Task]) -> type:
    """Return a class for TRL that wraps Sparring's environment: `reset(**row)`, and a public method per tool."""
    by_id = {task.id: task for task in tasks}

    def reset(self, **row: Any) -> None:
        self._environment = environment_class()
        self._environment.reset(by_id[row["task_id"]])

    def method(name: str, description: str) -> Any:
        def call(self, id: str) -> str:
            return getattr(self._environment, name)(id)

        call.__name__ = name
        call.__doc__ = f"{description}\n\nArgs:\n    id: Code of the item or part."
        return call

    methods = {
        name: method(name, read.schema["function"]["description"]) for name, read in tools_of(environment_class).items()
    }
    return type(environment_class.__name__, (), {"reset": reset, **methods})


class Played:
    """A TRL reward function that stores its inputs."""

    __name__ = "drawn"

    def __init__(self) -> None:
        self.num_turns: list[int] = []

    def __call__(self, completions: Sequence[Sequence[Any]], **_: Any) -> list[float | None]:
        first = len(self.num_turns)
        self.num_turns += [sum(message["role"] == "assistant" for message in messages) for messages in completions]
        return [random.Random(f"episode-{index}").choice(REWARDS) for index in range(first, len(self.num_turns))]


class Watch(TrainerCallback):
    """Measures the time of each optimizer step, including its episodes, and keeps the prompts of its first forward
    pass."""

    def __init__(self, forwards: Forwards) -> None:
        self.seconds: list[float] = []
        self.prompts: list[list[int]] = []
        self._forwards = forwards

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._forwards.first.clear()
        self._began = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, processing_class: Any = None, **_: Any) -> None:
        self.seconds.append(time.monotonic() - self._began)
        opening = processing_class.convert_tokens_to_ids("<|im_start|>")
        # Rows have padding on the left.
        self.prompts += [row[row.index(opening) :] for row in self._forwards.first[0].tolist()]


def arguments_of(
    config: Config, precision: str, *, checkpointing: bool, batch_size: int, num_prompt_tokens: int, folder: Path
) -> GRPOConfig:
    """Return the recipe's settings for TRL: GRPO's loss, and one update per batch."""
    optimizer, clip = config.optimizer, config.algorithm_in_effect()
    num_episodes = config.batch.group_size * config.batch.global_batch_size
    return GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=precision == "bf16",
        gradient_checkpointing=checkpointing,
        seed=config.run.seed,
        max_steps=config.schedule.max_steps,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=num_episodes // batch_size,
        num_generations=config.batch.group_size,
        shuffle_dataset=False,
        max_completion_length=config.model.max_sequence_length - num_prompt_tokens,
        generation_kwargs={"max_new_tokens": config.sampling.sampling_max_tokens},
        max_tool_calling_iterations=config.environment.max_turns - 1,
        temperature=config.sampling.temperature,
        beta=0.0,
        loss_type="grpo",
        epsilon=1 - clip["clip_low_threshold"],
        epsilon_high=clip["clip_high_threshold"] - 1,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=optimizer.adam_beta1,
        adam_beta2=optimizer.adam_beta2,
        adam_epsilon=optimizer.adam_eps,
        weight_decay=optimizer.adam_weight_decay,
        max_grad_norm=optimizer.adam_grad_clip_norm,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def lora_of(config: Config, architecture: PretrainedConfig) -> LoraConfig:
    """Return the adapters of the recipe for PEFT, on the same layers and matrices as on Sparring's side."""
    model, num_layers = config.model, architecture.num_hidden_layers
    adapted = num_layers if model.lora_layers is None else model.lora_layers
    return LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=list(model.lora_targets or choose_lora_targets(architecture)),
        layers_to_transform=list(range(num_layers - adapted, num_layers)),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument(
        "--checkpointing", action="store_true", help="use gradient checkpointing, which is TRL's default"
    )
    parser.add_argument("--batch-size", type=int, required=True, help="episodes per microbatch")
    options = parser.parse_args()
    config, recipe_folder = load_config(options.recipe), options.recipe.parent
    torch.set_num_threads(config.run.num_threads or default_threads())
    precision = resolve_precision(config.model.precision, "cpu")

    num_tasks = config.batch.global_batch_size * config.schedule.max_steps
    plans = load_curriculum(config, load_tasks(config, recipe_folder).train)
    tasks = [plan.task for plan in islice(plans, num_tasks)]
    tokenizer = AutoTokenizer.from_pretrained(config.model.name)
    tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, RESPONSE_TEMPLATE
    lengths = [
        len(tokenizer.apply_chat_template(list(t.messages), add_generation_prompt=True)["input_ids"]) for t in tasks
    ]
    model = AutoModelForCausalLM.from_pretrained(
        config.model.name, dtype=torch.bfloat16 if precision == "bf16" else torch.float32
    )
    forwards, played = Forwards(), Played()
    watch = Watch(forwards)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=played,
        args=arguments_of(
            config,
            precision,
            checkpointing=options.checkpointing,
            batch_size=options.batch_size,
            num_prompt_tokens=max(lengths),
            folder=options.output.parent / "trl",
        ),
        train_dataset=Dataset.from_list([{"prompt": list(task.messages), "task_id": task.id} for task in tasks]),
        processing_class=tokenizer,
        callbacks=[watch],
        peft_config=lora_of(config, model.config),
        environment_factory=environment_factory(load_environment(config, recipe_folder)[1], tasks),
    )
    with forwards.counted():
        trainer.train()
    episodes = config.batch.global_batch_size * config.batch.group_size
    # TRL trains all tokens that it samples, so this mean counts the tokens of its mask.
    sampled = sum(log["completions/mean_length"] * episodes for log in trainer.state.log_history if "loss" in log)
    Measured(
        num_trajectories=len(played.num_turns),
        step_seconds=watch.seconds,
        num_sampled_tokens=round(sampled),
        num_trained_tokens=round(sampled),
        num_computed_tokens=forwards.num_tokens,
        num_turns=played.num_turns,
        prompts=watch.prompts,
        num_adapter_parameters=num_trained(trainer.model),
        precision=precision,
        peak_memory_gib=peak_memory_gib(),
    ).write(options.output)


if __name__ == "__main__":
    main()
