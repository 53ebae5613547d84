//! The requests and the batches of users other than the owner of a store. Their clients and files
//! are hostile.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use quell_batch::{AuxiliaryServer, BatchStore, Marker, Requester, ServedStore, fsck};
use quell_batch_service::{
    Attributes, BatchCaller, BatchRecord, Bytes, Certificate, CertifiedTable, Content, DataChange, EntriesOf,
    FileSize, Inode, InodeChange, Limit, LimitChange, ListedEntries, MEMORY_BYTES, NameSpace, NewNode,
    PROTOCOL, Place, PrivateEntries, ProofForm, Quota, QuotaSubject, ROOT, RenameRequest, Reply, Request,
    Resolution, Resolved, SummaryState, TableDir, Timestamp, Usage, VerificationResult,
};
use quell_vfs::{ErrorKind, NewEntry, Rename, Time};
use quell_wire::{Failure, decode, encode};

const WAIT: Duration = Duration::from_secs(60);
const USER: u32 = 4_300_002;
const OTHER: u32 = 4_300_003;
const NOW: Time = Time { seconds: 7, nanoseconds: 8 };

struct Fixture {
    temp: tempfile::TempDir,
    served: ServedStore,
    user: Requester,
    /// A directory of the user.
    dir: u64,
}

/// The group of the store.
fn group() -> u32 {
    rustix::process::getegid().as_raw()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::with(BatchStore::create_for_group)
    }

    /// Returns a store that `create` has created for a group.
    fn with(create: fn(&Path, u32) -> quell_vfs::Result<()>) -> Fixture {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("store");
        create(&path, group()).unwrap();
        let served = ServedStore::new(BatchStore::open(&path, WAIT).unwrap());
        let user = Requester::of_user(USER, USER, &[group()]);
        assert!(matches!(user, Requester::User(_)));
        let mut fixture = Fixture { temp, served, user, dir: 0 };
        fixture.dir = fixture.make_dir("of-the-user", 0o755, USER);
        fixture
    }

    fn store(&self) -> PathBuf {
        self.temp.path().join("store")
    }

    fn incoming(&self, number: u64) -> PathBuf {
        self.store().join("incoming").join(number.to_string())
    }

    fn call(&self, requester: &Requester, request: &Request) -> Result<Reply, ErrorKind> {
        match decode(&self.served.execute(requester, &encode(request), 1 << 20)).unwrap() {
            Reply::Failed(failure) => Err(failure.into_error("test", b"").kind),
            reply => Ok(reply),
        }
    }

    fn as_user(&self, request: &Request) -> Result<Reply, ErrorKind> {
        self.call(&self.user, request)
    }

    fn make_dir(&self, name: &str, permissions: u32, uid: u32) -> u64 {
        self.create((ROOT, name), NewNode::Dir, permissions, uid)
    }

    /// Creates an entry with the rights of the owner of the store.
    fn create(&self, (dir, name): (u64, &str), node: NewNode, permissions: u32, uid: u32) -> u64 {
        let new = Attributes { permissions, uid, gid: uid };
        let (name, now) = (Bytes(name.into()), Timestamp(7, 8));
        let create = Request::Create { dir, name, node, new, now };
        match self.call(&Requester::Owner, &create) {
            Ok(Reply::Found(Some(found))) => found.inode.number,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the entry at a name of the directory of the user.
    fn lookup(&self, name: &str) -> Option<Inode> {
        match self.as_user(&Request::Lookup { dir: self.dir, name: Bytes(name.into()) }) {
            Ok(Reply::Found(found)) => found.map(|found| found.inode),
            other => panic!("{other:?}"),
        }
    }

    /// Renames an entry of the directory of the user within this directory.
    fn rename(&self, from: &str, to: &str, mode: Rename) {
        let (from_dir, to_dir, now) = (self.dir, self.dir, Timestamp(7, 8));
        let (from, to) = (Bytes(from.into()), Bytes(to.into()));
        let rename = RenameRequest { from_dir, from, to_dir, to, mode, now };
        assert!(matches!(self.as_user(&Request::Rename(rename)), Ok(Reply::Renamed(_))));
    }

    /// Resolves the conflict of a batch at a path, or all of its conflicts.
    fn resolve(&self, batch: u64, path: Option<&str>, resolution: Resolution) -> Result<Resolved, ErrorKind> {
        let paths = path.map(|path| vec![Bytes(path.into())]);
        self.as_user(&Request::Resolve { batch, paths, resolution }).map(|reply| match reply {
            Reply::Resolved(resolved) => resolved,
            other => panic!("{other:?}"),
        })
    }

    fn begin(&self) -> BatchRecord {
        match self.as_user(&begin(USER, self.dir)) {
            Ok(Reply::Begun(record)) => record,
            other => panic!("{other:?}"),
        }
    }

    /// Begins a batch of the user with 100 new files, and writes its tables and its certificate.
    fn submitted(&self) -> (BatchRecord, Certificate) {
        let record = self.begin();
        let dir = self.incoming(record.number);
        fs::create_dir(&dir).unwrap();
        let open = |path: &Path| TableDir::new(File::open(path).unwrap().into());
        let tables = std::sync::Arc::new(open(&dir));
        let image = open(&self.store().join("tables"));
        let names = PrivateEntries::open(&record, &image, tables.clone(), MEMORY_BYTES).unwrap();
        let names = RwLock::new(names);
        let new = NewEntry { permissions: 0o644, uid: USER, gid: USER };
        for number in 0..100 {
            names.create(self.dir, format!("{number}").as_bytes(), NewNode::File, new, NOW).unwrap();
        }
        let names = names.into_inner().unwrap();
        let store = self.served.store().primary().store_number();
        let certificate = names.0.submit(store, &record, &*tables, ProofForm::default(), 0).unwrap();
        fs::write(dir.join("certificate"), certificate.encode()).unwrap();
        give(&dir, USER);
        (record, certificate)
    }

    fn commit(&self, batch: u64) -> Result<SummaryState, ErrorKind> {
        self.as_user(&Request::Commit { batch }).map(|reply| match reply {
            Reply::Batch(summary) => summary.state,
            other => panic!("{other:?}"),
        })
    }

    fn files(&self) -> u64 {
        self.names_of(&self.user, self.dir)
    }

    /// Returns the number of names of a directory.
    fn names_of(&self, requester: &Requester, dir: u64) -> u64 {
        match self.call(requester, &Request::List { dir, after: Bytes(Vec::new()) }) {
            Ok(Reply::Names { names, .. }) => names.len() as u64,
            other => panic!("{other:?}"),
        }
    }

    /// Verifies batches as an auxiliary server does, until `ends` is set.
    fn verify_until(&self, ends: &AtomicBool) {
        let server = AuxiliaryServer::open(&self.store(), "node").unwrap();
        let auxiliaries = self.served.store().auxiliaries();
        let send = |request: &Request| {
            let (sender, receiver) = channel();
            let reply = Box::new(move |bytes| _ = sender.send(bytes));
            auxiliaries.execute(1, &encode(request), Instant::now() + WAIT, reply);
            receiver
        };
        let greeted = send(&Request::Hello { protocol: PROTOCOL }).recv().unwrap();
        assert!(matches!(decode(&greeted), Ok(Reply::Welcome { .. })));
        while !ends.load(Ordering::Relaxed) {
            let next = send(&Request::NextVerification { name: "node".into() });
            let bytes = loop {
                match next.recv_timeout(Duration::from_millis(5)) {
                    Ok(bytes) => break bytes,
                    Err(_) if ends.load(Ordering::Relaxed) => return,
                    Err(_) => {}
                }
            };
            let Reply::Verification { verification, task } = decode(&bytes).unwrap() else {
                panic!("a task")
            };
            let result = match server.verify(verification, &task) {
                Ok(verdict) => {
                    VerificationResult::Verified(Bytes(verdict.encode(task.record.number).unwrap()))
                }
                Err(error) => VerificationResult::Failed(Failure::new(&error)),
            };
            let sent = send(&Request::Verdict { verification, result }).recv().unwrap();
            assert_eq!(decode::<Reply>(&sent).unwrap(), Reply::Done);
        }
    }

    /// Returns whether the owner has a copy of files of a batch.
    fn has_copy(&self, batch: u64) -> bool {
        let copies = self.store().join("batches").join(batch.to_string());
        fs::read_dir(copies).is_ok_and(|mut entries| entries.next().is_some())
    }
}

/// Gives a directory and its files to a user.
fn give(dir: &Path, uid: u32) {
    for entry in fs::read_dir(dir).unwrap() {
        std::os::unix::fs::lchown(entry.unwrap().path(), Some(uid), None).unwrap();
    }
    chown(dir, Some(uid), None).unwrap();
}

/// Returns the caller that a client claims to be.
fn caller(uid: u32) -> BatchCaller {
    BatchCaller { uid, gid: 0, groups: vec![0, 1] }
}

fn marker(name: &str) -> Marker {
    Marker { location: "dir:/blobs".into(), blob: name.into() }
}

fn begin(uid: u32, subtree: u64) -> Request {
    Request::Begin { name: "job".into(), caller: caller(uid), subtree, is_atomic: false }
}

#[test]
fn the_user_of_a_batch_is_that_of_the_connection() {
    let fixture = Fixture::new();
    for uid in [0, USER + 1, rustix::process::geteuid().as_raw()] {
        let stated = fixture.as_user(&begin(uid, fixture.dir));
        assert_eq!(stated.unwrap_err(), ErrorKind::PermissionDenied);
    }
    let record = fixture.begin();
    assert_eq!(record.caller, BatchCaller { uid: USER, gid: USER, groups: vec![group()] });
}

#[test]
fn a_batch_begins_only_in_a_directory_that_the_user_may_write() {
    let fixture = Fixture::new();
    let closed = fixture.make_dir("closed", 0o755, USER + 1);
    assert_eq!(fixture.as_user(&begin(USER, closed)).unwrap_err(), ErrorKind::PermissionDenied);
    assert_eq!(fixture.as_user(&begin(USER, u64::MAX)).unwrap_err(), ErrorKind::NotFound);
    for number in 0..63 {
        let dir = fixture.make_dir(&format!("{number}"), 0o755, USER);
        fixture.as_user(&begin(USER, dir)).unwrap();
    }
    fixture.begin();
    let one_more = fixture.make_dir("one-more", 0o755, USER);
    assert_eq!(fixture.as_user(&begin(USER, one_more)).unwrap_err(), ErrorKind::Busy);
}

#[test]
fn batches_of_others_are_neither_listed_nor_ended() {
    let fixture = Fixture::new();
    let other_dir = fixture.make_dir("other", 0o777, USER + 1);
    let own = fixture.begin().number;
    let other = Requester::of_user(USER + 1, USER + 1, &[group()]);
    let Ok(Reply::Begun(record)) = fixture.call(&other, &begin(USER + 1, other_dir)) else { panic!() };
    let batch = record.number;
    assert_eq!(fixture.call(&other, &Request::Record { batch }), Ok(Reply::Begun(record)));
    for request in [
        Request::Commit { batch },
        Request::Abort { batch },
        Request::Submit { batch },
        Request::Conflicts { batch, from: 0 },
        Request::Resolve { batch, paths: None, resolution: Resolution::Mine },
        Request::Record { batch },
        Request::Prepare { batch, marker: marker("one") },
        Request::Publish { batch, marker: "one".into() },
        Request::RollBack { batch, marker: "one".into() },
        Request::Join { batch, name: "part".into(), caller: caller(USER) },
        Request::BeginForParts {
            name: "parts".into(),
            caller: caller(USER),
            subtree: fixture.dir,
            is_atomic: false,
        },
        Request::Counters,
        Request::AuxiliaryServers,
        Request::SetLimit { subject: QuotaSubject::User(USER), change: LimitChange::default() },
        Request::NextVerification { name: "node".into() },
        Request::Verdict { verification: 1, result: VerificationResult::Verified(Bytes(vec![0; 8])) },
    ] {
        assert_eq!(fixture.as_user(&request).unwrap_err(), ErrorKind::PermissionDenied, "{request:?}");
    }
    assert_eq!(fixture.as_user(&Request::Abort { batch: 99 }).unwrap_err(), ErrorKind::NotFound);
    let Ok(Reply::Batches { batches, .. }) = fixture.as_user(&Request::Batches { after: 0 }) else {
        panic!()
    };
    assert_eq!(batches.iter().map(|batch| batch.number).collect::<Vec<_>>(), [own]);
    let Ok(Reply::Snapshots { snapshots, .. }) = fixture.as_user(&Request::Snapshots { after: 0 }) else {
        panic!()
    };
    assert_eq!(snapshots.iter().map(|snapshot| snapshot.batch).collect::<Vec<_>>(), [own]);
    let quotas = |requester: &Requester| match fixture.call(requester, &Request::Quotas { from: 0 }) {
        Ok(Reply::Quotas { quotas, is_last: true }) => quotas,
        reply => panic!("{reply:?}"),
    };
    let owner = Requester::Owner;
    let all = quotas(&owner);
    assert!(all.len() > 3 && all.is_sorted_by_key(|quota| quota.subject), "{all:?}");
    let usage = Usage { inodes: 1, bytes: 0 };
    let of_other = Quota { subject: QuotaSubject::User(USER + 1), usage, limit: Limit::default() };
    assert!(all.contains(&of_other), "{all:?}");
    assert_eq!(quotas(&other), [all[0], all[1], of_other]);
    assert_eq!(fixture.call(&other, &Request::Quota), Ok(Reply::Quota(Some(all[0]))));
    let Ok(Reply::Batches { batches, .. }) = fixture.call(&owner, &Request::Batches { after: 0 }) else {
        panic!()
    };
    assert_eq!(batches.len(), 2);
    fixture.call(&other, &Request::Abort { batch }).unwrap();
    fixture.as_user(&Request::Abort { batch: own }).unwrap();
}

#[test]
fn changes_of_others_entries_are_refused() {
    let fixture = Fixture::new();
    let closed = fixture.make_dir("closed", 0o755, USER + 1);
    let create = |dir, uid| {
        let (new, now) = (Attributes { permissions: 0o644, uid, gid: uid }, Timestamp(7, 8));
        Request::Create { dir, name: Bytes(b"file".to_vec()), node: NewNode::File, new, now }
    };
    assert_eq!(fixture.as_user(&create(closed, USER)).unwrap_err(), ErrorKind::PermissionDenied);
    assert!(fixture.as_user(&create(fixture.dir, 0)).is_err());
    fixture.as_user(&create(fixture.dir, USER)).unwrap();
}

#[test]
fn a_batch_of_another_user_is_committed_from_a_copy() {
    if !is_root() {
        println!("SKIPPED: files of two users are made by root alone");
        return;
    }
    let fixture = Fixture::new();
    let (record, _) = fixture.submitted();
    // A lazy commit keeps a copy, which its user cannot change or remove.
    fixture.as_user(&Request::Submit { batch: record.number }).unwrap();
    fs::remove_dir_all(fixture.incoming(record.number)).unwrap();
    assert_eq!(fixture.files(), 100);
    assert!(!fixture.has_copy(record.number));
    drop(fixture.served);
    let checked = fsck(&fixture.temp.path().join("store"), WAIT, false, &mut |problem| panic!("{problem:?}"));
    checked.unwrap();
}

#[test]
fn a_prepared_batch_is_ended_by_its_user_and_by_the_requests_of_its_commit() {
    if !is_root() {
        println!("SKIPPED: files of two users are made by root alone");
        return;
    }
    let fixture = Fixture::new();
    let (record, _) = fixture.submitted();
    let batch = record.number;
    let prepare = |name: &str| fixture.as_user(&Request::Prepare { batch, marker: marker(name) });
    let publish = |name: &str| Request::Publish { batch, marker: name.into() };
    let roll_back = |name: &str| Request::RollBack { batch, marker: name.into() };
    let long = "a".repeat(10_000);
    let too_long = [
        Request::Prepare { batch, marker: marker(&long) },
        Request::Prepare { batch, marker: Marker { location: long.clone(), blob: "one".into() } },
        publish(&long),
        roll_back(&long),
    ];
    for request in too_long {
        assert_eq!(fixture.as_user(&request).unwrap_err(), ErrorKind::InvalidInput);
    }
    assert_eq!(fixture.as_user(&publish("one")).unwrap_err(), ErrorKind::InvalidInput);
    let is_prepared = |reply: Reply, name: &str| {
        let expected = SummaryState::Prepared { marker: marker(name) };
        matches!(reply, Reply::Batch(summary) if summary.state == expected)
    };
    // A request that is sent again has the same result, and the files of the user do not matter.
    assert!(is_prepared(prepare("one").unwrap(), "one"));
    fs::remove_dir_all(fixture.incoming(batch)).unwrap();
    assert!(is_prepared(prepare("one").unwrap(), "one"));
    assert_eq!(fixture.files(), 0);
    let other = Requester::of_user(USER + 1, USER + 1, &[group()]);
    for request in [publish("one"), roll_back("one"), Request::Abort { batch }] {
        assert_eq!(fixture.call(&other, &request).unwrap_err(), ErrorKind::PermissionDenied, "{request:?}");
    }
    let refused = [publish("two"), roll_back("two"), Request::Commit { batch }, Request::Abort { batch }];
    for request in refused {
        assert_eq!(fixture.as_user(&request).unwrap_err(), ErrorKind::Busy, "{request:?}");
    }
    assert_eq!(prepare("two").unwrap_err(), ErrorKind::Busy);
    for _ in 0..2 {
        let Ok(Reply::Batch(summary)) = fixture.as_user(&publish("one")) else { panic!("it is published") };
        assert_eq!(summary.state, SummaryState::Committed { entries: 100, conflicts: 0 });
    }
    assert_eq!(fixture.as_user(&roll_back("one")).unwrap_err(), ErrorKind::InvalidInput);
    assert_eq!(fixture.files(), 100);
    assert!(!fixture.has_copy(batch));
}

#[test]
fn a_batch_that_was_rolled_back_is_committed_without_blobs() {
    if !is_root() {
        println!("SKIPPED: files of two users are made by root alone");
        return;
    }
    let fixture = Fixture::new();
    let batch = fixture.submitted().0.number;
    let roll_back = Request::RollBack { batch, marker: "one".into() };
    fixture.as_user(&Request::Prepare { batch, marker: marker("one") }).unwrap();
    for _ in 0..2 {
        let Ok(Reply::Batch(summary)) = fixture.as_user(&roll_back) else { panic!("it is rolled back") };
        assert_eq!(summary.state, SummaryState::Open);
    }
    assert_eq!(fixture.commit(batch), Ok(SummaryState::Committed { entries: 100, conflicts: 0 }));
}

#[test]
fn an_old_certificate_is_of_no_use() {
    if !is_root() {
        println!("SKIPPED: files of two users are made by root alone");
        return;
    }
    let fixture = Fixture::new();
    let (first, _) = fixture.submitted();
    let old = fixture.temp.path().join("old");
    fs::create_dir(&old).unwrap();
    for entry in fs::read_dir(fixture.incoming(first.number)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), old.join(entry.file_name())).unwrap();
    }
    assert_eq!(fixture.commit(first.number), Ok(SummaryState::Committed { entries: 100, conflicts: 0 }));
    // The result of the first commit is returned, and nothing is committed again.
    assert_eq!(fixture.commit(first.number), Ok(SummaryState::Committed { entries: 100, conflicts: 0 }));
    let second = fixture.begin();
    let dir = fixture.incoming(second.number);
    fs::rename(&old, &dir).unwrap();
    give(&dir, USER);
    assert_eq!(fixture.commit(second.number), Err(ErrorKind::InvalidInput));
    assert_eq!(fixture.files(), 100);
}

