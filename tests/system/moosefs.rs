//! On a real parallel file system: what its clients ask its metadata server when a tree is covered, and what
//! they ask when it is not. Counted by the clients themselves (`.stats` of a MooseFS mount), never timed.
//!
//! Needs root, for the network namespaces of `testbed/moosefs`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip;
use crate::stage::{Ended, Stage, has, is_root, views};

const DIRECTORIES: u64 = 30;
const FILES_IN_EACH: u64 = 20;
const FILES: u64 = DIRECTORIES * FILES_IN_EACH;

/// A MooseFS with two nodes, taken down when this goes.
pub struct Bed {
    script: PathBuf,
    directory: PathBuf,
}

impl Bed {
    pub fn up(stage: &Stage) -> Bed {
        let checkout = std::env::var_os("QUELL_SOURCE")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), PathBuf::from);
        let bed = Bed { script: checkout.join("testbed/moosefs"), directory: stage.path("bed") };
        bed.call(&["up", "2"]);
        bed
    }

    fn call(&self, words: &[&str]) -> String {
        let output = Command::new(&self.script).args(words).env("TESTBED", &self.directory).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "moosefs {words:?}: {error}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn node(&self, number: &str) -> PathBuf {
        self.call(&["node", number]).into()
    }

    /// The messages that this node's client has sent to the metadata server so far.
    pub fn sent(&self, node: &str) -> u64 {
        let counts = self.call(&["ops", node]);
        counts.split(' ').next().and_then(|count| count.parse().ok()).expect("two numbers")
    }

    /// What programs asked this node's client, by name.
    fn counts(&self, node: &str) -> BTreeMap<String, u64> {
        let text = fs::read_to_string(self.node(node).join(".stats")).unwrap();
        text.lines()
            .filter_map(|line| line.strip_prefix("fuse_ops.")?.split_once(": "))
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .collect()
    }

    /// What the client asked because of `work`, on a node with empty caches. Reading the counters is itself
    /// counted, and taken off.
    fn asked(&self, node: &str, work: impl FnOnce()) -> BTreeMap<String, u64> {
        self.call(&["drop", node]);
        let (first, second) = (self.counts(node), self.counts(node));
        work();
        let third = self.counts(node);
        let of = |counts: &BTreeMap<String, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
        third
            .keys()
            .map(|name| {
                let reading = of(&second, name) - of(&first, name);
                (name.clone(), (of(&third, name) - of(&second, name)).saturating_sub(reading))
            })
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = Command::new(&self.script).arg("down").env("TESTBED", &self.directory).status();
    }
}

/// Those that go to the metadata server: all but data, and the closing of what was opened.
fn metadata(asked: &BTreeMap<String, u64>) -> u64 {
    let to_master = [
        "lookup.master",
        "getattr",
        "open",
        "opendir",
        "access",
        "statfs",
        "readlink",
        "getxattr",
        "listxattr",
    ];
    let of_master = |name: &String| to_master.contains(&name.as_str()) || name.starts_with("readdir");
    asked.iter().filter(|(name, _)| of_master(name)).map(|(_, count)| count).sum()
}

fn make_tree(at: &Path) {
    for d in 0..DIRECTORIES {
        let directory = at.join(format!("d{d:02}"));
        fs::create_dir_all(&directory).unwrap();
        for f in 0..FILES_IN_EACH {
            fs::write(directory.join(format!("f{f:02}")), format!("{d} {f}\n")).unwrap();
        }
    }
}

/// Lists everything, asks for everything's metadata, and searches for names that do not exist.
const CRAWL: &str = r#"cd "$1" && ls -lR . && find . -printf '%p %y %m %s %T@ %l %n\n' | sort &&
    for d in d*; do for m in a b c d e; do test -e "$d/missing-$m" && exit 9; done; done; exit 0"#;
const READ_ALL: &str = r#"cd "$1" && find . -type f | sort | xargs cat"#;

fn covered(stage: &Stage, index: &Path, tree: &Path, view: &str, script: &str) -> Ended {
    let mut command = stage.quell_run(index, view);
    command
        .args(["--strict", "--recheck", "0", "--source"])
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
    let bed = Bed::up(&stage);
    make_tree(&bed.node("1").join("tree"));
    let index = bed.node("1").join("tree.quell");
    stage.run(stage.quell().args(["index", "-q"]).arg(bed.node("1").join("tree"))).expect(0);

    // Node 2 never saw any of it. Its tree lies elsewhere than where it was indexed.
    let (tree, index) = (bed.node("2").join("tree"), bed.node("2").join(index.file_name().unwrap()));
    let mut crawled = Vec::new();
    let direct = bed.asked("2", || crawled = stage.sh(CRAWL, &[&tree]).expect(0).out);
    let missing = DIRECTORIES * 5;
    assert!(metadata(&direct) > missing + 2 * DIRECTORIES, "the work is no storm: {direct:?}");
    let mut content = Vec::new();
    let reading = bed.asked("2", || content = stage.sh(READ_ALL, &[&tree]).expect(0).out);
    assert!(reading["open"] >= FILES, "{reading:?}");

    for view in views() {
        let mut seen = Vec::new();
        let asked = bed.asked("2", || seen = covered(&stage, &index, &tree, view, CRAWL).out);
        assert!(metadata(&asked) <= 16, "{view}: {asked:?}");
        if *view == "fuse" {
            // The others show a tmpfs's directory sizes and block counts, or count blocks by size.
            assert_eq!(find_lines(&seen), find_lines(&crawled), "{view}");
        }

        let asked = bed.asked("2", || seen = covered(&stage, &index, &tree, view, READ_ALL).out);
        assert!(seen == content, "{view}: other bytes");
        // Each file is looked up and opened, each directory looked up: twice, should the client's memory of it
        // run out in between.
        let limit = 2 * FILES + 2 * DIRECTORIES + 16;
        assert!(asked["open"] >= FILES && metadata(&asked) <= limit, "{view}: at most {limit}: {asked:?}");
        assert!(!asked.keys().any(|name| name.starts_with("readdir")), "{view}: {asked:?}");
    }

    // A change made on one node is noticed on another, and the original used.
    fs::write(bed.node("1").join("tree/new"), "new\n").unwrap();
    bed.call(&["drop", "2"]);
    let mut command = stage.quell_run(&index, "auto");
    command.arg("--source").arg(&tree).args(["--", "cat"]).arg(tree.join("new"));
    let ended = stage.run(&mut command).expect(0).says("is not as").says("running on the original directory");
    assert_eq!(ended.out, b"new\n");
    drop(bed);
    stage.expect_nothing_left();
}

fn find_lines(output: &[u8]) -> Vec<&str> {
    let text = std::str::from_utf8(output).unwrap();
    text.lines().filter(|line| line.starts_with("./") && line.contains(' ')).collect()
}
