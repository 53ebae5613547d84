//! Tests that root's mount and root's tools never change a file of a third user, even if the owner
//! of the store replaces names at any moment. The store belongs to user 1234 and lies on a real
//! file system. The tests need root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use quell_posix::{PosixDir, WritableDir};
use quell_testkit::{CountingDir, Operation};
use quell_vfs::{
    Caller, Change, Context, ErrorKind, FileSystem, LockMode, LockOwner, LockScope, NewEntry, NodeId,
    OpenMode, Time, Writable, WritableFile,
};

use crate::fs::file_system::LogFs;
use crate::session::Choices;
use crate::stores::{Host, Root, Stores, remove_shallow};
use crate::test_stores::host;
use crate::tools::fsck::{CheckOptions, RepairOutcome, check};
use crate::tools::progress::ToolProgress;

const USER: u32 = 1234;
const OTHER: u32 = 4321;
const SECRET: &[u8] = b"of root alone, and longer than the head of a log, which has 64 bytes";

/// A store of user `USER`, and a file of root that must not change.
struct UserStore {
    _temp: tempfile::TempDir,
    store: PathBuf,
    secret: PathBuf,
}

impl UserStore {
    /// Returns `None` without root, which is needed to act as several users.
    fn new() -> Option<UserStore> {
        if !quell_posix::has_root_power() {
            println!("SKIPPED: only root can be two users");
            return None;
        }
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (store, secret) = (temp.path().join("store"), temp.path().join("secret"));
        fs::create_dir(&store).unwrap();
        chown(&store, Some(USER), Some(USER)).unwrap();
        fs::write(&secret, SECRET).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        Some(UserStore { _temp: temp, store, secret })
    }

    /// Mounts the store. `made` is called with each number of a writer, file or container before
    /// the number is used.
    fn mount(&self, made: impl Fn(u64) + Send + Sync + 'static) -> LogFs {
        let before = host(7, 1);
        let random = before.random;
        let random = Box::new(move || {
            let number = random();
            made(number);
            number
        });
        let host = Host { uid: 0, gid: 0, random, ..host(7, 1) };
        let root: Arc<dyn WritableDir> = Arc::new(PosixDir::open_shared(&self.store).unwrap());
        LogFs::new(Stores::open(vec![root], host, 4).unwrap(), Choices::default())
    }

    /// Mounts the store. `hook` is called with each operation before it reaches the store.
    fn mount_with_hook(&self, hook: impl Fn(&Operation) + Send + Sync + 'static) -> LogFs {
        let host = Host { uid: 0, gid: 0, ..host(7, 1) };
        let root: Arc<dyn WritableDir> = Arc::new(PosixDir::open_shared(&self.store).unwrap());
        let root = Arc::new(CountingDir::with_hook(root, move |_, operation| hook(operation)));
        LogFs::new(Stores::open(vec![root], host, 4).unwrap(), Choices::default())
    }

    /// Mounts the store. `seed` gives the random numbers of the mount.
    fn mount_with(&self, seed: u64, choices: Choices) -> LogFs {
        let host = Host { uid: 0, gid: 0, ..host(seed, 1) };
        let root: Arc<dyn WritableDir> = Arc::new(PosixDir::open_shared(&self.store).unwrap());
        LogFs::new(Stores::open(vec![root], host, 4).unwrap(), choices)
    }

    fn container(&self) -> PathBuf {
        self.store.join("f.container")
    }

    #[track_caller]
    fn check_secret(&self) {
        assert_eq!(fs::read(&self.secret).unwrap(), SECRET);
        assert_eq!(owner_and_mode(&self.secret), (0, 0o600));
    }
}

fn owner_and_mode(path: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.mode() & 0o7777)
}

fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, groups: Vec::new() }
}

/// Writes a file as the user through root's mount, and returns its node.
fn write_as_user(fs: &LogFs, permissions: u32) -> NodeId {
    let caller = user(USER);
    let context = Context { caller: Some(&caller), ..Context::for_process(1) };
    let new = NewEntry { permissions, uid: USER, gid: USER };
    let (made, file) = fs.create(&context, fs.root(), b"f", new, OpenMode::READ_WRITE).unwrap();
    file.write_at(b"bytes", 0).unwrap();
    file.close().unwrap();
    made.into_attributes().node
}

fn modes(permissions: u32) -> Change {
    Change { permissions: Some(permissions), ..Change::default() }
}

