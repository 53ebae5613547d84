//! The rates of a pool's operations by member, as a table and as JSON.

use std::collections::HashSet;
use std::time::SystemTime;

use indicatif::HumanBytes;
use quell_metrics::Rates;
use quell_wire::pool::{MemberCounters, OPERATION_KINDS, OperationKind, RequestCounters};
use serde_json::{Map, Value, json};

use crate::inputs::shown;
use crate::table_cells::{aligned, number, time};
use crate::top::Shown;

/// The rates of all members of a pool in an interval.
pub struct PoolRates {
    pub pool: String,
    pub interval_seconds: f64,
    pub members: Vec<MemberRates>,
}

/// The rates of a member in an interval, and its counters at the end of it.
pub struct MemberRates {
    pub number: u16,
    pub host: String,
    /// `None` unless the member answered at the beginning and at the end of the interval.
    pub rates: Option<Rates>,
    /// The counters, or the reason why the member does not answer.
    pub counters: Result<MemberCounters, String>,
}

/// The largest width of the column with the names of machines. A table with short names has 77
/// columns.
const HOST_COLUMNS_MAX: usize = 16;
const MACHINE: &str = "machine";

impl Shown for PoolRates {
    /// Daemons for which there is no line are counted in the last line.
    fn table(&self, lines_max: usize, columns_max: usize) -> String {
        let sum = Rates::sum(self.members.iter().filter_map(|member| member.rates.as_ref()));
        let host_columns = self.host_columns();
        let mut lines = vec![self.title(), operations_line(&sum), header(host_columns)];
        let mut rows: Vec<String> = self.members.iter().map(|member| member.row(host_columns)).collect();
        // Leaves lines for the text above the rows and for the sum.
        let rows_max = lines_max.saturating_sub(lines.len() + 1).max(1);
        if rows.len() > rows_max {
            let hidden = rows.len() - (rows_max - 1);
            rows.truncate(rows_max - 1);
            rows.push(format!("       {hidden} more members"));
        }
        lines.append(&mut rows);
        if self.members.len() > 1 {
            lines.push(self.sum_row(&sum, host_columns));
        }
        let cut = |line: &String| line.chars().take(columns_max).collect::<String>().trim_end().to_owned();
        lines.iter().map(cut).collect::<Vec<_>>().join("\n")
    }

    fn json(&self, now: SystemTime) -> Value {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        json!({
            "pool": self.pool,
            "time_ms": since.as_millis() as u64,
            "interval_seconds": self.interval_seconds,
            "members": self.members.iter().map(MemberRates::json).collect::<Vec<_>>(),
        })
    }

    fn is_complete(&self) -> bool {
        self.members.iter().all(|member| member.counters.is_ok())
    }
}

impl PoolRates {
    fn host_columns(&self) -> usize {
        let widths = self.members.iter().map(|member| member.host.chars().count());
        widths.max().unwrap_or(0).clamp(MACHINE.len(), HOST_COLUMNS_MAX)
    }

    fn title(&self) -> String {
        let (total, available) = self.space();
        let members = quell_supervisor::counted(self.members.len() as u64, "member", "members");
        format!(
            "pool {}: {members}, {} available of {}, interval {} s",
            self.pool,
            HumanBytes(available),
            HumanBytes(total),
            self.interval_seconds
        )
    }

    /// Returns the size and the available space of the pool. A file system that several members use
    /// counts once.
    fn space(&self) -> (u64, u64) {
        let mut counted = HashSet::new();
        let answered = self.members.iter().filter_map(|member| member.counters.as_ref().ok());
        let different = answered.filter(|counters| counted.insert(counters.file_system));
        different.fold((0, 0), |(total, available), counters| {
            (
                u64::saturating_add(total, counters.total_bytes),
                u64::saturating_add(available, counters.available_bytes),
            )
        })
    }

