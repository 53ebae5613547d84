#!/bin/bash
#SBATCH --nodes=16 --ntasks-per-node=64
# The files below $QUELL_POOL_DIR are on the local disks of the job's nodes. The job copies its
# results to the shared file system before the pool ends.
set -e
name=job-$SLURM_JOB_ID
quell pool up "$name"
trap 'quell pool down "$name" --discard' EXIT
srun quell run --pool "$name" -- ./simulate
quell pool stage-out "$name:/results" "$SLURM_SUBMIT_DIR"
