//! Log mounts across users and PID namespaces: root's mount and tools on a store whose owner
//! exchanges names continuously, and repairs by a process in a PID namespace in which the writing
//! process is not visible.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::log::{CONTAINERS, Fixture, walk};
use crate::stage::{Ended, Stage, eventually, is_root, words};
use crate::{log_fixture, skip};

/// Any users except root.
const USER: u32 = 4242;
const OTHER: u32 = 4343;
const ROUNDS: u32 = 60;
const SECRET: &[u8] = b"of root alone, and longer than the head of a log, which has 64 bytes";

/// Changes this thread to an ordinary user. The thread cannot change back.
fn become_user(uid: u32) {
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(Gid::from_raw(uid), Gid::from_raw(uid), Gid::from_raw(uid)).unwrap();
    set_thread_res_uid(Uid::from_raw(uid), Uid::from_raw(uid), Uid::from_raw(uid)).unwrap();
}

pub fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    let run = move || {
        become_user(uid);
        act()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

fn owner_and_mode(path: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.mode() & 0o7777)
}

/// Replaces names in the container and names of its logs by `secret`, which lies in a directory of
/// the user, or by links to it, and restores them, until `is_over` is set.
fn exchange_names(store: &Path, secret: &Path, is_over: &AtomicBool, exchanged: &AtomicU64) {
    let container = store.join("f.container");
    let exchange = |name: &Path| renameat_with(CWD, secret, CWD, name, RenameFlags::EXCHANGE);
    while !is_over.load(Ordering::Relaxed) {
        let mut names = vec![container.join("access")];
        let Ok(entries) = fs::read_dir(&container) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("flat-") || name.starts_with("epoch-") {
                names.push(entry.path());
            }
        }
        // Logs of writers that have just created their `open` name.
        for entry in fs::read_dir(container.join("meta")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(writer) = name.strip_prefix("open-").and_then(|rest| rest.get(..16)) else { continue };
            let Ok(number) = u64::from_str_radix(writer, 16) else { continue };
            let logs = container.join(format!("logs-{:x}", number % 32));
            let _ = fs::create_dir(&logs);
            for kind in ["data", "index"] {
                let log = logs.join(format!("{writer}.{kind}"));
                let linked = fs::hard_link(secret, &log).or_else(|_| symlink(secret, &log));
                exchanged.fetch_add(u64::from(linked.is_ok()), Ordering::Relaxed);
            }
        }
        for name in names {
            if exchange(&name).is_ok() {
                exchanged.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
                let _ = exchange(&name);
            }
        }
    }
}

/// Sends a line to a shell that waits for it, and returns the line that it answers.
fn next_step(shell: &mut std::process::Child, answers: &mut impl BufRead) -> String {
    shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    line
}

