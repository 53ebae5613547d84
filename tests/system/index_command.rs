//! `quell index`, `verify` and `show`: the files that they write, the inputs that they refuse, and
//! the state after an interruption.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Ended, Stage, can_unshare, eventually, is_root, views};
use crate::trees::{self, name, set_mode, set_mtime};

fn fixture() -> (Stage, PathBuf) {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    (stage, tree)
}

impl Stage {
    /// Runs `quell index` with these arguments.
    #[track_caller]
    fn index_with(&self, words: &[&dyn AsRef<std::ffi::OsStr>]) -> Ended {
        self.run(self.quell().arg("index").args(crate::stage::words(words)))
    }

    #[track_caller]
    fn show(&self, index: &Path) -> serde_json::Value {
        self.run(self.quell().args(["show", "--json"]).arg(index)).expect(0).json()
    }

    /// Returns the paths in an index.
    #[track_caller]
    fn paths(&self, index: &Path) -> Vec<String> {
        let ended = self.run(self.quell().args(["show", "-r", "--json"]).arg(index)).expect(0);
        let path = |line: &str| -> String {
            let entry: serde_json::Value = serde_json::from_str(line).unwrap();
            entry["path"].as_str().unwrap().into()
        };
        ended.text().lines().map(path).collect()
    }
}

/// Returns the names in a directory that begin with a dot, such as temporary files of failed
/// writes.
fn hidden(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.starts_with('.')).collect()
}

#[test]
fn the_index_is_written_beside_the_directory_by_default() {
    let (stage, tree) = fixture();
    stage.index_with(&[&tree]).expect(0);
    assert!(stage.path("tree.quell").is_file());
    fs::remove_file(stage.path("tree.quell")).unwrap();
    let with_slash = format!("{}/", tree.display());
    let ended = stage.index_with(&[&with_slash]).expect(0);
    assert!(ended.text().contains("tree.quell: written, 9 entries in 4 directories"), "{}", ended.text());
    stage.index_with(&[&tree, &"-o", &stage.path("other")]).expect(0);
    assert_eq!(fs::read(stage.path("other")).unwrap(), fs::read(stage.path("tree.quell")).unwrap());
    stage.run(stage.quell().args(["index", ".", "-q"]).current_dir(&tree)).expect(0);
    let quiet = stage.index_with(&[&tree, &"--quiet"]).expect(0);
    assert_eq!((quiet.text(), quiet.err), (String::new(), String::new()));
    let facts = stage.index_with(&[&tree, &"--json"]).expect(0).json();
    assert_eq!((&facts["entries"], &facts["problems"]), (&9.into(), &serde_json::json!([])));
}

#[test]
fn an_index_inside_its_tree_is_refused() {
    let (stage, tree) = fixture();
    for output in [tree.join("in.quell"), tree.join("lib/deep/in.quell")] {
        stage.index_with(&[&tree, &"-o", &output]).expect(2).says("inside the tree");
        assert!(!output.exists());
    }
    symlink(tree.join("lib"), stage.path("launch-in")).unwrap();
    stage.index_with(&[&tree, &"-o", &stage.path("launch-in/in.quell")]).expect(2).says("inside the tree");
}

#[test]
fn a_path_that_cannot_be_indexed_is_refused() {
    let (stage, tree) = fixture();
    stage.index_with(&[&stage.path("none")]).expect(2).says("none");
    stage.index_with(&[&tree.join("readme")]).expect(2).says("not a directory");
    stage.index_with(&[&tree, &"-o", &stage.dir("a-directory")]).expect(2).says("a-directory");
    stage.index_with(&[&tree, &"-o", &stage.path("no/such/file")]).expect(2).says("no/such");
    stage.index_with(&[&tree, &"--exclude", &"[unclosed"]).expect(2).says("[unclosed");
    stage.index_with(&[&tree, &"--no-such-option"]).expect(2);
}