#[test]
fn hostile_files_of_a_batch_are_refused_and_not_copied() {
    if !is_root() {
        println!("SKIPPED: files of two users are made by root alone");
        return;
    }
    let fixture = Fixture::new();
    let (record, certificate) = fixture.submitted();
    let dir = fixture.incoming(record.number);
    let table = dir.join(format!("{:016x}.table", certificate.tables[0].number));
    let elsewhere = fixture.temp.path().join("elsewhere");
    let secret = fixture.temp.path().join("secret");
    fs::write(&secret, "of the owner").unwrap();
    let make_fifo = |path: &Path| {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
    };
    let refuse = |what: &str| {
        let committed = fixture.commit(record.number);
        assert!(
            matches!(committed, Err(ErrorKind::InvalidInput | ErrorKind::Damaged)),
            "{what}: {committed:?}"
        );
        assert!(!fixture.has_copy(record.number), "{what}");
        assert_eq!(fixture.files(), 0, "{what}");
        let submitted = fixture.as_user(&Request::Submit { batch: record.number });
        assert!(submitted.is_err(), "{what}");
    };
    for file in [dir.join("certificate"), table.clone()] {
        let with = |what: &str, replace: &dyn Fn(&Path), uid: u32| {
            fs::rename(&file, &elsewhere).unwrap();
            replace(&file);
            std::os::unix::fs::lchown(&file, Some(uid), None).unwrap();
            refuse(what);
            fs::remove_file(&file).unwrap();
            fs::rename(&elsewhere, &file).unwrap();
        };
        with("a link", &|file| symlink(&elsewhere, file).unwrap(), USER);
        with("a link to a file of the owner", &|file| symlink(&secret, file).unwrap(), USER);
        with("a FIFO", &make_fifo, USER);
        with("a file of the owner", &|file| _ = fs::copy(&elsewhere, file).unwrap(), 0);
        with("a file of a third user", &|file| _ = fs::copy(&elsewhere, file).unwrap(), USER + 1);
        with("a second name", &|file| fs::hard_link(&elsewhere, file).unwrap(), USER);
        with("a socket", &|file| _ = std::os::unix::net::UnixListener::bind(file).unwrap(), USER);
        let sparse = |file: &Path| File::create(file).unwrap().set_len(1 << 42).unwrap();
        with("a large sparse file", &sparse, USER);
        let hole = |file: &Path| {
            fs::copy(&elsewhere, file).unwrap();
            File::options().write(true).open(file).unwrap().set_len(1 << 30).unwrap();
        };
        with("a hole at the end", &hole, USER);
    }
    // The certificate names too many tables, or a table that does not exist.
    let right = fs::read(dir.join("certificate")).unwrap();
    let one = CertifiedTable { number: 1 << 40, entries: 1, checksum: 1 };
    for tables in
        [vec![one.clone()], (0..5000).map(|number| CertifiedTable { number, ..one.clone() }).collect()]
    {
        let forged = Certificate { tables, ..certificate.clone() };
        fs::write(dir.join("certificate"), forged.encode()).unwrap();
        let committed = fixture.commit(record.number);
        assert!(matches!(committed, Err(ErrorKind::InvalidInput | ErrorKind::NotFound)), "{committed:?}");
        assert!(!fixture.has_copy(record.number));
    }
    fs::write(dir.join("certificate"), right).unwrap();
    // The directory belongs to another user, or is a link to such a directory.
    for uid in [0, USER + 1] {
        chown(&dir, Some(uid), None).unwrap();
        refuse("a directory of another user");
    }
    chown(&dir, Some(USER), None).unwrap();
    fs::rename(&dir, &elsewhere).unwrap();
    symlink(&elsewhere, &dir).unwrap();
    let committed = fixture.commit(record.number);
    assert!(committed.is_err() && !fixture.has_copy(record.number), "{committed:?}");
    fs::remove_file(&dir).unwrap();
    fs::rename(&elsewhere, &dir).unwrap();
    // The batch can still be committed.
    assert_eq!(fixture.commit(record.number), Ok(SummaryState::Committed { entries: 100, conflicts: 0 }));
    assert_eq!(fixture.files(), 100);
}

