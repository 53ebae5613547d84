//! The oldest released files must remain readable. `fixtures/README.md` describes how they were
//! created.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

use crate::log_fixture;
use crate::stage::{Stage, checkout, difference};
use crate::trees::{set_mode, set_mtime};

fn fixture(name: &str) -> PathBuf {
    checkout().join("tests/system/fixtures").join(name)
}

/// Returns the summary that `quell show` prints for a fixture, after comparing its entries with the
/// list in the JSON file.
fn shown_as_recorded(version: u32) -> serde_json::Value {
    let stage = Stage::new();
    let file = fixture(&format!("index-v{version}.quell"));
    let expected = fs::read_to_string(fixture(&format!("index-v{version}.json"))).unwrap();
    let shown = stage.run(stage.quell().args(["show", "--json", "-r"]).arg(&file)).expect(0);
    assert_eq!(difference(&expected, &shown.text()), "");
    assert_eq!(expected, shown.text());
    let summary = stage.run(stage.quell().args(["show", "--json"]).arg(&file)).expect(0).json();
    assert_eq!(summary["format_version"], version);
    assert_eq!(summary["root"], "/srv/example");
    assert_eq!(summary["entries"], expected.lines().count());
    summary
}

#[test]
fn version_1_of_the_index_is_read() {
    assert_eq!(shown_as_recorded(1)["options"], serde_json::json!(["exclude *.pyc"]));
}

/// Copies a directory with its content.
fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => copy_tree(&path, &to),
            kind if kind.is_symlink() => {
                std::os::unix::fs::symlink(fs::read_link(&path).unwrap(), to).unwrap();
            }
            _ => drop(fs::copy(&path, to).unwrap()),
        }
    }
}

/// Copies a store among the fixtures, which lack its empty directories.
fn copy_store(name: &str, to: &Path) {
    copy_tree(&fixture(name), to);
    for empty in ["new", "parts", "trash"] {
        fs::create_dir_all(to.join(".quell").join(empty)).unwrap();
    }
}

/// The content of `dir/file` in the store of version 1.
fn checkpoint() -> Vec<u8> {
    let record = |number: u32| {
        let (n, writer) = (number / 2, number % 2);
        (0..1000).map(move |i| ((7 * i + n + 50 * writer) % 251) as u8)
    };
    (0..40).flat_map(record).collect()
}

#[test]
fn a_store_of_version_1_is_read_and_written_and_its_files_get_no_zeros() {
    let fixture = log_fixture!();
    copy_store("log-v1", &fixture.store);
    let mut cut = [b"x".repeat(100), vec![0; 100], b"end".to_vec()].concat();
    let mounted = fixture.mount();
    assert!(fs::read(mounted.point.join("link")).unwrap() == checkpoint());
    assert!(fs::read(mounted.point.join("cut")).unwrap() == cut);
    let file = File::options().write(true).open(mounted.point.join("cut")).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let refused = fallocate(&file, punch, 0, 50).unwrap_err();
    assert_eq!(refused.raw_os_error(), 95, "EOPNOTSUPP");
    file.write_all_at(b"later", 201).unwrap();
    drop(file);
    cut.truncate(201);
    cut.extend_from_slice(b"later");
    // A copy has the new version.
    fs::copy(mounted.point.join("cut"), mounted.point.join("copy")).unwrap();
    let file = File::options().write(true).open(mounted.point.join("copy")).unwrap();
    fallocate(&file, punch, 10, 150).unwrap();
    drop(file);
    mounted.umount();
    let mounted = fixture.mount();
    assert!(fs::read(mounted.point.join("cut")).unwrap() == cut);
    cut[10..160].fill(0);
    assert!(fs::read(mounted.point.join("copy")).unwrap() == cut);
    mounted.umount();
    let mut fsck = fixture.stage.quell();
    fixture.stage.run(fsck.args(["log", "fsck"]).arg(&fixture.store)).expect(0);
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_store_of_version_2_is_read_with_its_zeros() {
    let fixture = log_fixture!();
    copy_store("log-v2", &fixture.store);
    let mut expected = checkpoint();
    expected[5500..15_500].fill(0);
    let mounted = fixture.mount();
    assert!(fs::read(mounted.point.join("dir/file")).unwrap() == expected);
    mounted.umount();
    let exported = fixture.stage.dir("exported");
    let mut export = fixture.stage.quell();
    export.args(["log", "export"]).arg(&fixture.store).arg("dir/file").arg(&exported);
    fixture.stage.run(&mut export).expect(0);
    assert!(fs::read(exported.join("file")).unwrap() == expected);
    fixture.stage.expect_nothing_left();
}

/// Returns the bytes of the files in the store of version 3.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| ((7 * i + i / 4096) % 251) as u8).collect()
}

