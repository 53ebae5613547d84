//! Results of the requests of other members that must not be performed twice. In a pool with
//! copies, a request whose reply is lost is sent again, also to another daemon that runs the member
//! after a failure. The result of a change is therefore written to the store with the change
//! itself. A request that is repeated gets this result. A request without a result was not
//! performed.

use std::collections::BTreeMap;

use quell_wire::Failure;
use quell_wire::pool::{FileId, MemberId, Operation, PeerRequest, Reply};
use serde::{Deserialize, Serialize};

use crate::sessions::Origin;

/// The part of a request that has been performed, with the values that the reply needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Performed {
    /// The whole request; the reply is `Done`.
    All,
    /// The creation of this node.
    Creation(FileId),
    /// All changes of the attributes of this node.
    Change(FileId),
    /// The change of the size, but not the changes of the other attributes.
    Size,
    /// The write of inline data.
    Inline,
    /// The extension of a file, which had this size.
    Extension(u64),
}

/// The record of a result.
#[derive(Serialize, Deserialize)]
pub struct ResultRecord {
    pub member: MemberId,
    pub session: u64,
    pub number: u64,
    pub performed: Performed,
}

/// The state of a request.
#[derive(Debug, Clone)]
pub enum State {
    /// The record was written, in this start of the member or in an earlier one.
    Recorded(Performed),
    /// This start of the member has performed the request.
    Ended(std::result::Result<Reply<'static>, Failure>),
}

#[derive(Debug)]
struct Known {
    state: State,
    /// The number of the request's record in the store.
    slot: Option<u32>,
}

/// The results that other members may still request. A record in the store has the number of a
/// slot, which is used again when the sender has the reply. So there are never more records than
/// requests that waited for replies at the same time.
#[derive(Debug, Default)]
pub struct Results {
    requests: BTreeMap<Origin, Known>,
    free_slots: Vec<u32>,
    next_slot: u32,
}

impl Results {
    /// Forgets the requests for which the same sender does not wait any more: requests of earlier
    /// sessions, and requests with numbers below `first_waiting`.
    pub fn forget_before(&mut self, origin: Origin, first_waiting: u64) {
        let first = Origin { session: 0, number: 0, ..origin };
        let end = Origin { number: first_waiting, ..origin };
        while let Some((oldest, _)) = self.requests.range(first..end).next() {
            let oldest = *oldest;
            let slot = self.requests.remove(&oldest).and_then(|known| known.slot);
            self.free_slots.extend(slot);
        }
    }

    /// Returns the slot for the record of a request.
    pub fn record(&mut self, origin: Origin, performed: Performed) -> u32 {
        let known = self.requests.entry(origin);
        let known = known.or_insert(Known { state: State::Recorded(performed), slot: None });
        known.state = State::Recorded(performed);
        *known.slot.get_or_insert_with(|| {
            self.free_slots.pop().unwrap_or_else(|| {
                self.next_slot += 1;
                self.next_slot - 1
            })
        })
    }

    /// Returns the state of a request.
    pub fn get(&self, origin: Origin) -> Option<&State> {
        self.requests.get(&origin).map(|known| &known.state)
    }

    /// Keeps the result of a request in memory.
    pub fn end(&mut self, origin: Origin, result: std::result::Result<Reply<'static>, Failure>) {
        let slot = self.requests.get(&origin).and_then(|known| known.slot);
        self.requests.insert(origin, Known { state: State::Ended(result), slot });
    }

    /// Adds a record of the store.
    pub fn load(&mut self, slot: u32, record: ResultRecord) {
        let ResultRecord { member, session, number, performed } = record;
        // Slots are loaded in the order of their numbers.
        self.free_slots.extend(self.next_slot..slot);
        self.next_slot = slot + 1;
        let known = Known { state: State::Recorded(performed), slot: Some(slot) };
        self.requests.insert(Origin { member, session, number }, known);
    }
}

/// Returns whether a repetition of a request would have another effect or another result than the
/// request itself.
pub fn is_performed_once(request: &PeerRequest<'_>) -> bool {
    matches!(
        request,
        PeerRequest::Perform(
            Operation::Create { .. }
                | Operation::Remove { .. }
                | Operation::Rename { .. }
                | Operation::Change { .. }
                | Operation::SetXattr { .. }
                | Operation::RemoveXattr { .. }
                | Operation::Reserve { .. }
                | Operation::WriteInline { .. }
        ) | PeerRequest::PrepareName { .. }
            | PeerRequest::PrepareNode { .. }
            | PeerRequest::PrepareRemoval { .. }
    )
}

#[cfg(test)]
mod tests {
    use quell_vfs::{Error, ErrorKind};

    use super::*;

    fn origin(member: u16, session: u64, number: u64) -> Origin {
        Origin { member: MemberId(member), session, number }
    }

    #[test]
    fn a_slot_is_used_again_when_its_sender_has_the_reply() {
        let mut results = Results::default();
        assert_eq!(results.record(origin(1, 5, 7), Performed::Size), 0);
        assert_eq!(results.record(origin(1, 5, 7), Performed::Change(FileId(9))), 0);
        assert_eq!(results.record(origin(1, 5, 8), Performed::All), 1);
        assert_eq!(results.record(origin(2, 5, 1), Performed::All), 2);
        results.end(origin(1, 5, 7), Ok(Reply::Done));
        results.forget_before(origin(1, 5, 9), 8);
        assert!(!results.requests.contains_key(&origin(1, 5, 7)));
        assert!(results.requests.contains_key(&origin(1, 5, 8)));
        assert_eq!(results.record(origin(1, 5, 9), Performed::All), 0);
        // The sender has begun a later session.
        results.forget_before(origin(1, 6, 1), 1);
        assert_eq!(results.requests.keys().collect::<Vec<_>>(), [&origin(2, 5, 1)]);
        assert_eq!(results.free_slots.len(), 2);
    }

    #[test]
    fn slots_without_a_record_are_free_after_a_start() {
        let mut results = Results::default();
        for slot in [1, 4] {
            let (member, performed) = (MemberId(1), Performed::All);
            let record = ResultRecord { member, session: 5, number: u64::from(slot), performed };
            results.load(slot, record);
        }
        let mut given: Vec<u32> =
            (10..14).map(|number| results.record(origin(2, 5, number), Performed::All)).collect();
        given.sort_unstable();
        assert_eq!(given, [0, 2, 3, 5]);
    }

    #[test]
    fn an_ended_request_without_a_record_is_known() {
        let mut results = Results::default();
        let failure = Failure::new(&Error::new(ErrorKind::Exists, "create", "a"));
        results.end(origin(1, 5, 7), Err(failure));
        assert!(results.requests[&origin(1, 5, 7)].slot.is_none());
        results.forget_before(origin(1, 5, 8), 8);
        assert!(results.requests.is_empty() && results.free_slots.is_empty());
    }
}