#[test]
fn excluded_names_do_not_exist_in_the_view() {
    let (stage, tree) = fixture();
    fs::create_dir(tree.join("lib/__pycache__")).unwrap();
    fs::write(tree.join("lib/__pycache__/x.pyc"), "").unwrap();
    let index = stage.path("index");
    let excludes: [&dyn AsRef<std::ffi::OsStr>; 7] =
        [&tree, &"-o", &index, &"--exclude", &"__pycache__", &"--exclude", &"lib/deep/*"];
    stage.index_with(&excludes).expect(0);
    assert_eq!(stage.paths(&index), ["", "bin", "bin/tool", "lib", "lib/data", "lib/deep", "link", "readme"]);
    assert_eq!(
        stage.show(&index)["options"],
        serde_json::json!(["exclude __pycache__", "exclude lib/deep/*"])
    );
    for view in views() {
        let script = "ls \"$1/lib\"; test -e \"$1/lib/__pycache__\" || echo absent";
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--quiet", "--check", "full", "--", "sh", "-c", script, "sh"]).arg(&tree);
        assert_eq!(stage.run(&mut command).expect(0).text(), "data\ndeep\nabsent\n", "{view}");
    }
    // An update and a comparison use the same exclusions.
    assert!(stage.index_with(&[&"--update", &index]).expect(0).text().contains("unchanged"));
    stage.run(stage.quell().arg("verify").arg(&index)).expect(0);
}

/// Runs a script in a new user and mount namespace, in which the caller is root.
fn unshared(stage: &Stage, script: &str, arguments: &[&Path]) -> Ended {
    let mut command = stage.command("unshare");
    command.args(["-U", "-r", "-m", "sh", "-ec", script, "sh"]).arg(crate::stage::quell()).args(arguments);
    stage.run(&mut command)
}

#[test]
fn another_file_system_below_shows_as_an_empty_directory() {
    let (stage, tree) = fixture();
    if !can_unshare(&stage) {
        skip!("no user namespaces");
    }
    fs::create_dir(tree.join("other")).unwrap();
    let index = stage.path("index");
    let script = "mount -t tmpfs none \"$2/other\"; echo x >\"$2/other/inside\"; \"$1\" index -q \"$2\" -o \"$3\"; \
                  for view in overlay overlay-fuse fuse; do \
                    \"$1\" run -q --strict --view $view -i \"$3\" -- ls \"$2/other\"; echo ended $?; done";
    let ended = unshared(&stage, script, &[&tree, &index]).expect(0);
    assert_eq!(ended.text(), "ended 0\nended 0\nended 0\n", "{}", ended.err);
    assert!(!stage.paths(&index).contains(&"other/inside".to_owned()));

    let script = "mount -t tmpfs none \"$2/other\"; echo x >\"$2/other/inside\"; \
                  \"$1\" index -q --cross-mounts \"$2\" -o \"$3\"; \"$1\" verify -q \"$3\"; \
                  \"$1\" run -q --strict --view fuse -i \"$3\" -- cat \"$2/other/inside\"";
    let ended = unshared(&stage, script, &[&tree, &index]).expect(0);
    assert_eq!(ended.text(), "x\n");
    assert!(stage.paths(&index).contains(&"other/inside".to_owned()));
    assert_eq!(stage.show(&index)["options"], serde_json::json!(["cross-mounts"]));
}

#[test]
fn a_root_that_is_itself_a_mount_point_is_covered() {
    let (stage, tree) = fixture();
    if !can_unshare(&stage) {
        skip!("no user namespaces");
    }
    let script = "mount -t tmpfs none \"$2\"; mkdir \"$2/d\"; echo mounted >\"$2/d/file\"; \"$1\" index -q \"$2\" -o \"$3\"; \
                  for view in overlay overlay-fuse fuse; do \
                    \"$1\" run -q --strict --view $view -i \"$3\" -- sh -c 'cat \"$1/d/file\"; touch \"$1/x\"' sh \"$2\" || true; done";
    let ended = unshared(&stage, script, &[&tree, &stage.path("index")]).expect(0);
    assert_eq!(ended.text(), "mounted\nmounted\nmounted\n", "{}", ended.err);
    assert_eq!(ended.err.matches("Read-only file system").count(), 3, "{}", ended.err);
}