fn owners(uid: u32) -> Change {
    Change { uid: Some(uid), gid: Some(uid), ..Change::default() }
}

#[test]
fn new_objects_belong_to_the_served_user_and_need_its_permissions() {
    let Some(user_store) = UserStore::new() else { return };
    let fs = user_store.mount(|_| {});
    write_as_user(&fs, 0o640);
    crate::test_stores::walk(&user_store.store, &mut |path| {
        assert_eq!(owner_and_mode(path).0, USER, "{}", path.display());
    });
    let other = user(OTHER);
    let context = Context { caller: Some(&other), ..Context::OWN };
    let new = NewEntry { permissions: 0o600, uid: OTHER, gid: OTHER };
    assert!(fs.create(&context, fs.root(), b"g", new, OpenMode::WRITE).is_err());
    assert!(fs.make_dir(&context, fs.root(), b"d", new).is_err());
    assert!(fs.remove(&context, fs.root(), b"f").is_err());
}

#[test]
fn a_file_that_a_user_puts_in_place_of_access_is_not_changed() {
    let Some(user_store) = UserStore::new() else { return };
    let (access, kept) = (user_store.container().join("access"), user_store.container().join("kept"));
    type Swap = fn(&Path, &Path);
    let swaps: [(&str, Swap); 3] = [
        ("hard link", |secret, access| fs::hard_link(secret, access).unwrap()),
        ("symbolic link", |secret, access| symlink(secret, access).unwrap()),
        ("root's file", |_, access| fs::write(access, b"root's").unwrap()),
    ];
    for caller in [None, Some(user(USER))] {
        let fs = user_store.mount(|_| {});
        let node = write_as_user(&fs, 0o640);
        for (what, swap) in swaps {
            fs::rename(&access, &kept).unwrap();
            swap(&user_store.secret, &access);
            let before = owner_and_mode(&access);
            for change in [modes(0o666), modes(0o4755)] {
                let context = Context { caller: caller.as_ref(), ..Context::OWN };
                // The result for the file does not matter.
                let _ = fs.change(&context, node, &change);
                user_store.check_secret();
                assert_eq!(owner_and_mode(&access), before, "{what}");
            }
            fs::remove_file(&access).unwrap();
            fs::rename(&kept, &access).unwrap();
        }
        fs.remove(&Context::OWN, fs.root(), b"f").unwrap();
    }
}

#[test]
fn an_open_file_does_not_become_a_set_id_program_of_the_new_owner() {
    let Some(user_store) = UserStore::new() else { return };
    let fs = user_store.mount(|_| {});
    let node = write_as_user(&fs, 0o640);
    let access = user_store.container().join("access");
    let (evil, also) = (user_store.store.join("evil"), user_store.store.join("also"));
    fs::write(&evil, b"#!/bin/sh").unwrap();
    chown(&evil, Some(USER), Some(USER)).unwrap();
    fs::hard_link(&evil, &also).unwrap();
    fs::rename(&evil, &access).unwrap();
    fs::remove_file(&also).unwrap();
    let inode = fs::metadata(&access).unwrap().ino();
    let kept = fs::File::open(&access).unwrap();
    fs.change(&Context::OWN, node, &owners(0)).unwrap();
    fs.change(&Context::OWN, node, &modes(0o4755)).unwrap();
    assert_eq!(owner_and_mode(&access), (0, 0o4755));
    let now = fs::metadata(&access).unwrap();
    assert!(now.ino() != inode && now.len() == 0, "it is a new file");
    let evil = kept.metadata().unwrap();
    assert_eq!((evil.uid(), evil.mode() & 0o6000), (USER, 0));
    assert_eq!(fs.attributes(&Context::OWN, node).unwrap().uid, 0);
}

