//! What passed through the door, counted once and here. What the kernel answers from its own caches
//! never arrives and is not counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+; $($(#[$written_doc:meta])* $written:ident),+ $(,)?) => {
        /// Running totals since the mount; any thread may read them at any time.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)+
            $($(#[$written_doc])* pub(crate) $written: AtomicU64,)+
            writable: bool,
        }

        /// The totals at one moment. Each number is exact, but they are not read at the same instant.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)+
            $($(#[$written_doc])* pub $written: u64,)+
            writable: bool,
        }

        impl Counters {
            pub fn snapshot(&self) -> Snapshot {
                Snapshot {
                    $($name: self.$name.load(Relaxed),)+
                    $($written: self.$written.load(Relaxed),)+
                    writable: self.writable,
                }
            }
        }

        impl Snapshot {
            /// Every counter with its name, in the order of the fields; of what a read-only mount can count.
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
    /// Names looked up, those that do not exist included.
    lookups,
    /// Names looked up that do not exist.
    negative_lookups,
    /// `stat` answers (those that came with a lookup or a listing are not among them).
    attributes,
    /// Directories listed from the start.
    listings,
    /// Entries in listings, `.` and `..` not counted.
    entries_listed,
    /// Targets of symbolic links.
    links_read,
    /// Extended attributes and lists of their names asked for.
    xattrs,
    /// Files opened by the file system behind the door, those among them that it made.
    opens,
    /// Opens that the file system behind the door refused; the kernel tries one answered with ESTALE twice.
    opens_refused,
    /// Reads passed to open files.
    reads,
    /// Bytes that those reads returned.
    bytes_read,
    /// Requests answered with an error; a missing name or extended attribute is an answer, not an error.
    errors;
    /// Files, directories and symbolic links made.
    made,
    /// Names removed, those among them that were directories'.
    removed,
    /// Names changed.
    renamed,
    /// Attributes set: permissions, owners, sizes, times.
    changes,
    /// Writes passed to open files and done.
    writes,
    /// Bytes of those writes.
    bytes_written,
    /// Times that a file was given to the file system below for everybody to see: at each close.
    published,
    /// Files and directories made to survive a loss of power, asked for by programs.
    synced,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}
