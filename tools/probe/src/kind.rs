//! The kinds of requests, the operations that they count as, their order in the mix, and the part
//! of the system that seems to have answered them.

use std::time::Duration;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationKind {
    /// A lookup of a name that does not exist and was never used.
    LookUp,
    /// The attributes of an open directory, requested from the server.
    Attributes,
    /// Opening a directory and reading it to the end.
    List,
    /// Creating a file or directory.
    Create,
    /// Removing a file or directory.
    Remove,
    /// Checks and locks: counted, but not measured as a rate.
    Other,
}

impl OperationKind {
    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            OperationKind::LookUp => "lookup",
            OperationKind::Attributes => "attributes",
            OperationKind::List => "list",
            OperationKind::Create => "create",
            OperationKind::Remove => "remove",
            OperationKind::Other => "other",
        }
    }

    /// Returns the number of requests that a client without caches sends for one call.
    pub const fn operations(self) -> u64 {
        match self {
            OperationKind::LookUp | OperationKind::Attributes | OperationKind::Other => 1,
            // Open and read; lookup and change.
            OperationKind::List | OperationKind::Create | OperationKind::Remove => 2,
        }
    }
}

/// The kinds that change nothing. The mix consists of them.
pub const READ_KINDS: [OperationKind; 3] =
    [OperationKind::LookUp, OperationKind::Attributes, OperationKind::List];

/// The entries of one directory of the paper's tree: 17 files and the directory itself.
const ENTRIES: usize = 18;

/// Returns one round of the mix, without the kinds that do not reach the server.
pub fn round(answered: impl Fn(OperationKind) -> bool) -> Vec<OperationKind> {
    let pairs = std::iter::repeat_n([OperationKind::LookUp, OperationKind::Attributes], ENTRIES).flatten();
    std::iter::once(OperationKind::List).chain(pairs).filter(|kind| answered(*kind)).collect()
}

/// The part of the system that seems to have answered requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The file server.
    Server,
    /// The caches of this node, so this is not a rate of the file system.
    Cache,
    /// This node, because the file system is local.
    Local,
}

impl AnsweredBy {
    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            AnsweredBy::Server => "server",
            AnsweredBy::Cache => "cache",
            AnsweredBy::Local => "local",
        }
    }

    /// Decides from the median latency of a kind, and from the latency of a stat that the kernel
    /// answers from its cache.
    pub fn judge(median: Duration, cached_stat: Duration, local: bool) -> AnsweredBy {
        // A client process that answers from its memory needs two context switches, which take
        // about as long as ten cached stats; the fastest networks and servers need more than 20 us.
        // In a traced or starved process all calls are slow, including cached stats; therefore the
        // limit has a lower and an upper bound.
        let limit = (cached_stat * 30).clamp(Duration::from_micros(5), Duration::from_micros(20));
        match (local, median < limit) {
            (true, _) => AnsweredBy::Local,
            (false, true) => AnsweredBy::Cache,
            (false, false) => AnsweredBy::Server,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_of_the_mix_has_the_proportions_of_the_papers_tree() {
        let round = round(|_| true);
        let count = |kind| round.iter().filter(|k| **k == kind).count();
        assert_eq!(
            (count(OperationKind::LookUp), count(OperationKind::Attributes), count(OperationKind::List)),
            (18, 18, 1)
        );
        assert_eq!(round.iter().map(|k| k.operations()).sum::<u64>(), 38);
    }

    #[test]
    fn kinds_that_do_not_reach_the_server_are_left_out_of_the_mix() {
        assert_eq!(round(|kind| kind == OperationKind::Attributes), [OperationKind::Attributes; 18]);
        assert!(round(|_| false).is_empty());
    }

    #[test]
    fn the_median_latency_decides_where_requests_were_answered() {
        let cases = [
            // median ns, cached stat ns, local, expected result
            (900, 400, false, AnsweredBy::Cache),
            (14_000, 600, false, AnsweredBy::Cache),
            (14_000, 300, false, AnsweredBy::Server),
            (85_000, 600, false, AnsweredBy::Server),
            // Under strace all calls are slow.
            (130_000, 45_000, false, AnsweredBy::Server),
            (900, 400, true, AnsweredBy::Local),
            (3_000_000, 400, true, AnsweredBy::Local),
        ];
        for (median, stat, local, expected) in cases {
            let judged = AnsweredBy::judge(Duration::from_nanos(median), Duration::from_nanos(stat), local);
            assert_eq!(judged, expected, "{median} {stat} {local}");
        }
    }
}
