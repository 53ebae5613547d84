//! The name space of a batch that processes of one node share.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quell_batch::{BatchFs, BatchStore, OpenBatch, StoreAccess, open_shared_names};
use quell_batch_server::LocalNames;
use quell_batch_service::{BatchSummary, Request, SummaryState};
use quell_testkit::Random;
use quell_testkit::conformance::writing::{self, Mounts, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_transport::local::LocalChannel;
use quell_vfs::{
    Context, Cursor, ErrorKind, FileSystem, NewEntry, OpenMode, Rename, Result, Writable, WritableFile,
};

const LONG: Duration = Duration::from_secs(120);
const NEW: NewEntry = NewEntry { permissions: 0o755, uid: 1000, gid: 1000 };

/// A batch whose name space this process serves.
struct SharedBatch {
    names: LocalNames,
    batch: OpenBatch,
    directory: tempfile::TempDir,
}

impl SharedBatch {
    fn begin() -> SharedBatch {
        let mode = std::fs::Permissions::from_mode(0o700);
        // The directory is on tmpfs, because the suite writes at the largest offset, which ext4
        // does not support.
        let directory = tempfile::Builder::new().permissions(mode).tempdir_in("/dev/shm").unwrap();
        let store = directory.path().join("store");
        BatchStore::create(&store).unwrap();
        let access = StoreAccess::open(&store, LONG).unwrap();
        let batch = OpenBatch::begin(access, b"", "job", false).unwrap();
        let names =
            LocalNames::start(batch.shared_names().unwrap(), &directory.path().join("socket")).unwrap();
        SharedBatch { names, batch, directory }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// Connects a client, as a process does.
    fn client(&self) -> BatchFs {
        open_shared_names(&self.socket(), &self.store(), self.batch.record().number).unwrap()
    }

    /// Ends the service, and commits the batch.
    fn commit(&mut self) -> BatchSummary {
        self.names.stop().unwrap();
        self.batch.commit(LONG).unwrap()
    }

    /// Returns the names in the root of the store, in their order.
    fn committed_names(&self) -> Vec<String> {
        let store = BatchStore::open(&self.store(), LONG).unwrap();
        names(&store.file_system(b"").unwrap())
    }
}

fn names(fs: &BatchFs) -> Vec<String> {
    let mut names = Vec::new();
    let mut visit = |entry: quell_vfs::DirEntry<'_>| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    };
    fs.list(&Context::OWN, fs.root(), Cursor::START, &mut visit).unwrap();
    names
}

fn create(fs: &BatchFs, name: &str) -> Box<dyn WritableFile> {
    fs.create(&Context::OWN, fs.root(), name.as_bytes(), NEW, OpenMode::READ_WRITE).unwrap().1
}

fn content(fs: &BatchFs, name: &str) -> Result<Vec<u8>> {
    let found = fs.lookup(&Context::OWN, fs.root(), name.as_bytes())?.expect("it exists");
    let file = fs.open(&Context::OWN, found.node())?;
    let mut bytes = vec![0; 1 << 20];
    let length = file.read_at(&mut bytes, 0)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Runs `check` on clients of batches.
fn with(mounts_max: usize, check: impl Fn(&WritableImplementation<'_>)) {
    let make = |count: usize| {
        let batch = SharedBatch::begin();
        let mount = |_| -> Arc<dyn FileSystem> { Arc::new(batch.client()) };
        Mounts { mounts: (0..count).map(mount).collect(), keep: Some(Box::new(batch)) }
    };
    check(&WritableImplementation {
        name: "clients of the process of a batch",
        make: &make,
        mounts_max,
        name_bytes_max: 255,
        path_bytes_max: usize::MAX,
        uid: NEW.uid,
        gid: NEW.gid,
        owners: true,
        rename_kinds: true,
        hard_links: true,
        writes_zeros: false,
        locks: true,
        xattrs: true,
    });
}

#[test]
fn promises_are_kept_by_clients_of_the_process_of_a_batch() {
    with(2, writing::run);
}

/// Most files become larger than the content of an inode.
const LARGE: Shape = Shape { file_bytes: 120_000, write_bytes_max: 40_000, ..Shape::ONE_MOUNT };

#[test]
fn random_histories_of_clients_match_the_model() {
    for shape in [Shape::ONE_MOUNT, Shape::DENSE, LARGE] {
        with(1, |implementation| histories::check(implementation, shape, 0..10));
        let shape = Shape { mounts: 2, ..shape };
        with(2, |implementation| histories::check(implementation, shape, 0..10));
    }
}

#[test]
fn a_file_that_another_client_renames_stays_open() {
    let batch = SharedBatch::begin();
    let (writer, other) = (batch.client(), batch.client());
    let file = create(&writer, "a");
    file.write_at(b"first", 0).unwrap();
    file.publish().unwrap();
    let root = other.root();
    other.rename(&Context::OWN, root, b"a", root, b"b", Rename::Replace).unwrap();
    file.write_at(b"second", 5).unwrap();
    file.close().unwrap();
    assert_eq!(content(&other, "b").unwrap(), b"firstsecond");
    // The file is removed under its new name. The writes of the writer are then lost.
    let file = writer.lookup(&Context::OWN, root, b"b").unwrap().unwrap();
    let file = writer.open_as(&Context::OWN, file.node(), OpenMode::READ_WRITE).unwrap();
    other.rename(&Context::OWN, root, b"b", root, b"c", Rename::Replace).unwrap();
    other.remove(&Context::OWN, root, b"c").unwrap();
    file.write_at(b"x", 0).unwrap();
    assert_eq!(file.close().unwrap_err().kind, ErrorKind::Stale);
}

#[test]
fn a_directory_that_another_client_renames_or_removes_is_looked_up_again() {
    let batch = SharedBatch::begin();
    let (one, other) = (batch.client(), batch.client());
    let (context, root) = (Context::OWN, one.root());
    let made = one.make_dir(&context, root, b"a", NEW).unwrap().node();
    let on_path = |name: &[u8]| other.lookup_on_path(&context, root, name).unwrap().map(|found| found.node());
    assert_eq!(on_path(b"a"), Some(made));
    one.rename(&context, root, b"a", root, b"b", Rename::Replace).unwrap();
    assert_eq!((on_path(b"a"), on_path(b"b")), (None, Some(made)));
    let change = quell_vfs::Change { permissions: Some(0o500), ..Default::default() };
    let held = one.lookup(&context, root, b"b").unwrap().unwrap();
    one.change(&context, held.node(), &change).unwrap();
    assert_eq!(other.lookup_on_path(&context, root, b"b").unwrap().unwrap().permissions, 0o500);
    one.remove_dir(&context, root, b"b").unwrap();
    assert_eq!(on_path(b"b"), None);
}

#[test]
fn clients_are_cut_off_at_the_end_and_their_complete_changes_are_committed() {
    let mut batch = SharedBatch::begin();
    let client = batch.client();
    create(&client, "closed").close().unwrap();
    let unfinished = create(&client, "unfinished");
    unfinished.write_at(b"not sent", 0).unwrap();
    let large = create(&client, "large");
    large.write_at(&[7; 100_000], 0).unwrap();
    large.publish().unwrap();
    // A client whose process is killed leaves its last complete operation.
    let killed = batch.client();
    create(&killed, "killed").write_at(b"not sent", 0).unwrap();
    let socket = batch.socket();
    let summary = batch.commit();
    assert!(matches!(summary.state, SummaryState::Committed { conflicts: 0, .. }), "{summary:?}");
    assert!(!socket.exists());
    assert_eq!(unfinished.close().unwrap_err().kind, ErrorKind::Unavailable);
    // A data file of a committed batch does not change.
    assert_eq!(large.write_at(b"late", 0).unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(
        client.lookup(&Context::OWN, client.root(), b"closed").unwrap_err().kind,
        ErrorKind::Unavailable
    );
    assert_eq!(batch.committed_names(), ["closed", "killed", "large", "unfinished"]);
    let store = BatchStore::open(&batch.store(), LONG).unwrap();
    let fs = store.file_system(b"").unwrap();
    assert_eq!(content(&fs, "unfinished").unwrap(), b"");
    assert_eq!(content(&fs, "large").unwrap(), [7; 100_000]);
}

#[test]
fn the_service_of_a_shared_image_caches_no_directories() {
    let directory = SharedBatch::begin();
    let store = directory.directory.path().join("other");
    BatchStore::create(&store).unwrap();
    let access = StoreAccess::open(&store, LONG).unwrap();
    // This process alone has the image open.
    assert_ne!(access.shared_names(b"").unwrap().first_version(), 0);
    let socket = directory.directory.path().join("other-socket");
    let mut names = LocalNames::start(access.shared_names(b"").unwrap(), &socket).unwrap();
    let client = open_shared_names(&socket, &store, 0).unwrap();
    create(&client, "a").close().unwrap();
    assert_eq!(self::names(&client), ["a"]);
    names.stop().unwrap();
    drop(client);
    assert_eq!(self::names(&access.file_system(b"").unwrap()), ["a"]);
}

#[test]
fn requests_of_a_hostile_client_are_refused_and_harm_no_other_client() {
    let mut batch = SharedBatch::begin();
    let honest = batch.client();
    create(&honest, "before").close().unwrap();
    let channel = LocalChannel::connect(batch.socket()).unwrap();
    let call = |bytes: &[u8]| {
        let encode = |into: &mut [u8]| {
            into[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        };
        channel.call(None, encode, <[u8]>::to_vec).unwrap()
    };
    let mut random = Random::new(17);
    for _ in 0..20_000 {
        let length = random.below(64);
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        call(&bytes);
    }
    // The process does not accept requests on batches.
    for request in [Request::Commit { batch: 1 }, Request::Abort { batch: 1 }, Request::Counters] {
        let reply = call(&quell_wire::encode(&request));
        assert!(
            matches!(quell_wire::decode(&reply), Ok(quell_batch_service::Reply::Failed(_))),
            "{request:?}"
        );
    }
    call(&vec![0xff; 540_672]);
    create(&honest, "zz-after").close().unwrap();
    assert!(matches!(batch.commit().state, SummaryState::Committed { .. }));
    let committed = batch.committed_names();
    assert!(committed.contains(&"before".to_owned()) && committed.contains(&"zz-after".to_owned()));
}

/// Only a private directory can have the socket.
#[test]
fn the_socket_is_refused_in_a_directory_of_others() {
    let batch = SharedBatch::begin();
    let open = batch.directory.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    let refused = LocalNames::start(batch.batch.shared_names().unwrap(), &open.join("socket")).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::PermissionDenied);
    let _: OwnedFd = batch.batch.shared_names().unwrap().store_descriptor().unwrap();
}
