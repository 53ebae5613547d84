//! The time for which the kernel keeps the entries and attributes of a reply, and the decision
//! whether it keeps the data of a file that is opened.
//!
//! Entries, attributes and data of an immutable tree, and of a writable tree that only requests of
//! its mount change ([`Options::exclusive`](crate::Options::exclusive)), are kept without end. For
//! another writable tree the owner of the session decides ([`KernelCache`]). Two kinds of
//! attributes are never kept, because they change without a request that makes the kernel drop
//! them: the attributes of a file that is open for writing, whose times change at a publication,
//! and of a file with set-id bits, which a write removes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use quell_threads::{lock, read_lock, write_lock};
use quell_vfs::{Attributes, Kind, NodeId};

/// The time for which the kernel keeps an answer that does not change: 100 years, which its
/// arithmetic with times can represent.
const UNLIMITED: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The number of references of the kernel above which it keeps no entries of files of an exclusive
/// tree. The kernel returns the reference of an entry that it does not keep at once, and the
/// reference of an entry that it keeps only when memory is short; until then the file system has
/// the node in memory.
const REFERENCES_MAX: u64 = 1 << 16;

/// The set-user-ID and set-group-ID bits.
const SET_ID: u32 = 0o6000;

/// The entries, attributes and data that the kernel keeps of a writable tree.
///
/// Entries and attributes are dropped only when they expire. The notification that makes the kernel
/// drop an entry earlier (`FUSE_NOTIFY_INVAL_ENTRY`) waits for the lock of its directory, and this
/// wait cannot be interrupted: if the process is killed meanwhile, its descriptor of the device
/// stays open, and the program that has the lock waits for a reply until the connection is aborted.
#[derive(Debug, Clone)]
pub struct KernelCache(pub(crate) Arc<Lifetimes>);

impl KernelCache {
    /// Sets how long the kernel keeps the entries, missing names and attributes of later replies.
    /// Attributes of files that are open for writing or have set-id bits are never kept. When this
    /// returns, replies with an earlier lifetime have been sent, but a program to which such a
    /// reply was sent may not have run yet.
    pub fn set_lifetime(&self, lifetime: Duration) {
        self.0.set(lifetime, None);
    }

    /// Does the same as `set_lifetime` for replies that are sent before `until`. Replies that are
    /// sent later have the lifetime `after`.
    ///
    /// If `until` is extended before it has passed, no other process changes the tree meanwhile.
    /// Therefore the kernel also keeps the data of files that programs open for reading before
    /// `until`. They use this data through their descriptors for as long as the times and the size
    /// of the file do not change. The file system must answer later reads of these descriptors with
    /// data that is at least as new as the attributes that it has returned.
    pub fn set_lifetime_until(&self, until: Instant, lifetime: Duration, after: Duration) {
        self.0.set(after, Some(Temporary { lifetime, until }));
    }

    /// Returns the number of replies so far that could have been kept.
    pub fn replies(&self) -> u64 {
        self.0.replies.load(Ordering::Relaxed)
    }
}

/// The processes that change a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changes {
    /// The tree never changes.
    None,
    /// The tree changes by the requests of this mount only.
    OfThisMount,
    /// Other processes may change the tree.
    OfOthers,
}

/// The lifetimes of the replies of one session.
#[derive(Debug)]
pub(crate) struct Lifetimes {
    /// A worker holds the lock for reading until it has sent the reply, so that no reply with an
    /// earlier lifetime is sent after a change.
    kept: RwLock<Kept>,
    changes: Changes,
    /// The references to nodes that the kernel has, of an exclusive tree.
    references: AtomicU64,
    /// The handles for writing, of each file that has one.
    writers: Mutex<HashMap<NodeId, WritingHandles>>,
    /// Counts the handles for writing that were opened or closed.
    writer_changes: AtomicU64,
    /// For each file that was opened with its data kept: the number of changes of the lifetime at
    /// its last such open.
    data_kept: Mutex<HashMap<NodeId, u64>>,
    replies: AtomicU64,
}

/// The handles for writing of one file.
#[derive(Debug, Clone, Copy, Default)]
struct WritingHandles {
    open: usize,
    /// The number of open handles whose descriptor a program has closed. The kernel closes such a
    /// handle shortly afterwards, unless other processes have the same descriptor.
    flushed: usize,
}