#[test]
fn tables_that_change_during_the_commit_are_refused_or_committed_as_they_were() {
    if !is_root() {
        println!("SKIPPED: files of two users are made by root alone");
        return;
    }
    // The verification is done by this process, or by an auxiliary server.
    for is_auxiliary in [false, true].into_iter().cycle().take(30) {
        let fixture = Fixture::new();
        let (record, certificate) = fixture.submitted();
        let dir = fixture.incoming(record.number);
        let table = dir.join(format!("{:016x}.table", certificate.tables[0].number));
        let right = fs::read(&table).unwrap();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if is_auxiliary {
                scope.spawn(|| fixture.verify_until(&ends));
                while fixture.served.store().auxiliaries().summaries().is_empty() {
                    std::thread::yield_now();
                }
            }
            scope.spawn(|| {
                let mut at = 0;
                while !ends.load(Ordering::Relaxed) {
                    // The file is changed in place, or replaced.
                    let mut wrong = right.clone();
                    wrong[at % right.len()] ^= 0x55;
                    at += 7;
                    let new = dir.join("new");
                    for bytes in [&wrong, &right] {
                        fs::write(&table, bytes).unwrap();
                        fs::write(&new, bytes).unwrap();
                        chown(&new, Some(USER), None).unwrap();
                        fs::rename(&new, &table).unwrap();
                    }
                }
            });
            for _ in 0..50 {
                if let Ok(state) = fixture.commit(record.number) {
                    assert_eq!(state, SummaryState::Committed { entries: 100, conflicts: 0 });
                    break;
                }
                assert_eq!(fixture.files(), 0);
            }
            ends.store(true, Ordering::Relaxed);
        });
        let store = fixture.store();
        let left = fs::read_dir(store.join("tables")).unwrap();
        assert!(left.map(|entry| entry.unwrap()).all(|entry| entry.file_type().unwrap().is_file()));
        drop(fixture.served);
        let mut problems = Vec::new();
        fsck(&store, WAIT, false, &mut |problem| problems.push(problem.clone())).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
    }
}

