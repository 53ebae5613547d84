//! Batches whose snapshot is read by requests to the server, which returns only the entries that
//! the user of the batch may read.

mod stores;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use quell_batch_service::{
    BatchCaller, BatchRecord, BatchState, Conflict, ConflictReason, Content, DataChange, EntriesOf,
    FoundNode, Inode, InodeChange, ListedEntries, MEMORY_BYTES, NameSpace, Names, NewBatch, NewNode, Place,
    Primary, PrivateEntries, ProofForm, ROOT, SnapshotServer, TableFiles, XattrChange,
};
use quell_testkit::Random;
use quell_vfs::{ErrorKind, Kind, NewEntry, Rename, Result, SetXattr};

use stores::{Fixture, LATER, NOW, UnsyncedFiles, content, tables, tree};

/// The owner of the store, of most entries, and the user of the batches.
const STORE_OWNER: u32 = 1;
const OWNER: u32 = 1000;
const READER: u32 = 2000;
const GROUP: u32 = 300;

/// The server of one batch, which counts the requests.
struct Requests {
    primary: Arc<Primary>,
    batch: u64,
    count: AtomicUsize,
}

impl SnapshotServer for Requests {
    fn entries(&self, dir: u64, of: EntriesOf) -> Result<ListedEntries> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.primary.entries_of_snapshot(self.batch, dir, &of)
    }
}

/// A batch of the reader.
struct Batch {
    primary: Arc<Primary>,
    record: BatchRecord,
    names: RwLock<Names<PrivateEntries>>,
    files: Arc<UnsyncedFiles>,
    requests: Arc<Requests>,
    /// The number of certificates.
    attempts: AtomicUsize,
    directory: tempfile::TempDir,
}

impl Batch {
    fn begin(fixture: Fixture, subtree: u64) -> Batch {
        let Fixture { primary, directory, .. } = fixture;
        let primary = Arc::new(primary.private_to(STORE_OWNER));
        let record =
            primary.begin(NewBatch { name: "job".into(), caller: reader(), subtree, is_atomic: false });
        let record = record.unwrap();
        let files = Arc::new(tables(&directory.path().join("batch")));
        let (batch, count) = (record.number, AtomicUsize::new(0));
        let requests = Arc::new(Requests { primary: primary.clone(), batch, count });
        let names = PrivateEntries::open_served(&record, requests.clone(), files.clone(), MEMORY_BYTES);
        let attempts = AtomicUsize::new(0);
        Batch { primary, record, names: RwLock::new(names), files, requests, attempts, directory }
    }

    /// Commits the batch, and returns the number of conflicts.
    fn commit(&self) -> u64 {
        self.commit_names(&self.names, ProofForm::Certificate).unwrap()
    }

    /// Commits the changes of a name space as those of this batch. The error has its text.
    fn commit_names(
        &self,
        names: &RwLock<Names<PrivateEntries>>,
        form: ProofForm,
    ) -> std::result::Result<u64, (ErrorKind, String)> {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed) as u64;
        let (store, names) = (self.primary.store_number(), names.read().unwrap());
        let certificate = names.0.submit(store, &self.record, &*self.files, form, attempt).unwrap();
        match self.primary.commit(self.record.number, &certificate, &*self.files) {
            Ok(BatchRecord { state: BatchState::Committed { conflicts, .. }, .. }) => Ok(conflicts.count),
            Ok(record) => panic!("{record:?}"),
            Err(error) => Err((error.kind, error.to_string())),
        }
    }

    fn requests(&self) -> usize {
        self.requests.count.load(Ordering::Relaxed)
    }
}

fn reader() -> BatchCaller {
    BatchCaller { uid: READER, gid: READER, groups: vec![GROUP] }
}

fn new(permissions: u32, uid: u32, gid: u32) -> NewEntry {
    NewEntry { permissions, uid, gid }
}

fn make(names: &dyn NameSpace, dir: u64, name: &str, node: NewNode, new: NewEntry) -> FoundNode {
    names.create(dir, name.as_bytes(), node, new, NOW).unwrap()
}