/// The data of a file in the kernel's cache, when the file is opened for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataCache {
    /// The kernel drops the data, and passes on each read.
    Direct,
    /// The kernel drops the data, and keeps the data of later reads.
    Fill,
    /// The kernel keeps the data: only this kernel has changed the file since it was read.
    Keep,
}

/// The lifetime of entries and attributes, and the number of its changes. The end of a temporary
/// lifetime is counted when the lifetime is set again.
#[derive(Debug, Clone, Copy)]
struct Kept {
    lifetime: Duration,
    /// A temporary lifetime, which has precedence until it ends.
    temporary: Option<Temporary>,
    changes: u64,
}

/// A lifetime of the replies until a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Temporary {
    lifetime: Duration,
    until: Instant,
}

impl Kept {
    /// Returns the lifetime of a reply that is sent now, and whether it is a temporary one.
    fn now(&self) -> (Duration, bool) {
        match self.temporary {
            Some(Temporary { lifetime, until }) if Instant::now() < until => (lifetime, true),
            _ => (self.lifetime, false),
        }
    }
}

/// The moment at which a worker began to determine the content of a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begin {
    lifetime_changes: u64,
    writer_changes: u64,
}

/// The lifetimes of one reply, which is sent before this value is dropped.
pub(crate) struct ReplyLifetimes<'a> {
    lifetime: Duration,
    begin: Begin,
    lifetimes: &'a Lifetimes,
    _kept: RwLockReadGuard<'a, Kept>,
}

impl Lifetimes {
    pub(crate) fn new(changes: Changes) -> Lifetimes {
        let lifetime = match changes {
            Changes::None | Changes::OfThisMount => UNLIMITED,
            Changes::OfOthers => Duration::ZERO,
        };
        Lifetimes {
            kept: RwLock::new(Kept { lifetime, temporary: None, changes: 0 }),
            changes,
            references: AtomicU64::new(0),
            writers: Mutex::default(),
            writer_changes: AtomicU64::new(0),
            data_kept: Mutex::default(),
            replies: AtomicU64::new(0),
        }
    }

    /// Sets the lifetimes of the replies to later requests. When this returns, all replies with an
    /// earlier lifetime have been sent.
    pub(crate) fn set(&self, lifetime: Duration, temporary: Option<Temporary>) {
        let mut kept = write_lock(&self.kept);
        let before = kept.now();
        *kept = Kept { lifetime, temporary, ..*kept };
        if kept.now() != before {
            kept.changes += 1;
        }
    }

    /// Must be called before the content of a reply is determined.
    pub(crate) fn begin(&self) -> Begin {
        Begin {
            lifetime_changes: read_lock(&self.kept).changes,
            writer_changes: self.writer_changes.load(Ordering::SeqCst),
        }
    }

