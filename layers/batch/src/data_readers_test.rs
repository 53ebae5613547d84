//! Tests of the files of a private store: the users that can open them, without a server. Three
//! users need root.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use quell_batch_service::{
    BatchCaller, BatchRecord, BatchState, Entry, Key, MemoryEntries, NameSpace, Place, ROOT, TableDir,
    TableFiles, TableRef, TableSummary, TableWriter,
};
use quell_posix::{Acting, assume};
use quell_vfs::{Caller, Change, Context, FileSystem, NewEntry, NodeId, OpenMode, Rename, Time, Writable};

use super::*;
use crate::file_system::BatchFs;
use crate::store::BatchStore;
use crate::store_dir::{StoreDir, write_certificate};

const OWNER: u32 = 4_300_010;
const USER: u32 = 4_300_011;
const OTHER: u32 = 4_300_012;
/// A group of `OTHER` and `USER`.
const TEAM: u32 = 4_300_101;
/// The group of the store.
const GROUP: u32 = 4_300_100;
const NOW: Time = Time { seconds: 7, nanoseconds: 8 };

struct Fixture {
    temp: tempfile::TempDir,
}

/// Acts as a member of the group of the store.
fn acting(uid: u32) -> Acting {
    let groups = if uid == OWNER { vec![GROUP] } else { vec![GROUP, TEAM] };
    assume(Some(Arc::new(Caller { uid, gid: uid, groups }))).unwrap()
}

impl Fixture {
    /// Returns `None` if this process is not root, or the file system has no lists.
    fn new() -> Option<Fixture> {
        if !geteuid().is_root() {
            println!("SKIPPED: files of two users are made by root alone");
            return None;
        }
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        chown(temp.path(), Some(OWNER), None).unwrap();
        let fixture = Fixture { temp };
        let _owner = acting(OWNER);
        match BatchStore::create_private(&fixture.store(), GROUP) {
            Err(error) if error.kind == ErrorKind::Unsupported => {
                assert!(!fixture.store().exists());
                println!("SKIPPED: {error}");
                None
            }
            created => {
                created.unwrap();
                Some(fixture)
            }
        }
    }

    fn store(&self) -> PathBuf {
        self.temp.path().join("store")
    }

    fn dir(&self) -> StoreDir {
        StoreDir::open_of(&self.store(), &[OWNER]).unwrap()
    }