fn names_in(names: &dyn NameSpace, dir: u64) -> Result<Vec<(Vec<u8>, u64, Kind)>> {
    let mut found = Vec::new();
    names.list(dir, b"", &mut |name, number, kind| {
        found.push((name.to_vec(), number, kind));
        true
    })?;
    Ok(found)
}

fn xattr() -> InodeChange {
    let set = XattrChange::Set(b"user.a".to_vec(), b"b".to_vec(), SetXattr::Any);
    InodeChange { xattr: Some(set), ..InodeChange::default() }
}

/// Returns whether the reader has one of the rights 4, 2 and 1, as POSIX defines it, or is the
/// owner.
fn has_right(inode: &Inode, right: u32) -> bool {
    let shift = if [READER, GROUP].contains(&inode.gid) { 3 } else { 0 };
    inode.uid == READER || inode.mode >> shift & right != 0
}

/// Returns an inode as the reader may see it.
fn visible(inode: Inode) -> Inode {
    let has_bytes = inode.size_bytes > 0 && matches!(inode.content, Content::Inline(_) | Content::Empty);
    let is_hidden = has_bytes || !inode.xattrs.is_empty();
    match is_hidden && !has_right(&inode, 4) {
        true => Inode { content: Content::Hidden, xattrs: Vec::new(), ..inode },
        false => inode,
    }
}

#[test]
fn a_served_snapshot_has_the_entries_that_the_user_may_read() {
    let mut counts = BTreeMap::new();
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let fixture = Fixture::new();
        let master = fixture.master();
        let attributes = |random: &mut Random, modes: &[u32]| {
            let (uid, gid) = (*random.pick(&[OWNER, READER]), *random.pick(&[OWNER, GROUP, READER]));
            new(*random.pick(modes), uid, gid)
        };
        let mut dirs = vec![ROOT];
        for number in 0..25 {
            let above = *random.pick(&dirs);
            let new = attributes(&mut random, &[0o755, 0o755, 0o750, 0o700, 0o711, 0o744, 0o705, 0o070]);
            dirs.push(make(&*master, above, &format!("d{number}"), NewNode::Dir, new).inode.number);
        }
        for number in 0..60 {
            let new = attributes(&mut random, &[0o644, 0o640, 0o600, 0o604, 0o222]);
            let file = make(&*master, *random.pick(&dirs), &format!("f{number}"), NewNode::File, new);
            let node = (file.inode.number, &file.place);
            if random.one_in(4) {
                // Zeros that are not stored.
                let data = DataChange::Inline { writes: Vec::new(), size_bytes: Some(9), append: Vec::new() };
                let change = InodeChange { data: Some(data), ..InodeChange::default() };
                assert_eq!(master.change(node, &change, LATER).unwrap().content, Content::Empty);
            } else if random.one_in(2) {
                master.change(node, &content(format!("text {number}").as_bytes()), LATER).unwrap();
            }
            if random.one_in(4) {
                master.change(node, &xattr(), LATER).unwrap();
            }
            if random.one_in(4) {
                master.link(node, *random.pick(&dirs), format!("l{number}").as_bytes(), LATER).unwrap();
            }
        }
        let batch = Batch::begin(fixture, ROOT);
        // Later changes of the image do not change the snapshot.
        let later = make(&*master, ROOT, "later", NewNode::Dir, new(0o755, OWNER, OWNER)).inode.number;
        assert_eq!(batch.names.lookup(ROOT, b"later").unwrap(), None);
        assert!(names_in(&batch.names, later).unwrap().is_empty());
        master.remove_dir(ROOT, b"later", LATER).unwrap();
        // The reader uses the directories in any order, and some of them twice.
        for _ in 0..60 {
            let dir = *random.pick(&dirs);
            let mut at = dir;
            let mut may_search = true;
            loop {
                let inode = master.find(at, &Place::Dir(at)).unwrap().inode;
                may_search &= has_right(&inode, 1);
                if at == ROOT {
                    break;
                }
                at = master.parent(at).unwrap().0;
            }
            let inode = master.find(dir, &Place::Dir(dir)).unwrap().inode;
            let all = names_in(&*master, dir).unwrap();
            let listed = names_in(&batch.names, dir).map_err(|error| error.kind);
            match may_search && has_right(&inode, 4) {
                true => assert_eq!(listed.as_ref(), Ok(&all), "seed {seed}, {dir}"),
                false => assert_eq!(listed, Err(ErrorKind::PermissionDenied), "seed {seed}, {dir}"),
            }
            for (name, ..) in &all {
                let found = batch.names.lookup(dir, name).map_err(|error| error.kind);
                let expected = master.lookup(dir, name).unwrap().unwrap();
                let expected = FoundNode { inode: visible(expected.inode), ..expected };
                let is_hidden = expected.inode.content == Content::Hidden;
                *counts.entry((may_search, is_hidden)).or_insert(0) += 1;
                match may_search {
                    true => assert_eq!(found, Ok(Some(expected)), "seed {seed}, {dir}"),
                    false => assert_eq!(found, Err(ErrorKind::PermissionDenied), "seed {seed}, {dir}"),
                }
            }
            let missing = batch.names.lookup(dir, b"missing").map_err(|error| error.kind);
            assert_eq!(missing, if may_search { Ok(None) } else { Err(ErrorKind::PermissionDenied) });
        }
    }
    assert!(counts.len() == 4 && counts.values().all(|count| *count > 100), "{counts:?}");
}

