"""The files of deploy/ fit the project: names, versions, fields, options and commands exist. None of them runs here, except
that Slurm's script runs with replacements of `srun`, `scontrol`, `ray` and `sparring`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from jsonschema import Draft202012Validator
from typer.main import get_command

from sparring.cli import app
from sparring.config import Config, load_config, read_place
from tests.deploy_fields import KINDS
from tests.installs.lock import IMAGE_EXTRAS

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PLACES = ("laptop", "gpu-node", "ray-cluster")
TARGETS = ("controller", "learner", "vllm")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SCRIPT = DEPLOY / "slurm.sh"


def read(name: str) -> str:
    return (DEPLOY / name).read_text("utf-8")


def read_pins(path: Path) -> dict[str, str]:
    """Return the versions of a file of constraints by name."""
    pins = [line.split("==") for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    return {re.sub("[-_.]+", "-", name).lower(): version for name, version in pins}


# Commands

COMMAND = re.compile(r"(?:(?<=[\s`(])|^)sparring (?=[a-z])([^`]+)")


def list_commands(text: str) -> list[list[str]]:
    """Return the arguments of each `sparring COMMAND ...` in a text. A backslash continues a line."""
    lines = re.sub(r"\\\n#?\s*", " ", text).splitlines()
    found = [COMMAND.search(line.strip("# ")) for line in lines if not line.startswith("COPY ")]
    return [shlex.split(one[1].rstrip("& ")) for one in found if one]


UsageError = typer.BadParameter.__bases__[0]
"""What the parser raises, of click or of typer's copy of it."""


def parse(arguments: list[str]) -> dict[str, Any]:
    """Return the parameters of a command line of `sparring`. Raises UsageError."""
    group: Any = get_command(app)
    with group.context_class(group, info_name="sparring") as context:
        name, command, rest = group.resolve_command(context, list(arguments))
        return command.make_context(name, rest, parent=context).params


def pages() -> dict[str, str]:
    files = [*DEPLOY.iterdir(), ROOT / "docs" / "deploy.md"]
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files}


def test_every_command_line_is_accepted() -> None:
    commands = [(page, words) for page, text in pages().items() for words in list_commands(text)]
    assert {words[0] for _, words in commands} >= {"train", "install", "learner", "runs"}
    for page, words in commands:
        try:
            parse(words)
        except UsageError as error:
            pytest.fail(f"{page}: sparring {shlex.join(words)}: {error}")


@pytest.mark.parametrize("line", ["sparring trian recipe", "sparring worker --conect trainer:7700", "sparring learner"])
def test_a_command_line_with_a_mistake_is_found(line: str) -> None:
    (words,) = list_commands(f"#   {line}")
    with pytest.raises(UsageError):
        parse(words)


def test_files_of_the_repository_that_commands_name_exist() -> None:
    named = {
        name
        for text in pages().values()
        for name in re.findall(r"(?<![\w/])(?:deploy|recipes|docs|tests)/[\w./-]+", text)
    }
    assert {"deploy/slurm.sh", "recipes/quickstart", "deploy/ray-cluster.toml"} <= named
    assert [name for name in sorted(named) if not (ROOT / name.rstrip(".")).exists()] == []


def test_every_part_that_was_not_run_is_marked() -> None:
    for name in ("Containerfile", "kuberay.yaml", "workers.yaml", "slurm.sh"):
        assert re.search(r"^# NOT RUN: ", read(name), flags=re.MULTILINE), name


# Places


def load_placed(place: str, recipe: str) -> Config:
    path = ROOT / "recipes" / recipe / "recipe.toml"
    return load_config(path, read_place(DEPLOY / f"{place}.toml").overrides(path))


@pytest.mark.parametrize("recipe", ["pointer_chase", "quickstart"])
@pytest.mark.parametrize("place", PLACES)
def test_a_place_fits_an_unchanged_recipe(place: str, recipe: str) -> None:
    config = load_placed(place, recipe)
    settings = read_place(DEPLOY / f"{place}.toml").settings
    given = {key: config.model_dump(mode="json")[key.partition(".")[0]][key.partition(".")[2]] for key in settings}
    assert given == settings  # the recipe reads every key


def test_one_node_gives_each_server_and_rank_a_gpu_and_keeps_one() -> None:
    config = load_placed("gpu-node", "quickstart")
    devices = re.findall(r"CUDA_VISIBLE_DEVICES=(\S+) (ray|sparring)", read("gpu-node.toml"))
    gpus = {command: numbers.split(",") for numbers, command in devices}
    assert len(gpus["ray"]) == config.engine.num_servers + config.learner.num_ranks
    assert sorted(gpus["ray"] + gpus["sparring"]) == [str(number) for number in range(8)]


