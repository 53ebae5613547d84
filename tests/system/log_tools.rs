//! `quell log`: lists, maps, checks, imports and exports the content of stores without a mount.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::log_fixture;
use crate::stage::{Ended, Stage, is_root};
use crate::trees::{noise, set_mode, set_mtime};

impl Stage {
    /// Runs `quell log` with these arguments.
    #[track_caller]
    fn log(&self, words: &[&dyn AsRef<std::ffi::OsStr>]) -> Ended {
        self.run(self.quell().arg("log").args(crate::stage::words(words)))
    }
}

/// Parses one JSON object per line.
fn lines(ended: &Ended) -> Vec<Value> {
    ended.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Creates a tree of plain files.
fn plain_tree(stage: &Stage) -> PathBuf {
    let tree = stage.dir("plain");
    fs::write(tree.join("large"), noise(3_000_000, 1)).unwrap();
    fs::write(tree.join("x.container"), "a name that ours have, too").unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    fs::create_dir_all(tree.join("d/e")).unwrap();
    fs::write(tree.join("d/small"), "small\n").unwrap();
    symlink("../large", tree.join("d/link")).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.write_all_at(b"far", 5_000_000).unwrap();
    sparse.set_len(20_000_000).unwrap();
    set_mode(&tree.join("d"), 0o750);
    set_mode(&tree.join("d/small"), 0o604);
    set_mtime(&tree.join("large"), 1_000_000_000, 0);
    tree
}

/// Collects paths, kinds, permissions, times and bytes.
fn describe_entries(dir: &Path, top: &Path, found: &mut Vec<String>) {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let stat = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(top).unwrap().display().to_string();
        let state = format!("{name} {:o} {}.{}", stat.mode(), stat.mtime(), stat.mtime_nsec());
        if stat.is_dir() {
            found.push(state);
            describe_entries(&path, top, found);
        } else if stat.is_symlink() {
            found.push(format!("{name} -> {}", fs::read_link(&path).unwrap().display()));
        } else {
            let bytes = fs::read(&path).unwrap();
            let sum = bytes.iter().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
            found.push(format!("{state} {} {sum:x}", bytes.len()));
        }
    }
}

fn described_entries(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    describe_entries(dir, dir, &mut found);
    found
}

#[test]
fn an_imported_tree_is_exported_unchanged() {
    let stage = Stage::new();
    let tree = plain_tree(&stage);
    for stores in [vec!["one"], vec!["two", "three", "four"]] {
        let dirs: Vec<_> = stores.iter().map(|name| stage.dir(name).display().to_string()).collect();
        let named = dirs.join(",");
        stage.log(&[&"import", &tree, &named, &"in/here"]).expect(2).says("in");
        stage.log(&[&"import", &tree, &named, &"here", &"--verify", &"-j", &"3"]).expect(0);
        let out = stage.path(format!("out-{}", stores[0]));
        let printed = stage.log(&[&"export", &named, &"here", &out, &"--verify", &"--json"]).expect(0).json();
        assert_eq!((&printed["files"], &printed["links"]), (&5.into(), &1.into()), "{printed}");
        assert_eq!(described_entries(&out), described_entries(&tree));
        assert!(fs::metadata(out.join("sparse")).unwrap().blocks() * 512 < 1_000_000);
        assert_eq!(fs::metadata(&out).unwrap().permissions(), fs::metadata(&tree).unwrap().permissions());
        // An existing file is neither replaced nor copied again.
        stage.log(&[&"export", &named, &"here", &out]).expect(2).says("--resume");
        fs::remove_file(out.join("d/small")).unwrap();
        let printed = stage.log(&[&"export", &named, &"here", &out, &"--resume", &"--json"]).expect(0).json();
        assert_eq!((&printed["files"], &printed["skipped"]), (&1.into(), &5.into()), "{printed}");
        assert_eq!(described_entries(&out), described_entries(&tree));
        stage.log(&[&"import", &tree, &named, &"here"]).expect(1).says("exists");
        // One file, by name and into a directory.
        stage.log(&[&"export", &named, &"here/d/small", &stage.path("file")]).expect(0);
        assert_eq!(fs::read_to_string(stage.path("file")).unwrap(), "small\n");
        stage.log(&[&"export", &named, &"here/d/small", &stage.path("file")]).expect(1).says("exists");
        stage.log(&[&"export", &named, &"here/d/small", &stage.dir("into")]).expect(0);
        assert_eq!(fs::read_to_string(stage.path("into/small")).unwrap(), "small\n");
        fs::remove_file(stage.path("into/small")).unwrap();
        fs::remove_file(stage.path("file")).unwrap();
        fs::remove_dir(stage.path("into")).unwrap();
    }
}