#[test]
fn a_user_whose_permission_was_revoked_disturbs_no_other_user_of_the_file() {
    let fixture = log_fixture!();
    if !is_root() {
        skip!("only root can be two users");
    }
    chown(&fixture.store, Some(USER), Some(USER)).unwrap();
    let mounted = fixture.mount();
    let path = mounted.point.join("f");
    let allow =
        |mode| as_user(USER, || fs::set_permissions(&path, fs::Permissions::from_mode(mode))).unwrap();
    as_user(USER, || fs::write(&path, "of the owner, ")).unwrap();
    allow(0o666);
    let script = r#"read line; exec 3>>"$0"; echo opened
                    read line; printf 'of another user' >&3; echo written $?
                    read line; exec 3>&-; echo closed $?"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(&path).uid(OTHER).gid(OTHER);
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut answers = BufReader::new(shell.stdout.take().unwrap());
    assert_eq!(next_step(&mut shell, &mut answers), "opened\n");
    allow(0o600);
    assert_eq!(next_step(&mut shell, &mut answers), "written 0\n");
    let expected = "of the owner, of another user";
    as_user(USER, || {
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        File::options().append(true).open(&path).unwrap().sync_all().unwrap();
    });
    assert_eq!(next_step(&mut shell, &mut answers), "closed 0\n");
    assert!(shell.wait().unwrap().success());
    assert_eq!(as_user(USER, || fs::read_to_string(&path)).unwrap(), expected);
    let refused = as_user(OTHER, || File::options().append(true).open(&path)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    drop(mounted);
    // A second mount reads the store alone.
    assert_eq!(fs::read_to_string(fixture.mount().point.join("f")).unwrap(), expected);
}

#[test]
fn no_exchange_of_names_in_a_users_store_makes_root_change_a_foreign_file() {
    let fixture = log_fixture!();
    if !is_root() {
        skip!("only root can be two users");
    }
    // A user may rename all entries of a directory of their own, also those of other owners.
    let theirs = fixture.stage.dir("theirs");
    let secret = theirs.join("secret");
    fs::write(&secret, SECRET).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&theirs, Some(USER), Some(USER)).unwrap();
    let kept = File::open(&secret).unwrap();
    chown(&fixture.store, Some(USER), Some(USER)).unwrap();
    let mounted = fixture.mount();
    let path = mounted.point.join("f");
    as_user(USER, || fs::write(&path, "bytes")).unwrap();
    // A file with the name and owner of the user's file, which `import` replaces with it.
    let plain = fixture.stage.dir("plain");
    fs::write(plain.join("f"), [9; 3000]).unwrap();
    chown(plain.join("f"), Some(USER), Some(USER)).unwrap();
    let tools = [
        words(&[&"fsck", &fixture.store, &"--repair", &"--older-than", &"0"]),
        words(&[&"flatten", &fixture.store]),
        words(&[&"rebalance", &fixture.store]),
        words(&[&"import", &plain, &fixture.store, &"--resume"]),
    ];
    let run_tool = |tool: &[OsString]| fixture.stage.run(fixture.stage.quell().arg("log").args(tool));
    for tool in &tools {
        run_tool(tool).expect(0);
    }
    let (is_over, exchanged) = (AtomicBool::new(false), AtomicU64::new(0));
    let expect_secret = |what: &str| {
        let mut bytes = vec![0; 2 * SECRET.len()];
        let length = kept.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..length], SECRET, "{what}");
        let found = kept.metadata().unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o600), "{what}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            become_user(USER);
            exchange_names(&fixture.store, &secret, &is_over, &exchanged);
        });
        let act = || {
            for round in 0..ROUNDS {
                // The result for the file does not matter, because its owner interferes.
                let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o666));
                let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o4755));
                let _ = as_user(USER, || fs::set_permissions(&path, fs::Permissions::from_mode(0o644)));
                if let Ok(file) =
                    File::options().write(true).create(true).truncate(round % 7 == 0).open(&path)
                {
                    let _ = file.write_all_at(&[round as u8; 5000], u64::from(round) * 4000);
                    let _ = file.sync_all();
                }
                expect_secret("the mount");
                if round % 3 == 0 {
                    let tool = &tools[(round / 3) as usize % tools.len()];
                    let ended = run_tool(tool);
                    assert_ne!(ended.code(), Some(2), "{tool:?} was not run: {}", ended.err);
                    expect_secret(&format!("{tool:?}"));
                }
            }
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        // Last, because a new owner takes the file away from the interfering user.
        let _ = chown(&path, Some(OTHER), Some(OTHER));
        is_over.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    assert!(exchanged.load(Ordering::Relaxed) > 0);
    // The owner may have prevented the creation of the last logs.
    mounted.umount_with_or_without_lost_data();
    expect_secret("the end");
    walk(&fixture.store, &mut |path| {
        let found = fs::symlink_metadata(path).unwrap();
        let is_program = found.is_file() && found.mode() & 0o4000 != 0;
        assert!(!(is_program && found.uid() == 0 && found.len() > 0), "{}", path.display());
    });
}