#[test]
fn a_foreign_file_with_the_name_of_a_new_log_is_not_changed() {
    for link in [
        |from: &Path, to: &Path| drop(fs::hard_link(from, to)),
        |from: &Path, to: &Path| drop(symlink(from, to)),
    ] {
        let Some(user_store) = UserStore::new() else { return };
        let (container, secret) = (user_store.container(), user_store.secret.clone());
        let linked = Arc::new(Mutex::new(0));
        let count = Arc::clone(&linked);
        let fs = user_store.mount(move |number| {
            let logs = container.join(format!("logs-{:x}", number % 4));
            if container.exists() {
                let _ = fs::DirBuilder::new().mode(0o755).create(&logs);
                let _ = chown(&logs, Some(USER), Some(USER));
                link(&secret, &logs.join(format!("{number:016x}.data")));
                link(&secret, &logs.join(format!("{number:016x}.index")));
                *count.lock().unwrap() += 1;
            }
        });
        let new = NewEntry { permissions: 0o666, uid: USER, gid: USER };
        let mode = OpenMode::READ_WRITE;
        let (made, first) = fs.create(&Context::for_process(1), fs.root(), b"f", new, mode).unwrap();
        let writers = [first, fs.open_as(&Context::for_process(2), made.node(), mode).unwrap()];
        let mut refused = 0;
        for writer in &writers {
            let written = writer.write_at(b"bytes of the file", 0).and_then(|()| writer.sync());
            refused += u32::from(written.is_err());
            user_store.check_secret();
        }
        assert!(
            *linked.lock().unwrap() > 0 && refused > 0,
            "links were created, and an open of a log failed"
        );
        drop(writers);
        user_store.check_secret();
    }
}

/// Another mount of root gives the file to the user after `access`, and before the container.
#[test]
fn a_log_directory_that_is_created_while_the_owner_changes_belongs_to_the_new_owner() {
    let Some(user_store) = UserStore::new() else { return };
    chown(&user_store.store, Some(0), Some(0)).unwrap();
    let container = user_store.container();
    let to_user = |path: &Path| chown(path, Some(USER), Some(USER)).unwrap();
    let log_directory = Arc::new(Mutex::new(None));
    let found = Arc::clone(&log_directory);
    let fs = user_store.mount_with_hook(move |operation| {
        let name = Path::new(OsStr::from_bytes(&operation.path)).file_name().unwrap_or_default();
        let path = container.join(name);
        let mut found = found.lock().unwrap();
        let is_new = operation.verb == "stat" && name.as_bytes().starts_with(b"logs-") && path.exists();
        if is_new && found.is_none() {
            assert_eq!(owner_and_mode(&path).0, 0);
            to_user(&container);
            *found = Some(path);
        }
    });
    let new = NewEntry { permissions: 0o600, uid: 0, gid: 0 };
    let (_, file) = fs.create(&Context::OWN, fs.root(), b"f", new, OpenMode::READ_WRITE).unwrap();
    for name in ["meta", "access"] {
        to_user(&user_store.container().join(name));
    }
    file.write_at(b"data", 0).unwrap();
    file.sync().unwrap();
    let path = log_directory.lock().unwrap().take().expect("the container was given to the user");
    assert_eq!(fs::metadata(&path).unwrap().uid(), USER);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 2, "the data log and the index log");
}

/// Another mount, which could not give the new log directory to the new owner of the file, removes
/// it before this mount opens it, or before this mount creates a log in it.
#[test]
fn a_log_directory_that_another_mount_removes_is_created_again() {
    for verb in ["open directory", "create"] {
        let Some(user_store) = UserStore::new() else { return };
        let container = user_store.container();
        let removed = Arc::new(Mutex::new(None));
        let found = Arc::clone(&removed);
        let fs = user_store.mount_with_hook(move |operation| {
            let path = Path::new(OsStr::from_bytes(&operation.path));
            let name_of = |path: &Path| path.file_name().map(|name| container.join(name));
            let is_dir = verb == "open directory";
            let logs = if is_dir { Some(path) } else { path.parent() }.and_then(name_of);
            let Some(logs) = logs.filter(|logs| logs.to_string_lossy().contains("/logs-")) else { return };
            let mut found = found.lock().unwrap();
            if found.is_some() {
                return;
            }
            // The other mount has created the directory first.
            if is_dir && operation.verb == "make directory" {
                fs::DirBuilder::new().mode(0o755).create(&logs).unwrap();
            }
            if operation.verb == verb {
                fs::remove_dir(&logs).unwrap();
                *found = Some(logs);
            }
        });
        let new = NewEntry { permissions: 0o600, uid: USER, gid: USER };
        let (_, file) = fs.create(&Context::OWN, fs.root(), b"f", new, OpenMode::READ_WRITE).unwrap();
        file.write_at(b"data", 0).unwrap();
        file.sync().unwrap();
        let logs = removed.lock().unwrap().take().expect("it was removed");
        assert_eq!(fs::read_dir(&logs).unwrap().count(), 2, "{verb}: the data log and the index log");
    }
}