#[test]
fn a_store_that_may_only_be_read_gives_its_files() {
    let stage = Stage::new();
    let (tree, store) = (plain_tree(&stage), stage.dir("store"));
    stage.log(&[&"import", &tree, &store]).expect(0);
    let all = described_entries(&tree);
    if is_root() {
        // Root ignores permissions; the times show that nothing was written.
        let before = described_entries(&store);
        stage.log(&[&"export", &store, &"/", &stage.path("exported")]).expect(0);
        stage.log(&[&"ls", &store, &"-r"]).expect(0);
        assert_eq!(described_entries(&store), before);
    } else {
        // The permissions of `access` and of the tree's directories are those of the files and
        // directories in the mount.
        let of_ours = "\\( -path '*.container*' -o -path '*/.quell*' \\) ! -name access";
        let modes = |mode: &str| {
            stage.sh(&format!("find \"$1\" {of_ours} -exec chmod {mode} {{}} +"), &[&store]).expect(0)
        };
        modes("a-w");
        stage.log(&[&"export", &store, &"/", &stage.path("exported")]).expect(0);
        modes("u+w");
    }
    assert_eq!(described_entries(&stage.path("exported")), all);
}

#[test]
fn ls_and_map_show_the_log_of_each_byte() {
    let stage = Stage::new();
    let (tree, store) = (plain_tree(&stage), stage.dir("store"));
    stage.log(&[&"import", &tree, &store]).expect(0);
    let listed = stage.log(&[&"ls", &store, &"--recursive", &"--json"]).expect(0);
    let large = lines(&listed).into_iter().find(|line| line["path"] == "large").unwrap();
    assert_eq!((&large["size"], &large["logs"], &large["open"]), (&3_000_000.into(), &1.into(), &0.into()));
    assert!(large["store_bytes"].as_u64().unwrap() > 3_000_000);
    let shown = stage.log(&[&"ls", &store, &"d"]).expect(0).text();
    assert!(shown.contains("small") && shown.contains("e/") && shown.contains("link -> ../large"), "{shown}");

    let facts = stage.log(&[&"stat", &store, &"large", &"--json"]).expect(0).json();
    let writer = facts["writers"][0]["writer"].as_str().unwrap().to_owned();
    assert_eq!((&facts["size"], &facts["mtime"]), (&3_000_000.into(), &"1000000000.000000000".into()));
    assert!(stage.log(&[&"stat", &store, &"large"]).expect(0).text().contains(&writer));

    let map = lines(&stage.log(&[&"map", &store, &"sparse", &"--json"]).expect(0));
    let data: Vec<_> = map.iter().filter(|line| line.get("hole").is_none()).collect();
    assert!(map[0]["hole"] == true && data.len() == 1 && map.len() == 3, "{map:?}");
    let number = |value: &Value| value.as_u64().unwrap();
    let (start, log_offset) = (number(&data[0]["start"]), number(&data[0]["log_offset"]));
    let own = data[0]["writer"].as_str().unwrap();
    // The bytes are at the offset that the map gives.
    let ended = stage.sh("find \"$1\" -name '*.data' | grep \"$2\"", &[&store, Path::new(own)]).expect(0);
    let log = fs::read(ended.text().trim()).unwrap();
    // The data log offset includes the checksums of the previous blocks.
    let into = 5_000_000 - start;
    let at = (log_offset + into + into / 16_384 * 8) as usize;
    assert_eq!(&log[at..at + 3], b"far");
    let part = stage.log(&[&"map", &store, &"sparse", &"--offset", &"10", &"--length", &"5", &"--json"]);
    assert_eq!(lines(&part.expect(0)), [serde_json::json!({ "start": 10, "end": 15, "hole": true })]);

    let back = lines(&stage.log(&[&"query", &store, &"sparse", &"--writer", &own, &"--json"]).expect(0));
    assert!(back.len() == 1 && back[0]["now"] == "held" && number(&back[0]["start"]) == start, "{back:?}");
    stage.log(&[&"query", &store, &"sparse", &"--writer", &"1"]).expect(2);
    stage.log(&[&"query", &store, &"sparse", &"--writer", &"none"]).expect(2);
}

#[test]
fn a_directory_that_is_not_a_store_is_not_changed() {
    let stage = Stage::new();
    let tree = plain_tree(&stage);
    let before = described_entries(&tree);
    for command in ["ls", "stat", "map"] {
        stage.log(&[&command, &tree, &"large"]).expect(2);
    }
    stage.log(&[&"export", &tree, &"/", &stage.path("exported")]).expect(2);
    assert_eq!(described_entries(&tree), before);
    let store = stage.dir("store");
    stage.log(&[&"import", &tree, &store]).expect(0);
    stage.log(&[&"ls", &store, &"none"]).expect(2).says("none");
    stage.log(&[&"map", &store, &"d"]).expect(2).says("directory");
    stage.log(&[&"export", &store, &"/", &store.join("d/out")]).expect(2).says("in the store");
    stage.log(&[&"import", &store, &store, &"x"]).expect(2).says("lies in");
}

