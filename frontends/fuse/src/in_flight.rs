//! The requests that the workers of one session are answering now, for a report about a mount that
//! does not answer.
//!
//! Each worker thread has an entry of its own, which only that thread changes. Its lock is
//! contended only while a report is made.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use quell_threads::lock;
use quell_vfs::{FileSystem, NodeId};

/// A request that a worker is answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestInFlight {
    /// The name of the FUSE request, such as `lookup`.
    pub operation: &'static str,
    /// The node that the request concerns; for a request with a name, its directory.
    pub node: NodeId,
    /// The time since the kernel's request was received.
    pub duration: Duration,
}

/// The requests in flight of one session. Threads that do not own the session can use it.
#[derive(Debug, Clone)]
pub struct RequestsInFlight {
    pub(crate) table: Arc<InFlight>,
    pub(crate) fs: Weak<dyn FileSystem>,
}

impl RequestsInFlight {
    /// Returns the requests that the workers are answering now, the longest first. Does not wait
    /// for them.
    pub fn list(&self) -> Vec<RequestInFlight> {
        self.table.list()
    }

    /// Returns the path of a node below the mount, or `None` if it is not known.
    pub fn path(&self, node: NodeId) -> Option<Vec<u8>> {
        self.fs.upgrade()?.path(node).ok()
    }
}

#[derive(Debug, Clone, Copy)]
struct Started {
    operation: &'static str,
    node: NodeId,
    at: Instant,
}

type Entry = Mutex<Option<Started>>;

thread_local! {
    /// The table and the entry of this thread. A worker thread serves one session.
    static ENTRY: RefCell<Option<(Arc<InFlight>, Arc<Entry>)>> = const { RefCell::new(None) };
}

/// The table of one session: an entry for each worker thread that has served a request.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    entries: Mutex<Vec<Arc<Entry>>>,
}

impl InFlight {
    /// Enters a request of this thread into the table until the result is dropped.
    pub(crate) fn start(self: &Arc<Self>, operation: &'static str, node: NodeId) -> Entered {
        let entry = ENTRY.with_borrow_mut(|kept| match kept {
            Some((table, entry)) if Arc::ptr_eq(table, self) => Arc::clone(entry),
            _ => {
                let entry = Arc::new(Entry::default());
                lock(&self.entries).push(Arc::clone(&entry));
                *kept = Some((Arc::clone(self), Arc::clone(&entry)));
                entry
            }
        });
        set(&entry, Some(Started { operation, node, at: Instant::now() }));
        Entered(entry)
    }

    fn list(&self) -> Vec<RequestInFlight> {
        let entries = lock(&self.entries).clone();
        let mut started: Vec<Started> = entries.iter().filter_map(|entry| *lock(entry)).collect();
        started.sort_by_key(|request| request.at);
        // One reading of the clock for all, so that the durations are in the order of the starts.
        let now = Instant::now();
        let request = |Started { operation, node, at }| RequestInFlight {
            operation,
            node,
            duration: now.saturating_duration_since(at),
        };
        started.into_iter().map(request).collect()
    }
}

fn set(entry: &Entry, started: Option<Started>) {
    *lock(entry) = started;
}

/// A request in the table.
#[derive(Debug)]
pub(crate) struct Entered(Arc<Entry>);

impl Drop for Entered {
    fn drop(&mut self) {
        set(&self.0, None);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn the_table_lists_the_requests_that_have_not_ended() {
        let table = Arc::new(InFlight::default());
        let (started, is_started) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let worker = thread::spawn({
            let table = Arc::clone(&table);
            move || {
                drop(table.start("lookup", NodeId(1)));
                let _request = table.start("read", NodeId(2));
                started.send(()).unwrap();
                may_end.recv().unwrap();
            }
        });
        is_started.recv().unwrap();
        let _own = table.start("open", NodeId(3));
        let listed: Vec<_> = table.list().iter().map(|request| (request.operation, request.node)).collect();
        assert_eq!(listed, [("read", NodeId(2)), ("open", NodeId(3))]);
        end.send(()).unwrap();
        worker.join().unwrap();
        assert_eq!(table.list().len(), 1);
    }

    #[test]
    fn a_thread_that_serves_another_table_is_entered_there() {
        let (first, second) = (Arc::new(InFlight::default()), Arc::new(InFlight::default()));
        drop(first.start("lookup", NodeId(1)));
        let _request = second.start("lookup", NodeId(1));
        assert_eq!((first.list().len(), second.list().len()), (0, 1));
    }
}