    /// Returns the lifetimes of a reply whose content was determined since `begin`. They are 0 if
    /// the lifetime has changed meanwhile: the content may have been determined while other
    /// processes could still change it.
    pub(crate) fn reply(&self, begin: Begin) -> ReplyLifetimes<'_> {
        self.replies.fetch_add(1, Ordering::Relaxed);
        let kept = read_lock(&self.kept);
        let lifetime = if kept.changes == begin.lifetime_changes { kept.now().0 } else { Duration::ZERO };
        ReplyLifetimes { lifetime, begin, lifetimes: self, _kept: kept }
    }

    /// Notes that a file is being opened for writing. Each call is followed by a call of
    /// [`closed`](Self::closed), even if the open fails.
    pub(crate) fn opens(&self, node: NodeId) {
        lock(&self.writers).entry(node).or_default().open += 1;
        self.writer_changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that a handle for writing was closed, and that its data is published.
    pub(crate) fn closed(&self, node: NodeId) {
        // The count changes first: a worker that still sees the handle, or none, sees the change.
        self.writer_changes.fetch_add(1, Ordering::SeqCst);
        let mut writers = lock(&self.writers);
        if let Some(handles) = writers.get_mut(&node) {
            handles.open -= 1;
            handles.flushed = handles.flushed.saturating_sub(1);
            if handles.open == 0 {
                writers.remove(&node);
            }
        }
    }

    /// Notes that the kernel has returned references.
    pub(crate) fn returned(&self, references: u64) {
        if self.changes == Changes::OfThisMount {
            self.references.fetch_sub(references, Ordering::Relaxed);
        }
    }

    /// Notes that a program has closed a descriptor of a handle for writing.
    pub(crate) fn flushed(&self, node: NodeId) {
        if let Some(handles) = lock(&self.writers).get_mut(&node) {
            handles.flushed = handles.open.min(handles.flushed + 1);
        }
    }

    /// Calls `reply` with the use of the kernel's cache for a file that was opened for reading
    /// since `begin`. The lifetime does not change before `reply` returns. The data is kept during
    /// a temporary lifetime, and in an exclusive tree. If a program has the file open for writing,
    /// each write would make the kernel read again, so reads are passed on.
    pub(crate) fn opened(&self, node: NodeId, begin: Begin, reply: impl FnOnce(DataCache)) {
        let kept = read_lock(&self.kept);
        let is_kept = kept.changes == begin.lifetime_changes
            && (kept.now().1 || self.changes == Changes::OfThisMount)
            && lock(&self.writers).get(&node).is_none_or(|handles| handles.flushed == handles.open);
        reply(match is_kept.then(|| lock(&self.data_kept).insert(node, kept.changes)) {
            None => DataCache::Direct,
            Some(before) if before == Some(kept.changes) => DataCache::Keep,
            Some(_) => DataCache::Fill,
        });
    }

    /// Notes that the kernel may drop the data of a file.
    pub(crate) fn forgotten(&self, node: NodeId) {
        lock(&self.data_kept).remove(&node);
    }

    fn keeps(&self, attributes: &Attributes, begin: Begin) -> bool {
        self.changes == Changes::None
            || attributes.kind != Kind::File
            || (attributes.permissions & SET_ID == 0
                && !lock(&self.writers).contains_key(&attributes.node)
                && self.writer_changes.load(Ordering::SeqCst) == begin.writer_changes)
    }
}

