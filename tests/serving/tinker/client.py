"""Use the package tinker as its documentation shows, and print what it returns as JSON. Needs no other package.

    python client.py ADDRESS KEY train|continue|losses|sample|download|refuse [ARGUMENT]

It runs with tinker 0.16 to 0.38, in an environment of its own.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

import tinker
from tinker import types
from values import ADVANTAGES, IDS, LOSSES, SAMPLED


def wait(value: Any) -> Any:
    """Return the result of a future. Older versions return some results without one."""
    return value.result() if hasattr(value, "result") else value


def build_datum(loss: str, scale: float = 1.0) -> types.Datum:
    if loss == "cross_entropy":
        inputs = {"weights": [scale * one for one in ADVANTAGES]}
    else:
        inputs = {"logprobs": SAMPLED, "advantages": [scale * one for one in ADVANTAGES]}
    return types.Datum(
        model_input=types.ModelInput.from_ints(IDS[:-1]), loss_fn_inputs={"target_tokens": IDS[1:], **inputs}
    )


def describe(result: Any) -> dict[str, Any]:
    outputs = [list(one["logprobs"].data) for one in result.loss_fn_outputs]
    return {"metrics": result.metrics, "logprobs": [[float(value) for value in one] for one in outputs]}


def step(run: Any, loss: str = "ppo") -> dict[str, Any]:
    """Accumulate the gradients of two requests, and take a step. All are submitted before the first result is read."""
    first = run.forward_backward([build_datum(loss), build_datum(loss, 0.5)], loss, LOSSES[loss])
    second = run.forward_backward([build_datum(loss, -2.0)], loss, LOSSES[loss])
    adam = types.AdamParams(learning_rate=0.01, beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.1, grad_clip_norm=5.0)
    stepped = run.optim_step(adam)
    return {
        "passes": [describe(wait(first)), describe(wait(second))],
        "grad_norm": wait(stepped).metrics["grad_norm"],
    }


def create(service: Any, rank: int = 4) -> Any:
    return wait(service.create_lora_training_client(base_model="tiny", rank=rank, seed=1))


def losses(service: Any, _: str) -> Any:
    """Take five steps of each loss."""
    found = {}
    for name in LOSSES:
        run = create(service)
        found[name] = {"run": run.model_id, "steps": [step(run, name) for _ in range(5)]}
    return found


def custom(service: Any, _: str) -> Any:
    """Take a step of a loss that is computed here."""
    import torch

    run = create(service)

    def square(data: Any, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        return (logprobs[0] ** 2).sum(), {}

    result = wait(run.forward_backward_custom([build_datum("cross_entropy")], square))
    stepped = wait(run.optim_step(types.AdamParams(learning_rate=0.01)))
    return {"grad_norm": stepped.metrics["grad_norm"], **describe(result)}


def train(service: Any, steps: str) -> Any:
    """Take some steps, and save the state."""
    run = create(service)
    found = [step(run) for _ in range(int(steps))]
    return {"run": run.model_id, "path": wait(run.save_state("state")).path, "steps": found}


def resume(service: Any, path: str) -> Any:
    """Take two steps from a saved state."""
    run = wait(service.create_training_client_from_state_with_optimizer(path))
    return {"run": run.model_id, "steps": [step(run) for _ in range(2)]}


def sample(service: Any, _: str) -> Any:
    run = create(service)
    sampler = wait(run.save_weights_and_get_sampling_client())
    prompt = types.ModelInput.from_ints(IDS)
    params = types.SamplingParams(max_tokens=5, seed=3, temperature=0.7, top_p=0.9, top_k=20, stop=[])
    result = wait(sampler.sample(prompt=prompt, num_samples=2, sampling_params=params, include_prompt_logprobs=True))
    named = wait(run.save_weights_for_sampler("named")).path
    other = wait(service.create_sampling_client(model_path=named))
    again = wait(other.sample(prompt=prompt, num_samples=2, sampling_params=params))
    sequences = [[{"tokens": one.tokens, "logprobs": one.logprobs} for one in r.sequences] for r in (result, again)]
    return {
        "sequences": sequences,
        "prompt_logprobs": result.prompt_logprobs,
        "scored": wait(sampler.compute_logprobs(prompt)),
        "reasons": [one.stop_reason for one in result.sequences],
        "models": [one.model_name for one in service.get_server_capabilities().supported_models],
    }


def download(service: Any, _: str) -> Any:
    """Return the size of each file of an adapter."""
    run, rest = create(service), service.create_rest_client()
    step(run)
    if hasattr(run, "save_weights_external"):
        path = wait(run.save_weights_external("external")).path
        urls = wait(rest.get_external_weights_urls(path)).urls
    else:
        path = wait(run.save_weights_for_sampler("sampler")).path
        urls = {"archive": wait(rest.get_checkpoint_archive_url_from_tinker_path(path)).url}
    sizes = {}
    for name, url in urls.items():
        with urllib.request.urlopen(url) as answer:
            sizes[name] = len(answer.read())
    listed = wait(rest.list_checkpoints(run.model_id)).checkpoints
    return {"sizes": sizes, "listed": [one.tinker_path for one in listed], "path": path}


def refuse(service: Any, _: str) -> Any:
    """Return the errors of refused requests, and the norm of a gradient after them."""
    errors = []
    run = create(service)
    wrong = types.Datum(
        model_input=types.ModelInput.from_ints([5, 9999]),
        loss_fn_inputs={"target_tokens": [6, 7], "weights": [1.0, 1.0]},
    )
    for request in (
        lambda: run.forward_backward([wrong], "cross_entropy"),
        lambda: run.optim_step(types.AdamParams()),
        lambda: service.create_lora_training_client(base_model="another", rank=4),
    ):
        try:
            wait(request())
        except Exception as error:  # noqa: BLE001 - the classes differ between versions
            errors.append(str(error))
    return {"errors": errors, "grad_norm": step(run)["grad_norm"]}


COMMANDS = {
    "losses": losses,
    "custom": custom,
    "train": train,
    "resume": resume,
    "sample": sample,
    "download": download,
    "refuse": refuse,
}


def main() -> None:
    address, key, command, *rest = sys.argv[1:]
    service = tinker.ServiceClient(base_url=address, api_key=key)
    found = COMMANDS[command](service, rest[0] if rest else "")
    sys.stdout.write(json.dumps({"version": tinker.__version__, **found}) + "\n")


if __name__ == "__main__":
    main()
