//! Tests the writing operations on the file system of temporary files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::*;
use crate::Dir;
use quell_vfs::{Time, errno};

/// Returns a directory, and the same directory opened through this crate.
fn test_directory() -> (tempfile::TempDir, Arc<dyn WritableDir>) {
    let temp = tempfile::tempdir().unwrap();
    let dir = Arc::new(PosixDir::open(temp.path()).unwrap());
    (temp, dir)
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().expect("an error").kind
}

fn fifo(path: impl AsRef<Path>) {
    rustix::fs::mknodat(CWD, path.as_ref(), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[test]
fn permissions_do_not_depend_on_the_umask() {
    let (temp, dir) = test_directory();
    for permissions in [0o666, 0o600, 0o777, 0o4711, 0o000] {
        let name = format!("{permissions:o}");
        dir.create_file(name.as_bytes(), permissions).unwrap();
        assert_eq!(mode(temp.path().join(&name)), permissions);
        let name = format!("dir-{permissions:o}");
        dir.make_dir(name.as_bytes(), permissions).unwrap();
        assert_eq!(mode(temp.path().join(&name)), permissions);
    }
}

#[test]
fn a_creation_keeps_the_permissions_that_another_thread_adds_meanwhile() {
    const FILES: u32 = 5000;
    let (temp, dir) = test_directory();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..FILES {
                let path = temp.path().join(number.to_string());
                let opened = std::iter::repeat_with(|| fs::File::open(&path)).find_map(|file| file.ok());
                opened.unwrap().set_permissions(fs::Permissions::from_mode(0o700)).unwrap();
                assert_eq!(mode(&path), 0o700);
            }
        });
        for number in 0..FILES {
            dir.create_file(number.to_string().as_bytes(), 0o600).unwrap();
        }
    });
    let names = (0..FILES).map(|number| number.to_string());
    assert_eq!(names.filter(|name| mode(temp.path().join(name)) != 0o700).count(), 0);
}

#[test]
fn directories_inherit_the_set_group_id_bit() {
    let (temp, dir) = test_directory();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o2777)).unwrap();
    dir.make_dir(b"below", 0o777).unwrap();
    assert_eq!(mode(temp.path().join("below")), 0o2777);
    dir.create_file(b"file", 0o666).unwrap();
    assert_eq!(mode(temp.path().join("file")), 0o666);
}

#[test]
fn creation_fails_on_an_existing_name_and_on_a_link() {
    let (temp, dir) = test_directory();
    dir.create_file(b"file", 0o600).unwrap();
    dir.make_dir(b"dir", 0o700).unwrap();
    symlink(temp.path().join("created-through-a-link"), temp.path().join("link")).unwrap();
    for name in [&b"file"[..], b"dir", b"link"] {
        assert_eq!(kind(dir.create_file(name, 0o600)), ErrorKind::Exists);
        assert_eq!(kind(dir.make_dir(name, 0o600)), ErrorKind::Exists);
        assert_eq!(kind(dir.make_symlink(name, b"x")), ErrorKind::Exists);
    }
    assert!(!temp.path().join("created-through-a-link").exists());
}

#[test]
fn only_regular_files_open_for_writing_without_blocking() {
    let (temp, dir) = test_directory();
    fs::write(temp.path().join("target"), b"safe").unwrap();
    symlink("target", temp.path().join("link")).unwrap();
    fifo(temp.path().join("fifo"));
    dir.make_dir(b"dir", 0o700).unwrap();
    symlink("dir", temp.path().join("dirlink")).unwrap();
    assert_eq!(kind(dir.open_writable_file(b"link")), ErrorKind::Os(errno::ELOOP));
    assert_eq!(kind(dir.open_writable_file(b"fifo")), ErrorKind::Os(errno::ENXIO));
    assert_eq!(kind(dir.open_writable_file(b"dir")), ErrorKind::IsADirectory);
    assert_eq!(kind(dir.open_writable_file(b"missing")), ErrorKind::NotFound);
    assert!(dir.open_writable_dir(b"dirlink").is_err());
    assert!(dir.enter_writable(b"dirlink").is_err());
    assert_eq!(kind(dir.open_writable_dir(b"target")), ErrorKind::NotADirectory);
}

