//! The parallel job that this process belongs to.

/// Variables that launchers of parallel jobs set for all ranks of a job on a node, the most
/// specific first. The first one that is set identifies the job.
const JOB_VARIABLES: [&[&str]; 10] = [
    &["PMIX_NAMESPACE"],
    &["OMPI_MCA_ess_base_jobid"],
    &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    &["FLUX_JOB_ID"],
    &["PMI_JOBID"],
    &["PALS_APID"],
    &["PBS_JOBID"],
    &["LSB_JOBID"],
    &["COBALT_JOBID"],
    &["JOB_ID", "SGE_TASK_ID"],
];

/// Returns the job of which this process is a rank, if any.
pub fn current_job() -> Option<String> {
    let value = |name: &&str| std::env::var(name).ok().filter(|v| !v.is_empty());
    JOB_VARIABLES.iter().find_map(|names| {
        let first = value(names.first()?)?;
        let rest = names.iter().skip(1).filter_map(value);
        let parts: Vec<String> = std::iter::once(first).chain(rest).collect();
        Some(format!("{}={}", names[0], parts.join(".")))
    })
}
