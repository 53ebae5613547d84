//! Rates of the requests of a member between two states of its counters.

use std::time::Duration;

use quell_wire::Histogram;
use quell_wire::pool::{MemberCounters, OPERATION_KINDS, RequestCounters};

/// The requests of a member in an interval. Rates are numbers per second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    /// The operations of clients by kind, in the order of `OperationKind::ALL`.
    pub operations: [f64; OPERATION_KINDS],
    /// The operations of clients that have failed.
    pub errors: f64,
    /// The requests of other members.
    pub peer_requests: f64,
    /// The accesses of clients to the chunks of their node, without requests.
    pub direct_accesses: f64,
    /// The bytes that clients have read, with and without requests.
    pub read_bytes: f64,
    /// The bytes that clients have written, with and without requests.
    pub written_bytes: f64,
    /// The times of the clients' operations that ended in the interval.
    pub latency: Histogram,
}

impl Rates {
    /// Returns the rates between two states of the counters, with the time between them. If the
    /// member was started again in between, returns the rates since its start.
    pub fn between(earlier: &MemberCounters, later: &MemberCounters, elapsed: Duration) -> Rates {
        if later.uptime_ms < earlier.uptime_ms {
            let uptime = Duration::from_millis(later.uptime_ms);
            return Rates::between(&MemberCounters::default(), later, uptime);
        }
        let rate_of = |count: fn(&MemberCounters) -> u64| rate(count(earlier), count(later), elapsed);
        let (before, after) = (&earlier.clients, &later.clients);
        Rates {
            operations: std::array::from_fn(|kind| {
                rate(before.requests[kind], after.requests[kind], elapsed)
            }),
            errors: rate_of(|counters| sum(&counters.clients.errors)),
            peer_requests: rate_of(|counters| sum(&counters.peers.requests)),
            direct_accesses: rate_of(|counters| counters.direct.reads.saturating_add(counters.direct.writes)),
            read_bytes: rate_of(|counters| {
                bytes(&counters.clients, counters.direct.read_bytes, |c| c.read_bytes)
            }),
            written_bytes: rate_of(|counters| {
                bytes(&counters.clients, counters.direct.written_bytes, |c| c.written_bytes)
            }),
            latency: after.latency.since(&before.latency),
        }
    }

    /// Returns the rates of several members together.
    pub fn sum<'a>(members: impl Iterator<Item = &'a Rates>) -> Rates {
        members.fold(Rates::default(), |mut sum, rates| {
            sum.operations.iter_mut().zip(rates.operations).for_each(|(sum, rate)| *sum += rate);
            sum.errors += rates.errors;
            sum.peer_requests += rates.peer_requests;
            sum.direct_accesses += rates.direct_accesses;
            sum.read_bytes += rates.read_bytes;
            sum.written_bytes += rates.written_bytes;
            sum.latency.merge(&rates.latency);
            sum
        })
    }

    /// Returns the rate of the operations of all kinds.
    pub fn all_operations(&self) -> f64 {
        self.operations.iter().sum()
    }
}

/// Returns the increase of a counter per second.
pub(crate) fn rate(earlier: u64, later: u64, elapsed: Duration) -> f64 {
    match elapsed.is_zero() {
        true => 0.0,
        false => later.saturating_sub(earlier) as f64 / elapsed.as_secs_f64(),
    }
}

fn sum(counts: &[u64; OPERATION_KINDS]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
}

fn bytes(counters: &RequestCounters, direct: u64, bytes: fn(&RequestCounters) -> u64) -> u64 {
    bytes(counters).saturating_add(direct)
}

#[cfg(test)]
mod tests {
    use quell_wire::pool::OperationKind;

    use super::*;

    fn counters(uptime_ms: u64, creations: u64) -> MemberCounters {
        let mut counters = MemberCounters { uptime_ms, ..MemberCounters::default() };
        counters.clients.requests[OperationKind::Create as usize] = creations;
        counters.clients.latency.counts[4] = creations;
        counters
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let earlier = counters(5000, 100);
        let mut later = counters(7000, 300);
        later.clients.errors[OperationKind::Create as usize] = 8;
        later.clients.read_bytes = 10;
        later.direct.read_bytes = 30;
        later.direct.reads = 2;
        later.direct.written_bytes = 6;
        later.peers.requests[OperationKind::Other as usize] = 12;
        let rates = Rates::between(&earlier, &later, Duration::from_secs(2));
        assert_eq!(rates.operations[OperationKind::Create as usize], 100.0);
        assert_eq!((rates.all_operations(), rates.errors, rates.peer_requests), (100.0, 4.0, 6.0));
        assert_eq!((rates.read_bytes, rates.written_bytes, rates.direct_accesses), (20.0, 3.0, 1.0));
        assert_eq!((rates.latency.count(), rates.latency.percentile_us(50)), (200, Some(16)));
        let sum = Rates::sum([rates, rates].iter());
        assert_eq!((sum.all_operations(), sum.errors, sum.read_bytes), (200.0, 8.0, 40.0));
        assert_eq!((sum.peer_requests, sum.direct_accesses, sum.latency.count()), (12.0, 2.0, 400));
        let idle = Rates::between(&later, &later, Duration::from_secs(1));
        assert_eq!(idle, Rates::default());
    }

    #[test]
    fn a_member_that_was_started_again_has_the_rates_since_its_start() {
        let rates = Rates::between(&counters(9_000_000, 500), &counters(4000, 40), Duration::from_secs(1));
        assert_eq!(rates.all_operations(), 10.0);
        assert_eq!(Rates::between(&counters(5, 0), &counters(0, 9), Duration::ZERO).all_operations(), 0.0);
    }
}
