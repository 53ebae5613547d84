#!/bin/bash
#SBATCH --nodes=16 --ntasks-per-node=64
# The files below $QUELL_POOL_DIR are on the local disks of the job's nodes. The job copies its
# results to the shared file system before the pool ends.
#
# If the program or the copy fails, `quell pool down` without --discard refuses to end a pool that
# has files: it prints the reason, and the daemons continue. Slurm ends them with the job, and they
# then remove the files. To have an hour in which to copy them by hand, write
# `|| { sleep 1h; exit 1; }` after the commands that can fail.
set -e
name=job-$SLURM_JOB_ID
quell pool up "$name"
trap 'quell pool down "$name"' EXIT
srun quell run --pool "$name" -- ./simulate
quell pool stage-out "$name:/results" "$SLURM_SUBMIT_DIR"
trap - EXIT
quell pool down "$name" --discard # the rest is not needed
