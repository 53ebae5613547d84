//! The counters of the server of a store of blobs: rates, and the Prometheus text format.
//! docs/techniques/blob.md lists the metrics.

use std::fmt::Display;
use std::time::Duration;

use quell_wire::Histogram;
use quell_wire::blob::{REQUEST_KINDS, RequestKind, StoreCounters};

use crate::exposition::{Exposition, escaped};
use crate::rates::rate;

/// The requests of a server in an interval. Rates are numbers per second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StoreRates {
    /// The requests by kind, in the order of `RequestKind::ALL`.
    pub requests: [f64; REQUEST_KINDS],
    /// The requests that have failed or were refused, by kind.
    pub failed: [f64; REQUEST_KINDS],
    /// The commits that were refused because of a conflict.
    pub conflicts: f64,
    /// The requests without the right.
    pub denied: f64,
    /// The operations of committed transactions.
    pub operations: f64,
    /// The bytes that clients have read.
    pub read_bytes: f64,
    /// The bytes that committed transactions have written.
    pub written_bytes: f64,
    /// The extents that were written.
    pub extents: f64,
    /// The bytes of these extents.
    pub extent_bytes: f64,
    /// The times of the reads that ended in the interval.
    pub reads: Histogram,
    /// The times of the commits that ended in the interval.
    pub commits: Histogram,
}

impl StoreRates {
    /// Returns the rates between two states of the counters, with the time between them. If the
    /// server was started again in between, returns the rates since its start.
    pub fn between(earlier: &StoreCounters, later: &StoreCounters, elapsed: Duration) -> StoreRates {
        if later.uptime_ms < earlier.uptime_ms {
            let uptime = Duration::from_millis(later.uptime_ms);
            return StoreRates::between(&StoreCounters::default(), later, uptime);
        }
        let of = |count: fn(&StoreCounters) -> u64| rate(count(earlier), count(later), elapsed);
        let by_kind = |counts: fn(&StoreCounters) -> &[u64; REQUEST_KINDS]| {
            std::array::from_fn(|kind| rate(counts(earlier)[kind], counts(later)[kind], elapsed))
        };
        StoreRates {
            requests: by_kind(|counters| &counters.requests),
            failed: by_kind(|counters| &counters.failed),
            conflicts: of(|counters| counters.conflicts),
            denied: of(|counters| counters.denied),
            operations: of(|counters| counters.operations),
            read_bytes: of(|counters| counters.read_bytes),
            written_bytes: of(|counters| counters.written_bytes),
            extents: of(|counters| counters.extents),
            extent_bytes: of(|counters| counters.extent_bytes),
            reads: later.reads.since(&earlier.reads),
            commits: later.commits.since(&earlier.commits),
        }
    }
}

/// Returns the counters of a server in the Prometheus text format. `store` is the label of the
/// store; without counters, the text states that the server has not answered.
pub fn store_prometheus_text(store: &str, counters: Option<&StoreCounters>) -> String {
    let labels = format!("store=\"{}\"", escaped(store));
    let mut families = Families { text: Exposition::new("quell_blob_"), labels };
    families.one("up", "gauge", "Whether the server has answered.", u8::from(counters.is_some()));
    if let Some(counters) = counters {
        families.counters(counters);
    }
    families.text.into_text()
}

struct Families {
    text: Exposition,
    labels: String,
}

impl Families {
    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.text.begin(name, kind, help);
        self.text.add(name, &self.labels, value);
    }

    fn by_kind(&mut self, name: &str, help: &str, counts: &[u64; REQUEST_KINDS]) {
        self.text.begin(name, "counter", help);
        for (kind, count) in RequestKind::ALL.into_iter().zip(counts) {
            self.text.add(name, &format!("{},request=\"{}\"", self.labels, kind.name()), count);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.text.begin(name, "histogram", help);
        self.text.histogram(name, &self.labels, histogram);
    }

    fn counters(&mut self, counters: &StoreCounters) {
        let uptime = counters.uptime_ms as f64 / 1000.0;
        self.one("uptime_seconds", "gauge", "Time since the start of the server.", uptime);
        self.one("clients", "gauge", "Clients that have sent a request.", counters.clients);
        self.by_kind("requests_total", "Requests of clients.", &counters.requests);
        let help = "Requests of clients that have failed or were refused.";
        self.by_kind("requests_failed_total", help, &counters.failed);
        let help = "Requests that are being executed.";
        self.one("requests_in_flight", "gauge", help, counters.in_flight);
        let help = "Reads, and requests for attributes and names: the time from the begin to the result.";
        self.histogram("reads_duration_seconds", help, &counters.reads);
        let help = "Commits: the time from the begin to the result.";
        self.histogram("commits_duration_seconds", help, &counters.commits);
        let help = "Commits that were refused because of a conflict.";
        self.one("conflicts_total", "counter", help, counters.conflicts);
        let help = "Requests that were refused because the key does not have the right.";
        self.one("denied_total", "counter", help, counters.denied);
        let help = "Operations of committed transactions.";
        self.one("operations_total", "counter", help, counters.operations);
        self.text.begin("bytes_total", "counter", "Bytes of blobs that were read and written.");
        for (operation, bytes) in [("read", counters.read_bytes), ("write", counters.written_bytes)] {
            let labels = format!("{},operation=\"{operation}\"", self.labels);
            self.text.add("bytes_total", &labels, bytes);
        }
        self.one("snapshots", "gauge", "Snapshots of all clients.", counters.snapshots);
        let help = "Memory for uploads and long replies.";
        self.one("transfer_bytes", "gauge", help, counters.kept_bytes);
        let help = "Memory for the values that only snapshots need.";
        self.one("history_bytes", "gauge", help, counters.history_bytes);
        self.one("extents_total", "counter", "Extents that were written.", counters.extents);
        let help = "Bytes of the extents that were written.";
        self.one("extent_bytes_total", "counter", help, counters.extent_bytes);
        let help = "Extents that the latest state does not need.";
        self.one("unused_extents", "gauge", help, counters.unused_extents);
        let help = "Bytes of the extents that the latest state does not need.";
        self.one("unused_extent_bytes", "gauge", help, counters.unused_extent_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_interval() {
        let mut earlier = StoreCounters { uptime_ms: 1000, conflicts: 1, ..StoreCounters::default() };
        earlier.commits.add(Duration::from_secs(1));
        let mut later = StoreCounters { uptime_ms: 3000, conflicts: 5, read_bytes: 20, ..earlier.clone() };
        later.requests[RequestKind::Commit as usize] = 8;
        later.commits.add(Duration::from_micros(3));
        let rates = StoreRates::between(&earlier, &later, Duration::from_secs(2));
        assert_eq!((rates.conflicts, rates.read_bytes, rates.operations), (2.0, 10.0, 0.0));
        assert_eq!(rates.requests[RequestKind::Commit as usize], 4.0);
        assert_eq!((rates.commits.count(), rates.commits.percentile_us(99)), (1, Some(4)));
        // A server that was started again.
        let restarted = StoreCounters { uptime_ms: 500, conflicts: 1, ..StoreCounters::default() };
        assert_eq!(StoreRates::between(&later, &restarted, Duration::from_secs(9)).conflicts, 2.0);
    }
}
