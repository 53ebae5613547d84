//! A real parallel file system: compares the requests of its clients to the metadata server with a
//! covered and an uncovered tree. The clients count the requests themselves (`.stats` of a MooseFS
//! mount); nothing is timed.
//!
//! Needs root, for the network namespaces of `testbed/moosefs`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::skip;
use crate::stage::{Ended, Stage, has, is_root, views};
use crate::testbed::Testbed;

const DIRECTORIES: u64 = 30;
const FILES_IN_EACH: u64 = 20;
const FILES: u64 = DIRECTORIES * FILES_IN_EACH;

/// Returns the number of requests to the metadata server: all except data requests and closes.
pub fn metadata(asked: &BTreeMap<String, u64>) -> u64 {
    let to_master = [
        "lookup.master",
        "getattr",
        "open",
        "opendir",
        "access",
        "statfs",
        "readlink.master",
        "getxattr",
        "listxattr",
        "setattr",
        "create",
        "mknod",
        "mkdir",
        "symlink",
        "link",
        "rename",
        "unlink",
        "rmdir",
    ];
    let of_master = |name: &String| to_master.contains(&name.as_str()) || name.starts_with("readdir");
    asked.iter().filter(|(name, _)| of_master(name)).map(|(_, count)| count).sum()
}

/// Creates a tree of files with different contents.
pub fn make_tree(at: &Path) {
    for d in 0..DIRECTORIES {
        let directory = at.join(format!("d{d:02}"));
        fs::create_dir_all(&directory).unwrap();
        for f in 0..FILES_IN_EACH {
            fs::write(directory.join(format!("f{f:02}")), format!("{d} {f}\n")).unwrap();
        }
    }
}

/// Lists all directories, reads all metadata, and looks up names that do not exist.
const CRAWL: &str = r#"cd "$1" && ls -lR . && find . -printf '%p %y %m %s %T@ %l %n\n' | sort &&
    for d in d*; do for m in a b c d e; do test -e "$d/missing-$m" && exit 9; done; done; exit 0"#;
const READ_ALL: &str = r#"cd "$1" && find . -type f | sort | xargs cat"#;

fn covered(stage: &Stage, index: &Path, tree: &Path, view: &str, script: &str) -> Ended {
    let mut command = stage.quell_run(index, view);
    command
        .args(["--strict", "--check", "sample", "--recheck", "0", "--source"])
        .arg(tree)
        .args(["--", "sh", "-c", script, "sh"])
        .arg(tree);
    stage.run(&mut command).expect(0)
}

#[test]
fn the_metadata_server_is_left_alone() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    let stage = Stage::new();
    let testbed = Testbed::start(&stage);
    make_tree(&testbed.node("1").join("tree"));
    let index = testbed.node("1").join("tree.quell");
    stage.run(stage.quell().args(["index", "-q"]).arg(testbed.node("1").join("tree"))).expect(0);

    // Node 2 has empty caches. Its tree has another path than the indexed one.
    let (tree, index) = (testbed.node("2").join("tree"), testbed.node("2").join(index.file_name().unwrap()));
    let mut crawled = Vec::new();
    let direct = testbed.requests_of("2", || crawled = stage.sh(CRAWL, &[&tree]).expect(0).out);
    let missing = DIRECTORIES * 5;
    assert!(metadata(&direct) > missing + 2 * DIRECTORIES, "the work is no storm: {direct:?}");
    let mut content = Vec::new();
    let reading = testbed.requests_of("2", || content = stage.sh(READ_ALL, &[&tree]).expect(0).out);
    assert!(reading["open"] >= FILES, "{reading:?}");

    for view in views() {
        let mut seen = Vec::new();
        let asked = testbed.requests_of("2", || seen = covered(&stage, &index, &tree, view, CRAWL).out);
        assert!(metadata(&asked) <= 16, "{view}: {asked:?}");
        if *view == "fuse" {
            // The other views show the directory sizes and block counts of a tmpfs, or derive block
            // counts from the size.
            assert_eq!(find_lines(&seen), find_lines(&crawled), "{view}");
        }

        let asked = testbed.requests_of("2", || seen = covered(&stage, &index, &tree, view, READ_ALL).out);
        assert!(seen == content, "{view}: other bytes");
        // Each file is looked up and opened, and each directory is looked up: twice, if the
        // client's cache expires meanwhile.
        let limit = 2 * FILES + 2 * DIRECTORIES + 16;
        assert!(asked["open"] >= FILES && metadata(&asked) <= limit, "{view}: at most {limit}: {asked:?}");
        assert!(!asked.keys().any(|name| name.starts_with("readdir")), "{view}: {asked:?}");
    }

    // A change on one node is noticed on the other node, on which the program then runs on the
    // original.
    fs::write(testbed.node("1").join("tree/new"), "new\n").unwrap();
    testbed.call(&["drop", "2"]);
    let mut command = stage.quell_run(&index, "auto");
    command.arg("--source").arg(&tree).args(["--", "cat"]).arg(tree.join("new"));
    let ended =
        stage.run(&mut command).expect(0).says("is out of date").says("running on the original directory");
    assert_eq!(ended.out, b"new\n");
    drop(testbed);
    stage.expect_nothing_left();
}

fn find_lines(output: &[u8]) -> Vec<&str> {
    let text = std::str::from_utf8(output).unwrap();
    text.lines().filter(|line| line.starts_with("./") && line.contains(' ')).collect()
}
