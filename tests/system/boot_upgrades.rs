//! Boot images after a change of a part of the tree: the blocks of unchanged files are still
//! served, the blocks of changed files are never served, and a recording adds only the missing
//! blocks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::boot::{BLOCK, files_of};
use crate::stage::{Ended, Stage};
use crate::trees;

const VIEWS: [&str; 3] = ["overlay", "overlay-fuse", "fuse"];

/// A program that reads both packages.
const START: &str =
    r#"cat "$0/kept/one" "$0/kept/sub/two" "$0/upgraded/code" "$0/upgraded/$(cat "$0/upgraded/version")""#;

/// A tree with two packages, of which one is upgraded. All files have the same modification time,
/// as in packages that are built reproducibly.
struct Packages {
    stage: Stage,
    tree: PathBuf,
    index: PathBuf,
    image: PathBuf,
}

impl Packages {
    fn new() -> Packages {
        let stage = Stage::new();
        let tree = stage.dir("env");
        for directory in ["kept/sub", "upgraded"] {
            fs::create_dir_all(tree.join(directory)).unwrap();
        }
        write(&tree.join("kept/one"), "one\n");
        write(&tree.join("kept/sub/two"), trees::noise(3 * BLOCK, 2));
        // Other names of the files outside of the tree: their data can be changed while a view
        // covers the tree.
        let outside = stage.dir("outside");
        for (name, file) in [("one", "kept/one"), ("two", "kept/sub/two")] {
            fs::hard_link(tree.join(file), outside.join(name)).unwrap();
        }
        install(&tree, "1.0", "code of 1.0\n");
        let index = stage.index(&tree);
        let image = index.with_file_name("app.boot");
        Packages { stage, tree, index, image }
    }

    /// Installs another version of a package, as installers do it: the files of the old version are
    /// removed, and those of the new version created. `code` has the same size and time as before.
    fn upgrade(&self) {
        wait_for_clock(&self.stage);
        fs::remove_dir_all(self.tree.join("upgraded")).unwrap();
        fs::create_dir(self.tree.join("upgraded")).unwrap();
        install(&self.tree, "2.0", "code of 2.0\n");
    }

    fn update_index(&self) -> Ended {
        self.stage.run(self.stage.quell().args(["index", "-q", "--update"]).arg(&self.index)).expect(0)
    }

    fn record(&self, options: &[&str]) -> Ended {
        self.record_script(options, START)
    }

    fn record_script(&self, options: &[&str], script: &str) -> Ended {
        let mut command = self.stage.quell();
        command.arg("record").args(options).arg("-i").arg(&self.index).arg("-o").arg(&self.image);
        let outside = self.stage.path("outside");
        self.stage.run(command.args(["--", "sh", "-c", script]).arg(&self.tree).arg(outside))
    }

    fn run(&self, options: &[&str]) -> Ended {
        let mut command = self.stage.quell();
        command.arg("run").args(options).arg("-i").arg(&self.index).arg("-b").arg(&self.image);
        self.stage.run(command.args(["--", "sh", "-c", START]).arg(&self.tree))
    }

    fn direct(&self) -> Vec<u8> {
        self.stage.run(self.stage.command("sh").args(["-c", START]).arg(&self.tree)).expect(0).out
    }

    fn shown(&self) -> Vec<(String, u64)> {
        files_of(
            &self.stage.run(self.stage.quell().args(["boot", "show", "--files", "--json"]).arg(&self.image)),
        )
    }

    /// Changes the bytes of the unchanged package, so that a read of them gives a wrong result.
    fn spoil_kept(&self) {
        for name in ["kept/one", "kept/sub/two"] {
            let length = fs::metadata(self.tree.join(name)).unwrap().len();
            write(&self.tree.join(name), vec![b'x'; length as usize]);
        }
    }
}

fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::write(path, bytes).unwrap();
    trees::set_mtime(path, 1_000_000_000, 0);
}

fn install(tree: &Path, version: &str, code: &str) {
    write(&tree.join("upgraded/version"), version);
    write(&tree.join("upgraded/code"), code);
    write(&tree.join("upgraded").join(version), format!("data of {version}\n"));
}

