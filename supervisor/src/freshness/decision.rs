//! Decides which trees are checked completely, by which node of a job, and whether the program
//! waits for it. All functions are pure (docs/decisions/0013-one-full-check-a-job.md).

use std::time::Duration;

use quell_vfs::Kind;

/// How long a start waits for the check of a tree that the caller may write to. On an idle machine
/// that is enough for about 100,000 entries on a cold shared file system; the check of a larger
/// tree continues while the program runs. Only this check prevents Python from running outdated
/// bytecode: Python compares the bytecode of a module with the size and time of its source, which
/// in the view are the indexed ones.
pub const START_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay before a check while the program runs. No check is made for a program that ends
/// earlier: many short programs would each start a check and complete none, and the checks would
/// slow down the programs' start.
pub const CHECK_DELAY: Duration = Duration::from_secs(1);
/// How long a tree that the caller cannot write to counts as unchanged after a check without a
/// difference: long enough that a thousand jobs of one array make one check, short enough that a
/// changed installation is noticed within the hour.
pub const RESULT_VALID_FOR: Duration = Duration::from_secs(600);
/// A claim without a result is ignored after this time: the holder that made it may have ended
/// before its check did.
pub const CLAIM_VALID_FOR: Duration = Duration::from_secs(120);
/// How long a node polls for another node's result.
pub const AWAIT_TIMEOUT: Duration = Duration::from_secs(600);
/// The pause after the first poll of a node. It is doubled after each poll, up to `POLL_PAUSE_MAX`:
/// after about 15 seconds, 500 nodes make fewer than 50 lookups per second, and after about one
/// minute fewer than 10.
const POLL_PAUSE_MIN: Duration = Duration::from_secs(2);
const POLL_PAUSE_MAX: Duration = Duration::from_secs(60);
/// A check ends after this number of differences: by then it is clear that the index is out of
/// date.
pub const DIFFERENCES_MAX: usize = 16;

/// The role of this node in the job that started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeRole {
    /// No launcher of parallel jobs started this process.
    Alone,
    First,
    Other,
    /// In a job, and the launcher's variables do not identify this node.
    Unknown,
}

/// Pairs of variables that launchers set for each process: its rank in the job, and its rank on the
/// node.
const RANK_PAIRS: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    // Hydra (MPICH, Intel MPI).
    ("PMI_RANK", "MPI_LOCALRANKID"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("PALS_RANKID", "PALS_LOCAL_RANKID"),
    ("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
];
/// Variables with the number of the node in the job. A resource manager's own launcher sets them
/// for each process. Hydra passes the variables of the first node to all others, so the pairs above
/// come first.
const NODE_NUMBERS: [&str; 3] = ["SLURM_NODEID", "PALS_NODEID", "PBS_NODENUM"];
/// Variables with the number of nodes.
const NODE_COUNTS: [&str; 4] = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "FLUX_JOB_NNODES", "NHOSTS"];
/// Variables with a process's rank in the job, for launchers that set no rank on the node.
const RANKS: [&str; 2] = ["PMIX_RANK", "PMI_RANK"];

/// Determines the role of this node. `variable` returns the value of an environment variable that
/// is set and not empty.
pub fn node_role(in_job: bool, variable: &dyn Fn(&str) -> Option<String>) -> NodeRole {
    if !in_job {
        return NodeRole::Alone;
    }
    let number = |name: &str| variable(name)?.trim().parse::<u64>().ok();
    let pair = RANK_PAIRS.iter().find_map(|(rank, local)| Some((number(rank)?, number(local)?)));
    if let Some((rank, local_rank)) = pair {
        // The rank on the node counts the lower ranks of the job there. Equal ranks therefore mean
        // that rank 0 is on this node, regardless of how processes are distributed.
        return if rank == local_rank { NodeRole::First } else { NodeRole::Unknown };
    }
    if let Some(node) = NODE_NUMBERS.iter().find_map(|name| number(name)) {
        return if node == 0 { NodeRole::First } else { NodeRole::Other };
    }
    let is_single = NODE_COUNTS.iter().any(|name| number(name) == Some(1));
    if is_single || RANKS.iter().any(|name| number(name) == Some(0)) {
        return NodeRole::First;
    }
    NodeRole::Unknown
}