#[test]
fn roots_mount_gives_each_user_the_rights_of_that_user() {
    let fixture = log_fixture!();
    if !is_root() {
        skip!("only root can be two users");
    }
    let mounted = fixture.mount();
    let home = mounted.point.join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(USER), Some(USER)).unwrap();
    let path = home.join("f");
    as_user(USER, || {
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(b"bytes", 0).unwrap();
        file.sync_all().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        // An open file keeps the permissions with which it was opened.
        file.write_all_at(b"more", 5).unwrap();
        let mut bytes = [0; 9];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"bytesmore");
        fs::create_dir(home.join("dir")).unwrap();
        symlink("f", home.join("link")).unwrap();
        fs::rename(&path, home.join("g")).unwrap();
        fs::rename(home.join("g"), &path).unwrap();
    });
    walk(&fixture.store.join("home"), &mut |path| {
        assert_eq!(owner_and_mode(path).0, USER, "{}", path.display());
    });
    // Every user who can reach the name can read the attributes, but not the data.
    as_user(OTHER, || {
        assert_eq!(fs::metadata(&path).unwrap().len(), 9);
        assert!(File::open(&path).is_err());
        assert!(fs::write(home.join("theirs"), "x").is_err());
        assert!(fs::remove_file(&path).is_err());
        assert!(fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).is_err());
    });
    assert_eq!(fs::read(&path).unwrap(), b"bytesmore");
    // Root's own writes belong to the file's owner, and root may change the owner.
    File::options().write(true).open(&path).unwrap().write_all_at(b"root", 9).unwrap();
    chown(&path, Some(OTHER), Some(OTHER)).unwrap();
    assert_eq!(owner_and_mode(&path), (OTHER, 0o600));
    chown(&home, Some(OTHER), Some(OTHER)).unwrap();
    assert_eq!(as_user(OTHER, || fs::read(&path)).unwrap(), b"bytesmoreroot");
    as_user(OTHER, || fs::remove_file(&path)).unwrap();
    mounted.umount();
}

#[test]
fn a_group_is_inherited_and_supplementary_groups_count() {
    let fixture = log_fixture!();
    if !is_root() {
        skip!("only root can be two users");
    }
    let mounted = fixture.mount();
    let shared = mounted.point.join("shared");
    fs::create_dir(&shared).unwrap();
    chown(&shared, Some(OTHER), Some(777)).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o2770)).unwrap();
    let path = shared.join("f");
    std::thread::scope(|scope| {
        let run = || {
            set_thread_groups(&[Gid::from_raw(777)]).unwrap();
            set_thread_res_gid(Gid::from_raw(USER), Gid::from_raw(USER), Gid::from_raw(USER)).unwrap();
            set_thread_res_uid(Uid::from_raw(USER), Uid::from_raw(USER), Uid::from_raw(USER)).unwrap();
            fs::write(&path, "of the group").unwrap();
            fs::create_dir(shared.join("dir")).unwrap();
        };
        scope.spawn(run).join().unwrap();
    });
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.gid()), (USER, 777));
    let found = fs::metadata(shared.join("dir")).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o2000), (USER, 777, 0o2000));
    mounted.umount();
}

// --- writers in other PID namespaces -------------------------------------------------------------

/// Returns a `quell` command in a new PID namespace, where the processes of this one are not
/// visible, or `None` if this user cannot create one.
fn quell_in_other_pid_namespace(stage: &Stage, options: &[&str]) -> Option<Command> {
    let mut command = stage.command("unshare");
    if !is_root() {
        command.args(["--user", "--map-current-user"]);
    }
    command.args(["--pid", "--fork"]).args(options).arg("--");
    let mut probe = Command::new("unshare");
    probe.args(command.get_args()).arg("true");
    match probe.output() {
        Ok(ended) if ended.status.success() => {
            command.arg(crate::stage::quell());
            Some(command)
        }
        _ => None,
    }
}

fn logs_of(fixture: &Fixture) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    walk(&fixture.store, &mut |path| {
        if path.extension().is_some_and(|kind| kind == "data") {
            found.push((path.to_owned(), fs::metadata(path).unwrap().len()));
        }
    });
    found
}