    fn sum_row(&self, sum: &Rates, host_columns: usize) -> String {
        let connections = self.members.iter().filter_map(|member| member.counters.as_ref().ok());
        let connections = connections.fold(0, |sum, counters| u64::saturating_add(sum, counters.connections));
        row(
            &begin_of_row("all", "", host_columns),
            &connections.to_string(),
            &rate_cells(sum),
            self.space().1,
        )
    }
}

impl MemberRates {
    fn row(&self, host_columns: usize) -> String {
        let begin = begin_of_row(&self.number.to_string(), &shown(&self.host), host_columns);
        match (&self.counters, &self.rates) {
            (Err(error), _) => format!("{begin} no answer: {error}"),
            (Ok(counters), rates) => {
                let cells = rates.as_ref().map_or(std::array::from_fn(|_| "-".to_owned()), rate_cells);
                row(&begin, &counters.connections.to_string(), &cells, counters.available_bytes)
            }
        }
    }

    fn json(&self) -> Value {
        let counters = self.counters.as_ref();
        json!({
            "number": self.number,
            "host": self.host,
            "error": counters.err(),
            "rates": self.rates.as_ref().map(rates_json),
            "counters": counters.ok().map(counters_json),
        })
    }
}

const RATE_COLUMNS: usize = 7;

/// Returns the cells of the columns between the connections and the space.
fn rate_cells(rates: &Rates) -> [String; RATE_COLUMNS] {
    [
        number(rates.all_operations(), 1000.0),
        number(rates.errors, 1000.0),
        number(rates.peer_requests, 1000.0),
        number(rates.read_bytes, 1024.0),
        number(rates.written_bytes, 1024.0),
        time(rates.latency.percentile_us(50)),
        time(rates.latency.percentile_us(99)),
    ]
}

fn header(host_columns: usize) -> String {
    let cells = ["conns", "ops/s", "failed", "peers", "read", "write", "median", "99 %", "free"];
    begin_of_row("member", MACHINE, host_columns) + &aligned(cells)
}

fn row(begin: &str, connections: &str, cells: &[String; RATE_COLUMNS], available: u64) -> String {
    let available = number(available as f64, 1024.0);
    let cells = cells.iter().map(String::as_str);
    begin.to_owned() + &aligned(std::iter::once(connections).chain(cells).chain([&*available]))
}

fn begin_of_row(number: &str, host: &str, host_columns: usize) -> String {
    let host: String = host.chars().take(host_columns).collect();
    format!("{number:>6} {host:<host_columns$}")
}

/// Returns the rates of the kinds of operations that have occurred, and of accesses to chunks
/// without requests; the largest first.
fn operations_line(sum: &Rates) -> String {
    let kinds = OperationKind::ALL.into_iter().map(OperationKind::name).zip(sum.operations);
    let mut kinds: Vec<(&str, f64)> = kinds.chain([("direct", sum.direct_accesses)]).collect();
    kinds.retain(|(_, rate)| *rate > 0.0);
    kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
    let texts = kinds.iter().map(|(kind, rate)| format!("{kind} {}", number(*rate, 1000.0)));
    let texts: Vec<String> = texts.collect();
    match texts.is_empty() {
        true => "operations/s: none".into(),
        false => format!("operations/s: {}", texts.join(", ")),
    }
}

fn by_kind<T: Into<Value>>(values: [T; OPERATION_KINDS]) -> Value {
    let values = OperationKind::ALL.into_iter().zip(values);
    Value::Object(values.map(|(kind, value)| (kind.name().to_owned(), value.into())).collect::<Map<_, _>>())
}

fn rates_json(rates: &Rates) -> Value {
    json!({
        "operations": by_kind(rates.operations),
        "failed": rates.errors,
        "peer_requests": rates.peer_requests,
        "direct_accesses": rates.direct_accesses,
        "read_bytes": rates.read_bytes,
        "written_bytes": rates.written_bytes,
        "median_us": rates.latency.percentile_us(50),
        "percentile_99_us": rates.latency.percentile_us(99),
    })
}

