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
    job_of(|name| std::env::var(name).ok())
}

fn job_of(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let value = |name: &str| variable(name).filter(|v| !v.is_empty());
    let flux_path = || value("FLUX_JOB_ID_PATH").or_else(|| value("FLUX_ENCLOSING_ID"));
    JOB_VARIABLES.iter().find_map(|names| {
        let first = value(names.first()?)?;
        // Each cluster counts its jobs from 1, and several can share a file system. The number of a
        // PBS job contains the name of its server.
        let cluster = match names[0] {
            "SLURM_JOB_ID" => value("SLURM_CLUSTER_NAME"),
            // Slurm gives this form of name to its own steps. Other launchers do not pass the
            // variable of the cluster to each node.
            "PMIX_NAMESPACE" if first.starts_with("slurm.") => value("SLURM_CLUSTER_NAME"),
            // Each instance of Flux counts its jobs for itself, and an instance can be a job of
            // another one. The name space of its plug-in for PMIx is the identifier of the job.
            "FLUX_JOB_ID" => flux_path(),
            "PMIX_NAMESPACE" if value("FLUX_JOB_ID").as_ref() == Some(&first) => flux_path(),
            "JOB_ID" => value("SGE_CLUSTER_NAME"),
            _ => None,
        };
        let rest = names.iter().skip(1).filter_map(|name| value(name));
        let parts: Vec<String> = std::iter::once(first).chain(rest).collect();
        let cluster = cluster.map_or(String::new(), |name| format!("@{name}"));
        Some(format!("{}={}{cluster}", names[0], parts.join(".")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::recorded::*;

    fn job(variables: &[(&str, &str)]) -> Option<String> {
        job_of(|name| value(variables, name))
    }

    #[test]
    fn the_job_is_known_in_recorded_environments() {
        let pbs = Some("PBS_JOBID=188691.pbs1.example.org");
        for (environment, expected) in [
            (SLURM_BATCH, Some("SLURM_JOB_ID=3@quell0")),
            (SLURM_STEP, Some("PMIX_NAMESPACE=slurm.pmix.3.0@quell0")),
            (SLURM_MPIRUN_FIRST, Some("PMIX_NAMESPACE=430899201")),
            (SLURM_MPIRUN_SECOND, Some("PMIX_NAMESPACE=430899201")),
            (FLUX_TASK, Some("FLUX_JOB_ID=ƒDCB6RV@/ƒD2e73NP/ƒDCB6RV")),
            (FLUX_PMIX_TASK, Some("PMIX_NAMESPACE=ƒDCB6RV@/ƒD2e73NP/ƒDCB6RV")),
            (FLUX_BATCH, None),
            (PBS_BATCH, pbs),
            (PBS_TASK, pbs),
            (PBS_HYDRA_SECOND, pbs),
        ] {
            assert_eq!(job(environment).as_deref(), expected, "{environment:?}");
        }
    }

    #[test]
    fn jobs_with_the_same_identifier_in_two_flux_instances_differ() {
        // Versions before FLUX_JOB_ID_PATH, and an instance that is no job.
        let flux = |enclosing| job(&[("FLUX_JOB_ID", "ƒ9"), ("FLUX_ENCLOSING_ID", enclosing)]);
        assert_eq!(flux("").unwrap(), "FLUX_JOB_ID=ƒ9");
        assert_ne!(flux("ƒA"), flux("ƒB"));
    }

    #[test]
    fn jobs_with_the_same_number_on_two_clusters_differ() {
        let slurm = |cluster| {
            job(&[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_CLUSTER_NAME", cluster)]).unwrap()
        };
        assert_eq!(slurm("north"), "SLURM_JOB_ID=7.0@north");
        assert_ne!(slurm("north"), slurm("south"));
        let pmix = job(&[("PMIX_NAMESPACE", "slurm.pmix.7.0"), ("SLURM_CLUSTER_NAME", "north")]);
        assert_eq!(pmix.unwrap(), "PMIX_NAMESPACE=slurm.pmix.7.0@north");
        let grid = job(&[("JOB_ID", "7"), ("SGE_TASK_ID", "2"), ("SGE_CLUSTER_NAME", "p6444")]);
        assert_eq!(grid.unwrap(), "JOB_ID=7.2@p6444");
    }

    #[test]
    fn ranks_of_mpirun_have_the_same_job_with_and_without_the_variables_of_the_cluster() {
        let ranks = [
            job(&[
                ("PMIX_NAMESPACE", "prterun-n1-5@1"),
                ("SLURM_CLUSTER_NAME", "north"),
                ("SLURM_JOB_ID", "7"),
            ]),
            job(&[("PMIX_NAMESPACE", "prterun-n1-5@1")]),
        ];
        assert_eq!(ranks[0], ranks[1]);
        assert_eq!(job(&[("SLURM_JOB_ID", "")]), None);
    }
}