/// Waits until files get later times than those that exist, also on a file system with whole
/// seconds.
fn wait_for_clock(stage: &Stage) {
    let now = || -> SystemTime { fs::metadata(stage.file("clock", "")).unwrap().modified().unwrap() };
    let before = now();
    while now() == before {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn unchanged_files_are_served_after_an_upgrade_and_changed_ones_never() {
    let packages = Packages::new();
    packages.record(&["-q"]).expect(0);
    packages.upgrade();
    packages.update_index();
    let expected = packages.direct();
    for view in VIEWS {
        let ended = packages.run(&["--strict", "--view", view]).expect(0);
        assert_eq!(ended.out, expected, "{view}");
        ended.says("3 files of").says("quell record --update");
    }
    packages.spoil_kept();
    for view in VIEWS {
        let options = ["-q", "--strict", "--view", view, "--check", "none", "--recheck", "0"];
        assert_eq!(packages.run(&options).expect(0).out, expected, "{view}");
    }
}

#[test]
fn an_update_of_the_index_says_how_much_of_each_image_is_valid() {
    let packages = Packages::new();
    packages.record(&["-q"]).expect(0);
    // Files that belong to other trees, or are no boot images.
    let other = Packages::new();
    other.record(&["-q"]).expect(0);
    fs::copy(&other.image, packages.image.with_file_name("other.boot")).unwrap();
    fs::write(packages.image.with_file_name("text.boot"), "text").unwrap();
    std::os::unix::fs::symlink(&packages.image, packages.image.with_file_name("link.boot")).unwrap();
    let update = |options: &[&str]| {
        let mut command = packages.stage.quell();
        packages.stage.run(command.args(["index", "--update"]).args(options).arg(&packages.index)).expect(0)
    };
    let all = |blocks: u64, valid_blocks: u64, valid_files: u64| {
        serde_json::json!([{
            "file": packages.image.to_str().unwrap(), "files": 5, "valid_files": valid_files,
            "blocks": blocks, "valid_blocks": valid_blocks,
        }])
    };
    assert_eq!(update(&["--json"]).json()["boot_images"], all(7, 7, 5));
    packages.upgrade();
    let json = update(&["--json"]).json();
    assert_eq!((&json["outcome"], &json["boot_images"]), (&"written".into(), &all(7, 4, 2)));
    let text = update(&[]).text();
    assert!(text.contains("4 of 7 blocks still valid (57 %), 3 of 5 files changed"), "{text}");
    assert!(!text.contains("other.boot") && !text.contains("text.boot"), "{text}");
    let built = packages.stage.run(
        packages
            .stage
            .quell()
            .args(["index", "--json", "-o"])
            .arg(packages.stage.path("new.quell"))
            .arg(&packages.tree),
    );
    assert_eq!(built.expect(0).json().get("boot_images"), None, "there was no older index");
}

#[test]
fn an_update_records_only_blocks_that_the_image_does_not_have() {
    let packages = Packages::new();
    packages.record(&["-q"]).expect(0);
    packages.record(&["-q", "--merge"]).expect(0);
    packages.upgrade();
    packages.update_index();
    let expected = packages.direct();
    // The recording view refuses to open a changed file, so reading it again would fail.
    let script = format!(r#"echo spoiled >"$1/one"; echo spoiled >"$1/two"; {START}"#);
    let ended = packages.record_script(&["--update"], &script).expect(0);
    assert_eq!(ended.out, expected);
    assert_ne!(packages.direct(), expected, "the tree has other bytes");
    ended.says("2 recordings").says("12.00 KiB added");
    let kept = [("kept/one", 1), ("kept/sub/two", 3)];
    let new = [("upgraded/2.0", 1), ("upgraded/code", 1), ("upgraded/version", 1)];
    let all: Vec<(String, u64)> =
        kept.iter().chain(&new).map(|(name, blocks)| ((*name).into(), *blocks)).collect();
    assert_eq!(packages.shown(), all);
    // Added blocks count as read in all recordings, so that a later selection keeps them.
    let show = packages
        .stage
        .run(packages.stage.quell().args(["boot", "show", "--files", "--json"]).arg(&packages.image));
    let list = show.json()["list"].as_array().unwrap().clone();
    assert!(list.iter().all(|file| file["recordings"] == 2), "{list:?}");
    let options = ["--strict", "--check", "none", "--recheck", "0"];
    let ended = packages.run(&options).expect(0);
    assert_eq!((ended.out, &*ended.err), (expected, ""), "everything is served from the image");
}

#[test]
fn an_update_keeps_blocks_that_are_not_read_this_time_and_works_without_an_image() {
    let packages = Packages::new();
    packages.record(&["-q", "--update"]).expect(0);
    let all = packages.shown();
    assert_eq!(all.len(), 5);
    let mut command = packages.stage.quell();
    command.args(["record", "-q", "--update", "-i"]).arg(&packages.index).arg("-o").arg(&packages.image);
    packages.stage.run(command.args(["--", "cat"]).arg(packages.tree.join("kept/one"))).expect(0);
    assert_eq!(packages.shown(), all);
    // All files change: nothing is left to be updated.
    wait_for_clock(&packages.stage);
    packages.spoil_kept();
    packages.upgrade();
    packages.update_index();
    packages
        .record(&["--update"])
        .expect(2)
        .says("cannot be updated")
        .says("without --update it is replaced");
    assert_eq!(packages.shown(), all);
}

#[test]
fn changed_files_are_read_again_without_a_program() {
    let packages = Packages::new();
    let image_only = |options: &[&str]| {
        let mut command = packages.stage.quell();
        command.arg("record").args(options).arg("-i").arg(&packages.index).arg("-o").arg(&packages.image);
        packages.stage.run(&mut command)
    };
    image_only(&["--update", "--changed"]).expect(2).says("does not exist");
    packages.record(&["-q"]).expect(0);
    packages.upgrade();
    packages.update_index();
    image_only(&["--changed"]).expect(2);
    image_only(&["--update", "--changed"]).expect(0).says("1 recording");
    let names: Vec<String> = packages.shown().into_iter().map(|(name, _)| name).collect();
    // A file with a new name was never read.
    assert_eq!(names, ["kept/one", "kept/sub/two", "upgraded/code", "upgraded/version"]);
    let expected = packages.direct();
    packages.spoil_kept();
    for file in ["upgraded/code", "upgraded/version"] {
        let (path, modified) =
            (packages.tree.join(file), fs::metadata(packages.tree.join(file)).unwrap().modified());
        let length = fs::metadata(&path).unwrap().len() as usize;
        fs::write(&path, vec![b'x'; length]).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(modified.unwrap()).unwrap();
    }
    for view in VIEWS {
        let options = ["-q", "--strict", "--view", view, "--check", "none", "--recheck", "0"];
        assert_eq!(packages.run(&options).expect(0).out, expected, "{view}");
    }
}

#[test]
fn a_merge_drops_the_blocks_of_changed_files() {
    let packages = Packages::new();
    packages.record(&["-q"]).expect(0);
    packages.upgrade();
    packages.update_index();
    packages.record(&["--merge"]).expect(0).says("2 recordings");
    let names: Vec<String> = packages.shown().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["kept/one", "kept/sub/two", "upgraded/2.0", "upgraded/code", "upgraded/version"]);
    let mut verify = packages.stage.quell();
    packages
        .stage
        .run(verify.args(["boot", "verify", "-i"]).arg(&packages.index).arg(&packages.image))
        .expect(0);
}

#[test]
fn of_several_trees_an_older_image_belongs_to_the_one_that_has_its_files() {
    let packages = Packages::new();
    packages.record(&["-q"]).expect(0);
    packages.upgrade();
    packages.update_index();
    let other = packages.stage.dir("other");
    write(&other.join("file"), "other\n");
    let other_index = packages.stage.index(&other);
    let expected = packages.direct();
    packages.spoil_kept();
    for indexes in [[&other_index, &packages.index], [&packages.index, &other_index]] {
        let mut run = packages.stage.quell();
        run.args(["run", "-q", "--strict", "--check", "none", "--recheck", "0"]);
        indexes.iter().for_each(|index| _ = run.arg("-i").arg(index));
        run.arg("-b").arg(&packages.image).args(["--", "sh", "-c", START]).arg(&packages.tree);
        assert_eq!(packages.stage.run(&mut run).expect(0).out, expected);
    }
}