#[test]
fn a_name_is_one_component() {
    let (temp, dir) = test_directory();
    dir.make_dir(b"dir", 0o700).unwrap();
    fs::write(temp.path().join("dir/file"), b"").unwrap();
    for name in [&b"dir/file"[..], b"..", b".", b"", b"a\0b"] {
        assert_eq!(kind(dir.remove(name)), ErrorKind::InvalidInput);
        assert_eq!(kind(dir.remove_dir(name)), ErrorKind::InvalidInput);
        assert_eq!(kind(dir.create_file(name, 0o600)), ErrorKind::InvalidInput);
        assert_eq!(kind(dir.make_dir(name, 0o600)), ErrorKind::InvalidInput);
        assert_eq!(kind(dir.make_symlink(name, b"x")), ErrorKind::InvalidInput);
        assert_eq!(kind(dir.open_writable_dir(name)), ErrorKind::InvalidInput);
        assert_eq!(kind(dir.open_writable_file(name)), ErrorKind::InvalidInput);
        assert_eq!(kind(dir.rename(name, &*dir, b"x", Rename::Replace)), ErrorKind::InvalidInput);
        assert_eq!(kind(dir.rename(b"dir", &*dir, name, Rename::Replace)), ErrorKind::InvalidInput);
    }
    assert_eq!(kind(dir.create_file(&[b'x'; 256], 0o600)), ErrorKind::NameTooLong);
    assert!(temp.path().join("dir/file").exists());
}

#[test]
fn names_are_removed_as_what_they_are() {
    let (temp, dir) = test_directory();
    dir.make_dir(b"full", 0o700).unwrap();
    let full = dir.open_writable_dir(b"full").unwrap();
    full.create_file(b"file", 0o600).unwrap();
    fs::write(temp.path().join("target"), b"").unwrap();
    symlink("target", temp.path().join("link")).unwrap();
    fifo(temp.path().join("fifo"));
    assert_eq!(kind(dir.remove_dir(b"full")), ErrorKind::NotEmpty);
    assert_eq!(kind(dir.remove(b"full")), ErrorKind::IsADirectory);
    assert_eq!(kind(dir.remove_dir(b"target")), ErrorKind::NotADirectory);
    assert_eq!(kind(dir.remove(b"missing")), ErrorKind::NotFound);
    dir.remove(b"link").unwrap();
    dir.remove(b"fifo").unwrap();
    full.remove(b"file").unwrap();
    dir.remove_dir(b"full").unwrap();
    assert_eq!(dir.names().unwrap(), [b"target"]);
}

#[test]
fn a_link_keeps_its_target_byte_for_byte() {
    let (_temp, dir) = test_directory();
    dir.make_symlink(b"link", b"\xff/../ \n").unwrap();
    assert_eq!(dir.read_link(b"link").unwrap(), b"\xff/../ \n");
}

#[test]
fn a_rename_replaces_keeps_or_exchanges() {
    let (temp, dir) = test_directory();
    let write = |name: &str| fs::write(temp.path().join(name), name).unwrap();
    let read = |name: &str| fs::read_to_string(temp.path().join(name)).unwrap();
    dir.make_dir(b"below", 0o700).unwrap();
    // A starting point that cannot be listed is sufficient.
    let below = dir.enter_writable(b"below").unwrap();
    write("a");
    write("b");
    dir.rename(b"a", &*dir, b"b", Rename::Replace).unwrap();
    assert_eq!((read("b").as_str(), temp.path().join("a").exists()), ("a", false));
    write("c");
    assert_eq!(kind(dir.rename(b"b", &*dir, b"c", Rename::Keep)), ErrorKind::Exists);
    dir.rename(b"b", &*below, b"b", Rename::Keep).unwrap();
    assert_eq!(read("below/b"), "a");
    below.rename(b"b", &*dir, b"c", Rename::Exchange).unwrap();
    assert_eq!((read("below/b").as_str(), read("c").as_str()), ("c", "a"));
    assert_eq!(kind(dir.rename(b"c", &*dir, b"missing", Rename::Exchange)), ErrorKind::NotFound);
    assert_eq!(kind(dir.rename(b"c", &*dir, b"below", Rename::Replace)), ErrorKind::IsADirectory);
    assert_eq!(kind(dir.rename(b"below", &*below, b"itself", Rename::Replace)), ErrorKind::InvalidInput);
    dir.make_dir(b"other", 0o700).unwrap();
    assert_eq!(kind(dir.rename(b"other", &*dir, b"below", Rename::Replace)), ErrorKind::NotEmpty);
}