#[test]
fn a_directory_of_another_user_in_the_trash_keeps_its_content() {
    let Some(user_store) = UserStore::new() else { return };
    let fs = user_store.mount(|_| {});
    write_as_user(&fs, 0o640);
    fs::DirBuilder::new().mode(0o777).create(user_store.container().join("logs-9")).unwrap();
    let theirs = user_store.container().join("logs-9/their work");
    fs::write(&theirs, b"x").unwrap();
    for path in [theirs.parent().unwrap(), &theirs] {
        chown(path, Some(OTHER), Some(OTHER)).unwrap();
    }
    fs.remove(&Context::OWN, fs.root(), b"f").unwrap();
    drop(fs);
    let mut left = Vec::new();
    crate::test_stores::walk(&user_store.store.join(".quell/trash"), &mut |path| left.push(path.to_owned()));
    assert!(left.iter().any(|path| path.ends_with("logs-9/their work")), "{left:?}");
}

#[test]
fn a_check_removes_nothing_from_a_foreign_directory_in_new_or_trash() {
    let Some(user_store) = UserStore::new() else { return };
    drop(user_store.mount(|_| {}));
    for area in ["new", "trash"] {
        let theirs = user_store.store.join(".quell").join(area).join("0123456789abcdef0123456789abcdef");
        fs::DirBuilder::new().mode(0o1777).create(&theirs).unwrap();
        let names = ["thesis", "d41d8cd98f00b204e9800998ecf8427e"].map(|name| theirs.join(name));
        names.iter().for_each(|name| fs::write(name, b"x").unwrap());
        for path in names.iter().chain([&theirs]) {
            chown(path, Some(OTHER), Some(OTHER)).unwrap();
        }
        fs::set_permissions(&theirs, fs::Permissions::from_mode(0o1777)).unwrap();
        let root: Arc<dyn WritableDir> = Arc::new(PosixDir::open_shared(&user_store.store).unwrap());
        {
            let _user = quell_posix::assume(Some(Arc::new(user(OTHER)))).unwrap();
            let own = root.open_writable_dir(b".quell").unwrap();
            let area = own.open_writable_dir(area.as_bytes()).unwrap();
            assert!(remove_shallow(&*area, theirs.file_name().unwrap().as_encoded_bytes()).is_err());
        }
        let roots = vec![Root { dir: root, path: b"store".to_vec() }];
        let host = Host { uid: 0, gid: 0, ..host(7, 1) };
        let stores = Arc::new(Stores::open_existing(roots, host, 4).unwrap());
        let now = Time { seconds: i64::from(u32::MAX), nanoseconds: 0 };
        let options = CheckOptions {
            threads: 1,
            repair: true,
            dead_nodes: &[],
            dead_writers: &[],
            now,
            leftover_age_seconds: 0,
            is_in_use: &|_, _| false,
        };
        let checked = check(&stores, b"", &options, &ToolProgress::default()).unwrap();
        let outcomes: Vec<_> = checked.findings.iter().map(|finding| &finding.outcome).collect();
        assert!(matches!(outcomes[..], [RepairOutcome::Failed(_)]), "{outcomes:?}");
        names.iter().for_each(|name| assert!(name.exists(), "{}", name.display()));
        fs::remove_dir_all(theirs).unwrap();
    }
}

/// A file of `USER` that `OTHER` has open for writing, after `OTHER` lost the write permission.
struct RevokedFile {
    fs: LogFs,
    node: NodeId,
    of_owner: Box<dyn WritableFile>,
    of_other: Box<dyn WritableFile>,
}

impl RevokedFile {
    /// `OTHER` writes and publishes the bytes `before` before the permission is revoked.
    fn new(user_store: &UserStore, before: &[u8]) -> RevokedFile {
        let fs = user_store.mount(|_| {});
        let (owner, other) = (user(USER), user(OTHER));
        let context = |caller, process| Context { caller: Some(caller), ..Context::for_process(process) };
        let new = NewEntry { permissions: 0o666, uid: USER, gid: USER };
        let (made, of_owner) =
            fs.create(&context(&owner, 1), fs.root(), b"f", new, OpenMode::READ_WRITE).unwrap();
        let node = made.into_attributes().node;
        of_owner.write_at(b"of the owner", 0).unwrap();
        let of_other = fs.open_as(&context(&other, 2), node, OpenMode::READ_WRITE).unwrap();
        of_other.write_at(before, 20).unwrap();
        of_other.publish().unwrap();
        of_other.write_at(b"collected", 40).unwrap();
        fs.change(&context(&owner, 1), node, &modes(0o600)).unwrap();
        RevokedFile { fs, node, of_owner, of_other }
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        let length = self.of_owner.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(length);
        bytes
    }
}

