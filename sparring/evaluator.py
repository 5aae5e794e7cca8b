"""MultiTurnRLEvaluator: what policies do on held-out tasks, side by side."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from sparring import interrupts
from sparring.build import Baseline, Parts, build_baseline, environment_of, message_engine_of, script_of
from sparring.config import Config, key_from, load_config
from sparring.engines.openai import OpenAIEngine
from sparring.engines.scripted_messages import ScriptedEpisodes, ScriptedMessages
from sparring.environments import expert_script
from sparring.errors import DataError, UsageError
from sparring.evaluation.evaluation import Evaluation, Row, evaluate
from sparring.evaluation.job import SPLIT, Job, Plan
from sparring.evaluation.of_run import num_shared
from sparring.evaluation.policies import Policy, PolicyKind, checkpoint_of, read_policy, run_and_step, run_path
from sparring.evaluation.report import EvaluationReport, comparisons
from sparring.ledger import Ledger
from sparring.metering import metered_in, read_usage
from sparring.protocols import MessageEngine
from sparring.rollouts import Collector
from sparring.tracking import Console, RunFolder
from sparring.tracking.family_folder import FamilyFolder
from sparring.tracking.recipe_files import folder_of
from sparring.tracking.run_folder import CONTINUED, WARM_START
from sparring.training.checkpoint_files import verify
from sparring.types import Sampling, Task, TrajectoryGroup, Weights

if TYPE_CHECKING:
    from sparring.models.policy import Policy as ModelPolicy
    from sparring.trainer import MultiTurnRLTrainer


_FIXED = tuple(name.replace("_", " ") for name in (WARM_START, CONTINUED))
"""Policies whose checkpoint no training replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Player:
    """A policy that is ready to play."""

    collector: Collector
    fingerprint: str
    policy_version: int | None
    in_waves: bool


