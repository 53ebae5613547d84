//! The rates of the requests of a store's server, as a table and as JSON.

use std::time::SystemTime;

use indicatif::HumanBytes;
use quell_blob::StoreCounters;
use quell_metrics::StoreRates;
use quell_wire::Histogram;
use quell_wire::blob::{REQUEST_KINDS, RequestKind};
use serde_json::{Map, Value, json};

use crate::inputs::shown;
use crate::table_cells::{aligned, number, time};
use crate::top::Shown;

/// The rates of a server in an interval, and its counters at the end of it.
pub struct ServerRates {
    pub store: String,
    pub interval_seconds: f64,
    /// `None` unless the server answered at the beginning and at the end of the interval.
    pub rates: Option<StoreRates>,
    /// The counters, or the reason why the server does not answer.
    pub counters: Result<StoreCounters, String>,
}

impl Shown for ServerRates {
    fn table(&self, lines_max: usize, columns_max: usize) -> String {
        let cut = |line: String| line.chars().take(columns_max).collect::<String>().trim_end().to_owned();
        self.lines().into_iter().take(lines_max).map(cut).collect::<Vec<_>>().join("\n")
    }

    fn json(&self, now: SystemTime) -> Value {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        json!({
            "store": self.store,
            "time_ms": since.as_millis() as u64,
            "interval_seconds": self.interval_seconds,
            "error": self.counters.as_ref().err(),
            "rates": self.rates.as_ref().map(rates_json),
            "counters": self.counters.as_ref().ok().map(counters_json),
        })
    }

    fn is_complete(&self) -> bool {
        self.counters.is_ok()
    }
}

impl ServerRates {
    fn lines(&self) -> Vec<String> {
        let title = format!("store {}: ", shown(&self.store));
        let interval = format!("interval {} s", self.interval_seconds);
        let counters = match &self.counters {
            Ok(counters) => counters,
            Err(error) => return vec![format!("{title}{interval}"), format!("no answer: {error}")],
        };
        let (clients, snapshots) = (counters.clients, counters.snapshots);
        let clients = quell_supervisor::counted(clients, "client", "clients");
        let snapshots = quell_supervisor::counted(snapshots, "snapshot", "snapshots");
        let mut lines = vec![
            format!("{title}{clients}, {snapshots}, {} requests in progress, {interval}", counters.in_flight),
            row("", ["per s", "failed", "bytes", "median", "99 %"]),
        ];
        let rates = self.rates.unwrap_or_default();
        for kind in RequestKind::ALL {
            lines.push(kind_row(kind, &rates));
        }
        lines.push(format!(
            "commits: {} operations/s, {} conflicts/s; {} requests/s without the right",
            number(rates.operations, 1000.0),
            number(rates.conflicts, 1000.0),
            number(rates.denied, 1000.0)
        ));
        lines.push(format!(
            "memory: {} for snapshots, {} for uploads and long replies",
            HumanBytes(counters.history_bytes),
            HumanBytes(counters.kept_bytes)
        ));
        lines.push(format!(
            "extents: {}/s written ({}/s), {} unneeded ({})",
            number(rates.extents, 1000.0),
            number(rates.extent_bytes, 1024.0),
            number(counters.unused_extents as f64, 1000.0),
            HumanBytes(counters.unused_extent_bytes)
        ));
        lines
    }
}

/// Returns the row of a kind of requests. The times of reads, stats and lists are counted together.
fn kind_row(kind: RequestKind, rates: &StoreRates) -> String {
    let (bytes, times) = match kind {
        RequestKind::Read => (Some(rates.read_bytes), Some(&rates.reads)),
        RequestKind::Commit => (Some(rates.written_bytes), Some(&rates.commits)),
        RequestKind::Stat
        | RequestKind::List
        | RequestKind::Snapshot
        | RequestKind::Transfer
        | RequestKind::Other => (None, None),
    };
    let percentile = |percent| times.map_or(String::new(), |times| time(times.percentile_us(percent)));
    let cells = [
        number(rates.requests[kind as usize], 1000.0),
        number(rates.failed[kind as usize], 1000.0),
        bytes.map_or(String::new(), |bytes| number(bytes, 1024.0)),
        percentile(50),
        percentile(99),
    ];
    row(kind.name(), cells.each_ref().map(String::as_str))
}

