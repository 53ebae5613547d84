//! The kinds of questions, what each counts for, in which order they are mixed, and who seems to have answered.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name that does not exist and was never asked for.
    LookUp,
    /// The attributes of an open directory, fetched again.
    Attributes,
    /// Opening a directory and reading it to the end.
    List,
    Create,
    Remove,
    /// Looking round and locking: counted, never a rate.
    Other,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Kind::LookUp => "lookup",
            Kind::Attributes => "attributes",
            Kind::List => "list",
            Kind::Create => "create",
            Kind::Remove => "remove",
            Kind::Other => "other",
        }
    }

    /// The requests that a client without caches sends for one call.
    pub const fn operations(self) -> u64 {
        match self {
            Kind::LookUp | Kind::Attributes | Kind::Other => 1,
            // Open and read; look up and change.
            Kind::List | Kind::Create | Kind::Remove => 2,
        }
    }
}

/// The kinds that change nothing, of which the mix is made.
pub const QUESTIONS: [Kind; 3] = [Kind::LookUp, Kind::Attributes, Kind::List];

/// Entries of one directory of the paper's tree: 17 files and itself.
const ENTRIES: usize = 18;

/// One round of the mix, without the kinds that the server does not see.
pub fn round(answered: impl Fn(Kind) -> bool) -> Vec<Kind> {
    let pairs = std::iter::repeat_n([Kind::LookUp, Kind::Attributes], ENTRIES).flatten();
    std::iter::once(Kind::List).chain(pairs).filter(|kind| answered(*kind)).collect()
}

/// Who seems to have answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerer {
    Server,
    /// This node's caches: not a rate of the file system.
    Cache,
    /// The file system is this node's own.
    Local,
}

impl Answerer {
    pub const fn name(self) -> &'static str {
        match self {
            Answerer::Server => "server",
            Answerer::Cache => "cache",
            Answerer::Local => "local",
        }
    }

    /// From the median latency of a kind and that of a stat which the kernel answers from its cache.
    pub fn judge(median: Duration, cached_stat: Duration, local: bool) -> Answerer {
        // A client process that answers from its memory needs two changes of process, some ten cached stats; the
        // quickest networks and servers need more than 20 us. A traced or starved process makes everything
        // slow, cached stats too: hence a bound on each side.
        let limit = (cached_stat * 30).clamp(Duration::from_micros(5), Duration::from_micros(20));
        match (local, median < limit) {
            (true, _) => Answerer::Local,
            (false, true) => Answerer::Cache,
            (false, false) => Answerer::Server,
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
        assert_eq!((count(Kind::LookUp), count(Kind::Attributes), count(Kind::List)), (18, 18, 1));
        assert_eq!(round.iter().map(|k| k.operations()).sum::<u64>(), 38);
    }

    #[test]
    fn what_the_server_does_not_see_is_left_out_of_the_mix() {
        assert_eq!(round(|kind| kind == Kind::Attributes), [Kind::Attributes; 18]);
        assert!(round(|_| false).is_empty());
    }

    #[test]
    fn who_answered_is_told_by_latency() {
        let cases = [
            // median ns, cached stat ns, local, who
            (900, 400, false, Answerer::Cache),
            (14_000, 600, false, Answerer::Cache),
            (14_000, 300, false, Answerer::Server),
            (85_000, 600, false, Answerer::Server),
            // Under strace all calls are slow.
            (130_000, 45_000, false, Answerer::Server),
            (900, 400, true, Answerer::Local),
            (3_000_000, 400, true, Answerer::Local),
        ];
        for (median, stat, local, who) in cases {
            let judged = Answerer::judge(Duration::from_nanos(median), Duration::from_nanos(stat), local);
            assert_eq!(judged, who, "{median} {stat} {local}");
        }
    }
}
