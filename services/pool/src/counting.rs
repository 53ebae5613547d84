//! Counts the requests that a member performs, and returns its counters.

use quell_vfs::Result;
use quell_wire::pool::{MemberCounters, Operation, OperationKind, PeerRequest, Reply};

use crate::counters::{CountedRequest, Sender};
use crate::member::Member;
use crate::replies::unexpected;

impl Member {
    /// Begins to count an operation of a client.
    pub(crate) fn begin_operation(&self, operation: &Operation<'_>) -> CountedRequest {
        self.begin_request(Sender::Client, operation.kind(), operation.data_bytes())
    }

    /// Begins to count a request of another member.
    pub(crate) fn begin_peer_request(&self, request: &PeerRequest<'_>) -> CountedRequest {
        self.begin_request(Sender::Member, request.kind(), request.data_bytes())
    }

    fn begin_request(&self, sender: Sender, kind: OperationKind, data_bytes: u64) -> CountedRequest {
        let request = CountedRequest { sender, kind, data_bytes, begun: self.monotonic() };
        self.counters.begin(&request);
        request
    }

    /// Counts a request with its result, and writes an event to the trace.
    pub(crate) fn end_request(&self, request: &CountedRequest, result: &Result<Reply<'static>>) {
        let elapsed = self.monotonic().saturating_sub(request.begun);
        self.counters.end(request, elapsed, result);
        tracing::debug!(
            operation = request.kind.name(),
            sender = ?request.sender,
            ?elapsed,
            error = result.as_ref().err().map(tracing::field::display),
            "performed"
        );
    }

    /// Returns the counters of this member.
    pub(crate) fn own_counters(&self) -> Result<Reply<'static>> {
        let space = self.own_space()?;
        let Reply::Space { total_bytes, available_bytes, file_system, .. } = space else {
            return Err(unexpected(&space));
        };
        let uptime = self.monotonic().saturating_sub(self.started);
        let clients = self.environment.clients.counts();
        Ok(Reply::Counters(Box::new(MemberCounters {
            uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            connections: clients.connections,
            clients: self.counters.clients.borrow().clone(),
            peers: self.counters.peers.borrow().clone(),
            direct: clients.direct,
            network: self.environment.peers.traffic(),
            total_bytes,
            available_bytes,
            file_system,
        })))
    }
}
