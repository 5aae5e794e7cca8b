"""MultiTurnRLEvaluator: evaluates several policies on the same held-out tasks and compares them."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from sparring.assembly import (
    EvaluationParts,
    RolloutParts,
    build_main_policy,
    find_overrides,
    load_checkpoint_weights,
    load_evaluated_engine,
    load_evaluation_parts,
    load_into_engine,
    load_message_engine,
    load_rollout_parts,
)
from sparring.config import PLACE_KEYS, Config, load_config
from sparring.errors import DataError, UsageError
from sparring.evaluation.evaluation import Evaluation, Row, evaluate
from sparring.evaluation.job import SPLIT, Job, Plan
from sparring.evaluation.of_run import is_random_control, num_shared
from sparring.evaluation.policies import Policy, PolicyKind, checkpoint_of, read_policy, run_and_step, run_path
from sparring.evaluation.report import EvaluationReport, comparisons
from sparring.ledger import Ledger
from sparring.metering.usage import meter_usage, read_usage
from sparring.protocols import MessageEngine
from sparring.rollouts import MainPolicy
from sparring.run_folders import RunFolder
from sparring.run_folders.family_folder import FamilyFolder
from sparring.run_folders.presence import explaining_loss
from sparring.run_folders.recipe_files import find_code_folder
from sparring.run_folders.run_folder import CONTINUED, WARM_START
from sparring.runtime import event_loop, interrupts
from sparring.tracking import Console
from sparring.training.checkpoint_files import verify
from sparring.training_run.loading import RunLoader
from sparring.types import Sampling, Task, TrajectoryGroup, Weights

if TYPE_CHECKING:
    from sparring.models.policy import Policy as ModelPolicy
    from sparring.trainer import MultiTurnRLTrainer


_FIXED = tuple(name.replace("_", " ") for name in (WARM_START, CONTINUED))
"""The policies whose checkpoints training never replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Player:
    """A policy that is ready to run episodes."""

    policy: MainPolicy | None
    """The policy, or None for the collector's own policy."""
    fingerprint: str
    policy_version: int | None
    in_waves: bool