#[test]
fn a_root_named_through_a_link_is_known_by_its_real_path() {
    let (stage, tree) = fixture();
    symlink(&tree, stage.path("alias")).unwrap();
    stage.index_with(&[&stage.path("alias")]).expect(0);
    // Next to the directory, not next to the link.
    assert!(!stage.path("alias.quell").exists());
    assert_eq!(stage.show(&stage.path("tree.quell"))["root"], tree.to_str().unwrap());
}

#[test]
fn unreadable_paths_are_listed_and_with_strict_nothing_is_written() {
    if is_root() {
        skip!("root can read everything");
    }
    let (stage, tree) = fixture();
    set_mode(&tree.join("lib/deep"), 0o000);
    let index = stage.path("index");
    stage.index_with(&[&tree, &"-o", &index, &"--strict"]).expect(1).says("could not read lib/deep");
    assert!(!index.exists() && hidden(&stage.path("")).is_empty());
    stage.index_with(&[&tree, &"-o", &index]).expect(1).says("could not read lib/deep: Permission denied");
    let problems = &stage.show(&index)["problems"];
    assert_eq!(problems[0]["path"], "lib/deep");
    let facts = stage.index_with(&[&"--update", &index, &"--json"]).expect(1).json();
    assert_eq!((&facts["outcome"], &facts["problems"][0]["errno"]), (&"unchanged".into(), &13.into()));
    set_mode(&tree.join("lib/deep"), 0o755);
    stage.index_with(&[&"--update=dirs", &index]).expect(0);
    assert!(stage.paths(&index).contains(&"lib/deep/leaf".to_owned()));
}

#[test]
fn a_file_with_unreadable_attributes_is_kept_and_listed() {
    if is_root() {
        skip!("root can read everything");
    }
    let (stage, tree) = fixture();
    if trees::set_xattr(&tree.join("readme"), "user.note", b"kept").is_err() {
        skip!("no extended attributes on {}", tree.display());
    }
    set_mode(&tree.join("readme"), 0o000);
    let index = stage.path("index");
    stage.index_with(&[&tree, &"-o", &index]).expect(1).says("could not read readme: Permission denied");
    assert!(stage.paths(&index).contains(&"readme".to_owned()));
}

#[test]
fn an_update_writes_the_file_only_after_a_difference() {
    let (stage, tree) = fixture();
    let index = stage.index(&tree);
    let before = fs::metadata(&index).unwrap();
    for option in ["--update", "--update=all", "--update=dirs"] {
        assert!(stage.index_with(&[&option, &index]).expect(0).text().contains("unchanged"), "{option}");
        let after = fs::metadata(&index).unwrap();
        assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()), "{option}");
    }
    fs::write(tree.join("lib/deep/leaf"), "changed in place\n").unwrap();
    assert!(stage.index_with(&[&"--update", &index]).expect(0).text().contains("written"));
    assert_ne!(before.ino(), fs::metadata(&index).unwrap().ino());
    stage.run(stage.quell().arg("verify").arg(&index)).expect(0);
    stage
        .index_with(&[&"--update", &index, &"--exclude", &"x"])
        .expect(2)
        .says("options that the index was made with");
}

#[test]
fn an_update_by_directories_finds_renamed_files_and_not_files_written_in_place() {
    let (stage, tree) = fixture();
    let index = stage.index(&tree);
    // As if the index was created some time after the last change of the tree, because only then
    // unchanged directories are not read again.
    let made = fs::metadata(&index).unwrap().mtime();
    set_mtime(&index, made + 60, 0);
    fs::write(tree.join("lib/data"), "in place").unwrap();
    assert!(stage.index_with(&[&"--update=dirs", &index]).expect(0).text().contains("unchanged"));
    fs::write(tree.join("aside"), "by renaming").unwrap();
    fs::rename(tree.join("aside"), tree.join("lib/deep/leaf")).unwrap();
    assert!(stage.index_with(&[&"--update=dirs", &index]).expect(0).text().contains("written"));
    let shown = |path: &str| {
        stage.run(stage.quell().args(["show", "--json"]).arg(&index).arg(path)).expect(0).json()["size"]
            .clone()
    };
    assert_eq!((shown("lib/deep/leaf"), shown("lib/data")), (11.into(), 10_000.into()));
    let differs = stage.run(stage.quell().arg("verify").arg(&index)).expect(1);
    assert!(differs.text().contains("~ lib/data (size, mtime)"), "{}", differs.text());
    assert!(!differs.text().contains("leaf"), "{}", differs.text());
}