fn row(name: &str, cells: [&str; 5]) -> String {
    format!("{name:<8}") + &aligned(cells)
}

fn by_kind<T: Into<Value>>(values: [T; REQUEST_KINDS]) -> Value {
    let values = RequestKind::ALL.into_iter().zip(values);
    Value::Object(values.map(|(kind, value)| (kind.name().to_owned(), value.into())).collect::<Map<_, _>>())
}

fn rates_json(rates: &StoreRates) -> Value {
    let times = |times: &Histogram| json!({ "median_us": times.percentile_us(50), "percentile_99_us": times.percentile_us(99) });
    json!({
        "requests": by_kind(rates.requests),
        "failed": by_kind(rates.failed),
        "conflicts": rates.conflicts,
        "denied": rates.denied,
        "operations": rates.operations,
        "read_bytes": rates.read_bytes,
        "written_bytes": rates.written_bytes,
        "extents": rates.extents,
        "extent_bytes": rates.extent_bytes,
        "reads": times(&rates.reads),
        "commits": times(&rates.commits),
    })
}

fn counters_json(counters: &StoreCounters) -> Value {
    let times =
        |times: &Histogram| json!({ "latency_buckets": times.counts, "latency_total_ns": times.total_ns });
    json!({
        "uptime_ms": counters.uptime_ms,
        "clients": counters.clients,
        "requests": by_kind(counters.requests),
        "failed": by_kind(counters.failed),
        "conflicts": counters.conflicts,
        "denied": counters.denied,
        "operations": counters.operations,
        "read_bytes": counters.read_bytes,
        "written_bytes": counters.written_bytes,
        "in_flight": counters.in_flight,
        "reads": times(&counters.reads),
        "commits": times(&counters.commits),
        "snapshots": counters.snapshots,
        "transfer_bytes": counters.kept_bytes,
        "history_bytes": counters.history_bytes,
        "extents": counters.extents,
        "extent_bytes": counters.extent_bytes,
        "unused_extents": counters.unused_extents,
        "unused_extent_bytes": counters.unused_extent_bytes,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rates() -> ServerRates {
        let mut rates = StoreRates { conflicts: 2.0, written_bytes: 1536.0, ..StoreRates::default() };
        rates.requests[RequestKind::Commit as usize] = 12_345.0;
        rates.commits.add(Duration::from_micros(12));
        let counters = StoreCounters { clients: 1, unused_extent_bytes: 5, ..StoreCounters::default() };
        ServerRates { store: "s".into(), interval_seconds: 1.0, rates: Some(rates), counters: Ok(counters) }
    }

    #[test]
    fn a_table_has_a_row_for_each_kind_of_requests() {
        let table = rates().table(usize::MAX, usize::MAX);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 12, "{table}");
        assert_eq!(lines[0], "store s: 1 client, 0 snapshots, 0 requests in progress, interval 1 s");
        assert_eq!(
            lines[5].split_whitespace().collect::<Vec<_>>().join(" "),
            "commit 12.3k 0 1.5k 16 us 16 us"
        );
        assert_eq!(lines[1].len(), lines[5].len());
        assert_eq!(lines[9], "commits: 0 operations/s, 2 conflicts/s; 0 requests/s without the right");
        assert!(rates().table(3, 20).lines().all(|line| line.len() <= 20));
        assert_eq!(rates().table(3, 20).lines().count(), 3);
        let missing = ServerRates { counters: Err("timed out".into()), ..rates() };
        assert!(missing.table(9, 99).ends_with("no answer: timed out") && !missing.is_complete());
    }

    #[test]
    fn the_json_names_the_kinds_of_requests() {
        let value = rates().json(SystemTime::UNIX_EPOCH + Duration::from_millis(5));
        assert_eq!((&value["time_ms"], &value["error"]), (&5.into(), &Value::Null));
        assert_eq!(value["rates"]["requests"]["commit"], 12_345.0);
        assert_eq!(value["rates"]["commits"]["median_us"], 16);
        assert_eq!(value["counters"]["failed"]["list"], 0);
    }
}