#[test]
fn an_export_that_is_interrupted_leaves_only_whole_files() {
    let stage = Stage::new();
    let (tree, store, out) = (stage.dir("tree"), stage.dir("store"), stage.path("exported"));
    for number in 0..40 {
        fs::write(tree.join(number.to_string()), vec![number as u8; 5_000_000]).unwrap();
    }
    stage.log(&[&"import", &tree, &store]).expect(0);
    let mut command = stage.quell();
    command.args(["log", "export"]).arg(&store).arg("/").arg(&out);
    let mut running = stage.start(&mut command);
    assert!(crate::stage::eventually(|| out.join("3").exists() || !running.is_running()));
    running.signal(rustix::process::Signal::INT);
    let ended = running.wait();
    assert!([Some(130), Some(0)].contains(&ended.code()), "{}", ended.err);
    for entry in fs::read_dir(&out).unwrap() {
        let entry = entry.unwrap();
        let number: u8 = entry.file_name().to_str().unwrap().parse().unwrap();
        assert_eq!(fs::read(entry.path()).unwrap(), vec![number; 5_000_000]);
    }
    stage.log(&[&"export", &store, &"/", &out, &"--resume"]).expect(0);
    assert_eq!(described_entries(&out), described_entries(&tree));
}

/// Returns the first file below `dir` whose name ends with `end`.
fn ending(stage: &Stage, dir: &Path, end: &str) -> PathBuf {
    let found = stage.sh("find \"$1\" -name \"*$2\" | sort | head -1", &[dir, Path::new(end)]).expect(0);
    found.text().trim().into()
}

#[test]
fn damage_is_reported_with_its_range_and_repaired_if_possible() {
    let stage = Stage::new();
    let (tree, store) = (stage.dir("tree"), stage.dir("store"));
    fs::write(tree.join("f"), noise(3_000_000, 1)).unwrap();
    stage.log(&[&"import", &tree, &store]).expect(0);
    let clean = stage.log(&[&"fsck", &store, &"--json"]).expect(0).json();
    assert_eq!((&clean["files"], &clean["problems"]), (&1.into(), &0.into()), "{clean}");
    // A missing index log is rebuilt.
    fs::remove_file(ending(&stage, &store, ".index")).unwrap();
    let printed = stage.log(&[&"fsck", &store]).expect(1).text();
    assert!(
        printed.contains("f: metadata: the index log of writer") && printed.contains("1 problem"),
        "{printed}"
    );
    let printed = stage.log(&[&"fsck", &store, &"--repair"]).expect(0).text();
    assert!(printed.contains("(repaired)") && printed.contains("0 problems left, 1 repaired"), "{printed}");
    let again = stage.log(&[&"fsck", &store, &"--repair", &"--json"]).expect(0).json();
    assert_eq!(again["findings"], serde_json::json!([]));
    stage.log(&[&"export", &store, &"/", &stage.path("whole")]).expect(0);
    assert_eq!(described_entries(&stage.path("whole")), described_entries(&tree));
    // A damaged byte of data is reported with the range of its block, and reading it is an error.
    let data = fs::File::options().read(true).write(true).open(ending(&stage, &store, ".data")).unwrap();
    let mut byte = [0];
    data.read_exact_at(&mut byte, 1_000_000).unwrap();
    data.write_all_at(&[!byte[0]], 1_000_000).unwrap();
    for _ in 0..2 {
        let printed = stage.log(&[&"fsck", &store, &"f", &"--repair", &"--json"]).expect(1).json();
        let [finding] = &printed["findings"].as_array().unwrap()[..] else { panic!("{printed}") };
        let range = (finding["ranges"][0][0].as_u64().unwrap(), finding["ranges"][0][1].as_u64().unwrap());
        assert!(finding["problem"] == "damaged-data" && range.1 - range.0 == 16_384, "{printed}");
        assert!((980_000..=1_000_000).contains(&range.0), "{printed}");
    }
    stage.log(&[&"export", &store, &"f", &stage.path("damaged")]).expect(1).says("damaged");
    assert!(!stage.path("damaged").exists());
}

