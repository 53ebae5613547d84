//! What passed through the door, counted once and here. What the kernel answers from its own caches
//! never arrives and is not counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Running totals since the mount; any thread may read them at any time.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub(crate) $name: AtomicU64),+ }

        /// The totals at one moment. Each number is exact, but they are not read at the same instant.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Snapshot { $($(#[$doc])* pub $name: u64),+ }

        impl Counters {
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Relaxed)),+ }
            }
        }

        impl Snapshot {
            /// Every counter with its name, in the order of the fields.
            pub fn pairs(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
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
    /// Files opened by the file system behind the door.
    opens,
    /// Opens that the file system behind the door refused; the kernel tries one answered with ESTALE twice.
    opens_refused,
    /// Reads passed to open files.
    reads,
    /// Bytes that those reads returned.
    bytes_read,
    /// Requests answered with an error; a missing name or extended attribute is an answer, not an error.
    errors,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}