@final
class MultiTurnRLEvaluator:
    """Evaluates policies on a run's held-out tasks: its own, those of other runs, endpoints, scripts, the known best one.

        report = MultiTurnRLEvaluator(model="runs/quickstart-001").evaluate()
        report.evaluations[-1].success.mean

        MultiTurnRLEvaluator("runs/quickstart-001", policies=["@20", "tuned", "expert", "constant:no"])

    All play the same tasks with the same seeds, judged by the recipe's scorer, so differences are paired by task. Episodes
    are on disk as they finish: an evaluation that was killed goes on with `resume=True`.
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
        """`model` is a run, or a recipe that no weights of its own are evaluated of. `policies` are spelt as
        `sparring eval --policy` has them; None: base, warm start if there is one, and tuned, or the endpoint or script that
        the recipe names. `temperatures`, each with eval_group_size episodes a task; None: greedy with one, and as the
        recipe serves. `overrides` change the run's recipe. `api_key_env` names the variable with the key of endpoints
        among the policies.

        Raises ConfigError, UsageError and DataError for what cannot be evaluated.
        """
        self._trainer: MultiTurnRLTrainer | None = None
        self.folder: RunFolder | None = None
        if isinstance(model, str | Path):
            path = run_path(model)
            if RunFolder.is_run(path):
                self.folder = _with_ledger(RunFolder(path).absolute())
                self._recipe = self.folder.recipe
            else:
                self._recipe = path / "recipe.toml" if path.is_dir() else path
                if not self._recipe.is_file():
                    run, step = run_and_step(str(model))
                    if FamilyFolder.is_family(path):
                        raise UsageError(f"{model} is a family of runs: `sparring eval --across {model}` evaluates it.")
                    how = f" A checkpoint of a run is a policy: sparring eval {run} --policy @{step}." if step else ""
                    raise DataError(f"{model} is neither a run nor a recipe; `sparring runs list` shows the runs.{how}")
        else:
            self._trainer, self.folder, self._recipe = model, model.folder, model.recipe
            if overrides:
                raise UsageError(
                    "overrides belong to the trainer that was given; make it with them, or give its run folder."
                )
        self._quiet, self._console = quiet, Console(quiet=quiet)
        self._evaluate_base_model = evaluate_base_model
        self._job: Job | None = None
        if resume:
            if policies is not None or temperatures is not None or overrides or api_key_env is not None:
                raise UsageError("an evaluation is resumed as it was begun; give nothing else beside resume.")
            if self.folder is None:
                raise UsageError(
                    f"{self._recipe} is a recipe, and evaluations are of runs; name the run to resume one."
                )
            self._job = Job.interrupted(self.folder)
            overrides = self._job.plan.overrides
        self.config: Config = self._load(overrides) if self._trainer is None else self._trainer.config
        self._overrides = tuple(overrides) if self._trainer is None else self._trainer.overrides
        self._policies = None if policies is None else tuple(map(read_policy, policies))
        self._temperatures = None if temperatures is None else tuple(temperatures)
        self._api_key_env = api_key_env
        for one in self._temperatures or ():
            if not 0 <= one <= 2:
                raise UsageError(f"temperature {one:g} is not between 0 (greedy) and 2; choose one that is.")
        for what, named in (("policy", policies), ("temperature", temperatures)):
            if named is not None and len(set(named)) != max(1, len(named)):
                shown = ", ".join(map(str, named)) or "none"
                raise UsageError(f"each {what} is named once, and one at least; these are {shown}.")
        if api_key_env is not None and not any(one.kind is PolicyKind.ENDPOINT for one in self._policies or ()):
            raise UsageError(
                f"{api_key_env} shall hold an endpoint's key, but no policy is openai:MODEL@URL; leave it out."
            )

    def evaluate(self) -> EvaluationReport:
        """Play the held-out tasks with every policy and compare the last to each other one; blocks.

        Writes evaluations/held_out-*.json and the trajectories into the run; of a recipe it makes a run folder. Raises
        ServiceError when not one episode of a policy could be played.
        """
        if self._trainer is not None:
            self.folder = self._trainer.folder  # it may have trained since
        plan = self._planned() if self._job is None else self._job.plan
        is_new = self.folder is None
        parts = self._parts() if self._needs_model(plan) else None
        folder = self.folder = (
            self.folder or RunFolder.create(self.config, self._recipe, name=self.config.run.name).absolute()
        )
        job, self._job = self._job or Job.new(folder, plan), None
        if is_new:
            folder.set_status("running")
        try:
            report = interrupts.run(self._evaluate(job, folder, parts))
        except BaseException as error:
            if job.folder.exists():
                self._console.announced(
                    f"what was played is kept: `sparring eval {folder.path} --resume` goes on with it"
                )
            elif is_new and isinstance(error, UsageError | DataError):
                # Told before anything was played: no folder is left, and its name is free.
                shutil.rmtree(folder.path)
                raise
            if is_new:
                if isinstance(error, KeyboardInterrupt):
                    folder.set_status("stopped")
                else:
                    folder.set_status("failed", reason=str(error) or type(error).__name__)
            raise
        if is_new:
            folder.set_status("completed")
        return report

    def _planned(self) -> Plan:
        """What a new evaluation plays. Raises UsageError and DataError for policies that there are not."""
        policies = self._usual() if self._policies is None else self._policies
        return Plan(
            overrides=self._overrides, policies=tuple(map(self._found, policies)),
            temperatures=self._temperatures, api_key_env=self._api_key_env,
        )  # fmt: skip

    def _load(self, overrides: Sequence[str]) -> Config:
        return load_config(self._recipe, overrides) if self.folder is None else self.folder.config(overrides)

    def _usual(self) -> tuple[Policy, ...]:
        """What is evaluated when nobody says what."""
        if not self.config.is_trainable:
            if not self._evaluate_base_model:
                raise UsageError(
                    "an endpoint or a script plays alone, so there is no base model to leave out; leave that out (--no-base)."
                )
            name = message_engine_of(self.config, folder_of(self._recipe)).fingerprint
            return (Policy(name=name, kind=PolicyKind.ENGINE),)
        if self.folder is None and self._trainer is None:
            raise UsageError(
                f"{self._recipe} plays a model of its own: train it and evaluate the run, name what shall play "
                "(--policy base, --policy expert, ...), or another engine with engine.type=openai or engine.type=scripted."
            )
        if not self._evaluate_base_model:
            return (read_policy("tuned"),)
        has_warm_start = self.folder is not None and (self.folder.checkpoints / WARM_START).is_dir()
        has_control = self.folder is not None and (self.folder.controls / CONTINUED).is_dir()
        names = ["base", *([WARM_START] if has_warm_start else []), *([CONTINUED] if has_control else []), "tuned"]
        return tuple(map(read_policy, names))

    def _found(self, policy: Policy) -> Policy:
        """With the checkpoint's folder that it names now: a run under way makes others, and this one is resumed with it.
        Raises DataError where there is none, UsageError for weights that the recipe's engine does not play."""
        if policy.has_weights and not self.config.is_trainable:
            raise UsageError(
                f"{policy.name!r} is of a model that is loaded here, but engine.type is {self.config.engine.type!r}; leave "
                "that out, and name the endpoint or script as a policy instead."
            )
        if policy.kind is not PolicyKind.CHECKPOINT:
            return policy
        run, step = run_and_step(policy.source)
        is_own = run in ("", WARM_START, CONTINUED, "tuned")
        if is_own and self.folder is None:
            raise UsageError(f"{policy.name!r} is a checkpoint of a run, but {self._recipe} is a recipe; name a run.")
        folder = self.folder if is_own else RunFolder(run_path(run))
        assert folder is not None
        if run == CONTINUED:
            return replace(policy, source=str(self._control(folder).resolve()))
        found = checkpoint_of(folder, WARM_START if run == WARM_START else step)
        return replace(policy, source=str(found.resolve()))

    def _control(self, folder: RunFolder) -> Path:
        """The warm start continued, which is made the first time that it is asked for. Raises UsageError for a run without a warm
        start, and DataError for a damaged control."""
        kept = folder.controls / CONTINUED
        if not kept.is_dir():
            self._parts()
            assert self._trainer is not None, "what has parts has a trainer"
            from sparring.control import continue_warm_start

            continue_warm_start(self._trainer, quiet=self._quiet)
        try:
            verify(kept)
        except DataError as error:
            raise DataError(f"{error} Or `sparring control {folder.path}` makes it again.") from error
        return kept

    def _needs_model(self, plan: Plan) -> bool:
        others = any(policy.role != "endpoint" for policy in self.config.policies.values())
        return self._trainer is not None or others or any(policy.has_weights for policy in plan.policies)

    def _parts(self) -> Parts:
        from sparring.trainer import MultiTurnRLTrainer

        if self._trainer is None:
            if self.folder is None:
                self._trainer = MultiTurnRLTrainer(self._recipe, overrides=self._overrides)
            else:
                self._trainer = MultiTurnRLTrainer.attach(self.folder.path, overrides=self._overrides)
        parts = self._trainer.parts
        self.folder = self._trainer.folder
        return parts

    async def _evaluate(self, job: Job, folder: RunFolder, parts: Parts | None) -> EvaluationReport:
        engines: dict[str, MessageEngine] = {}
        try:
            # All of them first: a key that is not set is told before anything is played.
            for policy in job.plan.policies:
                if not policy.has_weights:
                    engines[policy.name] = self._engine(policy, job.plan)
            if parts is not None:
                return await self._play_all(job, parts, engines)
            async with Ledger(folder.path / "ledger.sqlite") as ledger:
                baseline = build_baseline(
                    self.config, folder_of(self._recipe), ledger, engine=next(iter(engines.values())),
                    announce=self._console.announced,
                )  # fmt: skip
                try:
                    return await self._play_all(job, baseline, engines)
                finally:
                    await baseline.collector.aclose()
        finally:
            job.close()
            for engine in engines.values():
                await engine.close()

    async def _play_all(
        self, job: Job, room: Parts | Baseline, engines: Mapping[str, MessageEngine]
    ) -> EvaluationReport:
        with metered_in(job.path.parent.parent, during=job.path.stem):
            return await self._play_each(job, room, engines)

    async def _play_each(
        self, job: Job, room: Parts | Baseline, engines: Mapping[str, MessageEngine]
    ) -> EvaluationReport:
        tasks = room.tasks.held_out[: self.config.evaluation.eval_num_tasks]
        if not tasks:
            raise DataError("the held_out split is empty, so there is nothing to evaluate; set data.held_out.")
        job.begin(tasks, room.ledger)
        if job.num_kept:
            self._console.announced(f"{job.num_kept} episodes were played before, and are not played again")
        played: list[tuple[Evaluation, list[TrajectoryGroup]]] = []
        labels = _labels([policy.name for policy in job.plan.policies])
        for policy in job.plan.policies:
            if policy.has_weights:
                player = await self._loaded(policy, job, room)
            else:
                player = _scripted(engines[policy.name], room.collector)
            job.plays(policy.name, player.fingerprint)
            for temperature, group_size in self._settings(policy, job.plan):
                row = Row(
                    name=policy.name, label=labels[policy.name] + _suffix(temperature), split=SPLIT,
                    policy_version=player.policy_version, fingerprint=player.fingerprint, temperature=temperature,
                    group_size=group_size,
                )  # fmt: skip
                played.append(await self._play(job, room, player, row, tasks))
        evaluations = tuple(evaluation for evaluation, _ in played)
        lost_together = room.collector.losses.finding()
        if lost_together is not None:
            self._console.found(lost_together)
        report = EvaluationReport(
            evaluations=evaluations, comparisons=comparisons(evaluations), path=job.path,
            endpoints=tuple(read_usage(job.path.parent.parent, during=job.path.stem)),
            findings=() if lost_together is None else (lost_together,),
            seen_in_training=num_shared(tasks, room.tasks.train),
        )  # fmt: skip
        report.write([group for _, groups in played for group in groups])
        job.over()
        return report

    async def _play(
        self, job: Job, room: Parts | Baseline, player: _Player, row: Row, tasks: Sequence[Task]
    ) -> tuple[Evaluation, list[TrajectoryGroup]]:
        row = replace(row, done=job.episodes.get(row.label, {}), keep=job.keep(row.label))
        sampling = Sampling(
            temperature=1.0 if row.temperature is None else row.temperature,
            max_tokens=self.config.sampling.sampling_max_tokens,
        )
        with self._console.steps(f"{SPLIT}: {row.label}", len(tasks)) as progress:
            played = await evaluate(
                player.collector, tasks, row, sampling=sampling, judge=room.judge, in_waves=player.in_waves,
                attempt=job.start, seconds=time.monotonic, prefix="eval",
                pass_k_values=self.config.evaluation.pass_k_values, kind_of=room.kind_of, on_group=lambda _: progress({}),
            )  # fmt: skip
        self._console.evaluated(played[0])
        return played

    def _settings(self, policy: Policy, plan: Plan) -> list[tuple[float | None, int]]:
        """Temperatures, None for scripts, and how many episodes a task is played at each."""
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

    async def _loaded(self, policy: Policy, job: Job, room: Parts | Baseline) -> _Player:
        """The recipe's model with a policy's weights. Raises DataError for weights that are damaged or of another model."""

        assert isinstance(room, Parts) and self._trainer is not None, "a policy with weights needs the model"  # noqa: PT018
        version: int | None = None
        match policy.kind:
            case PolicyKind.BASE:
                weights, version = room.initial_weights, 0
            case _:
                checkpoint, weights = _newest_weights(policy, job, room.policy)
                version = int(checkpoint.name) if checkpoint.name.isdigit() else 0
        await self._trainer.play_with(weights)
        return _Player(
            collector=room.collector, fingerprint=room.engine.fingerprint, policy_version=version,
            in_waves=room.is_deterministic,
        )  # fmt: skip

    def _engine(self, policy: Policy, plan: Plan) -> MessageEngine:
        """Who plays a policy without weights. Raises UsageError, DataError."""
        match policy.kind:
            case PolicyKind.ENDPOINT:
                return OpenAIEngine(
                    policy.source, policy.model, api_key=key_from(plan.api_key_env),
                    max_concurrency=self.config.engine.max_running,
                )  # fmt: skip
            case PolicyKind.CONSTANT:
                return ScriptedMessages([policy.source], name=policy.name)
            case PolicyKind.SCRIPT:
                return script_of(policy.source, folder_of(self._recipe))
            case PolicyKind.EXPERT:
                make_environment, _ = environment_of(self.config, folder_of(self._recipe))
                return ScriptedEpisodes(partial(expert_script, make_environment), name=policy.name)
            case _:
                return message_engine_of(self.config, folder_of(self._recipe))