#[test]
fn a_store_for_a_group_is_not_open_to_all_and_a_private_one_not_to_a_group() {
    let temp = tempfile::tempdir().unwrap();
    let group = temp.path().join("group");
    let private = temp.path().join("private");
    BatchStore::create_for_group(&group, self::group()).unwrap();
    BatchStore::create(&private).unwrap();
    let opens = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        BatchStore::open(path, WAIT).map(drop).map_err(|error| error.kind)
    };
    assert_eq!(opens(&group, 0o2750), Ok(()));
    assert_eq!(opens(&group, 0o2700), Ok(()));
    for mode in [0o2770, 0o2751, 0o2755, 0o2777, 0o2752] {
        assert_eq!(opens(&group, mode), Err(ErrorKind::PermissionDenied), "{mode:o}");
    }
    for mode in [0o750, 0o2750, 0o755, 0o710] {
        assert_eq!(opens(&private, mode), Err(ErrorKind::PermissionDenied), "{mode:o}");
    }
    assert_eq!(opens(&private, 0o700), Ok(()));
    for name in ["keys", "batches"] {
        assert_eq!(fs::metadata(group.join(name)).unwrap().mode() & 0o077, 0, "{name}");
    }
    assert_eq!(fs::metadata(group.join("lock")).unwrap().mode() & 0o077, 0);
}

