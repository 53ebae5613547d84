//! A view gives a user no permission that the original does not give, regardless of the index's
//! owner, and no mixture of two versions of one file: see docs/security.md.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, Timestamps, XattrFlags};

use crate::skip;
use crate::stage::{Ended, Launch, Mounted, Stage, has, is_root, launches, views, words};
use crate::trust::as_member;

/// User ids without an account: the owner of trees, and a user of views.
const OWNER: u32 = 41_001;
const READER: u32 = 41_002;

/// Returns the mount options of the view at `point`, as programs in it see them.
fn mount_options(stage: &Stage, launch: Launch, index: &Path, tree: &Path) -> String {
    let script = "exec awk -v at=\"$1\" '$5 == at { line = $6 } END { print line }' /proc/self/mountinfo";
    stage
        .run_in_view(launch, index, tree, |root| words(&[&"sh", &"-c", &script, &"sh", &root]))
        .expect(0)
        .text()
}

/// Creates a file with set-id bits, one with a capability, and a null device.
fn create_privileged_entries(tree: &Path) {
    fs::write(tree.join("set-id"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(tree.join("set-id"), fs::Permissions::from_mode(0o6755)).unwrap();
    fs::write(tree.join("capable"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(tree.join("capable"), fs::Permissions::from_mode(0o755)).unwrap();
    // Revision 2, effective, CAP_SETUID.
    let capability = [0x0200_0001u32, 0x80, 0, 0, 0].map(u32::to_le_bytes).concat();
    rustix::fs::setxattr(tree.join("capable"), "security.capability", &capability, XattrFlags::empty())
        .unwrap();
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(CWD, tree.join("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), null)
        .unwrap();
    fs::set_permissions(tree.join("null"), fs::Permissions::from_mode(0o666)).unwrap();
}

const SHOW_PRIVILEGES: &str = "cd \"$1\" && stat -c '%n %a %F %s' set-id null && \
                    getfattr -h -m - --absolute-names capable 2>/dev/null | grep -c security.capability";

#[test]
fn every_view_is_nosuid_and_nodev_unless_root_passes_the_options() {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    fs::write(tree.join("file"), "x").unwrap();
    let index = stage.index(&tree);
    for launch in launches() {
        let options = mount_options(&stage, launch, &index, &tree);
        assert!(options.contains("nosuid") && options.contains("nodev"), "{launch:?}: {options}");
    }
    for view in views() {
        let script = "awk -v at=\"$1\" '$5 == at { line = $6 } END { print line }' /proc/self/mountinfo";
        let mut command = stage.quell_run(&index, view);
        command.args(["-q", "--strict", "--suid", "--dev", "--", "sh", "-c", script, "sh"]).arg(&tree);
        if !is_root() {
            stage.run(&mut command).expect(2).says("only root");
            continue;
        }
        let options = stage.run(&mut command).expect(0).text();
        assert!(!options.contains("nosuid") && !options.contains("nodev"), "{view}: {options}");
        let mut command = stage.quell_run(&index, view);
        command.args(["-q", "--strict", "--scratch", "--", "sh", "-c", script, "sh"]).arg(&tree);
        let options = stage.run(&mut command).expect(0).text();
        assert!(options.contains("nosuid") && options.contains("nodev"), "{view} --scratch: {options}");
    }
}

#[test]
fn an_index_that_is_not_roots_shows_no_set_id_bits_capabilities_and_devices() {
    if !is_root() {
        skip!("only root makes devices and gives files to other users");
    }
    let stage = Stage::new();
    let tree = stage.dir("tree");
    create_privileged_entries(&tree);
    chown(&tree, Some(OWNER), Some(OWNER)).unwrap();
    let of_root = stage.index(&tree);
    let of_owner = stage.index(&tree);
    chown(&of_owner, Some(OWNER), Some(OWNER)).unwrap();
    for launch in launches() {
        let look = |index| {
            stage
                .run_in_view(launch, index, &tree, |root| {
                    words(&[&"sh", &"-c", &SHOW_PRIVILEGES, &"sh", &root])
                })
                .text()
        };
        let seen = look(&of_root);
        assert_eq!(seen, "set-id 6755 regular file 10\nnull 666 character special file 0\n1\n", "{launch:?}");
        let seen = look(&of_owner);
        assert_eq!(seen, "set-id 755 regular file 10\nnull 0 regular empty file 0\n0\n", "{launch:?}");
    }
    for view in views() {
        for option in ["--suid", "--dev"] {
            let mut command = stage.quell_run(&of_owner, view);
            stage.run(command.args(["--strict", option, "--", "true"])).expect(2).says("belongs to root");
        }
    }
}

/// Replaces a file by another with the same size and modification time, as `mv` does.
fn replace(from: &Path, to: &Path) {
    let time = fs::metadata(to).unwrap();
    let time = rustix::fs::Timespec { tv_sec: time.mtime(), tv_nsec: time.mtime_nsec() };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, from, &times, rustix::fs::AtFlags::empty()).unwrap();
    fs::rename(from, to).unwrap();
}

/// Runs a command as the user of views.
fn as_reader(stage: &Stage, program: &[&OsStr]) -> Ended {
    let mut command = stage.command("setpriv");
    let ids = [format!("--reuid={READER}"), format!("--regid={READER}")];
    stage.run(command.args(ids).arg("--clear-groups").args(program))
}

/// Records the first block of a disk image, and mounts the image.
fn try_mount_image(stage: &Stage, disk: &Path, options: &[&str]) -> (Ended, PathBuf) {
    let (boot, point) = (stage.path("vm.boot"), stage.dir("point"));
    let mut record = stage.quell();
    record.args(["record", "-q", "--force"]).args(options).arg("--image").arg(disk).arg("-o").arg(&boot);
    let recorded = stage.run(record.args(["--", "head", "-c", "4096"]).arg(disk));
    if recorded.code() != Some(0) {
        return (recorded, point);
    }
    let mut mount = stage.quell();
    mount.args(["mount", "-q"]).args(options).args(["--image", "-b"]).arg(&boot).arg(disk).arg(&point);
    (stage.run(&mut mount), point)
}

fn mount_image<'a>(stage: &'a Stage, disk: &Path, options: &[&str]) -> Mounted<'a> {
    let (ended, point) = try_mount_image(stage, disk, options);
    ended.expect(0);
    Mounted::at(stage, point)
}

#[test]
fn roots_mount_of_a_disk_image_shows_other_users_only_what_they_may_read() {
    if !is_root() {
        skip!("a user's own view reads with that user's rights");
    }
    let stage = Stage::new();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let bytes = |path: &Path| as_reader(&stage, &[OsStr::new("head"), "-c4".as_ref(), path.as_ref()]);
    let refused = |path: &Path, why: &str| {
        let ended = bytes(path);
        assert_eq!((ended.text(), ended.code()), (String::new(), Some(1)), "{why}");
        assert!(ended.err.contains("Permission denied"), "{why}: {}", ended.err);
    };
    let (private, public) = (stage.dir("private"), stage.dir("public"));
    let (secret, disk) = (private.join("secret.raw"), public.join("disk.raw"));
    for file in [&secret, &disk] {
        fs::write(file, b"data".repeat(4096)).unwrap();
        set(file, 0o644);
    }
    set(&private, 0o700);
    set(&public, 0o755);

    // The directory of the original denies access.
    let mounted = mount_image(&stage, &secret, &[]);
    let shown = mounted.point.join("secret.raw");
    let metadata = fs::metadata(&shown).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o400, 0));
    refused(&shown, "a file in a private directory");
    assert_eq!(fs::read(&shown).unwrap()[..4], *b"data");
    mounted.umount();

    // Permissions that are removed after the mount, of the file and of its directory.
    let mounted = mount_image(&stage, &disk, &[]);
    let shown = mounted.point.join("disk.raw");
    for (path, without, with) in [(&disk, 0o600, 0o644), (&public, 0o700, 0o755)] {
        assert_eq!(bytes(&shown).expect(0).text(), "data");
        set(path, without);
        refused(&shown, "permissions were removed");
        set(path, with);
    }
    assert_eq!(bytes(&shown).expect(0).text(), "data");
    mounted.umount();
}

#[test]
fn a_backing_file_is_not_reached_through_another_users_symbolic_link() {
    if !is_root() {
        skip!("giving files away needs root");
    }
    if !has("qemu-img") {
        skip!("QEMU's program qemu-img (qemu-utils) is not installed");
    }
    let stage = Stage::new();
    let (private, theirs) = (stage.dir("private"), stage.dir("theirs"));
    fs::write(private.join("secret.raw"), vec![7; 1 << 20]).unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
    let (top, base) = (theirs.join("top.qcow2"), theirs.join("base.raw"));
    std::os::unix::fs::symlink("../private/secret.raw", &base).unwrap();
    let mut create = stage.command("qemu-img");
    create.args(["create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", "base.raw"]).arg(&top).arg("1M");
    stage.run(&mut create).expect(0);
    chown(&top, Some(READER), Some(READER)).unwrap();
    std::os::unix::fs::lchown(&base, Some(READER), Some(READER)).unwrap();
    let owner = READER.to_string();
    let refused = |why: &str| {
        let (ended, _) = try_mount_image(&stage, &top, &[]);
        ended.expect(2).says(why).says(base.to_str().unwrap()).says(&format!("--trust-owner {owner}"));
    };
    refused("symbolic link");
    // Even if that user is trusted, only root may read the file.
    let mounted = mount_image(&stage, &top, &["--trust-owner", &owner]);
    let shown = mounted.point.join("base.raw");
    as_reader(&stage, &[OsStr::new("cat"), shown.as_ref()]).expect(1).says("Permission denied");
    mounted.umount();
    // A backing file of a third user.
    fs::remove_file(&base).unwrap();
    fs::write(&base, vec![7; 1 << 20]).unwrap();
    chown(&base, Some(OWNER), Some(OWNER)).unwrap();
    let (ended, _) = try_mount_image(&stage, &top, &[]);
    ended.expect(2).says("belongs to user").says(&format!("--trust-owner {OWNER}"));
    // A backing file of the owner of the disk image.
    chown(&base, Some(READER), Some(READER)).unwrap();
    mount_image(&stage, &top, &[]).umount();
}

#[test]
fn a_private_file_that_replaces_a_public_one_is_not_shown() {
    if !is_root() {
        skip!("a user's own view reads with that user's rights");
    }
    let stage = Stage::new();
    for view in views() {
        for on_change in ["refuse", "serve", "ignore"] {
            let tree = stage.dir(&format!("{view}-{on_change}"));
            fs::create_dir(tree.join("open")).unwrap();
            for name in ["file", "closed", "open/file", "kept"] {
                fs::write(tree.join(name), "public\n").unwrap();
            }
            chown(tree.join("kept"), Some(OWNER), Some(OWNER)).unwrap();
            let index = stage.index(&tree);
            let mounted = stage.mount(&index, view, &["-q", "--on-change", on_change, "--recheck", "0"]);
            for (name, owner, mode) in [("file", 0, 0o600), ("closed", OWNER, 0o640)] {
                let secret = stage.file("secret", "secret\n");
                fs::set_permissions(&secret, fs::Permissions::from_mode(mode)).unwrap();
                chown(&secret, Some(owner), Some(owner)).unwrap();
                replace(&secret, &tree.join(name));
            }
            // A file that all users may read may be in a directory that they may not search.
            fs::set_permissions(tree.join("open"), fs::Permissions::from_mode(0o700)).unwrap();
            for name in ["file", "closed", "open/file"] {
                let mut command = Command::new("setpriv");
                let ids = [format!("--reuid={READER}"), format!("--regid={READER}")];
                command.args(ids).args(["--clear-groups", "cat"]).arg(mounted.point.join(name));
                let ended = stage.run(&mut command);
                assert_eq!(
                    (ended.text(), ended.code()),
                    (String::new(), Some(1)),
                    "{view} {on_change} {name}"
                );
            }
            assert_eq!(fs::read_to_string(mounted.point.join("kept")).unwrap(), "public\n");
            mounted.umount();
        }
    }
}

/// The table of docs/semantics.md, "Differences in a user namespace".
#[test]
fn a_users_view_cannot_give_files_to_supplementary_groups() {
    if !is_root() {
        skip!("only root can look as another user");
    }
    const GROUP: u32 = 41_003;
    let stage = Stage::new();
    let tree = stage.dir("tree");
    fs::write(tree.join("file"), "x").unwrap();
    let index = stage.index(&tree);
    let own = stage.dir("own");
    chown(&own, Some(READER), Some(READER)).unwrap();
    let of_group = stage.file("of-group", "of the group");
    chown(&of_group, Some(OWNER), Some(GROUP)).unwrap();
    fs::set_permissions(&of_group, fs::Permissions::from_mode(0o640)).unwrap();
    let script = r#"touch given; chgrp "$1" given 2>&1; cat "$0"; stat -c ' %u %g' "$0"
        cp -p "$0" copied && echo copied; setpriv --clear-groups true 2>&1"#;
    let begin = |in_view: bool| {
        let mut command = as_member(&stage, READER, &format!("--groups={GROUP}"));
        match in_view {
            true => command.args(["run", "-q", "--strict", "-i"]).arg(&index).arg("--"),
            false => {
                let without = command.get_args().take(6).map(OsStr::to_owned).collect::<Vec<_>>();
                command = stage.command("setpriv");
                command.args(without)
            }
        };
        command.args(["sh", "-c", script]).arg(&of_group).arg(GROUP.to_string());
        stage.run(command.current_dir(&own).env("LC_ALL", "C"))
    };
    let groups = || ["given", "copied"].map(|name| fs::metadata(own.join(name)).unwrap().gid());
    let outside = begin(false);
    assert_eq!(groups(), [GROUP, GROUP], "{}", outside.err);
    fs::remove_file(own.join("given")).unwrap();
    fs::remove_file(own.join("copied")).unwrap();
    let shown = begin(true).text();
    assert!(shown.contains("given': Invalid argument\n"), "{shown}");
    assert!(shown.contains("of the group 65534 65534\ncopied\n"), "{shown}");
    assert!(shown.contains("setgroups failed: Operation not permitted"), "{shown}");
    assert_eq!(groups(), [READER, READER]);
}

#[test]
fn root_mounts_a_tree_with_private_files_by_fuse() {
    if !is_root() {
        skip!("a user's own view reads with that user's rights");
    }
    if !views().contains(&"overlay") {
        skip!("no overlay view");
    }
    let stage = Stage::new();
    let tree = stage.dir("tree");
    fs::write(tree.join("file"), "x").unwrap();
    let public = stage.index(&tree);
    fs::set_permissions(tree.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
    let private = stage.index(&tree);
    let point = stage.dir("point");
    let mut command = stage.quell();
    let refused = stage.run(command.args(["mount", "--view", "overlay"]).args([&private, &point])).expect(3);
    refused.says("not all of them are readable by every user");
    let view = |index: &PathBuf| {
        let mounted = stage.mount(index, "auto", &["-q", "--check", "none"]);
        let report = stage.run(stage.quell().args(["stats", "--json"]).arg(&mounted.point)).expect(0).json();
        mounted.umount();
        report[0]["trees"][0]["view"].clone()
    };
    assert_eq!(view(&private), "fuse");
    fs::set_permissions(tree.join("file"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(view(&public), "overlay");
}

#[test]
fn a_file_replaced_by_one_of_equal_size_and_time_is_not_mixed_with_it() {
    const BYTES: usize = 1 << 20;
    let stage = Stage::new();
    for launch in launches().into_iter().filter(|launch| *launch == Launch::Mount("fuse")) {
        // A copy is compared with the file that was opened first, because the index does not have
        // its inode numbers.
        for (kind, on_change) in
            [("home", "refuse"), ("home", "serve"), ("copy", "refuse"), ("copy", "serve")]
        {
            let name = format!("{kind}-{on_change}");
            let tree = stage.dir(&name);
            let file = tree.join("file");
            fs::write(&file, vec![b'1'; BYTES]).unwrap();
            let index = stage.index(&tree);
            let (mut tree, mut options) = (tree, vec!["-q", "--on-change", on_change, "--recheck", "0"]);
            let copy = stage.path(format!("{name}-elsewhere"));
            if kind == "copy" {
                stage.sh("cp -a \"$1\" \"$2\"", &[&tree, &copy]).expect(0);
                tree = copy.clone();
                options.extend(["--source", copy.to_str().unwrap()]);
            }
            let file = tree.join("file");
            let mounted = stage.mount(&index, launch.view(), &options);
            let shown = mounted.point.join("file");
            let old = File::open(&shown).unwrap();
            let mut first = [0; 4096];
            old.read_exact_at(&mut first, 0).unwrap();
            replace(&stage.file("another", vec![b'2'; BYTES]), &file);
            let all_is = |bytes: &[u8], what: u8, when: &str| {
                let wrong = bytes.iter().position(|b| *b != what);
                assert_eq!((wrong, bytes.len()), (None, BYTES), "{name}: {when}");
            };
            let read = |mut file: &File| {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).unwrap();
                bytes
            };
            if on_change == "refuse" {
                let refused = File::open(&shown).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()), "{name}");
                all_is(&read(&old), b'1', "the old one");
                drop(old);
                mounted.umount();
                continue;
            }
            let new = File::open(&shown).unwrap();
            let mapped_new = map(&new, BYTES);
            let mapped_old = map(&old, BYTES);
            // Page by page, from both ends.
            for page in (0..BYTES).step_by(4096) {
                let back = BYTES - 4096 - page;
                assert_eq!((mapped_old[back], mapped_new[page]), (b'1', b'2'), "{name}: page {page}");
                let mut byte = [0];
                old.read_exact_at(&mut byte, page as u64).unwrap();
                assert_eq!(byte, *b"1", "{name}: page {page}");
            }
            all_is(&read(&new), b'2', "the new one");
            all_is(&read(&old), b'1', "the old one");
            all_is(&fs::read(&shown).unwrap(), b'2', "a later open");
            // The file is replaced once more, because the file system may now reuse an inode
            // number.
            replace(&stage.file("another", vec![b'3'; BYTES]), &file);
            all_is(&fs::read(&shown).unwrap(), b'3', "the third");
            drop((mapped_old, mapped_new));
            drop((old, new));
            mounted.umount();
        }
    }
}

#[test]
fn a_new_link_keeps_a_file_current_and_a_write_makes_it_stale() {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    let file = tree.join("file");
    fs::write(&file, "1").unwrap();
    let index = stage.index(&tree);
    if !launches().contains(&Launch::Mount("fuse")) {
        skip!("no fuse mount");
    }
    let mounted = stage.mount(&index, "fuse", &["-q", "--recheck", "0"]);
    let shown = mounted.point.join("file");
    fs::hard_link(&file, stage.path("link")).unwrap();
    assert_eq!(fs::read_to_string(&shown).unwrap(), "1");
    fs::remove_file(stage.path("link")).unwrap();
    // Written in place, with the modification time restored.
    let time = fs::metadata(&file).unwrap().modified().unwrap();
    fs::write(&file, "2").unwrap();
    File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), time);
    let refused = File::open(&shown).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()));
    mounted.umount();
    stage.run(stage.quell().args(["index", "-q", "--update"]).arg(&index)).expect(0);
    let mounted = stage.mount(&index, "fuse", &["-q", "--recheck", "0"]);
    assert_eq!(fs::read_to_string(mounted.point.join("file")).unwrap(), "2");
    mounted.umount();
}