#[test]
fn a_directory_is_requested_once_and_needs_bounded_memory() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let dir = make(&*master, ROOT, "dir", NewNode::Dir, new(0o755, OWNER, OWNER)).inode.number;
    // More than the memory for entries.
    const FILES: usize = 1000;
    let text = vec![b'x'; 50_000];
    for number in 0..FILES {
        let file = make(&*master, dir, &format!("{number:04}"), NewNode::File, new(0o644, OWNER, OWNER));
        master.change((file.inode.number, &file.place), &content(&text), LATER).unwrap();
    }
    let batch = Batch::begin(fixture, ROOT);
    assert_eq!(batch.names.lookup(dir, b"0500").unwrap().unwrap().inode.size_bytes, 50_000);
    let requests = batch.requests();
    // Each reply has at least five files, because it has at most about 256 KiB.
    assert!((3..FILES / 5).contains(&requests), "{requests}");
    let found = names_in(&batch.names, dir).unwrap();
    assert_eq!(found, names_in(&*master, dir).unwrap());
    assert_eq!(found.len(), FILES);
    for (name, ..) in found.iter().step_by(7) {
        assert_eq!(batch.names.lookup(dir, name).unwrap(), master.lookup(dir, name).unwrap());
    }
    assert_eq!(batch.names.lookup(dir, b"missing").unwrap(), None);
    assert_eq!(batch.requests(), requests);
    // The files of the tables have no names.
    assert_eq!(batch.files.list().unwrap(), Vec::<u64>::new());
}