#[test]
fn a_user_resolves_conflicts_with_the_permissions_of_the_user() {
    if !is_root() {
        println!("SKIPPED: files of two users are made by root alone");
        return;
    }
    let fixture = Fixture::new();
    let (record, _) = fixture.submitted();
    let batch = record.number;
    for name in ["0", "1", "2"] {
        fixture.create((fixture.dir, name), NewNode::File, 0o644, USER + 1);
    }
    assert_eq!(fixture.commit(batch), Ok(SummaryState::Committed { entries: 100, conflicts: 3 }));
    let resolve = |path: Option<&str>, resolution| fixture.resolve(batch, path, resolution);
    let owner_of = |name: &str| fixture.lookup(name).map(|inode| inode.uid);
    let one = Ok(Resolved { resolved: 1, not_kept: 0 });
    assert_eq!(resolve(Some("/of-the-user/0"), Resolution::Mine), one);
    assert_eq!(owner_of("0"), Some(USER));
    assert_eq!(resolve(Some("/of-the-user/0"), Resolution::Mine), Err(ErrorKind::NotFound));
    // The batch's user may neither write to this directory nor remove entries of others.
    fixture.make_dir("closed", 0o755, USER + 1);
    let to_closed = Resolution::Rename(b"/closed/1".to_vec());
    assert_eq!(resolve(Some("/of-the-user/1"), to_closed), Err(ErrorKind::PermissionDenied));
    let change = |permissions, uid| {
        let change = InodeChange { permissions: Some(permissions), uid: Some(uid), ..Default::default() };
        let (number, place, now) = (fixture.dir, Place::Dir(fixture.dir), Timestamp(7, 8));
        fixture.call(&Requester::Owner, &Request::Change { number, place, change, now }).unwrap();
    };
    // In a directory with the sticky bit, users can rename and remove only their own entries.
    change(0o1777, USER + 1);
    assert!(resolve(None, Resolution::Mine).is_err());
    assert_eq!((owner_of("1"), owner_of("2")), (Some(USER + 1), Some(USER + 1)));
    assert_eq!(
        fixture.as_user(&Request::Conflicts { batch, from: 0 }).map(|reply| match reply {
            Reply::Conflicts { conflicts, .. } => conflicts.len(),
            other => panic!("{other:?}"),
        }),
        Ok(2)
    );
    assert_eq!(resolve(None, Resolution::Theirs), Ok(Resolved { resolved: 2, not_kept: 0 }));
    assert_eq!(fixture.files(), 100);
}