#[test]
fn a_user_without_permission_any_more_disturbs_no_other_user_of_the_file() {
    for before in [&b""[..], b"published"] {
        for owner_is_first in [true, false] {
            let Some(user_store) = UserStore::new() else { return };
            let file = RevokedFile::new(&user_store, before);
            let mut expected = vec![0; 49];
            expected[..12].copy_from_slice(b"of the owner");
            expected[20..][..before.len()].copy_from_slice(before);
            expected[40..].copy_from_slice(b"collected");
            if owner_is_first {
                assert_eq!(file.content(), expected);
                file.of_owner.sync().unwrap();
            }
            // The other user's data is in the store, whether or not this fails.
            let _ = file.of_other.sync();
            assert_eq!(file.content(), expected);
            file.of_owner.publish().unwrap();
            file.of_other.close().unwrap();
            file.of_owner.sync().unwrap();
            file.of_owner.close().unwrap();
            drop(file);
            let fs = user_store.mount(|_| {});
            let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap();
            let mut bytes = [0; 100];
            let length = fs.open(&Context::OWN, node.node()).unwrap().read_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes[..length], expected);
        }
    }
}

#[test]
fn an_open_for_writing_needs_the_permission_in_the_store() {
    let Some(user_store) = UserStore::new() else { return };
    let file = RevokedFile::new(&user_store, b"x");
    let (owner, other) = (user(USER), user(OTHER));
    for mode in [OpenMode::WRITE, OpenMode::READ_WRITE] {
        let open = |caller| {
            let context = Context { caller: Some(caller), ..Context::for_process(3) };
            file.fs.open_as(&context, file.node, mode).map(|_| ())
        };
        assert_eq!(open(&other).unwrap_err().kind, ErrorKind::PermissionDenied);
        open(&owner).unwrap();
    }
}

#[test]
fn data_of_a_user_without_permission_any_more_removes_set_id_bits() {
    let Some(user_store) = UserStore::new() else { return };
    let file = RevokedFile::new(&user_store, b"");
    let owner = user(USER);
    let context = Context { caller: Some(&owner), ..Context::for_process(1) };
    file.fs.change(&context, file.node, &modes(0o4755)).unwrap();
    file.of_other.close().unwrap();
    file.of_owner.close().unwrap();
    assert_eq!(file.fs.attributes(&Context::OWN, file.node).unwrap().permissions, 0o755);
    assert_eq!(owner_and_mode(&user_store.container().join("access")), (USER, 0o755));
}

#[test]
fn attributes_of_an_open_file_that_was_removed_can_be_changed() {
    let cases = [false, true].into_iter().flat_map(|object| [(object, false), (object, true)]);
    for (seed, (begins_as_object, by_another_mount)) in (10..).zip(cases) {
        // A new store each time: the last change allows another user to create files.
        let Some(user_store) = UserStore::new() else { return };
        let choices = Choices { begins_as_object, ..Choices::default() };
        let (fs, other) = (user_store.mount_with(seed, choices), user_store.mount_with(seed + 100, choices));
        let caller = user(USER);
        let context = Context { caller: Some(&caller), ..Context::for_process(1) };
        let node = write_as_user(&fs, 0o640);
        let file = fs.open_as(&context, node, OpenMode::READ).unwrap();
        let remover = if by_another_mount { &other } else { &fs };
        remover.remove(&context, remover.root(), b"f").unwrap();
        let time = Time { seconds: 1_000_000_000, nanoseconds: 0 };
        for (context, change) in [
            (&context, modes(0o600)),
            (&context, Change { modified: Some(time), ..Change::default() }),
            (&Context::OWN, modes(0o644)),
            (&Context::OWN, owners(OTHER)),
        ] {
            let changed = fs.change(context, node, &change).map(|_| ());
            // Another mount has deleted the container. An object gets one to get another owner.
            if by_another_mount && !begins_as_object {
                assert!(changed.is_err());
                continue;
            }
            changed
                .unwrap_or_else(|error| panic!("{begins_as_object} {by_another_mount} {change:?}: {error}"));
            let found = file.attributes().unwrap();
            assert!(change.permissions.is_none_or(|permissions| found.permissions == permissions));
            assert!(change.modified.is_none_or(|modified| found.modified == modified));
            assert!(change.uid.is_none_or(|uid| found.uid == uid));
        }
    }
}