#[test]
fn foreign_entries_are_reported_and_never_removed() {
    let stage = Stage::new();
    let (tree, store) = (plain_tree(&stage), stage.dir("store"));
    stage.log(&[&"import", &tree, &store]).expect(0);
    fs::write(store.join("plain"), "").unwrap();
    fs::create_dir(store.join("none.container")).unwrap();
    symlink("/etc", store.join("fake.container")).unwrap();
    fs::write(ending(&stage, &store, "meta").join("what"), "").unwrap();
    let old = store.join(".quell/new/0123");
    fs::create_dir(&old).unwrap();
    let printed = stage.log(&[&"fsck", &store, &"--repair", &"--json"]).expect(1).json();
    let mut names: Vec<_> =
        printed["findings"].as_array().unwrap().iter().map(|f| f["problem"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["foreign", "foreign", "foreign", "foreign"]);
    assert!(store.join("plain").exists() && store.join("none.container").exists());
    // A leftover that is old enough is removed, unless it is open.
    set_mtime(&old, 1, 0);
    stage.sh("true", &[]).expect(0);
    let open = fs::File::open(&old).unwrap();
    let repair = || stage.log(&[&"fsck", &store, &"--repair", &"--older-than", &"0"]).expect(1);
    assert!(!repair().text().contains("leftover") && old.exists());
    drop(open);
    let text = repair().text();
    assert!(text.contains("(stores): leftover: ") && text.contains("(repaired)") && !old.exists(), "{text}");
    stage.log(&[&"fsck", &tree]).expect(2);
    stage.log(&[&"fsck", &store, &"no/such"]).expect(2);
}

#[test]
fn a_leftover_in_use_is_kept_if_the_stores_are_named_in_another_order() {
    let stage = Stage::new();
    let tree = plain_tree(&stage);
    let (a, b) = (stage.dir("a"), stage.dir("b"));
    let named = |stores: [&Path; 2]| stores.map(|store| store.display().to_string()).join(",");
    stage.log(&[&"import", &tree, &named([&a, &b])]).expect(0);
    let old = b.join(".quell/trash/0123");
    fs::create_dir(&old).unwrap();
    set_mtime(&old, 1, 0);
    let open = fs::File::open(&old).unwrap();
    for order in [[&a as &Path, &b], [&b, &a]] {
        stage.log(&[&"fsck", &named(order), &"--repair", &"--older-than", &"0"]).expect(0);
        assert!(old.exists());
    }
    drop(open);
    stage.log(&[&"fsck", &named([&b, &a]), &"--repair", &"--older-than", &"0"]).expect(0);
    assert!(!old.exists());
}

#[test]
fn a_mount_at_work_is_checked_and_a_killed_one_is_ended() {
    let fixture = log_fixture!();
    let (stage, store) = (&fixture.stage, &fixture.store);
    let mounted = fixture.mount();
    let bytes = noise(2_500_000, 5);
    let file = fs::File::create(mounted.point.join("file")).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"more", 2_500_000).unwrap();
    // A file that is being written has no problems.
    let printed = stage.log(&[&"fsck", store, &"--repair", &"--json"]).expect(0).json();
    assert_eq!((&printed["open"], &printed["findings"]), (&1.into(), &serde_json::json!([])), "{printed}");
    let facts = stage.log(&[&"stat", store, &"file", &"--json"]).expect(0).json();
    let writers = facts["writers"].as_array().unwrap();
    let open = writers.iter().find(|writer| !writer["open"].is_null()).unwrap();
    assert_eq!(open["open"]["dead"], false, "{facts}");
    let ended = stage.log(&[&"export", store, &"file", &stage.path("exported")]).expect(0);
    assert_eq!(ended.says("is being written").code(), Some(0));
    assert!(fs::read(stage.path("exported")).unwrap().starts_with(&bytes));
    // Killed with unwritten data.
    crate::stage::send(stage.holder(), rustix::process::Signal::KILL);
    drop(file);
    mounted.umount();
    let listed = lines(&stage.log(&[&"ls", store, &"--json"]).expect(0));
    // The object is a log of its own.
    assert_eq!((&listed[0]["open"], &listed[0]["logs"]), (&1.into(), &2.into()), "{listed:?}");
    let facts = || stage.log(&[&"stat", store, &"file", &"--json"]).expect(0).json();
    let is_dead = || {
        let facts = facts();
        facts["writers"].as_array().unwrap().iter().any(|writer| writer["open"]["dead"] == true)
    };
    assert!(crate::stage::eventually(is_dead), "{}", facts());
    let printed = stage.log(&[&"fsck", store]).expect(1).text();
    assert!(
        printed.contains("dead-writer") && printed.contains("was not closed by its process"),
        "{printed}"
    );
    stage.log(&[&"fsck", store, &"--repair"]).expect(0);
    let printed = stage.log(&[&"fsck", store, &"--json"]).expect(0).json();
    assert_eq!((&printed["open"], &printed["findings"]), (&0.into(), &serde_json::json!([])), "{printed}");
    assert_eq!(fixture.open_records(), Vec::<PathBuf>::new());
    let again = fixture.mount();
    assert!(fs::read(again.point.join("file")).unwrap().starts_with(&bytes));
    again.umount();
    stage.log(&[&"export", store, &"/", &stage.path("all"), &"--verify"]).expect(0);
    assert!(fs::read(stage.path("all/file")).unwrap().starts_with(&bytes));
}