# Images


@dataclass
class Stage:
    """A stage of a Containerfile, with its instructions in order."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def values(self, keyword: str) -> list[str]:
        return [value for name, value in self.instructions if name == keyword]


def read_stages(text: str) -> dict[str, Stage]:
    """Return the stages of a Containerfile by name, in order."""
    stages: dict[str, Stage] = {}
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in re.sub(r"\\\n\s*", " ", lines).splitlines():
        keyword, _, value = line.strip().partition(" ")
        if keyword == "FROM":
            base, _, name = value.partition(" AS ")
            assert name, f"the stage {value} has no name"
            stages[name] = Stage(name, base)
        elif keyword:
            list(stages.values())[-1].instructions.append((keyword, value.strip()))
    return stages


STAGES = read_stages(read("Containerfile"))
OF_DEBIAN = {"apt-get", "rm", "useradd"}
"""Commands that the base image has."""


def list_run(stage: Stage) -> Iterator[list[str]]:
    """Yield the words of each command of a stage's RUN instructions, without the options of RUN."""
    for value in stage.values("RUN"):
        for command in re.sub(r"^(--\S+ +)+", "", value).split("&&"):
            yield shlex.split(command)


def test_the_instructions_are_known_and_add_no_address() -> None:
    keywords = {keyword for stage in STAGES.values() for keyword, _ in stage.instructions}
    assert keywords <= {"ARG", "CMD", "COPY", "ENV", "RUN", "USER", "WORKDIR"}  # no ADD
    assert "://" not in read("Containerfile")
    assert set(TARGETS) <= set(STAGES)


def test_base_images_are_pinned() -> None:
    for stage in STAGES.values():
        earlier = list(STAGES)[: list(STAGES).index(stage.name)]
        assert stage.base in earlier or re.search(r":\d+\.\d+\.\d+-\w+|@sha256:[0-9a-f]{64}$", stage.base), stage
    version = STAGES["base"].base.partition(":")[2].split(".")
    assert (int(version[0]), int(version[1])) >= (3, 11)  # requires-python


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_another_user_than_root(target: str) -> None:
    *_, user = STAGES[target].values("USER")
    assert f"--uid {user} " in " ".join(STAGES["base"].values("RUN"))
    assert int(user) > 0
    assert STAGES[target].instructions[-1] == ("CMD", '["sparring", "--help"]')
    # The last layer that changes files comes before the user.
    assert [keyword for keyword, _ in STAGES[target].instructions if keyword in ("COPY", "USER")][-1] == "USER"


def test_copied_files_exist() -> None:
    for stage in STAGES.values():
        for value in stage.values("COPY"):
            *sources, _ = shlex.split(value)
            if not sources[0].startswith("--from="):
                assert [one for one in sources if not (ROOT / one).exists()] == []
                continue
            origin = STAGES[sources.pop(0).removeprefix("--from=")]
            chain = [origin]
            while chain[-1].base in STAGES:
                chain.append(STAGES[chain[-1].base])
            words = {word for one in chain for command in list_run(one) for word in command}
            assert set(sources) <= words, f"{origin.name} does not create {sources}"


def test_the_commands_of_the_images_exist() -> None:
    help_of_pip = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for stage in STAGES.values():
        for words in list_run(stage):
            if words[0] == "sparring":
                parse(words[1:])
            elif words[:4] == ["python", "-m", "pip", "install"]:
                assert [word for word in words if word.startswith("--") and f"{word} " not in help_of_pip] == []
            elif words[:3] == ["python", "-m", "pip"]:
                assert words[3:] == ["check"]
            else:
                assert words[0] in OF_DEBIAN or words[:3] == ["python", "-m", "venv"], words


def test_pip_installs_only_files_whose_hashes_are_locked() -> None:
    for target in ("controller", "learner"):
        locked, project, check = list_run(STAGES[f"{target}-packages"])
        assert {"--require-hashes", "--no-deps"} <= set(locked)
        build = "${TORCH}" if target == "controller" else "cuda"
        files = ["--requirement", f"locks/torch-{build}.txt", "--requirement", "locks/image.txt"]
        assert locked[-4:] == files
        assert project[3:] == ["install", "--no-cache-dir", "--no-deps", "--no-build-isolation", "."]
        assert check[3:] == ["check"]
    assert STAGES["controller-packages"].values("ARG") == ["TORCH=cpu"]
    assert (ROOT / "locks" / "torch-cuda.txt").is_file()  # what --build-arg TORCH=cuda selects