@final
class MultiTurnRLEvaluator:
    """Evaluates policies on the held-out tasks of a run or recipe.

    The policies are those of the run, those of other runs, endpoints, scripts and the scripted expert.

        report = MultiTurnRLEvaluator(model="runs/quickstart-001").evaluate()
        report.evaluations[-1].success.mean

        MultiTurnRLEvaluator("runs/quickstart-001", policies=["@20", "tuned", "expert", "constant:no"])

    All policies run the same tasks with the same seeds, and the recipe's scorer grades them. Differences are therefore
    paired by task. Each episode is written to disk when it finishes, so an evaluation that was killed can continue with
    `resume=True`.
    """

    def __init__(
        self,
        model: MultiTurnRLTrainer | str | Path,
        *,
        overrides: Sequence[str] = (),
        evaluate_base_model: bool = True,
        policies: Sequence[str] | None = None,
        temperatures: Sequence[float] | None = None,
        api_key_env: str | None = None,
        resume: bool = False,
        quiet: bool = False,
    ) -> None:
        """`model` is a run, or a recipe, which has no tuned weights yet. `policies` have the format of `sparring eval
        --policy`. By default, they are the base model, the warm start if there is one, and the tuned policy. If the
        recipe specifies an endpoint or a script, the default is only that endpoint or script. At each of
        `temperatures`, every task runs eval_group_size episodes. By default, every task runs one greedy episode, and
        eval_group_size episodes at the recipe's serving temperature. `overrides` change the run's recipe. `api_key_env`
        is the name of the environment variable with the key of the endpoints among the policies.

        Raises ConfigError, UsageError or DataError if an evaluation is not possible.
        """
        self._quiet, self._console = quiet, Console(quiet=quiet)
        self._evaluate_base_model = evaluate_base_model
        self._trainer = None if isinstance(model, str | Path) else model
        recipe, folder = _named(model) if isinstance(model, str | Path) else (model.recipe, model.folder)
        if self._trainer is not None and overrides:
            raise UsageError("overrides belong to the trainer; create the trainer with them, or pass its run folder.")
        self._job: Job | None = None
        if resume:
            changed = [one for one in overrides if one.partition("=")[0].strip() not in PLACE_KEYS]
            if policies is not None or temperatures is not None or changed or api_key_env is not None:
                raise UsageError(
                    "an evaluation resumes with its original settings; with resume, change only where it runs."
                )
            if folder is None:
                raise UsageError(f"{recipe} is a recipe, and only an evaluation of a run can resume; name that run.")
            self._job = Job.interrupted(folder)
            overrides = (*_without_place(self._job.plan.overrides, overrides), *overrides)
        if self._trainer is not None:
            self._loader: RunLoader[RolloutParts] = self._trainer._loader
            self._overrides = self._trainer.overrides
        else:
            config = load_config(recipe, overrides) if folder is None else folder.config(overrides)
            self._loader = RunLoader(load_rollout_parts, recipe, config, console=self._console, name=config.run.name)
            if folder is not None:
                self._loader.use_folder(folder)
            self._overrides = tuple(overrides)
        self._policies = None if policies is None else tuple(map(read_policy, policies))
        self._temperatures = None if temperatures is None else tuple(temperatures)
        self._api_key_env = api_key_env
        _check_options(policies, self._policies, temperatures, api_key_env)

    @property
    def config(self) -> Config:
        return self._loader.config

    @property
    def folder(self) -> RunFolder | None:
        """The run that the evaluation belongs to, or None until a run is created for a recipe."""
        return self._loader.folder

    @property
    def _recipe(self) -> Path:
        return self._loader.recipe

    def evaluate(self) -> EvaluationReport:
        """Run the held-out tasks with every policy and compare the last policy with each of the others. Block until
        this is done.

        Writes evaluations/held_out-*.json and the trajectories into the run folder. For a recipe, it creates a run
        folder. Raises ServiceError if no episode of a policy could be run.
        """
        plan = self._build_plan() if self._job is None else self._job.plan
        is_new = self.folder is None
        parts = event_loop.submit(self._loader.load()).result().parts if self._needs_model(plan) else None
        folder = self._loader.open_folder()
        job, self._job = self._job or Job.new(folder, plan), None
        if is_new:
            folder.set_status("running")
        try:
            with explaining_loss(folder):
                report = interrupts.run(self._evaluate(job, folder, parts))
        except BaseException as error:
            self._end_unfinished(job, folder, error, is_new=is_new)
            raise
        if is_new:
            folder.set_status("completed")
        return report

    def _end_unfinished(self, job: Job, folder: RunFolder, error: BaseException, *, is_new: bool) -> None:
        """State how the evaluation continues, and set the status of a folder that was created for it. Delete this
        folder if nothing is in it."""
        if not RunFolder.is_run(folder.path):
            return  # it is gone, and must not be created again
        if job.folder.exists():
            self._console.announced(
                f"the finished episodes are kept; `sparring eval {folder.path} --resume` continues the evaluation"
            )
        elif is_new and isinstance(error, UsageError | DataError):
            # No episode was run: delete the folder, so that its name is free again.
            shutil.rmtree(folder.path)
            return
        if is_new and isinstance(error, KeyboardInterrupt):
            folder.set_status("stopped")
        elif is_new:
            folder.set_status("failed", reason=str(error) or type(error).__name__)

    def _build_plan(self) -> Plan:
        """Return the plan of a new evaluation. Raises UsageError or DataError if a policy does not exist."""
        policies = self._default_policies() if self._policies is None else self._policies
        return Plan(
            overrides=self._overrides,
            policies=tuple(map(self._resolve, policies)),
            temperatures=self._temperatures,
            api_key_env=self._api_key_env,
        )

    def _default_policies(self) -> tuple[Policy, ...]:
        if not self.config.is_trainable:
            if not self._evaluate_base_model:
                raise UsageError(
                    "an endpoint or a script is evaluated alone, so there is no base model to leave out; omit "
                    "--no-base."
                )
            name = load_message_engine(self.config, find_code_folder(self._recipe)).fingerprint
            return (Policy(name=name, kind=PolicyKind.ENGINE),)
        if self.folder is None and self._trainer is None:
            raise UsageError(
                f"{self._recipe} uses a model of its own: train it and evaluate the run, specify the policies to evaluate "
                "(--policy base, --policy expert, ...), or choose another engine with engine.type=openai or "
                "engine.type=scripted."
            )
        if not self._evaluate_base_model:
            return (read_policy("tuned"),)
        has_warm_start = self.folder is not None and (self.folder.checkpoints / WARM_START).is_dir()
        has_control = self.folder is not None and (self.folder.controls / CONTINUED).is_dir()
        names = ["base", *([WARM_START] if has_warm_start else []), *([CONTINUED] if has_control else []), "tuned"]
        return tuple(map(read_policy, names))

    def _resolve(self, policy: Policy) -> Policy:
        """Return the policy with the folder of the checkpoint that its name currently refers to. A run in progress
        writes newer checkpoints, but this evaluation keeps its checkpoint when it is resumed.

        Raises DataError if there is no checkpoint, and UsageError if the recipe's engine cannot load the weights.
        """
        if policy.has_weights and not self.config.is_trainable:
            raise UsageError(
                f"{policy.name!r} needs a model that Sparring loads, but engine.type is {self.config.engine.type!r}; "
                "leave this policy out, and specify the endpoint or script as a policy instead."
            )
        if policy.kind is not PolicyKind.CHECKPOINT:
            return policy
        run, step = run_and_step(policy.source)
        is_own = run in ("", WARM_START, CONTINUED, "tuned")
        if is_own and self.folder is None:
            raise UsageError(
                f"{policy.name!r} is a checkpoint of a run, but {self._recipe} is a recipe; specify a run."
            )
        folder = self.folder if is_own else RunFolder(run_path(run))
        assert folder is not None
        if run == CONTINUED:
            return replace(policy, source=str(self._control(folder).resolve()))
        found = checkpoint_of(folder, WARM_START if run == WARM_START else step)
        return replace(policy, source=str(found.resolve()))

    def _control(self, folder: RunFolder) -> Path:
        """Return the checkpoint of the continued warm start, and train it if it does not exist yet. Raises UsageError
        if the run has no warm start, and DataError if the stored control is damaged."""
        control = folder.controls / CONTINUED
        if not control.is_dir():
            from sparring.training_run.control import continue_warm_start

            continue_warm_start(folder.path, overrides=self._overrides, quiet=self._quiet)
        try:
            verify(control)
        except DataError as error:
            raise DataError(f"{error} Alternatively, `sparring control {folder.path}` trains it again.") from error
        return control

    def _needs_model(self, plan: Plan) -> bool:
        others = any(policy.role != "endpoint" for policy in self.config.policies.values())
        return self._trainer is not None or others or any(policy.has_weights for policy in plan.policies)

    async def _evaluate(self, job: Job, folder: RunFolder, parts: RolloutParts | None) -> EvaluationReport:
        engines: dict[str, MessageEngine] = {}
        try:
            # Open all engines first, so that a missing key is reported before any episode is run.
            for policy in job.plan.policies:
                if not policy.has_weights:
                    engines[policy.name] = load_evaluated_engine(
                        policy, self.config, find_code_folder(self._recipe), api_key_env=job.plan.api_key_env
                    )
            if parts is not None:
                return await self._play_all(job, parts, engines)
            async with Ledger(folder.path / "ledger.sqlite") as ledger:
                baseline = load_evaluation_parts(
                    self.config,
                    find_code_folder(self._recipe),
                    ledger,
                    engine=next(iter(engines.values())),
                    announce=self._console.announced,
                )
                try:
                    return await self._play_all(job, baseline, engines)
                finally:
                    await baseline.collector.aclose()
        finally:
            job.close()
            for engine in engines.values():
                await engine.close()

    async def _play_all(
        self, job: Job, parts: EvaluationParts, engines: Mapping[str, MessageEngine]
    ) -> EvaluationReport:
        with meter_usage(job.path.parent.parent, during=job.path.stem):
            return await self._play_each(job, parts, engines)

    async def _play_each(
        self, job: Job, parts: EvaluationParts, engines: Mapping[str, MessageEngine]
    ) -> EvaluationReport:
        tasks = parts.tasks.held_out[: self.config.evaluation.eval_num_tasks]
        if not tasks:
            raise DataError("the held_out split is empty, so there is nothing to evaluate; set data.held_out.")
        job.begin(tasks, parts.ledger)
        if job.num_kept:
            self._console.announced(f"{job.num_kept} finished episodes of the interrupted evaluation are kept")
        assert self.folder is not None, "an evaluation belongs to a run"
        overrides = (
            {} if self._recipe.absolute() != self.folder.recipe else find_overrides(self.folder.config(), self.config)
        )
        played: list[tuple[Evaluation, list[TrajectoryGroup]]] = []
        labels = _labels([policy.name for policy in job.plan.policies])
        for policy in job.plan.policies:
            if policy.has_weights:
                player = await self._loaded(policy, job, parts)
            else:
                player = _scripted(engines[policy.name])
            job.plays(policy.name, player.fingerprint)
            is_random = policy.kind is PolicyKind.CHECKPOINT and is_random_control(_run_of(policy), self.folder)
            rows = [
                Row(
                    name=policy.name,
                    label=(label := labels[policy.name] + _suffix(temperature)),
                    split=SPLIT,
                    policy_version=player.policy_version,
                    fingerprint=player.fingerprint,
                    temperature=temperature,
                    group_size=group_size,
                    done=job.episodes.get(label, {}),
                    keep=job.keep(label),
                    policy=player.policy,
                    overrides=overrides,
                    is_random_control=is_random,
                )
                for temperature, group_size in self._settings(policy, job.plan)
            ]
            # Only the engine of a model shares what episodes have in common; an endpoint that fails is noticed after one row.
            for run_together in [rows] if policy.has_weights else [[row] for row in rows]:
                played += await self._play(parts, run_together, tasks, attempt=job.start, in_waves=player.in_waves)
        evaluations = tuple(evaluation for evaluation, _ in played)
        lost_together = parts.collector.losses.finding()
        if lost_together is not None:
            self._console.found(lost_together)
        report = EvaluationReport(
            evaluations=evaluations,
            comparisons=comparisons(evaluations),
            path=job.path,
            endpoints=tuple(read_usage(job.path.parent.parent, during=job.path.stem)),
            findings=() if lost_together is None else (lost_together,),
            seen_in_training=num_shared(tasks, parts.tasks.train),
        )
        report.write([group for _, groups in played for group in groups])
        job.over()
        return report

    async def _play(
        self, parts: EvaluationParts, rows: Sequence[Row], tasks: Sequence[Task], *, attempt: str, in_waves: bool
    ) -> list[tuple[Evaluation, list[TrajectoryGroup]]]:
        """Run the episodes of a policy at one or more temperatures."""
        max_tokens = self.config.sampling.sampling_max_tokens
        settings = [
            (row, Sampling(temperature=1.0 if row.temperature is None else row.temperature, max_tokens=max_tokens))
            for row in rows
        ]
        shown = rows[0].label if len(rows) == 1 else rows[0].name
        with self._console.steps(f"{SPLIT}: {shown}", len(rows) * len(tasks)) as progress:
            played = await evaluate(
                parts.collector,
                tasks,
                settings,
                criterion=parts.criterion,
                in_waves=in_waves,
                attempt=attempt,
                seconds=time.monotonic,
                prefix="eval",
                pass_k_values=self.config.evaluation.pass_k_values,
                kind_of=parts.kind_of,
                on_group=lambda _: progress({}),
            )
        for evaluation, _ in played:
            self._console.evaluated(evaluation)
        return played

    def _settings(self, policy: Policy, plan: Plan) -> list[tuple[float | None, int]]:
        """Return the temperatures, each with its number of episodes per task. The temperature of a script is None."""
        group_size = self.config.evaluation.eval_group_size
        is_scripted = policy.kind is PolicyKind.ENGINE and self.config.engine.type == "scripted"
        if policy.kind is PolicyKind.SCRIPT or is_scripted:
            return [(None, group_size)]
        if policy.kind in (PolicyKind.EXPERT, PolicyKind.CONSTANT):
            return [(None, 1)]
        if plan.temperatures is not None:
            return [(temperature, group_size) for temperature in plan.temperatures]
        serving = self.config.serving_temperature
        return [(0.0, 1), (serving, group_size)] if serving > 0 else [(0.0, group_size)]

    async def _loaded(self, policy: Policy, job: Job, parts: EvaluationParts) -> _Player:
        """Load a policy's weights into the recipe's model. Raises DataError if the weights are damaged or belong to
        another model."""

        assert isinstance(parts, RolloutParts), "a policy with weights needs a model"
        version: int | None = None
        match policy.kind:
            case PolicyKind.BASE:
                weights, version = parts.initial_weights, 0
            case _:
                checkpoint, weights = _newest_weights(policy, job, parts.policy)
                version = int(checkpoint.name) if checkpoint.name.isdigit() else 0
        await load_into_engine(parts, self._loader.open_folder(), weights, version=parts.engine.policy_version + 1)
        return _Player(
            policy=None,
            fingerprint=parts.engine.fingerprint,
            policy_version=version,
            in_waves=parts.is_deterministic,
        )