#[test]
fn a_batch_over_a_served_snapshot_is_committed() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let dir = make(&*master, ROOT, "dir", NewNode::Dir, new(0o777, OWNER, OWNER)).inode.number;
    master.change((dir, &Place::Dir(dir)), &xattr(), LATER).unwrap();
    // A directory whose extended attributes are hidden.
    let theirs = make(&*master, dir, "theirs", NewNode::Dir, new(0o711, OWNER, OWNER)).inode.number;
    master.change((theirs, &Place::Dir(theirs)), &xattr(), LATER).unwrap();
    // A directory in which the reader may create names, but which it may not list.
    let inbox = make(&*master, dir, "inbox", NewNode::Dir, new(0o733, OWNER, OWNER)).inode.number;
    for name in ["moved", "removed", "linked"] {
        let file = make(&*master, dir, name, NewNode::File, new(0o644, READER, READER));
        master.change((file.inode.number, &file.place), &content(name.as_bytes()), LATER).unwrap();
    }
    let secret = make(&*master, dir, "secret", NewNode::File, new(0o600, OWNER, OWNER));
    master.change((secret.inode.number, &secret.place), &content(b"secret"), LATER).unwrap();
    let batch = Batch::begin(fixture, dir);
    let names = &batch.names;
    // The bytes of the secret file are unknown, so the file cannot be moved.
    let hidden = |result: Result<()>| result.map_err(|error| error.kind);
    let denied = Err(ErrorKind::PermissionDenied);
    assert_eq!(hidden(names.remove(dir, b"secret", LATER).map(drop)), denied);
    assert_eq!(hidden(names.rename((dir, b"secret"), (dir, b"s"), Rename::Keep, LATER).map(drop)), denied);
    assert_eq!(
        hidden(names.rename((dir, b"moved"), (dir, b"secret"), Rename::Replace, LATER).map(drop)),
        denied
    );
    assert_eq!(hidden(names.rename((dir, b"theirs"), (dir, b"t"), Rename::Keep, LATER).map(drop)), denied);
    assert_eq!(names.find(theirs, &Place::Dir(theirs)).unwrap().inode.xattrs, []);
    let file = names.lookup(dir, b"secret").unwrap().unwrap();
    assert_eq!(file.inode.content, Content::Hidden);
    assert_eq!(hidden(names.link((file.inode.number, &file.place), dir, b"s", LATER).map(drop)), denied);
    names.rename((dir, b"moved"), (inbox, b"moved"), Rename::Keep, LATER).unwrap();
    names.remove(dir, b"removed", LATER).unwrap();
    let linked = names.lookup(dir, b"linked").unwrap().unwrap();
    names.link((linked.inode.number, &linked.place), dir, b"second", LATER).unwrap();
    let file = make(names, dir, "new", NewNode::File, new(0o600, READER, READER));
    names.change((file.inode.number, &file.place), &content(b"new"), LATER).unwrap();
    assert_eq!(batch.commit(), 0);
    let expected = [
        "/ 755 3",
        "/dir/ 777 4",
        "/dir/inbox/ 733 2",
        "/dir/inbox/moved 644 1 moved",
        "/dir/linked 644 2 linked",
        "/dir/new 600 1 new",
        "/dir/second 644 2 linked",
        "/dir/secret 600 1 secret",
        "/dir/theirs/ 711 2",
    ];
    assert_eq!(tree(&*master), expected);
    // The batch has ended.
    let error = batch.requests.entries(dir, EntriesOf::Inode).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Stale);
}

#[test]
fn a_member_lists_own_directories_whose_mode_it_changes() {
    let fixture = Fixture::new();
    let master = fixture.master();
    let dir = make(&*master, ROOT, "dir", NewNode::Dir, new(0o777, OWNER, OWNER)).inode.number;
    let own = make(&*master, dir, "own", NewNode::Dir, new(0o000, READER, READER)).inode.number;
    make(&*master, own, "file", NewNode::File, new(0o644, READER, READER));
    let batch = Batch::begin(fixture, dir);
    let change = InodeChange { permissions: Some(0o700), ..InodeChange::default() };
    batch.names.change((own, &Place::Dir(own)), &change, LATER).unwrap();
    batch.names.remove(own, b"file", LATER).unwrap();
    make(&batch.names, own, "new", NewNode::File, new(0o644, READER, READER));
    assert_eq!(batch.commit(), 0);
    assert_eq!(tree(&*master), ["/ 755 3", "/dir/ 777 3", "/dir/own/ 700 2", "/dir/own/new 644 1 "]);
}

