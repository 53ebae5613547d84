//! References to nodes. A node without a name keeps its data as long as a client has references to
//! it. Each reference is identified by the number of the request that has made it, so that it is
//! returned only once, even if the return is repeated.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use quell_wire::pool::{FileId, MemberId};

/// Identifies a client of the node, for as long as it is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(pub u64);

/// The references that members have to nodes of this member.
#[derive(Debug, Default)]
pub struct MemberHolds {
    references: HashMap<FileId, Vec<(MemberId, u64)>>,
    /// Nodes to which members had references before these members were started again, with the
    /// times until which the nodes are kept, so that clients can make the references again.
    kept: HashMap<FileId, Duration>,
}

impl MemberHolds {
    /// Adds a reference. A repetition has no effect.
    pub fn add(&mut self, id: FileId, member: MemberId, number: u64) {
        let held = self.references.entry(id).or_default();
        if !held.contains(&(member, number)) {
            held.push((member, number));
        }
    }

    /// Removes a reference, and returns whether none is left.
    pub fn release(&mut self, id: FileId, member: MemberId, number: u64) -> bool {
        let Some(held) = self.references.get_mut(&id) else { return !self.kept.contains_key(&id) };
        held.retain(|reference| *reference != (member, number));
        let is_free = held.is_empty();
        if is_free {
            self.references.remove(&id);
        }
        is_free && !self.kept.contains_key(&id)
    }

    /// Removes the references of a member, and keeps their nodes until a time.
    pub fn keep(&mut self, member: MemberId, until: Duration) {
        let is_of_member = |(holder, _): &(MemberId, u64)| *holder == member;
        let of_member = self.references.iter().filter(|(_, held)| held.iter().any(is_of_member));
        self.kept.extend(of_member.map(|(id, _)| (*id, until)));
        self.forget(member, |_| true);
    }

    /// Stops keeping the nodes whose times have passed, and returns those without references.
    pub fn end_kept(&mut self, now: Duration) -> Vec<FileId> {
        let ended = self.kept.extract_if(|_, until| *until <= now).map(|(id, _)| id);
        let mut free: Vec<FileId> = ended.filter(|id| !self.references.contains_key(id)).collect();
        free.sort_unstable();
        free
    }

    /// Removes the references of a member for which `is_lost` returns true, and returns the nodes
    /// that have no references left.
    pub fn forget(&mut self, member: MemberId, is_lost: impl Fn(u64) -> bool) -> Vec<FileId> {
        let mut free: Vec<FileId> = self
            .references
            .extract_if(|_, held| {
                held.retain(|(holder, number)| *holder != member || !is_lost(*number));
                held.is_empty()
            })
            .map(|(id, _)| id)
            .collect();
        free.sort_unstable();
        free
    }

    pub fn is_held(&self, id: FileId) -> bool {
        self.references.contains_key(&id) || self.kept.contains_key(&id)
    }

    /// Returns whether there are no references.
    #[cfg(test)]
    pub fn is_free(&self) -> bool {
        self.references.is_empty() && self.kept.is_empty()
    }
}

/// One client of this member.
#[derive(Debug, Default)]
struct Client {
    /// The numbers of the client's references, by node.
    holds: BTreeMap<FileId, Vec<u64>>,
    /// The number of the client's operations that are being performed.
    operations: u64,
    has_ended: bool,
}

/// The references that the clients of this member's node have.
#[derive(Debug, Default)]
pub struct ClientHolds(HashMap<ClientId, Client>);

impl ClientHolds {
    /// Records that an operation of a client has begun.
    pub fn begin(&mut self, client: ClientId) {
        self.0.entry(client).or_default().operations += 1;
    }

    /// Records the end of an operation. Returns the references of a client that has ended before
    /// its last operation.
    pub fn end(&mut self, client: ClientId) -> Vec<(FileId, u64)> {
        let Some(found) = self.0.get_mut(&client) else { return Vec::new() };
        found.operations -= 1;
        if found.has_ended && found.operations == 0 { self.remove(client) } else { Vec::new() }
    }

