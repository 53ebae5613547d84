//! The counters of a pool in the Prometheus text format. docs/techniques/pool.md lists the metrics.

use std::fmt::Display;

use quell_wire::Histogram;
use quell_wire::pool::{
    DirectCounters, MemberCounters, NetworkCounters, OPERATION_KINDS, OperationKind, RequestCounters,
};

use crate::exposition::{Exposition, escaped};
use crate::sample::{MemberSample, PoolSample};

/// Returns the counters of a pool in the Prometheus text format.
pub fn prometheus_text(sample: &PoolSample) -> String {
    let mut families = Families { text: Exposition::new("quell_pool_"), sample };
    families.up();
    families.gauge("uptime_seconds", "Time since the start of the member.", |counters| {
        counters.uptime_ms as f64 / 1000.0
    });
    families.gauge("connections", "Connections of client processes.", |counters| counters.connections);
    families.requests("operations", "Operations of the clients of the node", |counters| &counters.clients);
    families.requests("peer_requests", "Requests of other members", |counters| &counters.peers);
    families.direct();
    families.bytes();
    families.network();
    families.gauge("size_bytes", "Size of the file system with the data of the member.", |counters| {
        counters.total_bytes
    });
    families.gauge("available_bytes", "Available space in the file system with the data.", |counters| {
        counters.available_bytes
    });
    families.text.into_text()
}

/// The families of metrics of a pool. All samples of a family are consecutive, as the format
/// requires.
struct Families<'a> {
    text: Exposition,
    sample: &'a PoolSample,
}

impl Families<'_> {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        self.text.begin(name, kind, help);
    }

    /// Adds a sample of a member. `labels` are more labels, each after a comma.
    fn add(&mut self, name: &str, member: &MemberSample, labels: &str, value: impl Display) {
        self.text.add(name, &(labels_of(self.sample, member) + labels), value);
    }

    /// Calls `add` for each member that has answered.
    fn each(&mut self, mut add: impl FnMut(&mut Self, &MemberSample, &MemberCounters)) {
        let sample = self.sample;
        for member in &sample.members {
            if let Some(counters) = &member.counters {
                add(self, member, counters);
            }
        }
    }

    fn up(&mut self) {
        self.begin("up", "gauge", "Whether the member has answered.");
        let sample = self.sample;
        for member in &sample.members {
            self.add("up", member, "", u8::from(member.counters.is_some()));
        }
    }

    fn gauge<T: Display>(&mut self, name: &str, help: &str, value: fn(&MemberCounters) -> T) {
        self.begin(name, "gauge", help);
        self.each(|families, member, counters| families.add(name, member, "", value(counters)));
    }

    /// Adds the families of the requests of one kind of sender.
    fn requests(&mut self, name: &str, subject: &str, of: fn(&MemberCounters) -> &RequestCounters) {
        self.by_kind(&format!("{name}_total"), &format!("{subject}."), of, |requests| &requests.requests);
        let errors = format!("{name}_failed_total");
        self.by_kind(&errors, &format!("{subject} that have failed."), of, |requests| &requests.errors);
        let in_flight = format!("{name}_in_flight");
        self.begin(&in_flight, "gauge", &format!("{subject} that are being performed."));
        self.each(|families, member, counters| families.add(&in_flight, member, "", of(counters).in_flight));
        let duration = format!("{name}_duration_seconds");
        self.begin(&duration, "histogram", &format!("{subject}: the time from the begin to the result."));
        self.each(|families, member, counters| families.histogram(&duration, member, &of(counters).latency));
    }

    fn by_kind(
        &mut self,
        name: &str,
        help: &str,
        of: fn(&MemberCounters) -> &RequestCounters,
        counts: fn(&RequestCounters) -> &[u64; OPERATION_KINDS],
    ) {
        self.begin(name, "counter", help);
        self.each(|families, member, counters| {
            for (kind, count) in OperationKind::ALL.into_iter().zip(counts(of(counters))) {
                families.add(name, member, &format!(",operation=\"{}\"", kind.name()), count);
            }
        });
    }

    fn histogram(&mut self, name: &str, member: &MemberSample, histogram: &Histogram) {
        self.text.histogram(name, &labels_of(self.sample, member), histogram);
    }

    fn direct(&mut self) {
        let name = "direct_accesses_total";
        self.begin(name, "counter", "Accesses of clients to the chunks of their node, without requests.");
        self.each(|families, member, MemberCounters { direct: DirectCounters { reads, writes, .. }, .. }| {
            families.add(name, member, ",operation=\"read\"", reads);
            families.add(name, member, ",operation=\"write\"", writes);
        });
    }

    fn bytes(&mut self) {
        let name = "bytes_total";
        let help = "Bytes of file data: of clients through the daemon (daemon), of clients in the chunks of their \
                    node (direct), and for other members (peer).";
        self.begin(name, "counter", help);
        self.each(|families, member, MemberCounters { clients, peers, direct, .. }| {
            for (path, read, written) in [
                ("daemon", clients.read_bytes, clients.written_bytes),
                ("direct", direct.read_bytes, direct.written_bytes),
                ("peer", peers.read_bytes, peers.written_bytes),
            ] {
                families.add(name, member, &format!(",path=\"{path}\",operation=\"read\""), read);
                families.add(name, member, &format!(",path=\"{path}\",operation=\"write\""), written);
            }
        });
    }

    fn network(&mut self) {
        type Of = fn(&NetworkCounters) -> [u64; 2];
        let families: [(&str, &str, Of); 2] = [
            ("network_bytes_total", "Bytes that the daemon has exchanged with other daemons.", |network| {
                [network.sent_bytes, network.received_bytes]
            }),
            ("network_saved_bytes_total", "Bytes that compression has saved in these.", |network| {
                [network.sent_saved_bytes, network.received_saved_bytes]
            }),
        ];
        for (name, help, of) in families {
            self.begin(name, "counter", help);
            self.each(|families, member, counters| {
                for (direction, bytes) in ["sent", "received"].into_iter().zip(of(&counters.network)) {
                    families.add(name, member, &format!(",direction=\"{direction}\""), bytes);
                }
            });
        }
    }
}

/// Returns the labels that all samples of a member have.
fn labels_of(sample: &PoolSample, member: &MemberSample) -> String {
    let (pool, machine) = (escaped(&sample.pool), escaped(&member.machine));
    format!("pool=\"{pool}\",member=\"{}\",machine=\"{machine}\"", member.member)
}