#[test]
fn a_directory_of_others_is_replaced_only_if_the_user_may_remove_all_of_it() {
    if !is_root() {
        println!("SKIPPED: files of two users are made by root alone");
        return;
    }
    let fixture = Fixture::new();
    let (record, _) = fixture.submitted();
    let create =
        |dir: u64, name: &str, node: NewNode, uid: u32| fixture.create((dir, name), node, 0o755, uid);
    // The directory of others has a directory that the user could empty, and one that belongs to
    // others.
    let top = create(fixture.dir, "0", NewNode::Dir, USER);
    let own = create(top, "a", NewNode::Dir, USER);
    create(own, "file", NewNode::File, USER);
    let closed = create(top, "b", NewNode::Dir, USER + 1);
    create(closed, "file", NewNode::File, USER + 1);
    let batch = record.number;
    assert_eq!(fixture.commit(batch), Ok(SummaryState::Committed { entries: 100, conflicts: 1 }));
    let names_of = |dir: u64| fixture.names_of(&Requester::Owner, dir);
    let mine = || fixture.resolve(batch, None, Resolution::Mine).map(drop);
    assert_eq!(mine(), Err(ErrorKind::PermissionDenied));
    assert_eq!([top, own, closed].map(names_of), [2, 1, 1], "nothing is removed");
    let found = |name: &str| fixture.lookup(name).map(|inode| inode.number);
    assert_eq!(found("0"), Some(top));
    // A replacement was interrupted before the other directory was removed, or the user has
    // exchanged the two.
    let kept = format!("0.quell-conflict-{batch}-1");
    let file = found(&kept);
    fixture.rename(&kept, "0", Rename::Exchange);
    for resolution in [Resolution::Mine, Resolution::Theirs, Resolution::Rename(b"/new".to_vec())] {
        assert_eq!(fixture.resolve(batch, None, resolution), Err(ErrorKind::Exists));
    }
    assert_eq!([top, own, closed].map(names_of), [2, 1, 1]);
    fixture.rename(&kept, "aside", Rename::Keep);
    assert_eq!(mine(), Ok(()));
    assert_eq!((found("0"), found(&kept), found("aside")), (file, None, Some(top)));
    let list = fixture.as_user(&Request::Conflicts { batch, from: 0 });
    assert_eq!(list, Ok(Reply::Conflicts { conflicts: Vec::new(), is_last: true }));
}

