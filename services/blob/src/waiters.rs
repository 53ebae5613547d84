//! The clients that wait for a blob which joint transactions have locked. Until they have used the
//! blob, no further joint transaction locks it. So transactions that commute, and follow each other
//! without a pause, cannot keep a blob locked for ever. The code reads no clock and starts no
//! threads.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_threads::lock;
use quell_wire::blob::Refusal;

/// The time for which the server waits for a client after its last refusal, in nanoseconds. A
/// client repeats a request after a pause of at most 20 ms.
const WAIT_NS: u64 = 100_000_000;
/// The largest number of names in the list, and of clients for each name. Further names and clients
/// are not recorded.
const NAMES_MAX: usize = 1024;
const CLIENTS_MAX: usize = 256;

/// A client that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum WaiterId {
    /// A client that reads, by the number of its connection.
    Reader(u64),
    /// A client that commits in one group, by the number in the identities of its transactions.
    Writer(u128),
}

/// The names for which clients wait.
#[derive(Default)]
pub(crate) struct Waiters {
    /// Whether `names` has entries. Most operations read only this, and need no lock.
    has_some: AtomicBool,
    names: Mutex<HashMap<Vec<u8>, Waiting>>,
}

/// The clients that wait for a name.
struct Waiting {
    /// The refusal that the last client received. It names a joint transaction that had locked the
    /// blob.
    refusal: Refusal,
    /// For each client, the time until which the server waits for it.
    until_ns: HashMap<WaiterId, u64>,
}

impl Waiters {
    /// Records that a client was refused because joint transactions had locked names.
    pub(crate) fn add<'a>(
        &self,
        names: impl IntoIterator<Item = &'a [u8]>,
        client: WaiterId,
        refusal: &Refusal,
        now_ns: u64,
    ) {
        let mut all = lock(&self.names);
        if all.len() >= NAMES_MAX {
            all.retain(|_, waiting| waiting.is_waited_for(now_ns));
        }
        for name in names {
            if all.len() >= NAMES_MAX && !all.contains_key(name) {
                continue;
            }
            let new = || Waiting { refusal: refusal.clone(), until_ns: HashMap::new() };
            let waiting = all.entry(name.to_vec()).or_insert_with(new);
            waiting.refusal = refusal.clone();
            if waiting.until_ns.len() < CLIENTS_MAX || waiting.until_ns.contains_key(&client) {
                waiting.until_ns.insert(client, now_ns.saturating_add(WAIT_NS));
            }
        }
        self.has_some.store(!all.is_empty(), Ordering::Relaxed);
    }

    /// Records that a client has used the names for which `is_used` returns true.
    pub(crate) fn remove(&self, is_used: impl Fn(&[u8]) -> bool, client: WaiterId) {
        if !self.has_some.load(Ordering::Relaxed) {
            return;
        }
        let mut all = lock(&self.names);
        all.retain(|name, waiting| {
            if is_used(name) {
                waiting.until_ns.remove(&client);
            }
            !waiting.until_ns.is_empty()
        });
        self.has_some.store(!all.is_empty(), Ordering::Relaxed);
    }

    /// Returns the refusal for a joint transaction that would lock these names, if a client waits
    /// for one of them.
    pub(crate) fn refusal<'a>(
        &self,
        names: impl IntoIterator<Item = &'a [u8]>,
        now_ns: u64,
    ) -> Option<Refusal> {
        if !self.has_some.load(Ordering::Relaxed) {
            return None;
        }
        let mut all = lock(&self.names);
        for name in names {
            let Some(waiting) = all.get_mut(name) else { continue };
            if waiting.is_waited_for(now_ns) {
                return Some(waiting.refusal.clone());
            }
            all.remove(name);
        }
        self.has_some.store(!all.is_empty(), Ordering::Relaxed);
        None
    }
}

impl Waiting {
    /// Removes the clients whose time is over, and returns whether other clients remain.
    fn is_waited_for(&mut self, now_ns: u64) -> bool {
        self.until_ns.retain(|_, until_ns| now_ns < *until_ns);
        !self.until_ns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use quell_wire::blob::JointId;

    use super::*;

    const REFUSAL: Refusal = Refusal::Locked { id: JointId { client: 1, number: 2 }, coordinator: 0 };
    const A: &[u8] = b"a";

    fn reader(number: u64) -> WaiterId {
        WaiterId::Reader(number)
    }

    #[test]
    fn a_name_is_kept_until_all_clients_have_used_it_or_their_time_is_over() {
        let waiters = Waiters::default();
        assert_eq!(waiters.refusal([A], 0), None);
        waiters.add([A], reader(1), &REFUSAL, 0);
        waiters.add([A], WaiterId::Writer(1), &REFUSAL, 0);
        assert_eq!(waiters.refusal([&b"b"[..], A], 1), Some(REFUSAL));
        waiters.remove(|name| name == A, reader(1));
        waiters.remove(|name| name == A, reader(1));
        assert_eq!(waiters.refusal([A], 1), Some(REFUSAL));
        waiters.remove(|name| name == b"b", WaiterId::Writer(1));
        assert_eq!(waiters.refusal([A], WAIT_NS - 1), Some(REFUSAL));
        // After another refusal, the server waits for the client again.
        waiters.add([A], WaiterId::Writer(1), &REFUSAL, WAIT_NS - 1);
        assert_eq!(waiters.refusal([A], WAIT_NS), Some(REFUSAL));
        waiters.remove(|name| name == A, WaiterId::Writer(1));
        assert_eq!(waiters.refusal([A], WAIT_NS), None);
        // A client that has ended never uses the name.
        waiters.add([A], reader(2), &REFUSAL, 5);
        assert_eq!(waiters.refusal([A], 5 + WAIT_NS), None);
        assert!(lock(&waiters.names).is_empty() && !waiters.has_some.load(Ordering::Relaxed));
    }

    #[test]
    fn the_numbers_of_names_and_clients_are_bounded() {
        let waiters = Waiters::default();
        let names: Vec<Vec<u8>> =
            (0..2 * NAMES_MAX as u64).map(|number| number.to_le_bytes().to_vec()).collect();
        names.iter().for_each(|name| waiters.add([&name[..]], reader(1), &REFUSAL, 0));
        assert_eq!(lock(&waiters.names).len(), NAMES_MAX);
        (0..2 * CLIENTS_MAX as u64)
            .for_each(|client| waiters.add([&names[0][..]], reader(client), &REFUSAL, 0));
        assert_eq!(lock(&waiters.names)[&names[0]].until_ns.len(), CLIENTS_MAX);
        // Names that no client waits for any longer are removed.
        waiters.add([A], reader(1), &REFUSAL, WAIT_NS);
        assert_eq!(waiters.refusal([A], WAIT_NS), Some(REFUSAL));
    }
}