/// Whether and when the holder checks a whole tree, in addition to the sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckTiming {
    /// Check the tree before the program starts, for at most `START_TIMEOUT`; then continue the
    /// check while the program runs.
    BeforeStart,
    /// As `BeforeStart` if this node is the first of the job to claim the check; otherwise as
    /// `AwaitResult`.
    BeforeStartIfClaimed,
    /// While the program runs, poll for a recent result, and check the tree if there is none and no
    /// other node is checking it.
    DuringRun,
    /// Poll for another node's result while the program runs.
    AwaitResult,
}

/// Chooses the action. `is_shared`: the state directory is on a file system that other nodes can
/// access, so a claim is valid for all of them.
pub fn check_timing(role: NodeRole, is_writable: bool, is_shared: bool) -> CheckTiming {
    match (role, is_writable) {
        // After an edit the program is often started at once, so an earlier result is not valid.
        (NodeRole::Alone | NodeRole::First, true) => CheckTiming::BeforeStart,
        (NodeRole::Alone | NodeRole::First, false) => CheckTiming::DuringRun,
        (NodeRole::Unknown, true) if is_shared => CheckTiming::BeforeStartIfClaimed,
        (NodeRole::Unknown, false) if is_shared => CheckTiming::DuringRun,
        (NodeRole::Unknown | NodeRole::Other, _) => CheckTiming::AwaitResult,
    }
}

/// Returns whether the caller may change an entry of the tree, judged by the indexed owners and
/// modes alone. An owner may, regardless of the mode, because an owner can change the mode. Root is
/// treated like an ordinary user who owns only root's entries: root can write to every tree, and
/// would otherwise wait for the check of each.
pub fn is_writable_by(
    classes: impl IntoIterator<Item = (u32, u32, u32)>,
    has_acls: bool,
    user: u32,
    groups: &[u32],
) -> bool {
    classes.into_iter().any(|(mode, uid, gid)| {
        if uid == user {
            return true;
        }
        // The mode of a symbolic link has no meaning.
        let bits = if Kind::from_mode(mode) == Some(Kind::Symlink) { 0 } else { mode };
        // With an access control list, the group bits are the maximum for all users named in it.
        bits & 0o002 != 0 || (bits & 0o020 != 0 && (has_acls || groups.contains(&gid)))
    })
}

