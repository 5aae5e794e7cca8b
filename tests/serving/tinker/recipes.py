"""Run two recipes of tinker-cookbook against `sparring serve --tinker`, with their code unchanged: supervised training on
conversations in a file, and then reinforcement learning from its checkpoint. Everything is on this machine.

    python tests/serving/tinker/recipes.py PYTHON    # the interpreter of an environment with tinker-cookbook

`make tinker-recipes` installs it. The model has less than a million parameters, so it learns the form of the answers rather
than to add.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparring.models.small import small_model

RENDERER = "renderer_name=role_colon"
SUPERVISED = ("tinker_cookbook.recipes.chat_sl.train", RENDERER, "batch_size=64", "num_epochs=3", "max_length=256")
REINFORCED = (
    *("tinker_cookbook.recipes.math_rl.train", RENDERER, "env=arithmetic", "loss_fn=ppo", "groups_per_batch=8"),
    *("group_size=8", "max_tokens=12", "max_steps=4"),
)


def write_conversations(path: Path) -> list[list[dict[str, str]]]:
    """Write additions in the form of the recipe's environment, and return them."""
    numbers = random.Random(0)
    conversations = []
    for _ in range(512):
        x, y = numbers.randint(0, 100), numbers.randint(0, 100)
        given = [
            ("user", "What is 4 + 5?"),
            ("assistant", "9"),
            ("user", f"What is {x} + {y}?"),
            ("assistant", str(x + y)),
        ]
        conversations.append([{"role": role, "content": content} for role, content in given])
    path.write_text("".join(json.dumps({"messages": one}) + "\n" for one in conversations), "utf-8")
    return conversations


@contextmanager
def serve(model: Path, checkpoints: Path) -> Iterator[dict[str, str]]:
    """Yield the variables with which a client finds a server of a model."""
    command = ("serve", str(model), "--tinker", "--checkpoints", str(checkpoints), "--port", "0", "--json")
    process = subprocess.Popen([sys.executable, "-m", "sparring", *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the server did not start"
            text += line
        served = json.loads(text)
        yield {"TINKER_BASE_URL": served["base_url"], "TINKER_API_KEY": f"tml-{served['api_key']}"}
    finally:
        process.terminate()
        process.wait()


def run_recipe(
    python: str, module: str, *arguments: str, log: Path, variables: dict[str, str]
) -> list[dict[str, float]]:
    """Run a recipe, and return its metrics."""
    common = (f"log_path={log}", "lora_rank=16", "eval_every=0", "save_every=0", "behavior_if_log_dir_exists=delete")
    # A recipe that needed the internet would fail.
    environment = {**os.environ, **variables, "HF_HUB_OFFLINE": "1"}
    subprocess.run([python, "-m", module, *arguments, *common], env=environment, check=True)
    return [json.loads(line) for line in (log / "metrics.jsonl").read_text("utf-8").splitlines()]


def main() -> None:
    python = sys.argv[1]
    folder = Path(tempfile.mkdtemp(prefix="tinker-recipes-"))
    conversations = write_conversations(folder / "additions.jsonl")
    model, tokenizer = small_model(0, conversations)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    name = f"model_name={folder / 'model'}"
    with serve(folder / "model", folder / "checkpoints") as variables:
        learned = run_recipe(
            *(python, *SUPERVISED, name, f"dataset={folder / 'additions.jsonl'}", "learning_rate=1e-2"),
            log=folder / "supervised",
            variables=variables,
        )
        saved = (folder / "supervised" / "checkpoints.jsonl").read_text("utf-8").splitlines()[-1]
        reinforced = run_recipe(
            *(
                python,
                *REINFORCED,
                name,
                f"load_checkpoint_path={json.loads(saved)['state_path']}",
                "learning_rate=1e-3",
            ),
            log=folder / "reinforced",
            variables=variables,
        )
    likelihoods = [one["train_mean_nll"] for one in learned]
    assert likelihoods[-1] < likelihoods[0] / 2, likelihoods
    norms = [one["grad_norm"] for one in reinforced if "grad_norm" in one]
    assert len(norms) == 4, reinforced
    assert max(norms) > 0, norms
    sys.stdout.write(
        f"supervised: {likelihoods[0]:.2f} to {likelihoods[-1]:.2f} nats; reinforced: {len(norms)} steps\n"
    )


if __name__ == "__main__":
    main()