def test_the_lock_of_the_images_has_their_extras_and_what_builds_the_package() -> None:
    locked = {line.partition("==")[0] for line in (ROOT / "locks" / "image.txt").read_text("utf-8").splitlines()}
    required = [
        *PROJECT["dependencies"],
        *(one for extra in IMAGE_EXTRAS for one in PROJECT["optional-dependencies"][extra]),
    ]
    names = {re.sub("[-_.]+", "-", re.split(r"[\[<>=]", one)[0]).lower() for one in required}
    assert names - locked == {"torch"}
    assert {"setuptools", *read_pins(DEPLOY / "constraints.txt")} <= locked


def test_the_constraints_of_the_images_do_not_contradict_the_others() -> None:
    ours, more = read_pins(ROOT / "constraints.txt"), read_pins(DEPLOY / "constraints.txt")
    assert {name: version for name, version in more.items() if ours.get(name, version) != version} == {}


# Kubernetes


def read_manifest(name: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a manifest by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(read(name))}


MANIFEST, WORKERS = read_manifest("kuberay.yaml"), read_manifest("workers.yaml")
CLUSTER = MANIFEST["RayJob"]["spec"]["rayClusterSpec"]
HEAD = CLUSTER["headGroupSpec"]
GROUPS = {one["groupName"]: one for one in CLUSTER["workerGroupSpecs"]}
PODS = [one["template"]["spec"] for one in (HEAD, *GROUPS.values(), WORKERS["Deployment"]["spec"])]


def problems_of(manifest: Mapping[str, Any]) -> list[str]:
    validator = Draft202012Validator(KINDS[manifest["kind"]])
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


@pytest.mark.parametrize("name", ["kuberay.yaml", "workers.yaml"])
def test_a_manifest_has_only_documented_fields(name: str) -> None:
    assert [problem for one in yaml.safe_load_all(read(name)) for problem in problems_of(one)] == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("backoffLimit", "backofLimit"), ('"64Gi"', '"64 GB"'), ("HTTPMode", "HTTP"), ('"groupName"', '"name"')],
)
def test_a_mistake_in_a_manifest_is_found(right: str, wrong: str) -> None:
    text = json.dumps(MANIFEST["RayJob"])
    assert right in text
    assert problems_of(json.loads(text.replace(right, wrong))) != []


def test_the_config_map_is_the_place_file() -> None:
    assert MANIFEST["ConfigMap"]["data"] == {"ray-cluster.toml": read("ray-cluster.toml")}


def test_the_entrypoint_names_what_the_pods_have() -> None:
    command, *words = shlex.split(MANIFEST["RayJob"]["spec"]["entrypoint"])
    parameters = parse(words)
    assert command == "sparring"
    assert words[0] == "train"
    (container,) = HEAD["template"]["spec"]["containers"]
    places = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert places[str(parameters["on"].parent)] == "place"
    assert parameters["on"].name in MANIFEST["ConfigMap"]["data"]
    assert "COPY recipes /opt/recipes" in read("Containerfile")
    assert (ROOT / Path(parameters["recipe"]).relative_to("/opt")).is_dir()
    (change,) = parameters["overrides"]
    assert change.startswith("run.runs_dir=/shared/")
    groups = [one["template"]["spec"]["containers"][0] for one in GROUPS.values()]
    assert all("/shared" in [one["mountPath"] for one in group["volumeMounts"]] for group in groups)