/// Returns the pause between two polls. `attempt`: the number of polls before. `random` varies the
/// pause by up to a quarter.
pub fn poll_pause(attempt: u32, random: u64) -> Duration {
    let pause = POLL_PAUSE_MIN.saturating_mul(1 << attempt.min(10)).min(POLL_PAUSE_MAX);
    pause * 3 / 4 + pause / 2 * (random % 1024) as u32 / 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::recorded;

    fn role(variables: &[(&str, &str)]) -> NodeRole {
        node_role(!variables.is_empty(), &|name| recorded::value(variables, name))
    }

    #[test]
    fn the_role_of_a_node_is_known_in_recorded_environments() {
        for (environment, expected) in [
            (recorded::SLURM_BATCH, NodeRole::First),
            (recorded::SLURM_STEP, NodeRole::First),
            (recorded::SLURM_MPIRUN_FIRST, NodeRole::First),
            (recorded::SLURM_MPIRUN_SECOND, NodeRole::Unknown),
            (recorded::FLUX_TASK, NodeRole::Unknown),
            (recorded::FLUX_PMIX_TASK, NodeRole::First),
            (recorded::PBS_BATCH, NodeRole::First),
            (recorded::PBS_TASK, NodeRole::Other),
            (recorded::PBS_HYDRA_SECOND, NodeRole::Unknown),
        ] {
            assert_eq!(role(environment), expected, "{environment:?}");
        }
    }

    #[test]
    fn the_variables_of_launchers_identify_the_first_node_of_a_job() {
        let job = ("SLURM_JOB_ID", "7");
        assert_eq!(role(&[]), NodeRole::Alone);
        for (variables, expected) in [
            (&[job, ("SLURM_NODEID", "0")][..], NodeRole::First),
            (&[job, ("SLURM_NODEID", "1")], NodeRole::Other),
            (&[job, ("SLURM_NODEID", "x")], NodeRole::Unknown),
            // The shell of an allocation of several nodes, and of one node.
            (&[job, ("SLURM_NNODES", "4")], NodeRole::Unknown),
            (&[job, ("SLURM_NNODES", "1")], NodeRole::First),
            (&[("PBS_JOBID", "a"), ("PBS_NODENUM", "0")], NodeRole::First),
            (&[("PBS_JOBID", "a"), ("PBS_NODENUM", "3")], NodeRole::Other),
            (&[("PBS_JOBID", "a")], NodeRole::Unknown),
            (&[("PMIX_NAMESPACE", "a"), ("PMIX_RANK", "0")], NodeRole::First),
            (&[("PMIX_NAMESPACE", "a"), ("PMIX_RANK", "5")], NodeRole::Unknown),
            // Rank 2 is the third on its node, so ranks 0 and 1 are there too.
            (&[job, ("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "2")], NodeRole::First),
            (&[job, ("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")], NodeRole::Unknown),
            (&[("FLUX_JOB_ID", "f"), ("FLUX_TASK_RANK", "0"), ("FLUX_TASK_LOCAL_ID", "0")], NodeRole::First),
            // Hydra passes the environment of the first node to all others.
            (&[job, ("SLURM_NODEID", "0"), ("PMI_RANK", "9"), ("MPI_LOCALRANKID", "1")], NodeRole::Unknown),
        ] {
            assert_eq!(role(variables), expected, "{variables:?}");
        }
    }

    #[test]
    fn one_node_checks_and_a_writable_tree_is_checked_before_each_start() {
        use CheckTiming::{AwaitResult, BeforeStart, BeforeStartIfClaimed, DuringRun};
        use NodeRole::{Alone, First, Other, Unknown};
        for (role, is_writable, on_local_disk, on_shared) in [
            (Alone, true, BeforeStart, BeforeStart),
            (First, true, BeforeStart, BeforeStart),
            (Other, true, AwaitResult, AwaitResult),
            (Unknown, true, AwaitResult, BeforeStartIfClaimed),
            (Alone, false, DuringRun, DuringRun),
            (First, false, DuringRun, DuringRun),
            (Other, false, AwaitResult, AwaitResult),
            (Unknown, false, AwaitResult, DuringRun),
        ] {
            assert_eq!(check_timing(role, is_writable, false), on_local_disk, "{role:?} {is_writable}");
            assert_eq!(check_timing(role, is_writable, true), on_shared, "{role:?} {is_writable}");
        }
    }

    #[test]
    fn write_access_is_determined_from_owners_groups_and_modes() {
        let (dir, file, link) = (0o040_755, 0o100_644, 0o120_777);
        let may =
            |classes: &[(u32, u32, u32)], acls| is_writable_by(classes.iter().copied(), acls, 1000, &[100]);
        assert!(!may(&[(dir, 0, 0), (file, 0, 0), (link, 0, 0)], false));
        // The owner may, even if the entry is read-only.
        assert!(may(&[(dir, 0, 0), (0o100_444, 1000, 0)], false));
        assert!(may(&[(0o040_775, 0, 100)], false));
        assert!(!may(&[(0o040_775, 0, 200)], false));
        assert!(may(&[(0o040_775, 0, 200)], true));
        assert!(may(&[(0o100_666, 0, 0)], false));
        let root = |uid| is_writable_by([(dir, uid, 0), (file, uid, 0)], false, 0, &[0]);
        assert!(root(0) && !root(1000));
    }

    #[test]
    fn pauses_grow_and_differ_between_nodes() {
        for random in [0, 511, 1023] {
            let pauses: Vec<Duration> = (0..12).map(|attempt| poll_pause(attempt, random)).collect();
            assert!(pauses[0] >= Duration::from_millis(1500) && pauses[0] <= Duration::from_millis(2500));
            assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]));
            assert!(pauses[11] <= Duration::from_secs(75), "{pauses:?}");
        }
        assert!(poll_pause(3, 0) < poll_pause(3, 1023));
    }
}
