//! The requests of one other member: which of them are executed, and the replies that are kept for
//! it. A state machine without I/O, clock or lock; docs/formats/peer-protocol.md has its rules.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::frame::{Fields, FrameKind, Status, Violation};
use super::outgoing::{Credit, Frame};

/// The number of replaced sessions that are remembered, 8 bytes each.
const REPLACED_SESSIONS_MAX: usize = 1024;

#[derive(Debug)]
enum State {
    /// The handler has the request.
    Begun { is_cancelled: bool },
    /// The reply is kept; `queued_on` is the connection for which it was last queued.
    Answered { status: Status, reply: Arc<Vec<u8>>, queued_on: u64 },
}

#[derive(Debug)]
struct Entry {
    state: State,
    cost: u64,
    reply_bytes_max: u32,
}

/// The treatment of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestAction {
    /// Pass it to the handler.
    Execute,
    /// Do nothing: a reply is queued, or will be.
    Ignore,
}

/// The requests of one member.
#[derive(Debug)]
pub(super) struct Incoming {
    session: Option<u64>,
    /// The number of the connection with the last `resume`, larger than the numbers of all earlier
    /// connections of the session.
    connection: u64,
    is_connected: bool,
    replaced: VecDeque<u64>,
    entries: HashMap<u64, Entry>,
    /// Ids that `resume` named and that were never received.
    missing: HashSet<u64>,
    last_id: u64,
    to_send: VecDeque<u64>,
    held_bytes: u64,
    begun: usize,
    limit: Credit,
    is_stopping: bool,
}

impl Incoming {
    pub fn new(limit: Credit) -> Incoming {
        Incoming {
            session: None,
            connection: 0,
            is_connected: false,
            replaced: VecDeque::new(),
            entries: HashMap::new(),
            missing: HashSet::new(),
            last_id: 0,
            to_send: VecDeque::new(),
            held_bytes: 0,
            begun: 0,
            limit,
            is_stopping: false,
        }
    }

    /// Returns the session of the other member, or 0 before its first `resume`.
    pub fn session(&self) -> u64 {
        self.session.unwrap_or(0)
    }

    /// Returns the number of requests whose handler has not answered.
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// Returns the requests that are held, and the bytes that they cost.
    #[cfg(test)]
    pub fn held(&self) -> Credit {
        Credit { requests: self.entries.len(), bytes: self.held_bytes }
    }

    /// Refuses new requests from now on.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Takes `resume` on a connection: the ids of all requests without a reply. Refuses a
    /// connection that is older than one before.
    pub fn resume(
        &mut self,
        session: u64,
        connection: u64,
        ids: impl Iterator<Item = u64>,
    ) -> Result<(), Violation> {
        let is_same = self.session == Some(session);
        if self.replaced.contains(&session) || (is_same && connection <= self.connection) {
            return Err(Violation("a connection that is older than the last one"));
        }
        if !is_same {
            if self.replaced.len() == REPLACED_SESSIONS_MAX {
                self.replaced.pop_front();
            }
            self.replaced.extend(self.session.replace(session));
            self.entries.clear();
            (self.last_id, self.held_bytes, self.begun) = (0, 0, 0);
        }
        self.connection = connection;
        self.is_connected = true;
        self.to_send.clear();
        let ids: HashSet<u64> = ids.take(self.limit.requests).collect();
        self.entries.retain(|id, entry| {
            let is_kept = ids.contains(id) || matches!(entry.state, State::Begun { .. });
            if !is_kept {
                self.held_bytes -= entry.cost;
            }
            is_kept
        });
        self.last_id = ids.iter().copied().max().unwrap_or(0).max(self.last_id);
        self.missing = ids.into_iter().filter(|id| !self.entries.contains_key(id)).collect();
        Ok(())
    }

    /// Notes that the connection is lost.
    pub fn disconnected(&mut self) {
        self.is_connected = false;
        self.to_send.clear();
    }