def _with_ledger(folder: RunFolder) -> RunFolder:
    """The folder of a run. Raises DataError where it has played and its ledger is gone: a new one would not account for that."""
    if not folder.ledger.exists() and any((folder.path / "trajectories").glob("*.jsonl")):
        raise DataError(
            f"{folder.ledger} is missing, and the run has played: restore it, or evaluate its checkpoints in a run of their own, "
            f"`sparring eval {folder.recipe} --policy {folder.path} --name NAME`."
        )
    return folder


def _newest_weights(policy: Policy, job: Job, model: ModelPolicy) -> tuple[Path, Weights]:
    """Of the checkpoint that was found when the evaluation was planned, or, of a run under way that has deleted it since, of the
    newest. One that has played already is that one or none."""
    from sparring.training import checkpoints

    checkpoint = Path(policy.source)
    is_newest = policy.name not in _FIXED and run_and_step(policy.name)[1] is None
    while True:
        try:
            return checkpoint, checkpoints.load_weights(checkpoint, model)
        except DataError:
            if not is_newest or policy.name in (job.plan.fingerprints or {}):
                raise
            newest = checkpoints.newest(checkpoint.parent)
            if newest == checkpoint:
                raise
            checkpoint = newest
            job.moved(policy.name, checkpoint)


def _scripted(engine: MessageEngine, collector: Collector) -> _Player:
    introduce = engine.introduce if isinstance(engine, ScriptedEpisodes) else None
    return _Player(
        collector=collector.playing(engine, introduce=introduce), fingerprint=engine.fingerprint, policy_version=None,
        in_waves=False,
    )  # fmt: skip


def _labels(names: Sequence[str]) -> dict[str, str]:
    """Each name in letters that ids may have, no two alike."""
    labels: dict[str, str] = {}
    for name in names:
        label = re.sub(r"[^\w.-]+", "-", name).strip("-")[:60]
        labels[name] = label if label not in labels.values() else f"{label}-{len(labels)}"
    return labels


def _suffix(temperature: float | None) -> str:
    return "" if temperature is None else "-greedy" if temperature == 0 else f"-t{temperature:g}"
