#!/bin/bash
# Trains on several machines under SLURM, and goes on from the last checkpoint when the job is requeued:
#
#     sbatch examples/slurm.sh configs/recommended/molmuv_staco.yaml --trainer.precision bf16-mixed
#
# One task is one process with one GPU. num_pos and num_neg of the data module are per process.
#SBATCH --job-name=tpauc
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

checkpoints="${CHECKPOINTS:-checkpoints-$SLURM_JOB_ID}" # on a disk that all machines share

# Lightning needs the same numbers as SLURM. Leave out `#SBATCH --signal`: it asks for a checkpoint amid a step.
srun lightning-tpauc fit --config "$1" \
  --trainer.accelerator gpu --trainer.strategy ddp \
  --trainer.num_nodes "$SLURM_NNODES" --trainer.devices "$SLURM_NTASKS_PER_NODE" \
  --trainer.callbacks+=ModelCheckpoint --trainer.callbacks.dirpath "$checkpoints" \
  --trainer.callbacks.save_last true --trainer.callbacks.every_n_train_steps 100 \
  --ckpt_path last "${@:2}"