#[test]
fn a_writer_that_a_repair_cannot_see_is_alive_until_it_is_named_and_forced() {
    let fixture = log_fixture!();
    let mounted = fixture.mount_with(&[&fixture.store], CONTAINERS);
    let path = mounted.point.join("f");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    file.sync_all().unwrap();
    let before = logs_of(&fixture);
    let record = fixture.open_records().remove(0);
    // The host name, which the new namespaces do not change.
    let (_, node) = record.file_name().unwrap().to_str().unwrap().split_once('.').unwrap();
    for options in [
        &["--mount-proc"][..],
        &[],
        &["--mount-proc", "--uts"],
        &["--mount-proc", "--time", "--boottime", "1000000"],
    ] {
        let Some(mut command) = quell_in_other_pid_namespace(&fixture.stage, options) else {
            println!("SKIPPED: no unshare --pid {}", options.join(" "));
            continue;
        };
        command.args(["log", "fsck", "--repair"]).arg(&fixture.store);
        let unchanged = |ended: Ended| {
            assert!(ended.text().contains("1 open writer"), "{}", ended.text());
            assert_eq!(logs_of(&fixture), before);
            assert!(record.exists());
        };
        unchanged(fixture.stage.run(&mut command).expect(0));
        // This node runs, whatever the user states.
        unchanged(
            fixture.stage.run(command.args(["--retire", node])).expect(1).says("--retire does not apply"),
        );
    }
    file.write_all_at(&[2; 100_000], 100_000).unwrap();
    file.sync_all().unwrap();
    // `--force` and `--writer` are required together.
    let name = fixture.open_records().remove(0);
    let writer = name.file_name().unwrap().to_str().unwrap()["open-".len()..][..16].to_owned();
    let fsck = |options: &[&str]| {
        let mut command = fixture.stage.quell();
        fixture.stage.run(command.args(["log", "fsck", "--repair"]).arg(&fixture.store).args(options))
    };
    fsck(&["--retire", node]).expect(1).says("--retire does not apply to 1 open writer");
    assert!(fixture.open_records().len() == 1);
    fsck(&["--writer", &writer]).expect(2).says("--force");
    fsck(&["--force"]).expect(2).says("--writer");
    fsck(&["--force", "--writer", "00000000000000ff"]).expect(1).says("no file that was checked");
    assert!(fixture.open_records().len() == 1);
    fsck(&["--force", "--writer", &writer]).expect(0);
    assert!(fixture.open_records().is_empty());
    file.write_all_at(&[3; 100_000], 200_000).unwrap();
    for _ in 0..2 {
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    }
    drop(file);
    mounted.umount_with_lost_data("has ended writer");
    let again = fixture.mount();
    let bytes = fs::read(again.point.join("f")).unwrap();
    assert!(bytes == [vec![1; 100_000], vec![2; 100_000]].concat(), "{} bytes", bytes.len());
    again.umount();
}

#[test]
fn a_writer_that_names_no_namespace_counts_as_alive() {
    let fixture = log_fixture!();
    let mounted = fixture.mount_with(&[&fixture.store], CONTAINERS);
    fs::write(mounted.point.join("f"), "bytes").unwrap();
    mounted.umount();
    // A name of an earlier version, with this boot and node, and a process that no longer exists.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().replace('-', "");
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let add_record = |boot: &str| {
        let record = format!("open-00000000000000aa-1-0-0-0-0-0-3ffffff-1-{boot}.{name}");
        fs::write(fixture.store.join("f.container/meta").join(record), "").unwrap();
    };
    add_record(&boot);
    let fsck = |options: &[&str]| {
        let mut command = fixture.stage.quell();
        fixture.stage.run(command.args(["log", "fsck", "--repair"]).arg(&fixture.store).args(options))
    };
    assert!(fsck(&[]).expect(0).text().contains("1 open writer"));
    assert_eq!(fixture.open_records().len(), 1);
    fsck(&["--retire", &name]).expect(1).says("--retire does not apply");
    assert_eq!(fixture.open_records().len(), 1);
    fsck(&["--force", "--writer", "00000000000000aa"]).expect(0);
    assert_eq!(fixture.open_records().len(), 0);
    // The same node before its last boot.
    add_record(&"0".repeat(32));
    assert!(fsck(&[]).expect(0).text().contains("1 open writer"));
    fsck(&["--retire", &name]).expect(0);
    assert_eq!(fixture.open_records().len(), 0);
}