#[test]
fn a_recorded_path_with_a_symbolic_link_is_covered_where_it_leads() {
    let stage = Stage::new();
    let tree = stage.dir("real/tree");
    fs::write(tree.join("file"), "x").unwrap();
    let index = stage.index(&tree);
    fs::rename(stage.path("real"), stage.path("moved")).unwrap();
    std::os::unix::fs::symlink("moved", stage.path("real")).unwrap();
    for view in views() {
        let mut command = stage.quell_run(&index, view);
        command.args(["-q", "--strict", "--", "awk", "{ print $5 }", "/proc/self/mountinfo"]);
        let text = stage.run(&mut command).expect(0).text();
        let moved = stage.path("moved/tree");
        assert!(text.lines().any(|line| Path::new(line) == moved), "{view}: {text}");
    }
}

/// A private mapping of a file for the duration of the test.
struct Mapping(&'static [u8]);

impl std::ops::Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[allow(unsafe_code)]
        // SAFETY: the mapping was created by `map` with this length, and its bytes are used only
        // through `self`.
        unsafe {
            rustix::mm::munmap(self.0.as_ptr().cast_mut().cast(), self.0.len()).unwrap()
        };
    }
}

fn map(file: &File, length: usize) -> Mapping {
    use rustix::mm::{MapFlags, ProtFlags};
    #[allow(unsafe_code)]
    // SAFETY: a new mapping at an address that the kernel chooses; the file has the length of the
    // mapping and is not truncated.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, file, 0)
            .unwrap();
        Mapping(std::slice::from_raw_parts(at.cast(), length))
    }
}
