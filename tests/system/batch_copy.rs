//! `quell batch import` and `export`: trees are equal after both, entries that are not copied are
//! listed, and an interrupted command is continued.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::pool_staging::{listing, make_tree};
use crate::stage::{Ended, Stage, eventually, send, words};

impl Stage {
    fn batch(&self, arguments: &[&str]) -> Ended {
        self.run(self.quell().arg("batch").args(arguments))
    }

    fn text_of(&self, name: &str) -> String {
        self.path(name).to_str().expect("paths of tests are UTF-8").to_owned()
    }
}

/// Returns a stage with a tree and an empty store.
fn stage_with_tree() -> (Stage, String, String) {
    let stage = Stage::new();
    make_tree(&stage.dir("tree"));
    let (tree, store) = (stage.text_of("tree"), stage.text_of("store"));
    stage.batch(&["init", &store]).expect(0);
    (stage, tree, store)
}

#[test]
fn a_tree_is_the_same_after_import_and_export() {
    let (stage, tree, store) = stage_with_tree();
    let to = format!("{store}:/in/put");
    let copied = stage.batch(&["import", &tree, &to, "--manifest", &stage.text_of("in.jsonl")]);
    assert_eq!((copied.code(), copied.text(), copied.err.as_str()), (Some(0), String::new(), ""));
    let from = format!("{store}:/in/put/tree");
    let out = stage.text_of("out");
    let copied = stage.batch(&["export", &from, &out, "--manifest", &stage.text_of("out.jsonl")]);
    assert_eq!((copied.code(), copied.text(), copied.err.as_str()), (Some(0), String::new(), ""));
    assert_eq!(listing(&stage.path("out/tree")), listing(Path::new(&tree)));
    let lines = |name: &str| {
        let text = fs::read_to_string(stage.path(name)).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines("in.jsonl"), lines("out.jsonl"));
    // Both commands leave equal files alone, and accept the form of `quell mount`.
    let again = |arguments: &[&str]| stage.batch(arguments).expect(0).json();
    let imported = again(&["import", &tree, &format!("{store}/in/put"), "--json"]);
    assert_eq!((&imported["files"], &imported["unchanged"]), (&0.into(), &35.into()), "{imported}");
    let exported = again(&["export", &format!("{from}/."), &format!("{out}/tree"), "--json"]);
    assert_eq!((&exported["files"], &exported["unchanged"]), (&0.into(), &35.into()), "{exported}");
    // The whole store.
    stage.batch(&["export", &store, &stage.text_of("all")]).expect(0);
    assert_eq!(listing(&stage.path("all/in/put/tree")), listing(Path::new(&tree)));
}

#[test]
fn entries_that_are_not_copied_are_listed_and_the_exit_code_is_1() {
    let (stage, tree, store) = stage_with_tree();
    let _bound = std::os::unix::net::UnixListener::bind(Path::new(&tree).join("socket")).unwrap();
    let imported = stage.batch(&["import", &tree, &store]).expect(1);
    assert!(imported.err.contains("tree/socket: copy: not supported"), "{}", imported.err);
    // The other entries are published.
    fs::remove_file(Path::new(&tree).join("socket")).unwrap();
    stage.batch(&["export", &store, &stage.text_of("out")]).expect(0);
    assert_eq!(listing(&stage.path("out/tree")), listing(Path::new(&tree)));
    // The destination has a directory in the place of a file.
    let out = stage.path("out/tree");
    fs::remove_file(out.join("sub/7")).unwrap();
    fs::create_dir_all(out.join("sub/7/full")).unwrap();
    let exported =
        stage.batch(&["export", &format!("{store}:/tree"), &stage.text_of("out"), "--json"]).expect(1);
    let lines: Vec<Value> = exported.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["path"], &lines[1]["failed"]), (&"tree/sub/7".into(), &1.into()), "{lines:?}");
    // Wrong input.
    stage.batch(&["export", &format!("{store}:/a/b"), &tree]).expect(2).says("No such file");
    stage.batch(&["export", &format!("{store}:/a"), &tree]).expect(1).says("No such file");
    stage.batch(&["import", &tree, &tree, &store]).expect(2).says("the same name");
    stage.batch(&["import", &tree, &stage.text_of("other")]).expect(2);
}

#[test]
fn an_interrupted_import_publishes_complete_files_and_is_continued() {
    let (stage, _, store) = stage_with_tree();
    let many = stage.dir("many");
    let content = vec![7; 200_000];
    for number in 0..2000 {
        fs::write(many.join(number.to_string()), &content).unwrap();
    }
    symlink("0", many.join("link")).unwrap();
    fs::set_permissions(many.join("1"), fs::Permissions::from_mode(0o640)).unwrap();
    let many_text = stage.text_of("many");
    let mut command = stage.quell();
    command.args(words(&[&"batch", &"import", &many_text, &store, &"--threads", &"1"]));
    let mut child = command.spawn().unwrap();
    // The first data file shows that the copy is running.
    let data = Path::new(&store).join("data/1");
    while !data.exists() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    send(child.id() as i32, Signal::INT);
    let ended = child.wait().unwrap();
    assert!(matches!(ended.code(), Some(130 | 0)), "{ended}");
    let batches = stage.batch(&["status", &store, "--json"]).expect(0).json();
    assert_eq!(batches["batches"][0]["state"], "committed", "{batches}");
    stage.batch(&["import", &many_text, &store]).expect(0);
    stage.batch(&["export", &store, &stage.text_of("out")]).expect(0);
    assert_eq!(listing(&stage.path("out/many")), listing(&many));
}

#[test]
fn the_manifest_of_an_import_is_complete_only_after_the_commit() {
    let (stage, tree, store) = stage_with_tree();
    let manifest = stage.path("manifest");
    rustix::fs::mkfifoat(rustix::fs::CWD, &manifest, 0o600.into()).unwrap();
    let mut command = stage.quell();
    command.args(words(&[&"batch", &"import", &tree, &store, &"--manifest", &manifest]));
    let importing = stage.start(&mut command);
    // When the command has closed the store, it waits for the reader of its manifest.
    let batch = Path::new(&store).join("batches/1");
    assert!(eventually(|| batch.exists()), "{}", importing.err());
    stage.batch(&["status", &store]).expect(0);
    let (tables, away) = (Path::new(&store).join("tables"), stage.path("away"));
    fs::rename(&tables, &away).unwrap();
    let lines = fs::read_to_string(&manifest).unwrap();
    importing.wait().expect(3).says("batch 1 was not committed, so nothing was imported");
    assert!(lines.contains("tree/sub/28") && !lines.contains("\"complete\""), "{lines}");
    fs::rename(&away, &tables).unwrap();
    stage.batch(&["commit", &store, "1"]).expect(0);
    stage.batch(&["export", &store, &stage.text_of("out")]).expect(0);
    assert_eq!(listing(&stage.path("out/tree")), listing(Path::new(&tree)));
}