    /// Records the end of a client. Returns its references, unless one of its operations is being
    /// performed; in this case `end` returns them later.
    pub fn end_client(&mut self, client: ClientId) -> Vec<(FileId, u64)> {
        match self.0.get_mut(&client) {
            Some(found) if found.operations > 0 => {
                found.has_ended = true;
                Vec::new()
            }
            _ => self.remove(client),
        }
    }

    pub fn add(&mut self, client: ClientId, id: FileId, number: u64) {
        self.0.entry(client).or_default().holds.entry(id).or_default().push(number);
    }

    /// Removes at most `count` references of a client to a node, and returns their numbers.
    pub fn release(&mut self, client: ClientId, id: FileId, count: u32) -> Vec<u64> {
        let Some(found) = self.0.get_mut(&client) else { return Vec::new() };
        let Some(held) = found.holds.get_mut(&id) else { return Vec::new() };
        let released = held.split_off(held.len().saturating_sub(count as usize));
        if held.is_empty() {
            found.holds.remove(&id);
        }
        released
    }

    /// Returns the references for whose nodes `is_wanted` returns true.
    pub fn references(&self, is_wanted: impl Fn(FileId) -> bool) -> Vec<(FileId, u64)> {
        let holds = self.0.values().flat_map(|client| &client.holds);
        let wanted = holds.filter(|(id, _)| is_wanted(**id));
        let all: BTreeSet<_> =
            wanted.flat_map(|(id, numbers)| numbers.iter().map(|number| (*id, *number))).collect();
        all.into_iter().collect()
    }

    /// Returns whether there are no references.
    #[cfg(test)]
    pub fn is_free(&self) -> bool {
        self.0.values().all(|client| client.holds.is_empty())
    }

    fn remove(&mut self, client: ClientId) -> Vec<(FileId, u64)> {
        let holds = self.0.remove(&client).map(|client| client.holds).unwrap_or_default();
        let references = |(id, numbers): (FileId, Vec<u64>)| numbers.into_iter().map(move |n| (id, n));
        holds.into_iter().flat_map(references).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_returned_once() {
        let (mut holds, id, member) = (MemberHolds::default(), FileId(1), MemberId(2));
        holds.add(id, member, 5);
        holds.add(id, member, 5);
        holds.add(id, member, 6);
        assert!(!holds.release(id, member, 5));
        assert!(!holds.release(id, member, 5));
        assert!(holds.is_held(id));
        assert_eq!(holds.forget(MemberId(3), |_| true), []);
        assert_eq!(holds.forget(member, |number| number == 6), [id]);
        assert!(!holds.is_held(id));
    }

    #[test]
    fn the_nodes_of_a_member_that_was_started_again_are_kept_for_a_time() {
        let (mut holds, member, until) = (MemberHolds::default(), MemberId(2), Duration::from_secs(60));
        for (id, member) in [(1, member), (2, member), (2, MemberId(3)), (3, member)] {
            holds.add(FileId(id), member, 5);
        }
        holds.keep(member, until);
        assert!(!holds.release(FileId(1), member, 5), "it is kept");
        assert!(!holds.release(FileId(2), MemberId(3), 5), "it is kept");
        holds.add(FileId(2), MemberId(3), 6);
        // A client makes its reference again.
        holds.add(FileId(3), member, 1);
        assert_eq!(holds.end_kept(Duration::from_secs(59)), []);
        assert!(holds.is_held(FileId(1)));
        assert_eq!(holds.end_kept(until), [FileId(1)]);
        assert!(!holds.is_held(FileId(1)) && holds.is_held(FileId(2)) && holds.is_held(FileId(3)));
        assert!(holds.release(FileId(3), member, 1));
    }

    #[test]
    fn a_client_that_ends_during_an_operation_returns_the_reference_that_it_gets() {
        let (mut holds, client) = (ClientHolds::default(), ClientId(1));
        holds.begin(client);
        assert_eq!(holds.end_client(client), []);
        holds.add(client, FileId(7), 1);
        assert_eq!(holds.end(client), [(FileId(7), 1)]);
        assert!(holds.0.is_empty());
    }
}