def test_the_cluster_has_place_for_all_servers_ranks_and_workers() -> None:
    config = load_placed("ray-cluster", "quickstart")
    assert (HEAD["rayStartParams"]["num-cpus"], HEAD["rayStartParams"]["num-gpus"]) == ("0", "0")
    num_cpus = num_gpus = 0
    for group in GROUPS.values():
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        num_cpus += group["replicas"] * int(limits["cpu"])
        num_gpus += group["replicas"] * int(limits.get("nvidia.com/gpu", 0))
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]
    num_servers = config.engine.num_servers + config.learner.num_ranks
    assert num_gpus == num_servers
    assert num_cpus >= num_servers + config.environment.workers
    # The run has a copy of the model on the head's own GPU.
    assert HEAD["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert config.model.device == "cuda"


def test_the_pods_use_the_images_of_the_containerfile() -> None:
    images = {container["image"] for pod in PODS for container in pod["containers"]}
    assert images == {f"sparring-{target}:{PROJECT['version']}" for target in ("controller", "vllm")}
    tags = set(re.findall(r"--tag (\S+)", "".join(pages().values())))
    assert images <= tags <= {f"sparring-{target}:{PROJECT['version']}" for target in TARGETS}
    assert CLUSTER["rayVersion"] == read_pins(DEPLOY / "constraints.txt")["ray"]


def test_the_pods_have_no_root_user_and_no_key_in_plain_text() -> None:
    (_, user) = next(one for one in STAGES["controller"].instructions if one[0] == "USER")
    for pod in PODS:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == int(user)
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            keys = [one for one in container["env"] if re.search("KEY|TOKEN|SECRET|PASSWORD", one["name"])]
            reference = {"secretKeyRef": {"name": "sparring", "key": "api-key"}}
            assert keys == [{"name": "SPARRING_API_KEY", "valueFrom": reference}]
            assert {one["name"] for one in container.get("volumeMounts", ())} <= {
                one["name"] for one in pod.get("volumes", ())
            }
    for name in ("kuberay.yaml", "workers.yaml"):
        assert "kubectl create secret generic sparring --from-literal=api-key=" in read(name)


def test_volumes_name_objects_of_the_manifest() -> None:
    for pod in PODS:
        for volume in pod.get("volumes", ()):
            claim, place = volume.get("persistentVolumeClaim"), volume.get("configMap")
            assert claim is None or claim["claimName"] == MANIFEST["PersistentVolumeClaim"]["metadata"]["name"]
            assert place is None or place["name"] == MANIFEST["ConfigMap"]["metadata"]["name"]


def test_the_workers_have_a_process_for_each_core_of_their_limit() -> None:
    spec = WORKERS["Deployment"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    command, *words = container["command"]
    assert command == "sparring"
    assert words[0] == "worker"
    assert parse(words)["processes"] == int(container["resources"]["limits"]["cpu"])
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


# Slurm

OF_SBATCH = {
    "job-name",
    "nodes",
    "ntasks-per-node",
    "cpus-per-task",
    "gpus-per-node",
    "exclusive",
    "time",
    "signal",
    "output",
}
OF_SRUN = {"overlap", "kill-on-bad-exit", "cpus-per-task", "ntasks-per-node", "nodes", "ntasks", "nodelist", "exclude"}
"""Options that https://slurm.schedmd.com/sbatch.html and srun.html document."""

SRUN = """
import os, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    with open("srun.txt", "a") as file:
        print(words.pop(0), file=file)
if words[0] == "hostname":
    print("127.0.0.1 127.0.0.2")
    sys.exit()
os.execvp(words[0], words)
"""
RAY = """
import os, sys, time
with open("ray.txt", "a") as file:
    print(os.environ["CUDA_VISIBLE_DEVICES"], *sys.argv[1:], file=file)
if sys.argv[1] == "health-check":
    sys.exit(not os.path.exists("head.txt"))
if "--head" in sys.argv:
    if os.environ.get("HEAD_FAILS"):
        sys.exit("the port is in use")
    open("head.txt", "w").close()
time.sleep(600)
"""
SPARRING = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open("stopped.txt", "w").close(), sys.exit(0)))
with open("sparring.json", "w") as file:
    json.dump([os.environ["CUDA_VISIBLE_DEVICES"], *sys.argv[1:]], file)
deadline = time.monotonic() + 30
while "start --address" not in open("ray.txt").read() and time.monotonic() < deadline:
    time.sleep(0.05)
