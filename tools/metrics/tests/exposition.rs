//! Checks the Prometheus text with a strict parser of the format: each rule of the specification
//! that the text could violate is an assertion.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_metrics::{MemberSample, PoolSample, prometheus_text, store_prometheus_text};
use quell_wire::blob::{RequestKind, StoreCounters};
use quell_wire::pool::{MemberCounters, OperationKind};

/// The samples of a text, by name and labels.
#[derive(Debug, Default)]
struct Parsed {
    kinds: BTreeMap<String, String>,
    samples: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses `name="value",...}` and returns the labels and the text after the brace.
fn labels(mut text: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    loop {
        let (name, rest) = text.split_once("=\"").expect("a label has a quoted value");
        assert!(is_name(name), "{name}");
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next().expect("the value ends with a quote") {
                (end, '"') => break end + 1,
                (_, '\\') => match characters.next().expect("an escape has two characters").1 {
                    'n' => value.push('\n'),
                    escaped @ ('\\' | '"') => value.push(escaped),
                    other => panic!("the escape \\{other} does not exist"),
                },
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "the label {name} occurs twice");
        text = &rest[end..];
        match text.strip_prefix(',') {
            Some(rest) => text = rest,
            None => return (labels, text.strip_prefix('}').expect("the labels end with a brace")),
        }
    }
}

fn parse(text: &str) -> Parsed {
    assert!(text.ends_with('\n') && !text.contains('\r'));
    let mut parsed = Parsed::default();
    let (mut family, mut described) = (String::new(), None);
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("a name and a description");
            assert!(is_name(name) && !help.contains('\\'));
            described = Some(name.to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a name and a kind");
            assert_eq!(described.take().as_deref(), Some(name), "the description is that of another family");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{kind}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            // A family that occurred before would not be consecutive.
            assert!(parsed.kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} occurs twice");
            family = name.to_owned();
        } else {
            let (name, rest) = line.split_once('{').expect("a sample has labels");
            let (labels, value) = labels(rest);
            let value = value.strip_prefix(' ').expect("a blank precedes the value");
            assert!(!value.contains(' '), "there is no time");
            let is_histogram = parsed.kinds[&family] == "histogram";
            let suffixes: &[&str] = if is_histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|end| name == format!("{family}{end}")), "{name} in {family}");
            assert_eq!(labels.contains_key("le"), name.ends_with("_bucket") && is_histogram);
            let value = value.parse().expect("the value is a number");
            assert!(f64::is_finite(value) && value >= 0.0, "{value}");
            let sample = (name.to_owned(), labels);
            assert!(parsed.samples.insert(sample, value).is_none(), "a sample occurs twice: {line}");
        }
    }
    assert_eq!(described, None);
    check_histograms(&parsed);
    parsed
}