def _without_place(earlier: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Yield the overrides of an interrupted evaluation, without those of an engine or learner that new ones replace."""
    replaced = tuple(
        f"{name}." for name in ("engine", "learner") if any(one.startswith(f"{name}.type=") for one in new)
    )
    yield from (one for one in earlier if not one.startswith(replaced))


def _named(model: str | Path) -> tuple[Path, RunFolder | None]:
    """Return the recipe of a run or recipe folder, and the run's folder. Raises DataError if `model` is neither of
    them."""
    path = run_path(model)
    if RunFolder.is_run(path):
        folder = _with_ledger(RunFolder(path).absolute())
        return folder.recipe, folder
    recipe = path / "recipe.toml" if path.is_dir() else path
    if recipe.is_file():
        return recipe, None
    if FamilyFolder.is_family(path):
        raise UsageError(f"{model} is a family of runs; evaluate it with `sparring eval --across {model}`.")
    run, step = run_and_step(str(model))
    how = f" To evaluate a checkpoint, name it as a policy: sparring eval {run} --policy @{step}." if step else ""
    raise DataError(f"{model} is neither a run nor a recipe; `sparring runs list` lists the runs.{how}")


def _check_options(
    policies: Sequence[str] | None,
    read: Sequence[Policy] | None,
    temperatures: Sequence[float] | None,
    api_key_env: str | None,
) -> None:
    """Raise UsageError for invalid options."""
    for one in temperatures or ():
        if not 0 <= one <= 2:
            raise UsageError(f"temperature {one:g} is not between 0 (greedy) and 2; choose a value in this range.")
    for what, named in (("policy", policies), ("temperature", temperatures)):
        if named is not None and len(set(named)) != max(1, len(named)):
            shown = ", ".join(map(str, named)) or "none"
            raise UsageError(f"specify at least one {what}, and each only once; these were given: {shown}.")
    if api_key_env is not None and not any(one.kind is PolicyKind.ENDPOINT for one in read or ()):
        raise UsageError(
            f"the environment variable {api_key_env} is for an endpoint's key, but no policy is openai:MODEL@URL; omit "
            "it."
        )


def _with_ledger(folder: RunFolder) -> RunFolder:
    """Return the folder of a run. Raises DataError if the folder has episodes but no ledger, because a new ledger would
    not count them."""
    if not folder.ledger.exists() and any((folder.path / "trajectories").glob("*.jsonl")):
        raise DataError(
            f"{folder.ledger} is missing, and the run has episodes; restore it, or evaluate the run's checkpoints in a "
            f"new run: `sparring eval {folder.recipe} --policy {folder.path} --name NAME`."
        )
    return folder


def _newest_weights(policy: Policy, job: Job, model: ModelPolicy | None) -> tuple[Path, Weights]:
    """Return a policy's checkpoint and its weights. The checkpoint is the one in the plan, or the newest one if a run
    in progress has deleted the planned one. A policy that has already run episodes cannot switch to another
    checkpoint."""
    from sparring.training import checkpoints

    checkpoint = Path(policy.source)
    is_newest = policy.name not in _FIXED and run_and_step(policy.name)[1] is None
    while True:
        try:
            return checkpoint, load_checkpoint_weights(checkpoint, model)
        except DataError:
            if not is_newest or policy.name in (job.plan.fingerprints or {}):
                raise
            newest = checkpoints.find_newest(checkpoint.parent)
            if newest == checkpoint:
                raise
            checkpoint = newest
            job.moved(policy.name, checkpoint)


def _run_of(policy: Policy) -> RunFolder:
    return RunFolder(Path(policy.source).parents[1])


def _scripted(engine: MessageEngine) -> _Player:
    return _Player(
        policy=build_main_policy(engine),
        fingerprint=engine.fingerprint,
        policy_version=None,
        in_waves=False,
    )


def _labels(names: Sequence[str]) -> dict[str, str]:
    """Return a unique label for each name, with only the characters that are allowed in ids."""
    labels: dict[str, str] = {}
    for name in names:
        label = re.sub(r"[^\w.-]+", "-", name).strip("-")[:60]
        labels[name] = label if label not in labels.values() else f"{label}-{len(labels)}"
    return labels


def _suffix(temperature: float | None) -> str:
    return "" if temperature is None else "-greedy" if temperature == 0 else f"-t{temperature:g}"
