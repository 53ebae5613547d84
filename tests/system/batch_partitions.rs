//! `quell batch serve --partitions`: mounts of a store whose large directories have several
//! servers, which are ended and killed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::batch::can_mount;
use crate::stage::{Running, Stage, eventually, words};

impl Stage {
    fn start_server(&self, store: &Path, options: &[&str]) -> Running {
        let mut command = self.quell();
        command.args(words(&[&"batch", &"serve", &store, &"--json"])).args(options);
        let server = self.start(&mut command);
        assert!(eventually(|| server.out().ends_with('\n')), "{}", server.err());
        server
    }
}

/// Returns the number of directories of which a partition server has names. `None` if it does not
/// run.
fn directories(stage: &Stage, store: &Path, server: usize) -> Option<u64> {
    let printed = stage.run(stage.quell().args(words(&[&"batch", &"status", &store, &"--json"]))).expect(0);
    let servers = printed.json()["partition_servers"].clone();
    let found =
        servers.as_array().expect("a list").iter().find(|found| found["number"] == server).expect("a server");
    found["is_reachable"]
        .as_bool()
        .expect("a value")
        .then(|| found["counters"]["assignments"].as_u64().expect("a number"))
}

fn create(dir: &Path, prefix: &str, count: usize) {
    for number in 0..count {
        File::create(dir.join(format!("{prefix}-{number}"))).unwrap();
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("a name");
    fs::read_dir(dir).unwrap().map(|entry| name(entry.unwrap())).collect()
}

#[test]
fn no_file_of_a_divided_directory_is_lost_when_its_servers_are_killed() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let server = stage.start_server(&store, &["--divide-after", "100"]);
    let first = stage.start_server(&store, &["--partitions"]);
    let second = stage.start_server(&store, &["--partitions", "--listen", "127.0.0.1:0"]);
    let line: Value = serde_json::from_str(&second.out()).expect("JSON");
    assert!(line["address"].as_str().expect("an address").starts_with("127.0.0.1:"));
    let (one, two) = (stage.mount_batch(&store, &[], "one"), stage.mount_batch(&store, &[], "two"));
    let [in_one, in_two] = [&one, &two].map(|mount| mount.point.join("dir"));
    fs::create_dir(&in_one).unwrap();
    let mut expected = BTreeSet::new();
    // Creates files until each server has names of the directory.
    let divide = |servers: &[usize], expected: &mut BTreeSet<String>| {
        let is_divided = || servers.iter().all(|server| directories(&stage, &store, *server) == Some(1));
        let mut number = 0;
        while !is_divided() {
            assert!(number < 5000, "the directory is not divided");
            for _ in 0..50 {
                let name = format!("further-{}-{number}", expected.len());
                File::create(in_one.join(&name)).unwrap();
                expected.insert(name);
                number += 1;
            }
        }
    };
    let create_in_both = |round: &str, count: usize, expected: &mut BTreeSet<String>| {
        std::thread::scope(|scope| {
            scope.spawn(|| create(&in_one, &format!("{round}-one"), count));
            create(&in_two, &format!("{round}-two"), count);
        });
        for mount in ["one", "two"] {
            expected.extend((0..count).map(|number| format!("{round}-{mount}-{number}")));
        }
    };
    create_in_both("first", 300, &mut expected);
    divide(&[1, 2], &mut expected);
    assert_eq!(names(&in_one), expected);
    assert_eq!(names(&in_two), expected);
    // A list needs all names, so the server has taken them back.
    assert_eq!([1, 2].map(|server| directories(&stage, &store, server)), [Some(0); 2]);

    // A partition server is killed while it has names.
    create_in_both("second", 300, &mut expected);
    divide(&[1, 2], &mut expected);
    first.signal(Signal::KILL);
    drop(first);
    assert_eq!(directories(&stage, &store, 1), None);
    assert!(in_one.join("second-two-299").exists() && in_two.join("second-one-0").exists());
    create_in_both("third", 300, &mut expected);
    assert_eq!(names(&in_two), expected);

    // Data of files, attributes and removals are kept as well.
    fs::write(in_one.join("small"), "small").unwrap();
    fs::write(in_two.join("large"), vec![7; 200_000]).unwrap();
    create_in_both("fourth", 300, &mut expected);
    assert_eq!(fs::read_to_string(in_two.join("small")).unwrap(), "small");
    assert_eq!(fs::read(in_one.join("large")).unwrap(), vec![7; 200_000]);
    fs::remove_file(in_two.join("small")).unwrap();
    fs::remove_file(in_one.join("large")).unwrap();
    divide(&[2], &mut expected);

    // All servers are killed, and others take their places.
    for killed in [server, second] {
        killed.signal(Signal::KILL);
    }
    let server = stage.start_server(&store, &["--divide-after", "100"]);
    assert_eq!(names(&in_one), expected);
    assert_eq!(names(&in_two), expected);
    one.umount();
    two.umount();
    drop(server);
    stage.run(stage.quell().args(words(&[&"batch", &"fsck", &store]))).expect(0);
}

#[test]
fn partition_servers_run_in_the_background_until_they_are_ended() {
    let stage = Stage::new();
    let store = stage.batch_store();
    let serve =
        |options: &[&str]| stage.run(stage.quell().args(words(&[&"batch", &"serve", &store])).args(options));
    serve(&["--partitions", "--stop"]).expect(3).says("is a partition server of the store");
    serve(&["--partitions", "--background"]).expect(0);
    serve(&["--partitions", "--background"]).expect(0);
    let status = stage.run(stage.quell().args(words(&[&"batch", &"status", &store]))).expect(0);
    assert_eq!(status.text().matches(": partitions of 0 directories, ").count(), 2, "{}", status.text());
    serve(&["--partitions", "--stop"]).expect(0);
    let status = stage.run(stage.quell().args(words(&[&"batch", &"status", &store]))).expect(0);
    assert_eq!(
        status.text(),
        "partition server 1: not running, or not reachable\npartition server 2: not running, or not reachable\n"
    );
    serve(&["--partitions", "--idle", "5"]).expect(2).says("cannot be used with");
    stage.run(stage.quell().args(words(&[&"batch", &"fsck", &store]))).expect(0);
}