#[test]
fn an_interrupted_build_leaves_the_old_index_whole() {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    let directory = fs::File::open(&tree).unwrap();
    for number in 0..50_000 {
        rustix::fs::symlinkat("target", &directory, format!("{number}")).unwrap();
    }
    // A new process has the descriptors of this one until its execve(2) closes them, and would seem
    // to read the tree before it handles signals.
    drop(directory);
    let index = stage.index(&tree);
    fs::write(tree.join("another"), "").unwrap();
    let old = fs::read(&index).unwrap();
    let is_reading = |pid: i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|to| to == tree)
    };
    for (signal, words) in [
        (Signal::INT, &["--threads", "1"][..]),
        (Signal::TERM, &["--threads", "1", "--update"]),
        (Signal::KILL, &["--threads", "1"]),
    ] {
        // The command may end before it is interrupted; then it is tried again.
        let interrupted = (0..50).any(|_| {
            fs::write(&index, &old).unwrap();
            let mut command = stage.quell();
            command.arg("index").args(words);
            match words.contains(&"--update") {
                true => command.arg(&index),
                false => command.arg(&tree).arg("-o").arg(&index),
            };
            let mut running = stage.start(&mut command);
            let pid = running.pid();
            eventually(|| is_reading(pid) || !running.is_running());
            running.signal(signal);
            let ended = running.wait();
            if ended.code() == Some(0) {
                return false;
            }
            if signal != Signal::KILL {
                assert_eq!(ended.code(), Some(130));
                ended.says("an existing index is unchanged");
            }
            true
        });
        assert!(interrupted, "{signal:?}");
        assert!(fs::read(&index).unwrap() == old, "{signal:?}");
        assert_eq!(hidden(index.parent().unwrap()), Vec::<String>::new(), "{signal:?}");
    }
}

#[test]
fn two_concurrent_builders_do_not_mix() {
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    let index = stage.path("index");
    for _ in 0..5 {
        let start = || stage.start(stage.quell().args(["index", "-q", "-o"]).arg(&index).arg(&tree));
        let builders: Vec<_> = (0..4).map(|_| start()).collect();
        for builder in builders {
            builder.wait().expect(0);
        }
        stage.run(stage.quell().arg("verify").arg(&index)).expect(0);
        assert_eq!(hidden(&stage.path("")), Vec::<String>::new());
    }
}

#[test]
fn the_same_tree_gives_the_same_bytes_whatever_the_number_of_threads() {
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    for directory in 0..40 {
        let path = tree.join(format!("many/{directory}"));
        fs::create_dir_all(&path).unwrap();
        for file in 0..40 {
            fs::write(path.join(format!("{file}")), "").unwrap();
        }
    }
    let bytes = |threads: &str| {
        let file = stage.path(format!("index-{threads}"));
        stage.index_with(&[&tree, &"-q", &"-o", &file, &"--threads", &threads]).expect(0);
        fs::read(file).unwrap()
    };
    let first = bytes("1");
    for threads in ["1", "2", "16", "64"] {
        assert!(first == bytes(threads), "{threads} threads");
    }
}