    /// Takes a request.
    pub fn request(&mut self, fields: &Fields, request_bytes: usize) -> Result<RequestAction, Violation> {
        let id = fields.id;
        if let Some(entry) = self.entries.get_mut(&id) {
            // The handler may have answered on this connection before the repetition arrived.
            if let State::Answered { queued_on, .. } = &mut entry.state
                && *queued_on != self.connection
            {
                *queued_on = self.connection;
                self.to_send.push_back(id);
            }
            return Ok(RequestAction::Ignore);
        }
        if !self.missing.remove(&id) && id <= self.last_id {
            return Err(Violation("the id of a request was used before"));
        }
        let cost = request_bytes as u64 + u64::from(fields.reply_bytes_max);
        if self.entries.len() >= self.limit.requests || self.held_bytes + cost > self.limit.bytes {
            return Err(Violation("requests exceed the credit"));
        }
        self.last_id = self.last_id.max(id);
        self.held_bytes += cost;
        let state = State::Begun { is_cancelled: false };
        self.entries.insert(id, Entry { state, cost, reply_bytes_max: fields.reply_bytes_max });
        self.begun += 1;
        if self.is_stopping {
            self.answer(self.session(), id, Status::Stopping, Vec::new());
            return Ok(RequestAction::Ignore);
        }
        Ok(RequestAction::Execute)
    }

    /// Takes `cancel`.
    pub fn cancel(&mut self, id: u64) -> Result<(), Violation> {
        let cancelled = || State::Answered {
            status: Status::Cancelled,
            reply: Arc::default(),
            queued_on: self.connection,
        };
        match self.entries.get_mut(&id) {
            Some(Entry { state: State::Begun { is_cancelled }, .. }) => *is_cancelled = true,
            Some(Entry { state: State::Answered { queued_on, .. }, .. }) if *queued_on == self.connection => {
            }
            Some(entry) => {
                entry.state = cancelled();
                self.to_send.push_back(id);
            }
            None if self.missing.remove(&id) => {
                self.entries.insert(id, Entry { state: cancelled(), cost: 0, reply_bytes_max: 0 });
                self.to_send.push_back(id);
            }
            None => return Err(Violation("no request has the id of a cancel")),
        }
        Ok(())
    }

    /// Takes the answer of the handler to a request of `session`. Returns whether a frame is to be
    /// sent now.
    pub fn answer(&mut self, session: u64, id: u64, status: Status, reply: Vec<u8>) -> bool {
        if self.session != Some(session) {
            return false;
        }
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        let State::Begun { is_cancelled } = entry.state else { return false };
        let (status, reply) = match status {
            _ if is_cancelled => (Status::Cancelled, Vec::new()),
            _ if reply.len() > entry.reply_bytes_max as usize => (Status::TooLarge, Vec::new()),
            status => (status, reply),
        };
        let queued_on = if self.is_connected { self.connection } else { 0 };
        entry.state = State::Answered { status, reply: Arc::new(reply), queued_on };
        self.begun -= 1;
        if self.is_connected {
            self.to_send.push_back(id);
        }
        self.is_connected
    }

    /// Takes an acknowledgement of replies.
    pub fn acknowledge(&mut self, ids: impl Iterator<Item = u64>) -> Result<(), Violation> {
        for id in ids {
            match self.entries.get(&id) {
                Some(Entry { state: State::Answered { .. }, cost, .. }) => self.held_bytes -= cost,
                _ => return Err(Violation("an acknowledgement of no reply")),
            }
            self.entries.remove(&id);
        }
        Ok(())
    }

    pub fn has_output(&self) -> bool {
        !self.to_send.is_empty()
    }

    /// Returns whether a request was executed whose reply is not sent on the present connection. It
    /// is sent when the request is repeated.
    pub fn has_unsent_answer(&self) -> bool {
        self.entries.values().any(
            |entry| matches!(entry.state, State::Answered { queued_on, .. } if queued_on != self.connection),
        )
    }

    /// Adds replies to send, until they have about `bytes_max` bytes.
    pub fn take(&mut self, bytes_max: usize, frames: &mut Vec<Frame>) {
        let mut bytes = 0;
        while bytes < bytes_max
            && let Some(id) = self.to_send.pop_front()
        {
            // The other member can acknowledge a reply that it has not received.
            let Some(Entry { state: State::Answered { status, reply, .. }, .. }) = self.entries.get(&id)
            else {
                continue;
            };
            bytes += reply.len();
            let fields = Fields { status: *status, ..Fields::new(FrameKind::Reply, id) };
            frames.push(Frame { fields, payload: reply.clone() });
        }
    }
}
