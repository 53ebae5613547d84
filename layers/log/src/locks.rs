//! Locks with a rank. A thread takes them in the order of their ranks only, which excludes
//! deadlocks; debug builds check it. `session` describes the locks of an open file, and which of
//! them are held during I/O. All locks of a mount have a rank. The locks in `tools` have no rank:
//! they protect the results of one run, and a thread that holds one takes no other lock.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use quell_threads::{lock, read_lock, try_lock, wait_timeout_while, write_lock};

/// The ranks of the locks of a mount, in the order in which a thread takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// The locks of one owner: other threads that lock or unlock for the same owner wait.
    LockOwner,
    /// One thread syncs the file; other threads that sync wait for it.
    Sync,
    /// The writers of this node by process.
    Slots,
    /// One thread takes an epoch; other threads that need a later epoch wait for it.
    Epoch,
    /// One thread reads index logs or writes a scratch file; other threads that need new data of
    /// other nodes wait for it.
    MapUpdate,
    /// The state of one writer.
    Writer,
    /// One thread creates the container of an object; other threads that need it wait.
    ContainerCreation,
    /// One thread passes a new object to the file server; other threads that need the result wait.
    ObjectWriteBack,
    /// One thread reads a newer placement map and opens its stores; other threads that need it
    /// wait.
    PlacementMap,
    /// The extent map.
    Map,
    /// The sequencer.
    Sequencer,
    /// A lock that is held for operations in memory only, and while no other lock is taken: tables
    /// of nodes and open files, caches, queues.
    Leaf,
}

/// A mutex that is taken in the order of its rank.
pub(crate) struct RankedMutex<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

impl<T> RankedMutex<T> {
    pub fn new(rank: Rank, value: T) -> RankedMutex<T> {
        RankedMutex { rank, mutex: Mutex::new(value) }
    }

    pub fn lock(&self) -> RankedGuard<MutexGuard<'_, T>> {
        let held = Held::new(self.rank);
        RankedGuard { guard: lock(&self.mutex), _held: held }
    }

    /// Returns `None` if another thread holds the lock.
    pub fn try_lock(&self) -> Option<RankedGuard<MutexGuard<'_, T>>> {
        let held = Held::new(self.rank);
        try_lock(&self.mutex).map(|guard| RankedGuard { guard, _held: held })
    }
}

/// A reader-writer lock that is taken in the order of its rank.
pub(crate) struct RankedRwLock<T> {
    rank: Rank,
    lock: RwLock<T>,
}

impl<T> RankedRwLock<T> {
    pub fn new(rank: Rank, value: T) -> RankedRwLock<T> {
        RankedRwLock { rank, lock: RwLock::new(value) }
    }

    pub fn read(&self) -> RankedGuard<RwLockReadGuard<'_, T>> {
        let held = Held::new(self.rank);
        RankedGuard { guard: read_lock(&self.lock), _held: held }
    }

    pub fn write(&self) -> RankedGuard<RwLockWriteGuard<'_, T>> {
        let held = Held::new(self.rank);
        RankedGuard { guard: write_lock(&self.lock), _held: held }
    }
}

/// Access to the value of a locked lock.
pub(crate) struct RankedGuard<G> {
    // Dropped first: the lock is released before its rank.
    guard: G,
    _held: Held,
}

impl<G: Deref> Deref for RankedGuard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for RankedGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<T> RankedGuard<MutexGuard<'_, T>> {
    /// Releases the lock while it waits for `notified`, as long as `condition` returns true, but at
    /// most for `timeout`. The condition may still be true afterwards.
    pub fn wait_timeout_while(
        self,
        notified: &Condvar,
        timeout: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> Self {
        let RankedGuard { guard, _held } = self;
        RankedGuard { guard: wait_timeout_while(notified, guard, timeout, condition), _held }
    }
}

/// Records in debug builds that this thread holds a lock with a rank.
struct Held {
    #[cfg(debug_assertions)]
    rank: Rank,
}

#[cfg(debug_assertions)]
thread_local! {
    /// The ranks of the locks that this thread holds.
    static HELD: std::cell::RefCell<Vec<Rank>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Held {
    #[cfg(debug_assertions)]
    fn new(rank: Rank) -> Held {
        // A thread that is ending has no variables any more, and is not checked.
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            let later = held.iter().find(|other| **other >= rank);
            assert!(later.is_none(), "a lock of rank {rank:?} is taken while {held:?} are held");
            held.push(rank);
        });
        Held { rank }
    }

    #[cfg(not(debug_assertions))]
    fn new(_: Rank) -> Held {
        Held {}
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(last) = held.iter().rposition(|rank| *rank == self.rank) {
                held.remove(last);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_can_be_taken_in_the_order_of_their_ranks() {
        let (writer, map) = (RankedMutex::new(Rank::Writer, 1), RankedRwLock::new(Rank::Map, 2));
        for _ in 0..2 {
            let first = writer.lock();
            let mut second = map.write();
            *second += *first;
            drop(first);
        }
        assert_eq!(*map.read(), 4);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a lock of rank Writer is taken")]
    fn a_lock_of_a_lower_rank_is_refused() {
        let (writer, map) = (RankedMutex::new(Rank::Writer, 1), RankedRwLock::new(Rank::Map, 2));
        let _map = map.read();
        let _writer = writer.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a lock of rank PlacementMap is taken")]
    fn no_lock_is_taken_while_a_leaf_is_held() {
        let (nodes, looking) = (RankedMutex::new(Rank::Leaf, 1), RankedMutex::new(Rank::PlacementMap, ()));
        let _nodes = nodes.lock();
        let _looking = looking.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a lock of rank Writer is taken")]
    fn two_locks_of_one_rank_are_refused() {
        let writers = [1, 2].map(|value| RankedMutex::new(Rank::Writer, value));
        let _first = writers[0].lock();
        let _second = writers[1].lock();
    }
}