#[test]
fn changes_affect_a_link_and_never_its_target() {
    let (temp, dir) = test_directory();
    fs::write(temp.path().join("target"), b"").unwrap();
    symlink("target", temp.path().join("link")).unwrap();
    let at = |name: &str| fs::symlink_metadata(temp.path().join(name)).unwrap();
    let before = at("target");

    let time = Time { seconds: -5, nanoseconds: 999_999_999 };
    dir.change(b"link", &Change { modified: Some(time), ..Change::default() }).unwrap();
    assert_eq!((at("link").mtime(), at("link").mtime_nsec()), (-5, 999_999_999));
    let permissions = Change { permissions: Some(0o640), ..Change::default() };
    assert_eq!(dir.change(b"link", &permissions).unwrap_err().errno(), errno::EOPNOTSUPP);
    let seen = at("target");
    assert_eq!((seen.mode(), seen.mtime()), (before.mode(), before.mtime()));

    let accessed = seen.atime_nsec();
    dir.change(b"target", &Change { modified: Some(time), ..permissions }).unwrap();
    let seen = at("target");
    assert_eq!((seen.mode() & 0o7777, seen.mtime(), seen.atime_nsec()), (0o640, -5, accessed));

    let size = Change { size_bytes: Some(0), ..Change::default() };
    assert_eq!(kind(dir.change(b"target", &size)), ErrorKind::InvalidInput);
    assert_eq!(kind(dir.change(b"missing", &permissions)), ErrorKind::NotFound);
}

#[test]
fn the_directory_itself_is_changed_by_the_empty_name() {
    let (temp, dir) = test_directory();
    dir.make_dir(b"dir", 0o755).unwrap();
    let time = Time { seconds: 1_000_000, nanoseconds: 7 };
    let change = Change { permissions: Some(0o710), modified: Some(time), ..Change::default() };
    for opened in [dir.open_writable_dir(b"dir").unwrap(), dir.enter_writable(b"dir").unwrap()] {
        fs::set_permissions(temp.path().join("dir"), fs::Permissions::from_mode(0o777)).unwrap();
        opened.change(b"", &change).unwrap();
        let seen = fs::metadata(temp.path().join("dir")).unwrap();
        assert_eq!((seen.mode() & 0o7777, seen.mtime(), seen.mtime_nsec()), (0o710, 1_000_000, 7));
        opened.sync().unwrap();
    }
}

#[test]
fn owners_change_before_permissions_and_not_for_link_targets() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: giving files away needs root");
    }
    let (temp, dir) = test_directory();
    dir.create_file(b"file", 0o755).unwrap();
    symlink("file", temp.path().join("link")).unwrap();
    let give =
        Change { permissions: Some(0o4755), uid: Some(12_345), gid: Some(23_456), ..Change::default() };
    dir.change(b"file", &give).unwrap();
    let owners = |name: &str| {
        let seen = fs::symlink_metadata(temp.path().join(name)).unwrap();
        (seen.uid(), seen.gid())
    };
    assert_eq!((owners("file"), mode(temp.path().join("file"))), ((12_345, 23_456), 0o4755));
    dir.change(b"link", &Change { gid: Some(7), ..Change::default() }).unwrap();
    assert_eq!((owners("link"), owners("file")), ((0, 7), (12_345, 23_456)));
}

#[test]
fn any_number_of_pieces_is_written_and_read() {
    let (temp, dir) = test_directory();
    let file = dir.create_file(b"file", 0o600).unwrap();
    // Lengths from 0 to 7. Many buffers are empty, including the first, the last, and all buffers
    // of some calls.
    let lengths = (0..5000).map(|n: usize| if (1024..3072).contains(&n) { 0 } else { n % 8 });
    let pieces: Vec<Vec<u8>> = lengths.enumerate().map(|(n, length)| vec![n as u8; length]).collect();
    let all = pieces.concat();
    let slices: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    file.write_pieces_at(&slices, 100).unwrap();
    assert_eq!(fs::read(temp.path().join("file")).unwrap(), [vec![0; 100], all.clone()].concat());

    for cut in [0, 1, 4000] {
        let mut back: Vec<Vec<u8>> = pieces.iter().map(|piece| vec![0xee; piece.len()]).collect();
        let mut into: Vec<&mut [u8]> = back.iter_mut().map(Vec::as_mut_slice).collect();
        assert_eq!(file.read_pieces_at(&mut into, 100 + cut as u64).unwrap(), all.len() - cut);
        assert_eq!(back.concat()[..all.len() - cut], all[cut..]);
    }
    assert_eq!(file.read_pieces_at(&mut [&mut [0; 3], &mut []], 100 + all.len() as u64).unwrap(), 0);
    assert_eq!(file.read_pieces_at(&mut [], 0).unwrap(), 0);
    file.write_pieces_at(&[], 0).unwrap();
}