#[test]
fn a_request_to_resolve_conflicts_has_a_limited_number_of_paths() {
    let fixture = Fixture::new();
    for paths in [vec![], vec![Vec::new(); 4097], vec![vec![b'a'; 70_000]; 2]] {
        let paths = Some(paths.into_iter().map(Bytes).collect());
        let request = Request::Resolve { batch: 1, paths, resolution: Resolution::Theirs };
        assert_eq!(fixture.as_user(&request).unwrap_err(), ErrorKind::InvalidInput);
    }
}

#[test]
fn conflicts_are_resolved_although_their_directory_cannot_be_removed() {
    if !is_root() {
        println!("SKIPPED: files of two users are made by root alone");
        return;
    }
    let fixture = Fixture::new();
    let (record, _) = fixture.submitted();
    let (batch, now) = (record.number, Timestamp(7, 8));
    let owner = |request: &Request| fixture.call(&Requester::Owner, request).unwrap();
    owner(&Request::RemoveDir { dir: ROOT, name: Bytes(b"of-the-user".to_vec()), now });
    // The user can no longer remove names of the root directory.
    let change = InodeChange { permissions: Some(0o755), ..Default::default() };
    owner(&Request::Change { number: ROOT, place: Place::Dir(ROOT), change, now });
    let committed = fixture.commit(batch);
    assert_eq!(committed, Ok(SummaryState::Committed { entries: 100, conflicts: 100 }));
    let resolved = Resolved { resolved: 100, not_kept: 0 };
    assert_eq!(fixture.resolve(batch, None, Resolution::Theirs), Ok(resolved));
    let name = Bytes(format!("quell-conflicts-{batch}").into());
    assert!(matches!(owner(&Request::Lookup { dir: ROOT, name }), Reply::Found(Some(_))));
}