fn counters_json(counters: &MemberCounters) -> Value {
    let requests = |requests: &RequestCounters| {
        json!({
            "requests": by_kind(requests.requests),
            "failed": by_kind(requests.errors),
            "read_bytes": requests.read_bytes,
            "written_bytes": requests.written_bytes,
            "in_flight": requests.in_flight,
            "latency_buckets": requests.latency.counts,
            "latency_total_ns": requests.latency.total_ns,
        })
    };
    json!({
        "uptime_ms": counters.uptime_ms,
        "connections": counters.connections,
        "clients": requests(&counters.clients),
        "peers": requests(&counters.peers),
        "direct": {
            "reads": counters.direct.reads,
            "read_bytes": counters.direct.read_bytes,
            "writes": counters.direct.writes,
            "written_bytes": counters.direct.written_bytes,
        },
        "network": {
            "sent_bytes": counters.network.sent_bytes,
            "received_bytes": counters.network.received_bytes,
            "sent_saved_bytes": counters.network.sent_saved_bytes,
            "received_saved_bytes": counters.network.received_saved_bytes,
        },
        "total_bytes": counters.total_bytes,
        "available_bytes": counters.available_bytes,
        "file_system": counters.file_system,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rates(members: u16) -> PoolRates {
        let member = |number| {
            let mut rates = Rates { read_bytes: 1536.0, direct_accesses: 2.0, ..Rates::default() };
            rates.operations[OperationKind::Create as usize] = 12_345.0;
            rates.latency.add(Duration::from_micros(12));
            let counters = MemberCounters {
                connections: 2,
                total_bytes: 4 << 30,
                available_bytes: 3 << 30,
                file_system: u64::from(number / 2),
                ..MemberCounters::default()
            };
            let counters = if number == 1 { Err("timed out".into()) } else { Ok(counters) };
            let rates = counters.is_ok().then_some(rates);
            MemberRates { number, host: format!("node-{number}"), rates, counters }
        };
        PoolRates { pool: "p".into(), interval_seconds: 1.0, members: (0..members).map(member).collect() }
    }

    #[test]
    fn a_table_has_a_row_for_each_member_and_one_for_the_sum() {
        let table = rates(4).table(usize::MAX, usize::MAX);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 8, "{table}");
        assert_eq!(lines[0], "pool p: 4 members, 6.00 GiB available of 8.00 GiB, interval 1 s");
        assert_eq!(lines[1], "operations/s: create 37.0k, direct 6");
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let expected = "0 node-0 2 12.3k 0 0 1.5k 0 16 us 16 us 3G";
        assert_eq!(cells(lines[3]).join(" "), expected);
        assert_eq!(cells(lines[4]).join(" "), "1 node-1 no answer: timed out");
        assert_eq!(cells(lines[7]).join(" "), "all 6 37.0k 0 0 4.5k 0 16 us 16 us 6G");
        // The numbers of a column are aligned at their ends.
        assert_eq!((lines[2].len(), lines[3].len()), (77, 77));
    }

    #[test]
    fn a_table_fits_the_screen() {
        let table = rates(100).table(10, 50);
        assert_eq!(table.lines().count(), 10);
        assert!(table.lines().all(|line| line.chars().count() <= 50), "{table}");
        assert_eq!(table.lines().nth(8).unwrap().trim(), "95 more members");
        assert!(rates(100).table(1, 5).lines().count() <= 5);
        assert_eq!(rates(1).table(24, 80).lines().count(), 4);
    }

    #[test]
    fn the_json_names_the_kinds_of_operations() {
        let value = rates(2).json(SystemTime::UNIX_EPOCH + Duration::from_millis(5));
        assert_eq!(value["time_ms"], 5);
        assert_eq!(value["members"][0]["rates"]["operations"]["create"], 12_345.0);
        assert_eq!(value["members"][0]["rates"]["median_us"], 16);
        assert_eq!(value["members"][0]["counters"]["clients"]["requests"]["rename"], 0);
        assert_eq!(value["members"][1]["error"], "timed out");
        assert!(value["members"][1]["counters"].is_null());
    }
}