#[test]
fn errors_of_requests_are_not_kept() {
    /// Fails at the request with the number `count`, with an error of this kind.
    struct Failing(Arc<Requests>, AtomicUsize, ErrorKind);
    impl SnapshotServer for Failing {
        fn entries(&self, dir: u64, of: EntriesOf) -> Result<ListedEntries> {
            match self.1.fetch_sub(1, Ordering::Relaxed) {
                1 => Err(quell_vfs::Error::new(self.2, "request", "")),
                _ => self.0.primary.entries_of_snapshot(self.0.batch, dir, &of),
            }
        }
    }
    let fixture = Fixture::new();
    let master = fixture.master();
    let dir = make(&*master, ROOT, "dir", NewNode::Dir, new(0o755, OWNER, OWNER)).inode.number;
    // The list has several parts.
    for number in 0..20 {
        let file = make(&*master, dir, &format!("{number:02}"), NewNode::File, new(0o644, OWNER, OWNER));
        master.change((file.inode.number, &file.place), &content(&[b'x'; 60_000]), LATER).unwrap();
    }
    let batch = Batch::begin(fixture, ROOT);
    for kind in [ErrorKind::Stale, ErrorKind::PermissionDenied, ErrorKind::TimedOut] {
        for failing in 1..4 {
            let server = Arc::new(Failing(batch.requests.clone(), AtomicUsize::new(failing), kind));
            let names = PrivateEntries::open_served(&batch.record, server, batch.files.clone(), MEMORY_BYTES);
            let names = RwLock::new(names);
            let found = names_in(&names, dir).map_err(|error| error.kind);
            assert_eq!(found, Err(kind), "{failing}");
            assert_eq!(names_in(&names, dir).unwrap().len(), 20, "{failing} {kind:?}");
            assert_eq!(names.lookup(dir, b"19").unwrap(), master.lookup(dir, b"19").unwrap());
        }
    }
}

/// A client that knows all entries changes those that its user may not read.
#[test]
fn forged_batches_show_nothing_about_entries_that_the_user_may_not_read() {
    type Forgery = fn(&RwLock<Names<PrivateEntries>>, u64, u64);
    let forgeries: [(&str, Forgery, ErrorKind); 7] = [
        (
            "a change of a directory in a closed one",
            |names, _, inner| {
                let change = InodeChange { modified: Some(LATER.into()), ..InodeChange::default() };
                names.change((inner, &Place::Dir(inner)), &change, LATER).unwrap();
            },
            ErrorKind::InvalidInput,
        ),
        (
            "the removal of a name in a closed directory",
            |names, closed, _| {
                names.remove(closed, b"file", LATER).unwrap();
            },
            ErrorKind::InvalidInput,
        ),
        (
            "a new name in a closed directory",
            |names, closed, _| {
                make(names, closed, "guess", NewNode::File, new(0o644, READER, READER));
            },
            ErrorKind::InvalidInput,
        ),
        (
            "a directory that does not exist",
            |names, _, _| {
                use quell_batch_service::{Entries, Entry, Key};
                let file = stores::file_inode(1 << 40, Content::Empty);
                names
                    .write()
                    .unwrap()
                    .0
                    .apply(vec![(Key::of_name(1 << 41, b"x"), Some(Entry::Inode(file)))])
                    .unwrap();
            },
            ErrorKind::InvalidInput,
        ),
        (
            "a change of a file whose bytes are hidden",
            |names, _, _| {
                let file = names.lookup(ROOT, b"secret").unwrap().unwrap();
                names.change((file.inode.number, &file.place), &content(b"guess"), LATER).unwrap();
            },
            ErrorKind::InvalidInput,
        ),
        (
            "the removal of a file whose bytes are hidden",
            |names, _, _| {
                names.remove(ROOT, b"secret", LATER).unwrap();
            },
            ErrorKind::InvalidInput,
        ),
        (
            "a link to a file whose bytes are hidden",
            |names, _, _| {
                let file = names.lookup(ROOT, b"secret").unwrap().unwrap();
                names.link((file.inode.number, &file.place), ROOT, b"stolen", LATER).unwrap();
            },
            ErrorKind::InvalidInput,
        ),
    ];
    for form in [ProofForm::Certificate, ProofForm::Log] {
        let mut texts = std::collections::BTreeSet::new();
        for (text, forge, expected) in forgeries {
            let fixture = Fixture::new();
            let master = fixture.master();
            let change = InodeChange { permissions: Some(0o777), ..InodeChange::default() };
            master.change((ROOT, &Place::Dir(ROOT)), &change, NOW).unwrap();
            let closed = make(&*master, ROOT, "closed", NewNode::Dir, new(0o700, OWNER, OWNER)).inode.number;
            let inner = make(&*master, closed, "inner", NewNode::Dir, new(0o777, OWNER, OWNER)).inode.number;
            make(&*master, closed, "file", NewNode::File, new(0o644, OWNER, OWNER));
            let secret = make(&*master, ROOT, "secret", NewNode::File, new(0o600, OWNER, OWNER));
            master.change((secret.inode.number, &secret.place), &content(b"secret"), NOW).unwrap();
            let before = tree(&*master);
            let batch = Batch::begin(fixture, ROOT);
            let forged = tables(&batch.directory.path().join("forged"));
            let names = batch.primary.private(&batch.record, Arc::new(forged), MEMORY_BYTES).unwrap();
            let names = RwLock::new(names);
            forge(&names, closed, inner);
            let (kind, error) = batch.commit_names(&names, form).expect_err(text);
            assert_eq!(kind, expected, "{text}: {error}");
            texts.insert(error);
            assert_eq!(tree(&*master), before, "{text}");
        }
        // The error does not show which of the entries exist.
        assert_eq!(texts.len(), 1, "{texts:?}");
    }
}

