//! References to nodes. A node without a name keeps its data as long as a client has references to
//! it.

use std::collections::HashMap;

use quell_wire::pool::{FileId, MemberId};

/// Identifies a client of the node, for as long as it is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(pub u64);

/// The references that members have to nodes of this member.
#[derive(Debug, Default)]
pub struct MemberHolds(HashMap<FileId, HashMap<MemberId, u64>>);

impl MemberHolds {
    pub fn add(&mut self, id: FileId, member: MemberId) {
        *self.0.entry(id).or_default().entry(member).or_default() += 1;
    }

    /// Removes references, and returns whether none is left.
    pub fn release(&mut self, id: FileId, member: MemberId, count: u64) -> bool {
        let Some(members) = self.0.get_mut(&id) else { return true };
        if let Some(held) = members.get_mut(&member) {
            *held = held.saturating_sub(count);
            if *held == 0 {
                members.remove(&member);
            }
        }
        let is_free = members.is_empty();
        if is_free {
            self.0.remove(&id);
        }
        is_free
    }

    pub fn is_held(&self, id: FileId) -> bool {
        self.0.contains_key(&id)
    }
}

/// The references that the clients of this member's node have.
#[derive(Debug, Default)]
pub struct ClientHolds(HashMap<ClientId, HashMap<FileId, u64>>);

impl ClientHolds {
    pub fn add(&mut self, client: ClientId, id: FileId) {
        *self.0.entry(client).or_default().entry(id).or_default() += 1;
    }

    /// Removes references, and returns the number that the client had of them.
    pub fn release(&mut self, client: ClientId, id: FileId, count: u64) -> u64 {
        let Some(held) = self.0.get_mut(&client) else { return 0 };
        let Some(had) = held.get_mut(&id) else { return 0 };
        let released = count.min(*had);
        *had -= released;
        if *had == 0 {
            held.remove(&id);
        }
        released
    }

    /// Removes and returns all references of a client.
    pub fn release_all(&mut self, client: ClientId) -> HashMap<FileId, u64> {
        self.0.remove(&client).unwrap_or_default()
    }
}
