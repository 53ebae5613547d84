//! Counters of the requests to a mount, which only this crate counts. Requests that the kernel
//! answers from its own caches never arrive and are not counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+; $($(#[$written_doc:meta])* $written:ident),+ $(,)?) => {
        /// Totals since the mount. Any thread may read them at any time.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)+
            $($(#[$written_doc])* pub(crate) $written: AtomicU64,)+
            writable: bool,
        }

        /// The totals at one moment. Each number is exact, but they are not read at the same
        /// instant.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)+
            $($(#[$written_doc])* pub $written: u64,)+
            writable: bool,
        }

        impl Counters {
            /// Reads all totals.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot {
                    $($name: self.$name.load(Relaxed),)+
                    $($written: self.$written.load(Relaxed),)+
                    writable: self.writable,
                }
            }
        }

        impl Snapshot {
            /// Returns the names and values of the counters, in the order of the fields. For a
            /// read-only mount the counters of changes are left out.
            pub fn pairs(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                let read = [$((stringify!($name), self.$name)),+];
                let written = [$((stringify!($written), self.$written)),+];
                read.into_iter().chain(self.writable.then_some(written).into_iter().flatten())
            }
        }
    };
}

impl Counters {
    pub(crate) fn new(writable: bool) -> Counters {
        Counters { writable, ..Counters::default() }
    }
}

counters! {
    /// Names looked up, including names that do not exist.
    lookups,
    /// Lookups of names that do not exist.
    negative_lookups,
    /// `stat` answers, without the attributes sent with a lookup or a listing.
    attributes,
    /// Directories listed from the start.
    listings,
    /// Entries in listings, without `.` and `..`.
    entries_listed,
    /// Targets of symbolic links.
    links_read,
    /// Requests for an extended attribute or for the list of their names.
    xattrs,
    /// Files opened by the served file system, including those that it created.
    opens,
    /// Opens refused by the served file system. The kernel repeats an open that fails with ESTALE
    /// once.
    opens_refused,
    /// Reads passed to open files.
    reads,
    /// Bytes that those reads returned.
    bytes_read,
    /// Requests for which the served file system returned an error. A missing name or extended
    /// attribute is not an error.
    errors;
    /// Files, directories, symbolic links and hard links created.
    made,
    /// Names removed, including names of directories.
    removed,
    /// Names renamed.
    renamed,
    /// Changes of attributes: permissions, owners, sizes, times, extended attributes.
    changes,
    /// Successful writes to open files.
    writes,
    /// Bytes of those writes.
    bytes_written,
    /// Times that a file was published, which each close does.
    published,
    /// Files and directories synced at the request of programs.
    synced,
    /// Locks taken at once.
    locked,
    /// Requests that had to wait for a lock.
    lock_waits,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}