/// A file and a directory are closed to the reader after the beginning of the batch.
#[test]
fn conflicts_show_nothing_about_entries_that_were_closed_meanwhile() {
    let mut results = Vec::new();
    for (guess, is_removed) in [("secret", false), ("public", false), ("secret", true)] {
        let fixture = Fixture::new();
        let master = fixture.master();
        let change = InodeChange { permissions: Some(0o777), ..InodeChange::default() };
        master.change((ROOT, &Place::Dir(ROOT)), &change, NOW).unwrap();
        let dir = make(&*master, ROOT, "dir", NewNode::Dir, new(0o777, OWNER, OWNER)).inode.number;
        make(&*master, dir, "x", NewNode::File, new(0o666, OWNER, OWNER));
        let file = make(&*master, ROOT, "file", NewNode::File, new(0o666, OWNER, OWNER));
        let node = (file.inode.number, &file.place);
        master.change(node, &content(b"before"), NOW).unwrap();
        let batch = Batch::begin(fixture, ROOT);
        let closed = |permissions| InodeChange { permissions: Some(permissions), ..InodeChange::default() };
        master.change(node, &closed(0o600), LATER).unwrap();
        master.change(node, &content(b"secret"), LATER).unwrap();
        if is_removed {
            master.remove(dir, b"x", LATER).unwrap();
        }
        master.change((dir, &Place::Dir(dir)), &closed(0o700), LATER).unwrap();
        batch.names.change(node, &content(guess.as_bytes()), LATER).unwrap();
        batch.names.remove(dir, b"x", LATER).unwrap();
        batch.commit();
        let mut reasons = Vec::new();
        let add = &mut |conflict: Conflict| {
            reasons.push((conflict.name, conflict.reason));
            Ok(())
        };
        batch.primary.conflicts(batch.record.number, add).unwrap();
        reasons.sort_by(|one, other| one.0.cmp(&other.0));
        results.push(reasons);
        let present = master.find(node.0, node.1).unwrap().inode;
        assert_eq!(present.content, Content::Inline(b"secret".to_vec()));
    }
    let denied = |name: &[u8]| (name.to_vec(), ConflictReason::Denied);
    assert_eq!(results[0], [denied(b"dir"), denied(b"file"), denied(b"x")]);
    assert_eq!(results, vec![results[0].clone(); 3]);
}