/// Checks that the buckets of each histogram are cumulative, and that the last one has all times.
fn check_histograms(parsed: &Parsed) {
    type Series = BTreeMap<String, String>;
    let mut buckets: BTreeMap<(String, Series), Vec<(f64, f64)>> = BTreeMap::new();
    for ((name, labels), value) in &parsed.samples {
        if let Some(family) = name.strip_suffix("_bucket") {
            let mut labels = labels.clone();
            let bound: f64 = labels.remove("le").unwrap().parse().unwrap();
            buckets.entry((family.to_owned(), labels)).or_default().push((bound, *value));
        }
    }
    let histograms: BTreeSet<&str> = buckets.keys().map(|(family, _)| family.as_str()).collect();
    let expected = parsed.kinds.iter().filter(|(_, kind)| *kind == "histogram");
    assert_eq!(histograms, expected.map(|(name, _)| name.as_str()).collect());
    for ((family, labels), mut series) in buckets {
        series.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(series.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{series:?}");
        let (bound, count) = *series.last().unwrap();
        assert_eq!(bound, f64::INFINITY);
        assert_eq!(parsed.samples[&(format!("{family}_count"), labels.clone())], count);
        assert!(parsed.samples.contains_key(&(format!("{family}_sum"), labels)));
    }
}

fn sample() -> PoolSample {
    let mut counters = MemberCounters { uptime_ms: 1500, connections: 3, ..MemberCounters::default() };
    counters.clients.requests[OperationKind::Create as usize] = 7;
    counters.clients.errors[OperationKind::Create as usize] = 2;
    for time in [Duration::from_nanos(300), Duration::from_micros(90), Duration::from_secs(100)] {
        counters.clients.latency.add(time);
    }
    counters.peers.in_flight = 1;
    counters.direct.written_bytes = u64::MAX;
    counters.direct.writes = 12;
    counters.network.sent_bytes = 5;
    counters.network.received_saved_bytes = 6;
    let answered = MemberSample { member: 0, machine: "a\"b\\c\ne".into(), counters: Some(counters) };
    let missing = MemberSample { member: 1, machine: "node-2".into(), counters: None };
    PoolSample { pool: "scratch".into(), members: vec![answered, missing] }
}

#[test]
fn the_text_is_valid_and_has_the_values_of_the_counters() {
    let parsed = parse(&prometheus_text(&sample()));
    let value = |name: &str, further: &[(&str, &str)]| {
        let common = [("pool", "scratch"), ("member", "0"), ("machine", "a\"b\\c\ne")];
        let labels = common.iter().chain(further).map(|(name, value)| ((*name).into(), (*value).into()));
        parsed.samples[&(format!("quell_pool_{name}"), labels.collect())]
    };
    assert_eq!(value("up", &[]), 1.0);
    assert_eq!(value("uptime_seconds", &[]), 1.5);
    assert_eq!(value("connections", &[]), 3.0);
    assert_eq!(value("operations_total", &[("operation", "create")]), 7.0);
    assert_eq!(value("operations_failed_total", &[("operation", "create")]), 2.0);
    assert_eq!(value("peer_requests_in_flight", &[]), 1.0);
    assert_eq!(value("direct_accesses_total", &[("operation", "write")]), 12.0);
    assert_eq!(value("bytes_total", &[("path", "direct"), ("operation", "write")]), u64::MAX as f64);
    assert_eq!(value("network_bytes_total", &[("direction", "sent")]), 5.0);
    assert_eq!(value("network_saved_bytes_total", &[("direction", "received")]), 6.0);
    let bucket = |bound| value("operations_duration_seconds_bucket", &[("le", bound)]);
    assert_eq!((bucket("0.000001"), bucket("0.000064"), bucket("0.000128")), (1.0, 1.0, 2.0));
    assert_eq!((bucket("67.108864"), bucket("+Inf")), (2.0, 3.0));
    assert_eq!(value("operations_duration_seconds_sum", &[]), 100.000_090_3);
    let up = parsed.samples.iter().filter(|((name, _), _)| name == "quell_pool_up");
    assert_eq!(up.map(|(_, value)| *value).collect::<Vec<_>>(), [1.0, 0.0]);
}

#[test]
fn a_pool_without_answers_has_a_valid_text() {
    let mut sample = sample();
    sample.members.retain(|member| member.counters.is_none());
    let text = prometheus_text(&sample);
    // A histogram without samples is valid.
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 1, "{text}");
}

#[test]
fn the_text_of_a_store_is_valid_and_has_the_values_of_the_counters() {
    let mut counters = StoreCounters { uptime_ms: 1500, conflicts: 3, ..StoreCounters::default() };
    counters.failed[RequestKind::Commit as usize] = 4;
    counters.written_bytes = 5;
    counters.commits.add(Duration::from_micros(90));
    let parsed = parse(&store_prometheus_text("dir:/a\"b", Some(&counters)));
    let value = |name: &str, further: &[(&str, &str)]| {
        let labels = [("store", "dir:/a\"b")].iter().chain(further);
        let labels = labels.map(|(name, value)| ((*name).into(), (*value).into()));
        parsed.samples[&(format!("quell_blob_{name}"), labels.collect())]
    };
    assert_eq!((value("up", &[]), value("uptime_seconds", &[])), (1.0, 1.5));
    assert_eq!((value("conflicts_total", &[]), value("snapshots", &[])), (3.0, 0.0));
    assert_eq!(value("requests_failed_total", &[("request", "commit")]), 4.0);
    assert_eq!(value("bytes_total", &[("operation", "write")]), 5.0);
    assert_eq!(value("commits_duration_seconds_bucket", &[("le", "0.000128")]), 1.0);
    let text = store_prometheus_text("store", None);
    assert_eq!(parse(&text).samples.len(), 1);
}