impl ReplyLifetimes<'_> {
    /// Returns the lifetime of a missing name.
    pub(crate) fn missing_name(&self) -> Duration {
        self.lifetime
    }

    /// Returns the lifetime of an entry whose reference the reply passes to the kernel, and which
    /// has these attributes.
    pub(crate) fn entry(&self, attributes: &Attributes) -> Duration {
        if self.lifetimes.changes != Changes::OfThisMount {
            return self.lifetime;
        }
        let references = self.lifetimes.references.fetch_add(1, Ordering::Relaxed);
        // There are few directories, and they are part of many paths.
        match references < REFERENCES_MAX || attributes.kind == Kind::Dir {
            true => self.lifetime,
            false => Duration::ZERO,
        }
    }

    pub(crate) fn attributes(&self, attributes: &Attributes) -> Duration {
        match self.lifetime.is_zero() || self.lifetimes.keeps(attributes, self.begin) {
            true => self.lifetime,
            false => Duration::ZERO,
        }
    }

    /// Returns the lifetime of the entry and the attributes of a file that was just created, and
    /// whose reference the reply passes to the kernel. If it is open for writing, its attributes do
    /// not change before the first write, at which the kernel drops them.
    pub(crate) fn created(&self, attributes: &Attributes) -> Duration {
        let entry = self.entry(attributes);
        if attributes.permissions & SET_ID == 0 { entry } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use quell_vfs::Time;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn attributes(node: u64, kind: Kind, permissions: u32) -> Attributes {
        let time = Time { seconds: 0, nanoseconds: 0 };
        Attributes {
            node: NodeId(node),
            kind,
            permissions,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            size_bytes: 0,
            blocks: 0,
            modified: time,
            changed: time,
        }
    }

    #[test]
    fn attributes_of_a_file_are_kept_unless_it_is_open_for_writing() {
        let lifetimes = Lifetimes::new(Changes::OfOthers);
        let file = attributes(7, Kind::File, 0o644);
        let kept = |begin| lifetimes.reply(begin).attributes(&file);
        assert_eq!(kept(lifetimes.begin()), Duration::ZERO);
        lifetimes.set(LONG, None);
        assert_eq!(kept(lifetimes.begin()), LONG);
        lifetimes.opens(NodeId(7));
        lifetimes.opens(NodeId(7));
        lifetimes.closed(NodeId(7));
        assert_eq!(kept(lifetimes.begin()), Duration::ZERO, "one handle is left");
        let during = lifetimes.begin();
        lifetimes.closed(NodeId(7));
        assert_eq!(kept(during), Duration::ZERO, "the attributes may be those before the close");
        assert_eq!(kept(lifetimes.begin()), LONG);
        lifetimes.set(Duration::ZERO, None);
        assert_eq!(kept(lifetimes.begin()), Duration::ZERO);
    }

    #[test]
    fn set_id_bits_of_a_file_are_not_kept_and_those_of_a_directory_are() {
        let lifetimes = Lifetimes::new(Changes::OfOthers);
        lifetimes.set(LONG, None);
        let kept = |kind, permissions| {
            lifetimes.reply(lifetimes.begin()).attributes(&attributes(7, kind, permissions))
        };
        assert_eq!(kept(Kind::File, 0o4755), Duration::ZERO);
        assert_eq!(kept(Kind::File, 0o2755), Duration::ZERO);
        assert_eq!(kept(Kind::Dir, 0o2755), LONG);
    }

    #[test]
    fn an_immutable_tree_is_kept_for_ever() {
        let immutable = Lifetimes::new(Changes::None);
        let set_id = attributes(7, Kind::File, 0o4755);
        assert_eq!(immutable.reply(immutable.begin()).missing_name(), UNLIMITED);
        assert_eq!(immutable.reply(immutable.begin()).attributes(&set_id), UNLIMITED);
    }

    #[test]
    fn data_is_kept_during_a_temporary_lifetime_and_used_again_only_within_it() {
        let lifetimes = Lifetimes::new(Changes::OfOthers);
        let node = NodeId(7);
        let open = |begin| {
            let mut found = None;
            lifetimes.opened(node, begin, |cache| found = Some(cache));
            found.unwrap()
        };
        let until = Instant::now() + Duration::from_secs(1000);
        let begins = || lifetimes.set(Duration::ZERO, Some(Temporary { lifetime: LONG, until }));
        lifetimes.set(LONG, None);
        assert_eq!(open(lifetimes.begin()), DataCache::Direct, "others may change the file");
        let before = lifetimes.begin();
        begins();
        assert_eq!(open(before), DataCache::Direct, "it was opened while others could change it");
        assert_eq!(open(lifetimes.begin()), DataCache::Fill);
        assert_eq!(open(lifetimes.begin()), DataCache::Keep);
        begins();
        assert_eq!(open(lifetimes.begin()), DataCache::Keep, "it was confirmed");
        let during = lifetimes.begin();
        lifetimes.set(Duration::ZERO, None);
        assert_eq!(open(during), DataCache::Direct);
        begins();
        assert_eq!(open(lifetimes.begin()), DataCache::Fill, "others may have changed the file meanwhile");
        lifetimes.forgotten(node);
        assert_eq!(open(lifetimes.begin()), DataCache::Fill);
    }

    #[test]
    fn data_of_a_file_that_is_open_for_writing_is_not_kept() {
        let lifetimes = Lifetimes::new(Changes::OfOthers);
        let node = NodeId(7);
        let until = Instant::now() + Duration::from_secs(1000);
        lifetimes.set(Duration::ZERO, Some(Temporary { lifetime: LONG, until }));
        let is_kept = || {
            let mut is_kept = false;
            lifetimes.opened(node, lifetimes.begin(), |cache| is_kept = cache != DataCache::Direct);
            is_kept
        };
        lifetimes.opens(node);
        lifetimes.opens(node);
        assert!(!is_kept());
        lifetimes.flushed(node);
        assert!(!is_kept(), "one of them is used");
        lifetimes.flushed(node);
        assert!(is_kept(), "the kernel passes on the last closes soon");
        lifetimes.opens(node);
        assert!(!is_kept());
        for _ in 0..3 {
            lifetimes.closed(node);
        }
        assert!(is_kept());
    }

    #[test]
    fn a_change_waits_for_the_reply_that_is_being_sent() {
        let lifetimes = Lifetimes::new(Changes::OfOthers);
        lifetimes.set(LONG, None);
        let begin = lifetimes.begin();
        let reply = lifetimes.reply(begin);
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| lifetimes.set(Duration::ZERO, None));
            assert_eq!(reply.missing_name(), LONG);
            assert!(!changing.is_finished());
            drop(reply);
            changing.join().unwrap();
        });
        assert_eq!(lifetimes.reply(lifetimes.begin()).missing_name(), Duration::ZERO);
    }

    #[test]
    fn a_reply_that_began_before_the_mount_became_the_only_user_is_not_kept() {
        let lifetimes = Lifetimes::new(Changes::OfOthers);
        let before = lifetimes.begin();
        lifetimes.set(LONG, None);
        assert_eq!(lifetimes.reply(before).missing_name(), Duration::ZERO);
        let begin = lifetimes.begin();
        lifetimes.set(LONG, None);
        assert_eq!(lifetimes.reply(begin).missing_name(), LONG, "nothing has changed");
    }

    #[test]
    fn a_temporary_lifetime_ends_unless_it_is_set_again() {
        let lifetimes = Lifetimes::new(Changes::OfOthers);
        let short = Duration::from_secs(1);
        let until = |until| lifetimes.set(short, Some(Temporary { lifetime: LONG, until }));
        let kept = |begin| lifetimes.reply(begin).missing_name();
        let later = Instant::now() + Duration::from_secs(1000);
        until(later);
        let begin = lifetimes.begin();
        assert_eq!(kept(begin), LONG);
        until(later + short);
        assert_eq!(kept(begin), LONG, "a confirmation in time is no change");
        let soon = Instant::now() + Duration::from_millis(20);
        until(soon);
        while Instant::now() < soon {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(kept(lifetimes.begin()), short, "there was no confirmation");
        until(later);
        assert_eq!(kept(begin), Duration::ZERO, "others may have changed the content meanwhile");
        assert_eq!(kept(lifetimes.begin()), LONG);
    }
    #[test]
    fn entries_of_an_exclusive_tree_are_kept_as_long_as_the_kernel_has_few_references() {
        let exclusive = Lifetimes::new(Changes::OfThisMount);
        let kept = |kind| exclusive.reply(exclusive.begin()).entry(&attributes(7, kind, 0o644));
        for _ in 0..REFERENCES_MAX {
            assert_eq!(kept(Kind::File), UNLIMITED);
        }
        assert_eq!(kept(Kind::File), Duration::ZERO);
        assert_eq!(
            exclusive.reply(exclusive.begin()).created(&attributes(7, Kind::File, 0o644)),
            Duration::ZERO
        );
        assert_eq!(kept(Kind::Dir), UNLIMITED);
        assert_eq!(exclusive.reply(exclusive.begin()).missing_name(), UNLIMITED);
        exclusive.returned(3);
        assert_eq!(kept(Kind::File), Duration::ZERO);
        exclusive.returned(2);
        assert_eq!(kept(Kind::File), UNLIMITED);
    }

    #[test]
    fn attributes_of_an_exclusive_tree_are_kept_unless_the_file_is_open_for_writing() {
        let exclusive = Lifetimes::new(Changes::OfThisMount);
        let kept = || exclusive.reply(exclusive.begin()).attributes(&attributes(7, Kind::File, 0o644));
        assert_eq!(kept(), UNLIMITED);
        exclusive.opens(NodeId(7));
        assert_eq!(kept(), Duration::ZERO);
        exclusive.closed(NodeId(7));
        assert_eq!(kept(), UNLIMITED);
    }
    #[test]
    fn data_of_an_exclusive_tree_is_kept_unless_the_file_is_open_for_writing() {
        let exclusive = Lifetimes::new(Changes::OfThisMount);
        let open = || {
            let mut found = None;
            exclusive.opened(NodeId(7), exclusive.begin(), |cache| found = Some(cache));
            found.expect("it was called")
        };
        assert_eq!((open(), open()), (DataCache::Fill, DataCache::Keep));
        exclusive.opens(NodeId(7));
        assert_eq!(open(), DataCache::Direct);
        exclusive.closed(NodeId(7));
        assert_eq!(open(), DataCache::Keep);
        exclusive.forgotten(NodeId(7));
        assert_eq!(open(), DataCache::Fill);
    }
}