/// The set-id bits of a program must not survive a change of its content by a user who does not own
/// it.
#[test]
fn a_write_truncation_or_change_of_owner_clears_set_id_bits() {
    let fixture = log_fixture!();
    if !is_root() {
        skip!("only root can be two users");
    }
    let mounted = fixture.mount();
    let path = mounted.point.join("program");
    let mode = || owner_and_mode(&path).1;
    let begin_with = |permissions: u32, owner: u32| {
        let _ = fs::remove_file(&path);
        fs::write(&path, [7; 9000]).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(permissions)).unwrap();
        assert_eq!(mode(), permissions);
    };
    let open = || File::options().write(true).open(&path);
    for (before, after) in [(0o6777, 0o777), (0o2766, 0o2766), (0o4766, 0o766)] {
        for owner in [0, USER, OTHER] {
            begin_with(before, owner);
            as_user(USER, || open().and_then(|file| file.write_all_at(b"changed", 0))).unwrap();
            assert_eq!(mode(), after, "write(2) by {USER} to a file of {owner} with {before:o}");
            begin_with(before, owner);
            as_user(USER, || open().and_then(|file| file.set_len(100))).unwrap();
            assert_eq!(mode(), after, "ftruncate(2) by {USER} of a file of {owner} with {before:o}");
            begin_with(before, owner);
            as_user(USER, || File::options().write(true).truncate(true).open(&path)).unwrap();
            assert_eq!(mode(), after, "O_TRUNC by {USER} of a file of {owner} with {before:o}");
        }
        begin_with(before, USER);
        as_user(USER, || chown(&path, Some(USER), Some(USER))).unwrap();
        assert_eq!(mode(), after, "chown(2) by {USER} of a file with {before:o}");
    }
    // Root has CAP_FSETID.
    begin_with(0o6777, USER);
    open().unwrap().write_all_at(b"changed", 0).unwrap();
    assert_eq!(mode(), 0o6777, "write(2) by root");
}

#[test]
fn a_write_through_another_mount_clears_set_id_bits_that_were_set_meanwhile() {
    let fixture = log_fixture!();
    if !is_root() {
        skip!("only root can be two users");
    }
    let (first, second) = (fixture.mount(), fixture.mount());
    let [path, other] = [&first, &second].map(|mounted| mounted.point.join("program"));
    fs::write(&path, [7; 9000]).unwrap();
    chown(&path, Some(OTHER), Some(OTHER)).unwrap();
    type Change = fn(&File) -> std::io::Result<()>;
    let changes: [(&str, Change); 2] =
        [("write(2)", |file| file.write_all_at(b"changed", 0)), ("ftruncate(2)", |file| file.set_len(100))];
    for (name, change) in changes {
        let set = |permissions| fs::set_permissions(&path, fs::Permissions::from_mode(permissions)).unwrap();
        set(0o777);
        let file = as_user(USER, || File::options().write(true).open(&other)).unwrap();
        set(0o6777);
        as_user(USER, || change(&file)).unwrap();
        drop(file);
        assert!(eventually(|| owner_and_mode(&path).1 == 0o777), "{name} through another mount");
    }
    // A later write of an open file, too.
    let file = as_user(USER, || File::options().write(true).open(&other)).unwrap();
    as_user(USER, || file.write_all_at(b"before", 0)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    as_user(USER, || file.write_all_at(b"after", 0).and_then(|()| file.sync_all())).unwrap();
    assert_eq!(owner_and_mode(&path).1, 0o777);
}

#[test]
fn a_file_that_was_given_away_has_no_set_id_bits() {
    let fixture = log_fixture!();
    if !is_root() {
        skip!("only root can be two users");
    }
    let mounted = fixture.mount();
    let path = mounted.point.join("program");
    fs::set_permissions(&mounted.point, fs::Permissions::from_mode(0o777)).unwrap();
    as_user(USER, || fs::write(&path, b"#!/bin/sh\n")).unwrap();
    chown(&path, Some(OTHER), Some(OTHER)).unwrap();
    as_user(OTHER, || fs::set_permissions(&path, fs::Permissions::from_mode(0o4755))).unwrap();
    // The logs belong to the former owner, who can replace the content in the store.
    assert_eq!(owner_and_mode(&path), (OTHER, 0o755));
    // The same program has the set-id bits if root writes it.
    let copy = mounted.point.join("copy");
    fs::write(&copy, b"#!/bin/sh\n").unwrap();
    chown(&copy, Some(OTHER), Some(OTHER)).unwrap();
    as_user(OTHER, || fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755))).unwrap();
    assert_eq!(owner_and_mode(&copy), (OTHER, 0o4755));
}