    /// Returns the paths in the store of the regular files that a user can read.
    fn readable(&self, uid: u32) -> Vec<String> {
        let mut readable = Vec::new();
        let mut dirs = vec![self.store()];
        while let Some(dir) = dirs.pop() {
            // Root lists the directory, so that its files are found even if their names are known
            // only to others.
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else if can_read(uid, &path) {
                    readable.push(path.strip_prefix(self.store()).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        readable.sort();
        readable
    }
}

fn can_read(uid: u32, path: &Path) -> bool {
    let _user = acting(uid);
    match File::open(path) {
        Ok(mut file) => file.read(&mut [0; 1]).is_ok(),
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{}", path.display());
            false
        }
    }
}

fn new_names() -> Arc<dyn NameSpace> {
    let root = NewEntry { permissions: 0o1777, uid: OWNER, gid: GROUP };
    Arc::new(RwLock::new(MemoryEntries::new(root, NOW)))
}

/// Creates a file of `USER` with a data file.
fn create(fs: &BatchFs, name: &str, permissions: u32, gid: u32) -> NodeId {
    let new = NewEntry { permissions, uid: USER, gid };
    let created = fs.create(&Context::OWN, fs.root(), name.as_bytes(), new, OpenMode::READ_WRITE);
    let (created, file) = created.unwrap();
    file.write_at(&[7; 100_000], 0).unwrap();
    file.close().unwrap();
    created.into_attributes().node
}

fn chmod(fs: &BatchFs, node: NodeId, permissions: u32) -> Result<()> {
    let change = Change { permissions: Some(permissions), ..Change::default() };
    Writable::change(fs, &Context::OWN, node, &change).map(drop)
}

/// Returns the path in the store of the data file of a node in the synchronous mode of `USER`.
fn data_path(node: NodeId) -> String {
    format!("incoming/user-{USER}/{:02x}/{:x}", node.0 % 256, node.0)
}

#[test]
fn only_the_owner_of_a_private_store_and_its_user_read_the_files_of_a_batch() {
    let Some(fixture) = Fixture::new() else { return };
    {
        let _owner = acting(OWNER);
        let dir = fixture.dir();
        dir.image_tables().unwrap().create(1).unwrap();
        dir.new_tables(dir.open_dir("tables").unwrap()).create(2).unwrap();
        fs::create_dir(fixture.store().join("batches/4")).unwrap();
        let batch = dir.batch(4).unwrap();
        batch.tables.create(1).unwrap();
        write_certificate(&batch.files, b"of the owner", &dir.batch_access().unwrap()).unwrap();
    }
    {
        let _user = acting(USER);
        let dir = fixture.dir();
        dir.make_batch(5).unwrap();
        let batch = dir.batch(5).unwrap();
        batch.tables.create(1).unwrap();
        for content in [&b"first"[..], b"second"] {
            write_certificate(&batch.files, content, &dir.batch_access().unwrap()).unwrap();
        }
        drop(dir.lock_batch(5).unwrap());
        let denied = dir.image_tables().map(drop).unwrap_err();
        assert_eq!(denied.kind, ErrorKind::PermissionDenied);
    }
    assert_eq!(fixture.readable(OTHER), ["format"]);
    let of_batch = ["incoming/5/0000000000000001.table", "incoming/5/certificate"];
    assert_eq!(fixture.readable(USER), ["format", of_batch[0], of_batch[1], "incoming/5/lock"]);
    let of_owner = fixture.readable(OWNER);
    assert!(of_batch.iter().all(|path| of_owner.iter().any(|found| found == path)), "{of_owner:?}");
    assert!(of_owner.iter().any(|path| path == "batches/4/certificate"));
    assert!(!of_owner.iter().any(|path| path == "incoming/5/lock"));
}

#[test]
fn the_readers_of_a_data_file_follow_the_mode_of_its_inode() {
    let Some(fixture) = Fixture::new() else { return };
    let names = new_names();
    let _user = acting(USER);
    let fs = fixture.dir().file_system(names.clone(), 0).unwrap();
    let secret = create(&fs, "secret", 0o600, GROUP);
    let public = create(&fs, "public", 0o644, USER);
    let team = create(&fs, "team", 0o640, TEAM);
    let own = create(&fs, "own-group", 0o640, USER);
    let [secret_path, public_path, team_path, own_path] =
        [secret, public, team, own].map(|node| fixture.store().join(data_path(node)));
    for path in [&secret_path, &public_path, &team_path, &own_path] {
        assert!(can_read(USER, path) && can_read(OWNER, path), "{}", path.display());
    }
    let by_other = || [&secret_path, &public_path, &team_path, &own_path].map(|path| can_read(OTHER, path));
    assert_eq!(by_other(), [false, true, true, false]);
    chmod(&fs, public, 0o600).unwrap();
    chmod(&fs, secret, 0o644).unwrap();
    chmod(&fs, team, 0o600).unwrap();
    // The others may read it, and the group may not.
    chmod(&fs, own, 0o604).unwrap();
    assert_eq!(by_other(), [true, false, false, false]);
    let to_team = Change { gid: Some(TEAM), permissions: Some(0o440), ..Change::default() };
    Writable::change(&fs, &Context::OWN, own, &to_team).unwrap();
    assert_eq!(by_other(), [true, false, false, true]);
    // A truncation that changes the mode as well.
    let change = Change { permissions: Some(0o600), size_bytes: Some(70_000), ..Change::default() };
    Writable::change(&fs, &Context::OWN, secret, &change).unwrap();
    assert_eq!(by_other(), [false, false, false, true]);
    assert!(can_read(OWNER, &secret_path));
    // Another user reads the bytes through a mount as the lists permit.
    drop(fs);
    let _other = acting(OTHER);
    let fs = fixture.dir().file_system(names, 0).unwrap();
    let open = |name: &[u8]| {
        let found = fs.lookup(&Context::OWN, fs.root(), name).unwrap().unwrap().into_attributes().node;
        let mut byte = [0];
        fs.open(&Context::OWN, found).unwrap().read_at(&mut byte, 0).map(|_| byte[0])
    };
    assert_eq!(open(b"own-group").unwrap(), 7);
    assert_eq!(open(b"secret").unwrap_err().kind, ErrorKind::PermissionDenied);
}

#[test]
fn a_user_cannot_withdraw_access_to_the_data_file_of_another_one() {
    let Some(fixture) = Fixture::new() else { return };
    let names = new_names();
    let path;
    {
        let _user = acting(USER);
        let fs = fixture.dir().file_system(names.clone(), 0).unwrap();
        path = fixture.store().join(data_path(create(&fs, "file", 0o640, TEAM)));
    }
    {
        // The owner of the inode, or root, may be another user.
        let _other = acting(OTHER);
        let fs = fixture.dir().file_system(names.clone(), 0).unwrap();
        let node = fs.lookup(&Context::OWN, fs.root(), b"file").unwrap().unwrap().into_attributes().node;
        let error = chmod(&fs, node, 0o600).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Os(errno::EPERM));
        assert!(error.to_string().contains("another user"), "{error}");
        assert_eq!(fs.attributes(&Context::OWN, node).unwrap().permissions, 0o640);
        chmod(&fs, node, 0o660).unwrap();
        chmod(&fs, node, 0o664).unwrap();
        assert_eq!(fs.attributes(&Context::OWN, node).unwrap().permissions, 0o664);
    }
    assert!(can_read(OTHER, &path));
    // Root can change the list, if the file is in a directory of its user.
    let root = Data::of_group(
        fixture.dir().data().unwrap(),
        fixture.dir().open_dir("incoming").unwrap(),
        FILES_OF_USERS,
        true,
        Some(PrivateStore { owner: OWNER, gid: GROUP }),
    )
    .unwrap();
    let fs = BatchFs::with_data(names, root);
    let node = fs.lookup(&Context::OWN, fs.root(), b"file").unwrap().unwrap().into_attributes().node;
    chmod(&fs, node, 0o600).unwrap();
    assert!(!can_read(OTHER, &path) && can_read(OWNER, &path));
    let chown = Change { uid: Some(OTHER), ..Change::default() };
    Writable::change(&fs, &Context::OWN, node, &chown).unwrap();
    assert!(can_read(OTHER, &path) && can_read(OWNER, &path));
}

#[test]
fn a_batch_changes_the_readers_of_earlier_data_files_at_its_end() {
    let Some(fixture) = Fixture::new() else { return };
    let names = new_names();
    let _user = acting(USER);
    let fs = fixture.dir().file_system(names.clone(), 0).unwrap();
    let files = [("closed", 0o644), ("moved", 0o644), ("opened", 0o600), ("touched", 0o644)];
    let nodes = files.map(|(name, permissions)| create(&fs, name, permissions, USER));
    let paths = nodes.map(|node| fixture.store().join(data_path(node)));
    let by_other = || paths.each_ref().map(|path| can_read(OTHER, path));
    assert_eq!(by_other(), [true, true, false, true]);
    // A batch with a snapshot of these files.
    let dir = fixture.store().join(format!("incoming/user-{USER}/tables"));
    fs::create_dir(&dir).unwrap();
    let tables = Arc::new(TableDir::new(File::open(dir).unwrap().into()));
    let mut writer = TableWriter::new(tables.create(1).unwrap());
    let root = Entry::Inode(names.find(ROOT, &Place::Dir(ROOT)).unwrap().inode);
    writer.add(Key::of_dir(ROOT).as_bytes(), &root.encode()).unwrap();
    for (name, _) in files {
        let inode = names.lookup(ROOT, name.as_bytes()).unwrap().unwrap().inode;
        let key = Key::of_name(ROOT, name.as_bytes());
        writer.add(key.as_bytes(), &Entry::Inode(inode).encode()).unwrap();
    }
    let TableSummary { bytes, entries, checksum, .. } = writer.finish().unwrap();
    let record = BatchRecord {
        number: 9,
        name: String::new(),
        caller: BatchCaller { uid: USER, gid: USER, groups: Vec::new() },
        inodes: 100..200,
        snapshot: vec![TableRef { number: 1, bytes, entries, checksum }],
        subtree: ROOT,
        is_atomic: false,
        state: BatchState::Open,
    };
    let batch = PrivateEntries::open(&record, &*tables, tables.clone(), 1 << 20).unwrap();
    let batch = Arc::new(RwLock::new(batch));
    let of_batch = fixture.dir().file_system(batch.clone(), 9).unwrap();
    let root = of_batch.root();
    for (name, permissions) in [("closed", 0o600), ("moved", 0o600), ("opened", 0o644)] {
        let found = of_batch.lookup(&Context::OWN, root, name.as_bytes()).unwrap().unwrap();
        chmod(&of_batch, found.into_attributes().node, permissions).unwrap();
    }
    of_batch.rename(&Context::OWN, root, b"moved", root, b"new-name", Rename::Replace).unwrap();
    let touched = of_batch.lookup(&Context::OWN, root, b"touched").unwrap().unwrap().into_attributes().node;
    let change = Change { modified: Some(NOW), ..Change::default() };
    Writable::change(&of_batch, &Context::OWN, touched, &change).unwrap();
    assert_eq!(by_other(), [true, true, false, true], "the batch may be discarded");
    // The batch does not undo a change of the image.
    chmod(&fs, nodes[3], 0o600).unwrap();
    let data = fixture.dir().data_of(9).unwrap();
    // A submission is repeated after an error.
    for _ in 0..2 {
        let changed = data.restrict_earlier(&batch.read().unwrap()).unwrap();
        assert_eq!((by_other(), changed.len()), ([false; 4], 1));
    }
    let changed = data.restrict_earlier(&batch.read().unwrap()).unwrap();
    data.extend_earlier(&changed).unwrap();
    assert_eq!(by_other(), [false, false, true, false]);
    // The lists of the files of the batch itself change at once.
    let own = create(&of_batch, "new", 0o600, USER);
    let path = fixture.store().join(format!("incoming/9/{:02x}/{:x}", own.0 % 256, own.0));
    assert!(!can_read(OTHER, &path));
    chmod(&of_batch, own, 0o644).unwrap();
    assert!(can_read(OTHER, &path));
}
