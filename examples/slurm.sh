#!/bin/bash
# One run on two nodes under Slurm: sbatch examples/slurm.sh, in a folder that all nodes see.
#SBATCH --job-name=bigtrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=00:15:00

set -euo pipefail
source .venv/bin/activate

# The ranks meet on the first node of the job.
HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# One torchrun a node, and four ranks each. When one fails, srun ends the other.
srun --kill-on-bad-exit=1 \
torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint="$HEAD_NODE:29400" -m bigtrain_lab run pipeline --ranks 8 --micro-batches 16
