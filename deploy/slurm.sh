#!/bin/bash
#SBATCH --job-name=sparring
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --output=%x-%j.log
#
# NOT RUN: this script has never run under Slurm. tests/test_deploy.py runs it with replacements of Slurm, ray and sparring.
#
# Trains on a Ray cluster of all nodes of the allocation. The first GPU of the first node stays with the process of the run.
# Submit it in a folder that all nodes share, with an environment that all nodes have at the same path:
#
#   source .venv/bin/activate
#   sbatch deploy/slurm.sh recipes/quickstart deploy/ray-cluster.toml --name desk
#
# Five minutes before the time limit, and with `scancel --batch --signal=TERM JOB`, the run saves a checkpoint and ends. To
# resume it:
#
#   sbatch deploy/slurm.sh --resume runs/desk deploy/ray-cluster.toml
set -euo pipefail

fail() {
    echo "deploy/slurm.sh: $*" >&2
    exit 2
}

usage="sbatch deploy/slurm.sh RECIPE PLACE.TOML [ARGUMENT]..., or with --resume RUN in place of RECIPE"
if [ "${1:-}" = --resume ]; then
    subject=(--resume "${2:?"RUN is missing: $usage"}")
    shift 2
else
    subject=("${1:?"RECIPE is missing: $usage"}")
    shift
fi
place=${1:?"PLACE.TOML is missing: $usage"}
shift
[ -n "${SLURM_JOB_NODELIST:-}" ] || fail "there is no allocation; submit this script with sbatch"
[ -e "${subject[-1]}" ] || fail "${subject[-1]} does not exist in $PWD; submit the job in the folder that contains it"
[ -f "$place" ] || fail "the place file $place does not exist in $PWD"
for command in ray scontrol srun sparring; do
    command -v "$command" >/dev/null || fail "$command is not on PATH; activate the environment before sbatch"
done
IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-}"
[ "${#gpus[@]}" -ge 2 ] || fail "this node has ${#gpus[@]} GPUs in CUDA_VISIBLE_DEVICES, but the run needs one, and Ray others"

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
num_others=$((${#nodes[@]} - 1))
cpus=${SLURM_CPUS_PER_TASK:-1}
port=$((20000 + SLURM_JOB_ID % 10000))
step=(srun --overlap --kill-on-bad-exit=1 "--cpus-per-task=$cpus" --ntasks-per-node=1)
read -r host _ < <("${step[@]}" --nodes=1 --ntasks=1 "--nodelist=$head" hostname --ip-address)
address=$host:$port

steps=()
stop_cluster() { # Slurm kills what is left when this script ends
    [ "${#steps[@]}" -eq 0 ] || kill "${steps[@]}" 2>/dev/null || true
    for ((waited = 0; waited < 60; waited++)); do
        [ -n "$(jobs -rp)" ] || break
        sleep 0.5
    done
}
trap stop_cluster EXIT

others=$(IFS=, && echo "${gpus[*]:1}")
"${step[@]}" --nodes=1 --ntasks=1 "--nodelist=$head" env "CUDA_VISIBLE_DEVICES=$others" \
    ray start --head "--node-ip-address=$host" "--port=$port" "--num-cpus=$cpus" "--num-gpus=$((${#gpus[@]} - 1))" \
    --include-dashboard=false --disable-usage-stats --block &
steps+=($!)
for ((waited = 0; ; waited += 2)); do
    ray health-check --address "$address" >/dev/null 2>&1 && break
    kill -0 "${steps[0]}" 2>/dev/null || fail "the Ray head on $head ended; its messages are above"
    [ "$waited" -lt 120 ] || fail "the Ray head on $head did not answer at $address within 120 s"
    sleep 2
done
if [ "$num_others" -gt 0 ]; then
    "${step[@]}" "--nodes=$num_others" "--ntasks=$num_others" "--exclude=$head" \
        ray start "--address=$address" "--num-cpus=$cpus" --block &
    steps+=($!)
fi

# The run waits for the other nodes, and states what is missing if they do not come.
CUDA_VISIBLE_DEVICES=${gpus[0]} sparring train "${subject[@]}" --on "$place" "$@" "run.ray_address=$address" &
run=$!
trap 'kill -TERM "$run"' TERM INT
wait "$run" || true # also ends when a signal arrives
while kill -0 "$run" 2>/dev/null; do
    wait "$run" || true
done
code=0
wait "$run" || code=$?
exit "$code"