/// Only the owner of an object may create its container, in which locks are.
#[test]
fn a_user_who_may_only_read_an_object_can_lock_it_through_roots_mount() {
    let Some(user_store) = UserStore::new() else { return };
    let fs = user_store.mount_with(7, Choices { begins_as_object: true, ..Choices::default() });
    let node = write_as_user(&fs, 0o644);
    assert!(user_store.store.join("f.container").is_file());
    let other = user(OTHER);
    let context = Context { caller: Some(&other), ..Context::for_process(2) };
    let file = fs.open_as(&context, node, OpenMode::READ).unwrap();
    let locks = file.locks().unwrap();
    let (owner, scope) = (LockOwner(1), LockScope::ALL_BYTES);
    // A question creates nothing.
    assert_eq!(locks.conflicting(owner, scope, LockMode::Shared).unwrap(), None);
    let parts = user_store.store.join(".quell/parts");
    assert_eq!(fs::read_dir(&parts).unwrap().count(), 0);
    assert!(locks.try_lock(owner, scope, LockMode::Shared).unwrap());
    // The other user gets no other permission by this.
    crate::test_stores::walk(&user_store.store, &mut |path| {
        assert_eq!(owner_and_mode(path).0, USER, "{}", path.display());
    });
    assert!(fs.open_as(&context, node, OpenMode::WRITE).is_err());
    locks.unlock(owner, scope).unwrap();
    assert_eq!(fs::read_dir(&parts).unwrap().count(), 1);
}

/// Before the first mount, an administrator has created a directory of the user in the store.
#[test]
fn a_user_creates_files_in_a_directory_that_was_prepared_in_the_store() {
    let Some(user_store) = UserStore::new() else { return };
    chown(&user_store.store, Some(0), Some(0)).unwrap();
    let fs = user_store.mount_with(7, Choices::default());
    let home = user_store.store.join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(USER), Some(USER)).unwrap();
    let parts = user_store.store.join(".quell/parts");
    assert_eq!(owner_and_mode(&parts), (0, 0o755));
    let caller = user(USER);
    let context = Context { caller: Some(&caller), ..Context::for_process(1) };
    let dir = fs.lookup(&context, fs.root(), b"home").unwrap().unwrap().into_attributes().node;
    let new = NewEntry { permissions: 0o644, uid: USER, gid: USER };
    let (_, file) = fs.create(&context, dir, b"f", new, OpenMode::READ_WRITE).unwrap();
    file.write_at(b"bytes", 0).unwrap();
    file.close().unwrap();
    assert_eq!(owner_and_mode(&parts), (0, 0o1777));
}

/// On MooseFS, a process that creates `access` gives it its name with link(2), and removes its
/// temporary name afterwards. Another process may lock the file between the two, or the creator may
/// be killed there.
#[test]
fn a_file_can_be_locked_while_its_container_has_a_temporary_name_of_access() {
    let Some(user_store) = UserStore::new() else { return };
    let fs = user_store.mount_with(7, Choices { begins_as_object: true, ..Choices::default() });
    let node = write_as_user(&fs, 0o644);
    let (owner, scope) = (LockOwner(1), LockScope::ALL_BYTES);
    let lock = |fs: &LogFs, node| {
        let caller = user(USER);
        let context = Context { caller: Some(&caller), ..Context::for_process(2) };
        let file = fs.open_as(&context, node, OpenMode::READ_WRITE).unwrap();
        assert!(file.locks().unwrap().try_lock(owner, scope, LockMode::Exclusive).unwrap());
        file.locks().unwrap().unlock(owner, scope).unwrap();
    };
    lock(&fs, node);
    let container = fs::read_dir(user_store.store.join(".quell/parts")).unwrap().next().unwrap().unwrap();
    let access = container.path().join("access");
    let (temporary, other) = [1, 2].map(|n| user_store.store.join(format!(".quell/new/{n:032x}"))).into();
    fs::hard_link(&access, &temporary).unwrap();
    fs::write(&other, b"").unwrap();
    let second = user_store.mount_with(8, Choices::default());
    let found = second.lookup(&Context::OWN, second.root(), b"f").unwrap().unwrap();
    lock(&second, found.into_attributes().node);
    assert!(!temporary.exists() && other.exists());
    assert_eq!(fs::metadata(&access).unwrap().nlink(), 1);
}
