//! Environments of processes in jobs, as launchers set them: the variables about the job, the node
//! and the rank. The environments of Slurm were recorded in jobs of two tasks on each of four
//! nodes, with Slurm 22.05.8 and Open MPI 4.1.4 of Debian 12 (`testbed/slurm`). The environments of
//! Flux and PBS follow the documentation: flux-environment(7), whose identifiers in the form F58
//! begin with `ƒ`, and pbsdsh(1) with the variables of a job.

/// The variables of one process.
pub type Environment = &'static [(&'static str, &'static str)];

/// A batch script of Slurm. It runs on the first node.
pub const SLURM_BATCH: Environment = &[
    ("SLURM_CLUSTER_NAME", "quell0"),
    ("SLURM_JOB_ID", "3"),
    ("SLURM_JOB_NODELIST", "n[1-4]"),
    ("SLURM_JOB_NUM_NODES", "4"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NNODES", "4"),
    ("SLURM_NODEID", "0"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_PROCID", "0"),
];

/// Rank 1 of a step that `srun --mpi=pmix` started. It is on the first node.
pub const SLURM_STEP: Environment = &[
    ("PMIX_NAMESPACE", "slurm.pmix.3.0"),
    ("PMIX_RANK", "1"),
    ("SLURM_CLUSTER_NAME", "quell0"),
    ("SLURM_JOB_ID", "3"),
    ("SLURM_JOB_NODELIST", "n[1-4]"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NNODES", "4"),
    ("SLURM_NODEID", "0"),
    ("SLURM_PROCID", "1"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NUM_NODES", "4"),
    ("SLURM_STEP_NUM_TASKS", "8"),
];

/// Rank 1 of `mpirun` in a batch script of Slurm, on the first node: a child of mpirun, with the
/// variables of the script.
pub const SLURM_MPIRUN_FIRST: Environment = &[
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "8"),
    ("OMPI_MCA_ess_base_jobid", "430899201"),
    ("PMIX_NAMESPACE", "430899201"),
    ("PMIX_RANK", "1"),
    ("SLURM_CLUSTER_NAME", "quell0"),
    ("SLURM_JOB_ID", "3"),
    ("SLURM_NNODES", "4"),
    ("SLURM_NODEID", "0"),
    ("SLURM_PROCID", "0"),
];

/// Rank 2 of the same job, on the second node. The daemon of this rank is the first task, with the
/// number 0, of a step on the other three nodes.
pub const SLURM_MPIRUN_SECOND: Environment = &[
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_RANK", "2"),
    ("OMPI_COMM_WORLD_SIZE", "8"),
    ("OMPI_MCA_ess_base_jobid", "430899201"),
    ("PMIX_NAMESPACE", "430899201"),
    ("PMIX_RANK", "2"),
    ("SLURM_CLUSTER_NAME", "quell0"),
    ("SLURM_JOB_ID", "3"),
    ("SLURM_NNODES", "3"),
    ("SLURM_NODEID", "0"),
    ("SLURM_PROCID", "0"),
    ("SLURM_STEP_ID", "1"),
    ("SLURM_STEP_NUM_NODES", "3"),
    ("SLURM_STEP_NUM_TASKS", "3"),
];

/// Task 5 of 8 on two nodes, of a job in an instance that is itself a job. The tasks of the first
/// node are 0 to 3.
pub const FLUX_TASK: Environment = &[
    ("FLUX_ENCLOSING_ID", "ƒD2e73NP"),
    ("FLUX_JOB_ID", "ƒDCB6RV"),
    ("FLUX_JOB_ID_PATH", "/ƒD2e73NP/ƒDCB6RV"),
    ("FLUX_JOB_NNODES", "2"),
    ("FLUX_JOB_SIZE", "8"),
    ("FLUX_KVS_NAMESPACE", "job-1310250926080"),
    ("FLUX_TASK_LOCAL_ID", "1"),
    ("FLUX_TASK_RANK", "5"),
    ("FLUX_URI", "local:///tmp/flux-Xz3qPB/local-1"),
    ("PMI_FD", "13"),
    ("PMI_RANK", "5"),
    ("PMI_SIZE", "8"),
];

/// Task 1 of the same job with the plug-in for PMIx, whose name space is the identifier of the job.
pub const FLUX_PMIX_TASK: Environment = &[
    ("FLUX_ENCLOSING_ID", "ƒD2e73NP"),
    ("FLUX_JOB_ID", "ƒDCB6RV"),
    ("FLUX_JOB_ID_PATH", "/ƒD2e73NP/ƒDCB6RV"),
    ("FLUX_JOB_NNODES", "2"),
    ("FLUX_JOB_SIZE", "8"),
    ("FLUX_TASK_LOCAL_ID", "1"),
    ("FLUX_TASK_RANK", "1"),
    ("PMIX_NAMESPACE", "ƒDCB6RV"),
    ("PMIX_RANK", "1"),
];

/// The script of `flux batch`. Flux removes the variables of the enclosing job, and the variables
/// of Slurm.
pub const FLUX_BATCH: Environment =
    &[("FLUX_ENCLOSING_ID", "ƒD2e73NP"), ("FLUX_URI", "local:///tmp/flux-Xz3qPB/local-0")];

/// A batch script of PBS. It runs on the first node.
pub const PBS_BATCH: Environment = &[
    ("NCPUS", "8"),
    ("PBS_ENVIRONMENT", "PBS_BATCH"),
    ("PBS_JOBID", "188691.pbs1.example.org"),
    ("PBS_NODEFILE", "/var/spool/pbs/aux/188691.pbs1.example.org"),
    ("PBS_NODENUM", "0"),
    ("PBS_O_HOST", "login1.example.org"),
    ("PBS_O_WORKDIR", "/shared/project"),
    ("PBS_QUEUE", "debug"),
    ("PBS_TASKNUM", "1"),
];

/// A task that pbsdsh started on the third node.
pub const PBS_TASK: Environment = &[
    ("PBS_ENVIRONMENT", "PBS_BATCH"),
    ("PBS_JOBID", "188691.pbs1.example.org"),
    ("PBS_NODENUM", "2"),
    ("PBS_TASKNUM", "4"),
    ("PBS_VNODENUM", "2"),
];

/// Rank 9 of Hydra (MPICH, Intel MPI) in a PBS job of eight ranks on each node, with the variables
/// of the batch script, which Hydra passes to all nodes.
pub const PBS_HYDRA_SECOND: Environment = &[
    ("MPI_LOCALNRANKS", "8"),
    ("MPI_LOCALRANKID", "1"),
    ("PBS_ENVIRONMENT", "PBS_BATCH"),
    ("PBS_JOBID", "188691.pbs1.example.org"),
    ("PBS_NODENUM", "0"),
    ("PBS_TASKNUM", "1"),
    ("PMI_FD", "7"),
    ("PMI_RANK", "9"),
    ("PMI_SIZE", "16"),
];

/// Returns the value of a variable, if it is set and not empty.
pub fn value(environment: &[(&str, &str)], name: &str) -> Option<String> {
    let found = environment.iter().find(|(known, value)| *known == name && !value.is_empty());
    found.map(|(_, value)| (*value).to_owned())
}
