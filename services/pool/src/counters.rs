//! The counters of a member. They are plain numbers, which only the thread of the member uses. A
//! request reads the clock twice and makes a few additions. The module `counting` counts the
//! requests.

use std::cell::RefCell;
use std::time::Duration;

use quell_vfs::Result;
use quell_wire::pool::{OperationKind, Reply, RequestCounters};

/// The counters of a member.
#[derive(Debug, Default)]
pub struct Counters {
    pub clients: RefCell<RequestCounters>,
    pub peers: RefCell<RequestCounters>,
}

/// The sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// A client of the node.
    Client,
    /// Another member.
    Member,
}

/// A request that is being performed.
#[derive(Debug)]
#[must_use = "its end is counted"]
pub struct CountedRequest {
    pub sender: Sender,
    pub kind: OperationKind,
    /// The number of bytes of file data in the request.
    pub data_bytes: u64,
    pub begun: Duration,
}

impl Counters {
    fn of(&self, sender: Sender) -> &RefCell<RequestCounters> {
        match sender {
            Sender::Client => &self.clients,
            Sender::Member => &self.peers,
        }
    }

    /// Counts the begin of a request.
    pub fn begin(&self, request: &CountedRequest) {
        self.of(request.sender).borrow_mut().in_flight += 1;
    }

    /// Counts the end of a request that was begun, and the time since its begin.
    pub fn end(&self, request: &CountedRequest, elapsed: Duration, result: &Result<Reply<'static>>) {
        let CountedRequest { sender, kind, data_bytes, .. } = *request;
        let mut counters = self.of(sender).borrow_mut();
        counters.in_flight -= 1;
        counters.requests[kind as usize] += 1;
        counters.latency.add(elapsed);
        match result {
            Ok(Reply::Bytes(data) | Reply::Inline { data, .. }) if kind == OperationKind::Read => {
                counters.read_bytes += data.len() as u64;
            }
            // A write to a file with chunks has written nothing.
            Ok(Reply::InChunks) => {}
            Ok(_) => counters.written_bytes += data_bytes,
            Err(_) => counters.errors[kind as usize] += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use quell_vfs::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_request_is_counted_for_its_sender_with_its_bytes_and_its_time() {
        let counters = Counters::default();
        let begun = Duration::ZERO;
        let request = |sender, kind, data_bytes| CountedRequest { sender, kind, data_bytes, begun };
        let read = request(Sender::Client, OperationKind::Read, 0);
        let write = request(Sender::Client, OperationKind::Write, 9);
        let link = request(Sender::Member, OperationKind::Other, 0);
        [&read, &write, &write, &link].into_iter().for_each(|request| counters.begin(request));
        assert_eq!(counters.clients.borrow().in_flight, 3);
        let bytes = || Ok(Reply::Bytes(Cow::Owned(vec![0; 5])));
        counters.end(&read, Duration::from_micros(3), &bytes());
        counters.end(&write, Duration::ZERO, &Ok(Reply::Written(true)));
        counters.end(&write, Duration::ZERO, &Err(Error::new(ErrorKind::NoSpace, "write", "")));
        // The target of a link is not counted as data of a file.
        counters.end(&link, Duration::ZERO, &bytes());
        let (clients, peers) = (counters.clients.borrow(), counters.peers.borrow());
        assert_eq!((clients.in_flight, peers.in_flight), (0, 0));
        let counted = |requests: &[u64], kind: OperationKind| requests[kind as usize];
        assert_eq!(counted(&clients.requests, OperationKind::Read), 1);
        assert_eq!(counted(&clients.requests, OperationKind::Write), 2);
        assert_eq!(counted(&clients.errors, OperationKind::Write), 1);
        assert_eq!((clients.read_bytes, clients.written_bytes), (5, 9));
        assert_eq!((clients.latency.counts[0], clients.latency.counts[2]), (2, 1));
        assert_eq!(counted(&peers.requests, OperationKind::Other), 1);
        assert_eq!((peers.read_bytes, peers.latency.count()), (0, 1));
    }
}