#[test]
fn an_open_file_is_written_truncated_and_synced() {
    let (temp, dir) = test_directory();
    fs::write(temp.path().join("file"), b"0123456789").unwrap();
    let file = dir.open_writable_file(b"file").unwrap();
    file.write_at(b"xy", 9).unwrap();
    file.set_size(12).unwrap();
    file.sync().unwrap();
    dir.sync().unwrap();
    assert_eq!(fs::read(temp.path().join("file")).unwrap(), b"012345678xy\0");
    assert_eq!(file.stat().unwrap().size_bytes, 12);
    let mut buffer = [0; 4];
    assert_eq!(file.read_at(&mut buffer, 9).unwrap(), 3);
    assert_eq!(kind(file.set_size(u64::MAX)), ErrorKind::InvalidInput);
    assert_eq!(kind(file.write_at(b"x", i64::MAX as u64 + 1)), ErrorKind::InvalidInput);
}

/// The limit is that of a process, so a copy of this test program reaches it.
#[test]
fn data_is_written_back_without_a_free_descriptor() {
    const IS_COPY: &str = "QUELL_TEST_IS_COPY";
    if std::env::var_os(IS_COPY).is_some() {
        let (temp, dir) = test_directory();
        let file = dir.create_file(b"file", 0o600).unwrap();
        file.write_at(b"bytes", 0).unwrap();
        let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let others: Vec<_> =
            std::iter::repeat_with(|| fs::File::open("/dev/null")).map_while(|file| file.ok()).collect();
        file.write_back().unwrap();
        drop(others);
        file.write_back().unwrap();
        assert_eq!(fs::read(temp.path().join("file")).unwrap(), b"bytes");
        return;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let name = format!("{module}::data_is_written_back_without_a_free_descriptor");
    let mut copy = std::process::Command::new(std::env::current_exe().unwrap());
    let ended = copy.args(["--exact", &name, "--test-threads=1"]).env(IS_COPY, "1").output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && printed.contains("1 passed"), "{printed}");
}

#[test]
fn the_free_space_is_that_of_the_file_system_below() {
    let (_temp, dir) = test_directory();
    let space = dir.space().unwrap();
    assert!(space.total_bytes > 0 && space.available_bytes <= space.free_bytes, "{space:?}");
    assert!(space.free_bytes <= space.total_bytes && space.entries_free <= space.entries, "{space:?}");
}

#[test]
fn a_full_file_system_returns_enospc() {
    // Every write to this device fails as on a full disk. The crate itself opens no devices.
    let full = PosixFile {
        fd: fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into(),
        may_change: true,
    };
    assert_eq!(kind(full.write_at(b"x", 0)), ErrorKind::NoSpace);
    full.write_pieces_at(&[b"", b""], 0).unwrap();
}

/// Returns a shared directory of user 1234 if the test runs as root. The tests check the files that
/// root reaches through names in it.
fn of_another_user() -> Option<(tempfile::TempDir, std::path::PathBuf, PosixDir)> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can be two users");
        return None;
    }
    let temp = tempfile::tempdir().unwrap();
    let theirs = temp.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(1234), Some(1235)).unwrap();
    let dir = PosixDir::open_shared(&theirs).unwrap();
    Some((temp, theirs, dir))
}

fn owner_and_mode(path: &std::path::Path) -> (u32, u32) {
    use std::os::unix::fs::MetadataExt;
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.mode() & 0o7777)
}

#[test]
fn root_does_not_change_a_foreign_file_that_replaces_a_name() {
    let Some((temp, theirs, dir)) = of_another_user() else { return };
    let secret = temp.path().join("secret");
    fs::write(&secret, b"root's alone").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&secret, theirs.join("link")).unwrap();
    std::os::unix::fs::symlink(&secret, theirs.join("symlink")).unwrap();
    fs::write(theirs.join("moved"), b"root's, moved here").unwrap();
    fs::create_dir(theirs.join("dir")).unwrap();
    let opened = Change { permissions: Some(0o4777), ..Change::default() };
    let given = Change { uid: Some(1234), gid: Some(1235), ..Change::default() };
    let untouched = owner_and_mode(&theirs.join("moved"));
    for name in [&b"link"[..], b"symlink", b"moved", b"dir"] {
        assert!(dir.change(name, &opened).is_err(), "{}", name.escape_ascii());
        assert!(dir.change(name, &given).is_err(), "{}", name.escape_ascii());
        assert!(dir.open_writable_file(name).is_err(), "{}", name.escape_ascii());
    }
    assert_eq!(owner_and_mode(&secret), (0, 0o600));
    assert_eq!(owner_and_mode(&theirs.join("moved")), untouched);
    assert_eq!(owner_and_mode(&theirs.join("symlink")).0, 0);
    assert_eq!(owner_and_mode(&theirs.join("dir")), (0, 0o755));
}