time.sleep(float(os.environ.get("TRAINS", 0)))
sys.exit(4)
"""
SCONTROL = 'import sys\nprint(sys.argv[3].replace(",", chr(10)))\n'


@pytest.fixture
def allocation(tmp_path: Path) -> Path:
    """A folder with replacements of the commands that the script calls."""
    (tmp_path / "bin").mkdir()
    for name, program in {"srun": SRUN, "ray": RAY, "sparring": SPARRING, "scontrol": SCONTROL}.items():
        file = tmp_path / "bin" / name
        file.write_text(f"#!{sys.executable}\n{program}", "utf-8")
        file.chmod(0o755)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "place.toml").touch()
    return tmp_path


def start(allocation: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    slurm = {"SLURM_JOB_NODELIST": "node1,node2,node3", "SLURM_JOB_ID": "812345", "SLURM_CPUS_PER_TASK": "32"}
    path = os.pathsep.join([str(allocation / "bin"), os.environ["PATH"]])
    return subprocess.Popen(
        ["bash", str(SCRIPT), *arguments],
        cwd=allocation,
        env={**os.environ, **slurm, "CUDA_VISIBLE_DEVICES": "0,1,2", "PATH": path, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _has_processes(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def finish(script: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and the output. No process is left."""
    output, _ = script.communicate(timeout=60)
    # Init takes a moment to remove the last ones, which have ended.
    deadline = time.monotonic() + 20
    while _has_processes(script.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _has_processes(script.pid)
    return script.returncode, output


def test_the_script_is_valid_and_its_options_exist() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert os.access(SCRIPT, os.X_OK)
    assert set(re.findall(r"^#SBATCH --([\w-]+)", SCRIPT.read_text("utf-8"), flags=re.MULTILINE)) == OF_SBATCH


def test_the_script_starts_ray_on_all_nodes_and_ends_it_with_the_run(allocation: Path) -> None:
    code, output = finish(start(allocation, "recipe", "place.toml", "--name", "desk", "schedule.max_steps=2"))
    assert (code, output) == (4, "")
    device, *words = json.loads((allocation / "sparring.json").read_text("utf-8"))
    parameters = parse(words)
    assert (parameters["recipe"], str(parameters["on"]), parameters["name"]) == ("recipe", "place.toml", "desk")
    assert parameters["overrides"] == ["schedule.max_steps=2", "run.ray_address=127.0.0.1:22345"]
    head, *_, others = (
        one.split() for one in (allocation / "ray.txt").read_text("utf-8").splitlines() if " start " in one
    )
    # The first GPU of the first node is the run's, and Ray has all others.
    assert (device, head[0], others[0]) == ("0", "1,2", "0,1,2")
    assert {"--head", "--port=22345", "--num-gpus=2", "--num-cpus=32", "--block"} <= set(head)
    assert {"--address=127.0.0.1:22345", "--num-cpus=32", "--block"} <= set(others)
    steps = (allocation / "srun.txt").read_text("utf-8").splitlines()
    assert {one.removeprefix("--").partition("=")[0] for one in steps} == OF_SRUN
    assert "--nodelist=node1" in steps
    assert {"--nodes=2", "--ntasks=2", "--exclude=node1"} <= set(steps)
    check_ray_options(head[2:] + others[2:])


def check_ray_options(words: list[str]) -> None:
    """Check that `ray start` has the options, if Ray is installed."""
    ray = Path(sys.executable).with_name("ray")
    if not ray.exists():
        return
    shown = subprocess.run([ray, "start", "--help"], capture_output=True, text=True, check=True).stdout
    options = {*words, *(f"--{name}" for group in (HEAD, *GROUPS.values()) for name in group["rayStartParams"])}
    assert [word for word in options if not re.search(rf"{re.escape(word.partition('=')[0])}[ \n]", shown)] == []


def test_the_script_passes_a_signal_on_and_waits_for_the_run(allocation: Path) -> None:
    script = start(allocation, "--resume", "recipe", "place.toml", TRAINS="600")
    deadline = time.monotonic() + 30
    while not (allocation / "sparring.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(script.pid, signal.SIGTERM)
    assert finish(script) == (0, "")
    assert (allocation / "stopped.txt").exists()
    assert parse(json.loads((allocation / "sparring.json").read_text("utf-8"))[1:])["resume"] == Path("recipe")


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {}, r"RECIPE is missing: sbatch deploy/slurm\.sh RECIPE PLACE\.TOML"),
        (["recipe"], {}, r"PLACE\.TOML is missing"),
        (["--resume"], {}, "RUN is missing"),
        (["recipe", "place.toml"], {"SLURM_JOB_NODELIST": ""}, "no allocation; submit this script with sbatch"),
        (["other", "place.toml"], {}, "other does not exist in /.*; submit the job in the folder"),
        (["recipe", "other.toml"], {}, "the place file other.toml does not exist"),
        (["recipe", "place.toml"], {"CUDA_VISIBLE_DEVICES": "0"}, "this node has 1 GPUs"),
        (["recipe", "place.toml"], {"HEAD_FAILS": "1"}, "the port is in use\n.*the Ray head on node1 ended"),
    ],
)
def test_the_script_reports_what_is_wrong(
    allocation: Path, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    code, output = finish(start(allocation, *arguments, **variables))
    assert code in (1, 2)
    assert re.search(message, output), output
    assert not (allocation / "sparring.json").exists()


def test_a_missing_command_is_named(allocation: Path) -> None:
    (allocation / "bin" / "srun").unlink()
    code, output = finish(start(allocation, "recipe", "place.toml"))
    assert code == 2
    assert "srun is not on PATH; activate the environment before sbatch" in output
