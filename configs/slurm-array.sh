#!/bin/bash
# A sweep as a Slurm array: every task runs one shard. Submit, then join what the tasks left:
#
#     sbatch --array=1-8 configs/slurm-array.sh configs/sweep-nano.toml /scratch/me/sweep
#     oasis merge /scratch/me/sweep/shard-*-of-8/* -o runs
#
# A task that is requeued, or an array that is submitted again, goes on where it was; `--array=3` alone with TASKS=8 repeats
# one shard. Other schedulers: set SLURM_ARRAY_TASK_ID (from 1) and TASKS from their own variables.
#SBATCH --job-name=oasis-sweep
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --output=%x-%A_%a.log
set -euo pipefail

file=${1:?give the configuration of the sweep}
output=${2:?give a folder that all tasks can write}
shard=${SLURM_ARRAY_TASK_ID:?is set by sbatch --array=1-N}/${TASKS:-${SLURM_ARRAY_TASK_COUNT:?is set by sbatch --array=1-N}}

exec "${OASIS:-oasis}" sweep "$file" --shard "$shard" --jobs "${SLURM_CPUS_PER_TASK:-1}" --output "$output" --resume