#[test]
fn root_acts_with_the_credentials_of_the_directorys_owner() {
    let Some((_temp, theirs, dir)) = of_another_user() else { return };
    let file = dir.create_file(b"file", 0o640).unwrap();
    dir.make_dir(b"dir", 0o2750).unwrap();
    dir.make_symlink(b"link", b"anywhere").unwrap();
    assert_eq!(owner_and_mode(&theirs.join("file")), (1234, 0o640));
    assert_eq!(owner_and_mode(&theirs.join("dir")), (1234, 0o2750));
    assert_eq!(owner_and_mode(&theirs.join("link")).0, 1234);
    dir.change(b"file", &Change { permissions: Some(0o4755), ..Change::default() }).unwrap();
    assert_eq!(owner_and_mode(&theirs.join("file")), (1234, 0o4755));
    // A user's file must not become a set-user-id program of another user.
    let change = Change { uid: Some(0), permissions: Some(0o4755), ..Change::default() };
    assert!(dir.change(b"file", &change).is_err());
    assert_eq!(owner_and_mode(&theirs.join("file")), (1234, 0o4755));
    for name in [&b"file"[..], b"dir", b"link"] {
        let time = Time { seconds: 7, nanoseconds: 5 };
        dir.change(
            name,
            &Change { uid: Some(4321), gid: Some(4322), modified: Some(time), ..Change::default() },
        )
        .unwrap();
        assert_eq!((dir.stat(name).unwrap().uid, dir.stat(name).unwrap().modified), (4321, time));
    }
    file.change(&Change { uid: Some(0), permissions: Some(0o4711), ..Change::default() }).unwrap();
    assert_eq!(owner_and_mode(&theirs.join("file")), (0, 0o4711));
    // The directory's owner may not write to the file now, and neither may root on that owner's
    // behalf.
    assert!(dir.open_writable_file(b"file").is_err());
    dir.change(b"", &Change { uid: Some(0), permissions: Some(0o755), ..Change::default() }).unwrap();
    let file = dir.open_writable_file(b"file").unwrap();
    assert!(file.change(&Change { permissions: Some(0o666), ..Change::default() }).is_err());
    dir.remove_dir(b"dir").unwrap();
    assert_eq!(rustix::process::geteuid().as_raw(), 0);
}

#[test]
fn root_serves_a_user_with_that_users_permissions_only() {
    let Some((temp, theirs, dir)) = of_another_user() else { return };
    let secret = temp.path().join("secret");
    fs::write(&secret, b"root's alone").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&secret, theirs.join("link")).unwrap();
    let caller = |uid| Some(Arc::new(Caller { uid, gid: uid, groups: Vec::new() }));
    {
        let _caller = crate::assume(caller(1234)).unwrap();
        assert!(dir.change(b"link", &Change { permissions: Some(0o666), ..Change::default() }).is_err());
        assert!(dir.open_file(b"link").is_err());
        dir.create_file(b"file", 0o600).unwrap().write_at(b"x", 0).unwrap();
        dir.change(b"file", &Change { permissions: Some(0o640), ..Change::default() }).unwrap();
    }
    {
        let _caller = crate::assume(caller(4321)).unwrap();
        assert!(dir.create_file(b"other", 0o600).is_err());
        assert!(dir.remove(b"file").is_err());
    }
    assert_eq!(owner_and_mode(&theirs.join("file")), (1234, 0o640));
    assert_eq!(owner_and_mode(&secret), (0, 0o600));
}

#[test]
fn root_changes_a_child_of_its_own_directory_only_if_an_expected_user_owns_it() {
    let Some((temp, theirs, _)) = of_another_user() else { return };
    let ours = temp.path().join("ours");
    fs::create_dir(&ours).unwrap();
    fs::rename(&theirs, ours.join("child")).unwrap();
    let dir = PosixDir::open_shared(&ours).unwrap();
    let given = Change { uid: Some(4321), ..Change::default() };
    for owners in [&[][..], &[0, 4321]] {
        let refused = dir.change_of(b"child", owners, &given).unwrap_err();
        assert_eq!(refused.errno(), quell_vfs::errno::EPERM);
        assert_eq!(owner_and_mode(&ours.join("child")).0, 1234);
    }
    dir.change_of(b"child", &[4321, 1234], &given).unwrap();
    assert_eq!(owner_and_mode(&ours.join("child")).0, 4321);
}