#[test]
fn a_store_of_version_3_is_read_and_written_with_its_objects() {
    let fixture = log_fixture!();
    copy_store("log-v3", &fixture.store);
    let (mut small, mut joined) = (pattern(20_000), pattern(12_000));
    joined[9000..].fill(b'x');
    joined[1000..1500].fill(0);
    let mounted = fixture.mount();
    let path = |name: &str| mounted.point.join(name);
    assert!(fs::read(path("small")).unwrap() == small);
    assert!(fs::read(path("dir/joined")).unwrap() == joined);
    assert_eq!(fs::read(path("empty")).unwrap(), b"");
    for name in ["small", "dir/joined", "empty"] {
        let file = File::options().write(true).open(path(name)).unwrap();
        file.write_all_at(b"later", 5).unwrap();
    }
    [&mut small, &mut joined].into_iter().for_each(|bytes| bytes[5..10].copy_from_slice(b"later"));
    mounted.umount();
    let mounted = fixture.mount();
    let path = |name: &str| mounted.point.join(name);
    assert!(fs::read(path("small")).unwrap() == small);
    assert!(fs::read(path("dir/joined")).unwrap() == joined);
    assert_eq!(fs::read(path("empty")).unwrap(), b"\0\0\0\0\0later");
    fs::remove_file(path("dir/joined")).unwrap();
    mounted.umount();
    let mut fsck = fixture.stage.quell();
    fixture.stage.run(fsck.args(["log", "fsck"]).arg(&fixture.store)).expect(0);
    assert_eq!(fixture.leftovers(), Vec::<PathBuf>::new());
    fixture.stage.expect_nothing_left();
}

/// Returns the boot image and the index of a version, and the tree that they describe.
fn boot_fixture(stage: &Stage, version: u32) -> (PathBuf, PathBuf, PathBuf) {
    let copied = |suffix: &str| {
        let bytes = fs::read(fixture(&format!("boot-v{version}.{suffix}"))).unwrap();
        stage.file(&format!("example.{suffix}"), bytes)
    };
    let tree = stage.dir("example");
    let large: Vec<u8> = (0..60 * 4096).map(|i| ((7 * i + i / 4096) % 251) as u8).collect();
    for (name, bytes) in [("small", b"small\n".as_slice()), ("large", &large)] {
        fs::write(tree.join(name), bytes).unwrap();
        set_mode(&tree.join(name), 0o644);
        set_mtime(&tree.join(name), 981_173_106, 500_000_000);
    }
    (copied("boot"), copied("quell"), tree)
}

/// Checks that a released boot image is read, and served with the generation of its index. The
/// files of the tree are of the same size and time as when it was recorded, and elsewhere.
fn serves_boot_image(version: u32) {
    let stage = Stage::new();
    let (image, index, tree) = boot_fixture(&stage, version);
    let shown = stage.run(stage.quell().args(["boot", "show", "--files", "--json"]).arg(&image)).expect(0);
    assert_eq!(shown.json()["unread_blocks"], if version < 3 { 0 } else { 56 });
    assert_eq!(crate::boot::files_of(&shown), [("large".into(), 4), ("small".into(), 1)]);
    stage.run(stage.quell().args(["boot", "verify"]).arg(&image)).expect(0);
    // Other bytes in the tree: only the image has the recorded ones.
    let large = fs::read(tree.join("large")).unwrap();
    for (name, bytes) in [("small", b"SMALL\n".to_vec()), ("large", vec![b'x'; large.len()])] {
        fs::write(tree.join(name), bytes).unwrap();
        set_mtime(&tree.join(name), 981_173_106, 500_000_000);
    }
    let read = |name: &str| {
        let mut run = stage.quell();
        run.args(["run", "--strict", "--check", "none", "-i"]).arg(&index).arg("-b").arg(&image);
        run.arg("--source").arg(&tree).arg("--").arg("cat").arg(tree.join(name));
        stage.run(&mut run).expect(0).out
    };
    assert_eq!(read("small"), b"small\n");
    assert_eq!(read("large") == large, version >= 3, "the unread blocks are served");
}

#[test]
fn version_1_of_the_boot_image_is_served_with_its_own_generation() {
    serves_boot_image(1);
}

#[test]
fn version_2_of_the_boot_image_is_served_with_its_own_generation() {
    serves_boot_image(2);
}

#[test]
fn version_3_of_the_boot_image_is_served_with_its_unread_blocks() {
    serves_boot_image(3);
}

#[test]
fn version_1_of_the_boot_image_is_not_served_with_another_generation() {
    let stage = Stage::new();
    let (image, _, tree) = boot_fixture(&stage, 1);
    let index = stage.path("other.quell");
    stage.run(stage.quell().args(["index", "-q"]).arg(&tree).arg("-o").arg(&index)).expect(0);
    let mut run = stage.quell();
    run.args(["run", "--strict", "-i"]).arg(&index).arg("-b").arg(&image).args(["--", "true"]);
    stage.run(&mut run).expect(2).says("record it again");
}

#[test]
fn version_2_of_the_index_is_read() {
    assert_eq!(shown_as_recorded(2)["options"], serde_json::json!([]));
}