#[test]
fn a_tree_that_changes_while_it_is_read_gives_a_whole_index() {
    let (stage, tree) = fixture();
    let index = stage.path("index");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let churn = || {
            let mut round = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let (path, other) =
                    (tree.join(format!("new{}", round % 7)), tree.join(format!("lib/{}", round % 5)));
                let _ = fs::create_dir(&path);
                let _ = fs::write(path.join("file"), "x");
                let _ = fs::rename(&path, &other);
                let _ = fs::write(&path, "a file now");
                let _ = fs::remove_dir_all(&other);
                let _ = fs::remove_file(&path);
                round += 1;
            }
        };
        scope.spawn(churn);
        scope.spawn(churn);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..25 {
                let ended = stage.index_with(&[&tree, &"-q", &"-o", &index]);
                assert!(matches!(ended.code(), Some(0 | 1)), "{:?} {}", ended.status, ended.err);
                let seen = stage.show(&index);
                let problems = seen["problems"].as_array().unwrap().len();
                assert_eq!(problems > 0, ended.code() == Some(1), "{seen}");
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    stage.index_with(&[&"--update", &index]).expect(0);
    stage.run(stage.quell().arg("verify").arg(&index)).expect(0);
}

#[test]
fn an_index_is_no_more_readable_than_its_tree() {
    let (stage, tree) = fixture();
    let index = stage.path("index");
    if tree.ancestors().any(|above| fs::metadata(above).unwrap().mode() & 0o001 == 0) {
        skip!("the temporary directory is not open to others");
    }
    let mode_with = |path: &str, mode: u32| {
        let before = fs::metadata(tree.join(path)).unwrap().mode() & 0o7777;
        set_mode(&tree.join(path), mode);
        let _ = fs::remove_file(&index);
        stage.index_with(&[&tree, &"-q", &"-o", &index]).expect(0);
        set_mode(&tree.join(path), before);
        fs::metadata(&index).unwrap().permissions().mode() & 0o7777
    };
    assert_eq!(mode_with("lib", 0o755), 0o644);
    assert_eq!(mode_with("lib/deep", 0o700), 0o600);
    assert_eq!(mode_with("lib/deep", 0o750), 0o640);
    assert_eq!(mode_with("lib/deep", 0o751), 0o640);
    assert_eq!(mode_with("", 0o700), 0o600);
    // The permissions of a file's content do not matter, because the index does not contain it.
    assert_eq!(mode_with("readme", 0o600), 0o644);
    // The path to the tree has no search permission for others.
    let closed = stage.dir("closed");
    let below = trees::small(&stage, "closed/tree");
    set_mode(&closed, 0o700);
    stage.index_with(&[&below, &"-q", &"-o", &index]).expect(0);
    assert_eq!(fs::metadata(&index).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_file_that_is_no_index_is_refused_by_every_command() {
    let (stage, tree) = fixture();
    let whole = fs::read(stage.index(&tree)).unwrap();
    let point = stage.dir("point");
    let mut cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("text", b"#!/bin/sh\necho this is no index\n".repeat(40)),
        ("header-only", whole[..100].to_vec()),
        ("half", whole[..whole.len() / 2].to_vec()),
        ("one-short", whole[..whole.len() - 1].to_vec()),
        ("too-long", [&whole[..], b"x"].concat()),
    ];
    let mut newer = whole.clone();
    newer[8] = 3;
    cases.push(("newer", newer));
    for position in [17, 33, 50, 200, 700, whole.len() - 9] {
        let mut flipped = whole.clone();
        flipped[position] ^= 0x10;
        cases.push(("flipped", flipped));
    }
    for (case, bytes) in cases {
        let file = stage.file(case, bytes);
        let commands: [&[&dyn AsRef<std::ffi::OsStr>]; 6] = [
            &[&"show", &file],
            &[&"show", &"-r", &"--json", &file],
            &[&"verify", &file],
            &[&"index", &"--update", &file],
            &[&"mount", &file, &point],
            &[&"run", &"--strict", &"-i", &file, &"--", &"echo", &"ran"],
        ];
        for command in commands {
            let words = crate::stage::words(command);
            let ended = stage.run(stage.quell().args(&words));
            assert_eq!(ended.code(), Some(2), "{case} {words:?}: {}", ended.err);
            assert_eq!(ended.text(), "", "{case} {words:?}");
            assert!(ended.err.contains(case), "{case} {words:?}: {}", ended.err);
            let reasons = ["at byte", "version", "not an index file"];
            let has_reason = reasons.iter().any(|reason| ended.err.contains(reason));
            assert!(has_reason, "{case} {words:?}: {}", ended.err);
        }
        let mut command = stage.quell_run(&file, "auto");
        let ended = stage.run(command.args(["--", "cat"]).arg(tree.join("readme")));
        if ["empty", "text"].contains(&case) {
            // Such a file is a wrong argument.
            assert_eq!(ended.expect(2).says(case).text(), "");
            continue;
        }
        // Without --strict the program runs on the original.
        let ended = ended.expect(0);
        assert_eq!(ended.text(), "hello\n");
        ended.says(case).says("original");
    }
    stage.run(stage.quell().args(["show", "/"])).expect(2);
    stage.run(stage.quell().arg("verify").arg(stage.path("none"))).expect(2).says("none");
    stage.expect_nothing_left();
}

#[test]
fn verify_prints_added_removed_and_changed_entries() {
    let (stage, tree) = fixture();
    let index = stage.index(&tree);
    let ended = stage.run(stage.quell().arg("verify").arg(&index)).expect(0);
    assert!(ended.text().contains("9 entries, all as indexed"));
    fs::write(tree.join(name(b"added\xff")), "").unwrap();
    fs::remove_file(tree.join("link")).unwrap();
    fs::write(tree.join("lib/data"), "other").unwrap();
    set_mode(&tree.join("bin/tool"), 0o700);
    let ended = stage.run(stage.quell().arg("verify").arg(&index)).expect(1);
    let mut lines: Vec<String> = ended.text().lines().map(str::to_owned).collect();
    assert!(lines.pop().unwrap().ends_with("5 differences"));
    lines.sort();
    assert_eq!(
        lines,
        ["+ added\\xff", "- link", "~ . (mtime)", "~ bin/tool (mode)", "~ lib/data (size, mtime)"]
    );
    let ended = stage.run(stage.quell().args(["verify", "--json"]).arg(&index)).expect(1);
    let differences = ended.json()["differences"].clone();
    assert_eq!(differences.as_array().unwrap().len(), 5);
    let added = serde_json::json!({ "path": "added\\xff", "what": "added", "attributes": [] });
    assert!(differences.as_array().unwrap().contains(&added), "{differences}");
}

#[test]
fn show_prints_the_contents_of_an_index() {
    let (stage, tree) = fixture();
    let index = stage.index(&tree);
    let show = |words: &[&str]| stage.run(stage.quell().arg("show").arg(&index).args(words));
    let text = show(&[]).expect(0).text();
    assert!(text.contains("entries     9 (4 directories, 9 nodes)"), "{text}");
    let summary = show(&["--json"]).expect(0).json();
    assert_eq!((&summary["entries"], &summary["directories"]), (&9.into(), &4.into()));
    assert_eq!(summary["bytes"], fs::metadata(&index).unwrap().len());
    let absolute = tree.join("lib");
    for path in ["lib", "/lib", "lib/", absolute.to_str().unwrap()] {
        let entry = show(&[path, "--json"]).expect(0).json();
        assert_eq!((&entry["kind"], &entry["path"]), (&"d".into(), &"lib".into()), "{path}");
        assert_eq!(entry["entries"].as_array().unwrap().len(), 2);
    }
    assert_eq!(show(&["link", "--json"]).expect(0).json()["target"], "lib/deep/leaf");
    assert_eq!(show(&["-r"]).expect(0).text().lines().count(), 9);
    assert_eq!(show(&["-r", "lib"]).expect(0).text().lines().count(), 4);
    show(&["lib/absent"]).expect(2).says("lib/absent");
}

#[test]
fn a_closed_output_pipe_prints_no_error() {
    let (stage, tree) = fixture();
    for number in 0..3000 {
        fs::write(tree.join(format!("file{number}")), "").unwrap();
    }
    let index = stage.index(&tree);
    let script = "\"$1\" show -r \"$2\" | head -1";
    let ended = stage.sh(script, &[&crate::stage::quell(), &index]).expect(0);
    assert!(!ended.err.contains("panicked"), "{}", ended.err);
}
