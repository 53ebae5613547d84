//! Boot images on a real parallel file system: recorded on two nodes at the same time into one
//! file, and served on a node with empty caches, whose client counts its requests to the servers.
//!
//! Needs root, for the network namespaces of `testbed/moosefs`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::boot::{BLOCK, files_of};
use crate::skip;
use crate::stage::{Running, Stage, eventually, has, is_root};
use crate::testbed::Testbed;
use crate::trees;

const DIRECTORIES: usize = 10;
const FILES_IN_EACH: usize = 20;
const FILE_BYTES: usize = 2 * BLOCK + 100;
/// Limit on the operations of a start: loading the index and the image, the check, and path
/// lookups. On an idle machine there are 10 to 16. The slower the start, the more of them are
/// repeated when the client's cache expires; with a client that caches no names and no attributes
/// there are 30 to 43. One operation for each file of a tree would exceed the limit.
pub const OPERATIONS_MAX: u64 = 100;

/// Reads the files whose names begin with the second argument, and ends when the file named by the
/// third exists.
const READ: &str = r#"cat "$1"/*/$2*; echo read >&2; while ! test -e "$3"; do sleep 0.05; done"#;
/// Enters the tree first: each use of a path to it may be a lookup in the directory above it, if
/// the client's cache has expired.
const READ_ALL: &str = r#"cd "$1" && cat */*"#;

/// Returns the number of requests to the servers, except for reads of data.
pub fn operations(requests: &BTreeMap<String, u64>) -> u64 {
    let to_servers = ["lookup.master", "getattr", "open", "opendir", "access", "statfs", "readlink.master"];
    to_servers.iter().filter_map(|name| requests.get(*name)).sum()
}

fn make_tree(at: &Path) {
    for d in 0..DIRECTORIES {
        let directory = at.join(format!("d{d}"));
        fs::create_dir_all(&directory).unwrap();
        for f in 0..FILES_IN_EACH {
            let name = format!("{}{f}", if f % 2 == 0 { "even" } else { "odd" });
            fs::write(directory.join(name), trees::noise(FILE_BYTES, (d * 100 + f) as u64)).unwrap();
        }
    }
}

#[test]
fn nodes_record_concurrently_into_one_image_that_a_cold_node_uses() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    let stage = Stage::new();
    let testbed = Testbed::start(&stage);
    make_tree(&testbed.node("1").join("tree"));
    stage.run(stage.quell().args(["index", "-q"]).arg(testbed.node("1").join("tree"))).expect(0);

    let go = stage.path("go");
    let recorders: Vec<Running> = [("1", "even"), ("2", "odd")]
        .iter()
        .map(|(node, half)| {
            let directory = testbed.node(node);
            let mut command = stage.quell();
            command.args(["record", "-q", "--merge", "-i"]).arg(directory.join("tree.quell"));
            command.arg("--source").arg(directory.join("tree")).arg("-o").arg(directory.join("app.boot"));
            command.args(["--", "sh", "-c", READ, "sh"]).arg(directory.join("tree")).arg(half).arg(&go);
            let mut running = stage.start(&mut command);
            running.wait_for_error("read");
            running
        })
        .collect();
    fs::write(&go, "").unwrap();
    for recorder in recorders {
        recorder.wait().expect(0);
    }
    let directory = testbed.node("2");
    let mut show = stage.quell();
    let shown =
        stage.run(show.args(["boot", "show", "--json"]).arg(directory.join("app.boot"))).expect(0).json();
    let files = DIRECTORIES * FILES_IN_EACH;
    assert_eq!((shown["recordings"].as_u64(), shown["files"].as_u64()), (Some(2), Some(files as u64)));
    let mut names: Vec<String> =
        fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.contains("app.boot"));
    assert_eq!(names, ["app.boot"], "what was written aside is gone");

    let tree = directory.join("tree");
    let mut expected = Vec::new();
    let direct = testbed.requests_of("2", || expected = stage.sh(READ_ALL, &[&tree]).expect(0).out);
    assert!(direct["open"] >= files as u64, "{direct:?}");
    let mut command = stage.quell();
    command
        .args(["run", "-q", "--strict", "--check", "sample", "--recheck", "0", "-i"])
        .arg(directory.join("tree.quell"));
    command.arg("-b").arg(directory.join("app.boot")).arg("--source").arg(&tree);
    command.args(["--", "sh", "-c", READ_ALL, "sh"]).arg(&tree);
    let mut seen = Vec::new();
    let asked = testbed.requests_of("2", || seen = stage.run(&mut command).expect(0).out);
    assert!(seen == expected, "other bytes");
    assert!(operations(&asked) <= OPERATIONS_MAX, "{asked:?}");
    let reads_max = fs::metadata(directory.join("app.boot")).unwrap().len() / (128 << 10) + 10;
    assert!(asked["read"] <= reads_max, "at most {reads_max}: {asked:?}");
    drop(testbed);
    assert!(eventually(|| stage.processes().is_empty()));
}

/// Reads the recorded files, and blocks of a file that the image does not have: 16 processes, of
/// which each reads another part.
const READ_MISSING: &str = r#"cd "$1" && cat d*/* | cksum
    for i in $(seq 16); do dd if=large bs=4096 skip=$((i * 20)) count=1 status=none & done | wc -c
    wait"#;

#[test]
fn the_missing_blocks_of_a_file_cost_one_open() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    let stage = Stage::new();
    let testbed = Testbed::start(&stage);
    let directory = testbed.node("1");
    let tree = directory.join("tree");
    make_tree(&tree);
    fs::write(tree.join("large"), vec![b'x'; 400 * BLOCK]).unwrap();
    let (index, image) = (directory.join("tree.quell"), directory.join("app.boot"));
    stage.run(stage.quell().args(["index", "-q"]).arg(&tree)).expect(0);
    let mut record = stage.quell();
    record.args(["record", "-q", "-i"]).arg(&index).arg("-o").arg(&image);
    let script = r#"cat "$1"/d*/* >/dev/null; head -c 100 "$1/large" >/dev/null"#;
    stage.run(record.args(["--", "sh", "-c", script, "sh"]).arg(&tree)).expect(0);
    let mut show = stage.quell();
    let recorded =
        files_of(&stage.run(show.args(["boot", "show", "--files", "--json"]).arg(&image)).expect(0));
    // All blocks of the small files are recorded, and few blocks of the large file.
    let large = recorded.iter().position(|(name, _)| name == "large").unwrap();
    assert!(recorded[large].1 < 20, "{}", recorded[large].1);
    assert!((0..recorded.len()).all(|n| n == large || recorded[n].1 == 3), "{recorded:?}");
    let expected = stage.sh(READ_MISSING, &[&tree]).expect(0).out;

    let mut command = stage.quell();
    command.args(["run", "-q", "--strict", "--view", "overlay", "--check", "sample", "--recheck", "0", "-i"]);
    command.arg(&index).arg("-b").arg(&image);
    command.args(["--", "sh", "-c", READ_MISSING, "sh"]).arg(&tree);
    let mut seen = Vec::new();
    let sent = testbed.requests_of("1", || seen = stage.run(&mut command).expect(0).out);
    assert!(seen == expected, "other bytes");
    let count = |name: &str| sent.get(name).copied().unwrap_or(0);
    // The index, the image and the large file.
    assert!(count("open") <= 3 && count("opendir") == 0, "{sent:?}");
    assert!(operations(&sent) <= OPERATIONS_MAX, "{sent:?}");
}
