#!/bin/bash
#SBATCH --nodes=500 --ntasks-per-node=64
# All ranks of a node share one view of /shared/env. Run `quell index /shared/env` once before.
srun quell run -i /shared/env.quell -- /shared/env/bin/python train.py