#[test]
fn requests_of_members_read_what_the_permissions_of_a_private_store_allow() {
    let fixture = Fixture::with(BatchStore::create_private);
    let closed = fixture.make_dir("closed", 0o700, OTHER);
    let open = fixture.make_dir("open", 0o755, OTHER);
    let file = |dir, name: &str, permissions| {
        let number = fixture.create((dir, name), NewNode::File, permissions, OTHER);
        let place = Place::Name { dir, name: name.into() };
        let writes = vec![(0, b"text".to_vec())];
        let data = Some(DataChange::Inline { writes, size_bytes: None, append: Vec::new() });
        let change = InodeChange { data, ..InodeChange::default() };
        let change = Request::Change { number, place: place.clone(), change, now: Timestamp(7, 8) };
        fixture.call(&Requester::Owner, &change).unwrap();
        (number, place)
    };
    let inner = file(closed, "file", 0o644);
    let (secret, public) = (file(open, "secret", 0o600), file(open, "public", 0o644));
    let name = |name: &str| Bytes(name.into());
    let denied = ErrorKind::PermissionDenied;
    let list = |dir| Request::List { dir, after: name("") };
    for (request, expected) in [
        (Request::Lookup { dir: closed, name: name("file") }, denied),
        (Request::Lookup { dir: closed, name: name("missing") }, denied),
        (list(closed), denied),
        (Request::Find { number: inner.0, place: inner.1.clone() }, denied),
        (Request::Find { number: inner.0 + 1000, place: inner.1.clone() }, denied),
        (Request::Find { number: inner.0, place: Place::Linked(inner.0) }, ErrorKind::Stale),
        (Request::Find { number: secret.0, place: Place::Linked(secret.0) }, ErrorKind::Stale),
    ] {
        assert_eq!(fixture.as_user(&request).unwrap_err(), expected, "{request:?}");
    }
    fixture.as_user(&list(open)).unwrap();
    let content = |(number, place): &(u64, Place), requester: &Requester| {
        let find = Request::Find { number: *number, place: place.clone() };
        match fixture.call(requester, &find) {
            Ok(Reply::Found(Some(found))) => found.inode.content,
            other => panic!("{other:?}"),
        }
    };
    let text = Content::Inline(b"text".to_vec());
    assert_eq!(content(&public, &fixture.user), text);
    assert_eq!(content(&secret, &fixture.user), Content::Hidden);
    assert_eq!(content(&secret, &Requester::Owner), text);
    // The entries of a snapshot are those that the user of the batch may read.
    let batch = fixture.begin().number;
    let entries = |dir, of| Request::Entries { batch, dir, of };
    let listed = |request: &Request| match fixture.as_user(request) {
        Ok(Reply::Entries(listed)) => listed,
        other => panic!("{other:?}"),
    };
    let all = || EntriesOf::NamesAfter(Vec::new());
    assert_eq!(listed(&entries(closed, all())), ListedEntries::Denied);
    assert_eq!(listed(&entries(closed, EntriesOf::Name(b"file".to_vec()))), ListedEntries::Denied);
    assert_eq!(listed(&entries(1 << 40, all())), ListedEntries::Missing);
    match listed(&entries(open, all())) {
        ListedEntries::Last(entries) => assert_eq!(entries.len(), 2),
        other => panic!("{other:?}"),
    }
    // Other users cannot read the snapshot of this batch.
    let stranger = Requester::of_user(OTHER, OTHER, &[group()]);
    assert_eq!(fixture.call(&stranger, &entries(open, all())).unwrap_err(), denied);
    for length in [0, 256] {
        let refused = EntriesOf::Name(vec![b'x'; length]);
        assert_eq!(fixture.as_user(&entries(open, refused)).unwrap_err(), ErrorKind::InvalidInput);
    }
    fixture.as_user(&Request::Abort { batch }).unwrap();
    assert_eq!(fixture.as_user(&entries(open, all())).unwrap_err(), ErrorKind::Stale);
}

#[test]
fn guesses_of_contents_show_nothing_in_a_private_store() {
    let fixture = Fixture::with(BatchStore::create_private);
    let dir = fixture.make_dir("dir", 0o755, OTHER);
    let number = fixture.create((dir, "inbox"), NewNode::File, 0o622, OTHER);
    let place = Place::Name { dir, name: b"inbox".to_vec() };
    let change = |requester: &Requester, data| {
        let change = InodeChange { data: Some(data), ..InodeChange::default() };
        let (place, now) = (place.clone(), Timestamp(7, 8));
        fixture.call(requester, &Request::Change { number, place, change, now }).map(drop)
    };
    let append =
        |text: &[u8]| DataChange::Inline { writes: Vec::new(), size_bytes: None, append: text.to_vec() };
    change(&Requester::Owner, append(b"text")).unwrap();
    for guess in ["text", "guess"] {
        let expected = Content::Inline(guess.into());
        let replace = DataChange::Replace { expected, new: Content::Empty, size: FileSize::Exactly(0) };
        assert_eq!(change(&fixture.user, replace), Err(ErrorKind::PermissionDenied), "{guess}");
    }
    // The user may write to the file.
    change(&fixture.user, append(b" and more")).unwrap();
}
