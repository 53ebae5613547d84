//! `quell batch serve`: several mounts and batches with one server, which is ended and replaced.
//! `daemon/batch/tests/histories.rs` checks histories for linearizability without the kernel, which
//! can perform one system call as several operations.

use std::fs::{self, File};
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::batch::can_mount;
use crate::skip;
use crate::stage::{Running, Stage, eventually, has, is_root, words};
use crate::testbed::Testbed;

impl Stage {
    /// Starts a server of a store, and waits until it serves.
    fn batch_server(&self, store: &Path, options: &[&str]) -> Running {
        let mut command = self.quell();
        command.args(words(&[&"batch", &"serve", &store, &"--json"])).args(options);
        let server = self.start(&mut command);
        assert!(eventually(|| server.out().ends_with('\n')), "{}", server.err());
        server
    }
}

#[test]
fn several_mounts_and_batches_use_one_server() {
    if !can_mount() {
        return;
    }
    let stage = Stage::new();
    let store = stage.batch_store();
    let server = stage.batch_server(&store, &["--listen", "127.0.0.1:0"]);
    let line: Value = serde_json::from_str(&server.out()).expect("JSON");
    let address = line["address"].as_str().expect("an address").to_owned();
    let one = stage.mount_batch(&store, &[], "one");
    // A client on another node finds no socket that accepts connections.
    fs::rename(store.join("socket"), store.join("socket-elsewhere")).unwrap();
    let two = stage.mount_batch(&store, &[], "two");
    fs::rename(store.join("socket-elsewhere"), store.join("socket")).unwrap();
    fs::create_dir(one.point.join("dir")).unwrap();
    fs::write(two.point.join("dir/small"), "small").unwrap();
    fs::write(one.point.join("dir/large"), vec![7; 200_000]).unwrap();
    assert_eq!(fs::read_to_string(one.point.join("dir/small")).unwrap(), "small");
    assert_eq!(fs::read(two.point.join("dir/large")).unwrap(), vec![7; 200_000]);
    fs::rename(two.point.join("dir/small"), two.point.join("renamed")).unwrap();
    assert!(!one.point.join("dir/small").exists() && one.point.join("renamed").exists());
    // A batch of a part of the tree, while others use the rest.
    let job = stage.mount_batch(&store.join("dir"), &["--mode", "batch"], "job");
    for number in 0..100 {
        fs::write(job.point.join(number.to_string()), "of the batch").unwrap();
    }
    fs::write(one.point.join("meanwhile"), "synchronous").unwrap();
    assert_eq!(stage.batches(&store)[0]["state"], "open");
    assert!(!one.point.join("dir/99").exists());
    job.umount();
    assert_eq!(stage.batches(&store)[0]["state"], "committed");
    assert_eq!(fs::read_to_string(two.point.join("dir/99")).unwrap(), "of the batch");
    stage.run(stage.quell().args(words(&[&"batch", &"conflicts", &store, &"1"]))).expect(0);
    // Conflicts are resolved while the server serves.
    let job = stage.mount_batch(&store.join("dir"), &["--mode", "batch"], "conflict");
    fs::write(job.point.join("same"), "of the batch").unwrap();
    fs::write(one.point.join("dir/same"), "of others").unwrap();
    let (code, reported) = job.unmounted();
    assert!(code == Some(0) && reported.contains("1 conflict"), "{reported}");
    let conflicts = |options: &[&str]| {
        let mut command = stage.quell();
        stage.run(command.args(words(&[&"batch", &"conflicts", &store, &"2"])).args(options))
    };
    let expected = "/dir/same was created by others meanwhile; kept as /dir/same.quell-conflict-2-1\n";
    assert_eq!(conflicts(&[]).expect(1).text(), expected);
    conflicts(&["--keep", "mine", "/other"]).expect(2).says("/other: the batch has no such conflict");
    assert_eq!(conflicts(&["--keep", "mine", "/dir/same"]).expect(0).text(), "");
    assert_eq!(conflicts(&[]).expect(0).text(), "");
    assert_eq!(fs::read_to_string(two.point.join("dir/same")).unwrap(), "of the batch");
    // A batch whose process was killed is aborted while the server serves.
    let lost = stage.mount_batch(&store.join("dir"), &["--mode", "batch"], "lost");
    let holder = stage.holders().into_iter().max().expect("the process of the last mount");
    crate::stage::send(holder, Signal::KILL);
    drop(lost);
    assert!(eventually(|| {
        stage.run(stage.quell().args(words(&[&"batch", &"abort", &store, &"3"]))).code() == Some(0)
    }));
    // The mounts continue with the next server, and so does the open file.
    let open = File::options().append(true).open(one.point.join("meanwhile")).unwrap();
    server.signal(Signal::TERM);
    server.wait().expect(0);
    assert!(!store.join("socket").exists() && !store.join("address").exists());
    let server = stage.batch_server(&store, &["--listen", &address]);
    std::io::Write::write_all(&mut &open, b", and more").unwrap();
    drop(open);
    assert_eq!(fs::read_to_string(two.point.join("meanwhile")).unwrap(), "synchronous, and more");
    one.umount();
    two.umount();
    server.signal(Signal::TERM);
    server.wait().expect(0);
    // Nothing is missing without the server.
    let own = stage.mount_batch(&store, &[], "own");
    assert_eq!(fs::read_dir(own.point.join("dir")).unwrap().count(), 102);
    own.umount();
}

#[test]
fn a_server_is_refused_if_it_cannot_serve() {
    let stage = Stage::new();
    let store = stage.batch_store();
    let serve =
        |options: &[&str]| stage.run(stage.quell().args(words(&[&"batch", &"serve", &store])).args(options));
    serve(&["--listen", "0.0.0.0:0"]).expect(2).says("add --advertise HOST:PORT");
    serve(&["--listen", "nonsense"]).expect(2);
    let server = stage.batch_server(&store, &[]);
    serve(&[]).expect(3).says("`quell batch serve`) has it open");
    for command in ["gc", "fsck"] {
        let refused = stage.run(stage.quell().args(words(&[&"batch", &command, &store])));
        refused.expect(3).says("end the server");
    }
    assert!(!store.join("key").exists(), "without TCP there is no key");
    // Commands go through the server.
    assert!(stage.batches(&store).is_empty());
    server.signal(Signal::TERM);
    server.wait().expect(0);
}

#[test]
fn locks_of_a_store_hold_between_the_nodes_of_a_parallel_file_system() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    let stage = Stage::new();
    let testbed = Testbed::start(&stage);
    let stores = ["1", "2"].map(|node| testbed.node(node).join("store"));
    let batch = |words: &[&str], store: &Path| {
        let mut command = stage.quell();
        stage.run(command.arg("batch").arg(words[0]).arg(store).args(&words[1..]))
    };
    batch(&["init"], &stores[0]).expect(0);
    // A batch that is running on one node is neither aborted nor committed on the other one.
    let job = stage.mount_batch(&stores[0], &["--mode", "batch"], "job");
    fs::write(job.point.join("file"), "of the batch").unwrap();
    for verb in ["abort", "commit"] {
        batch(&[verb, "1"], &stores[1]).expect(3).says("a process uses it");
    }
    job.umount();
    assert_eq!(stage.batches(&stores[1])[0]["state"], "committed");
    // A store that is open on one node is not opened on the other one.
    let own = stage.mount_batch(&stores[0], &[], "own");
    batch(&["gc"], &stores[1]).expect(3).says("another process has it open");
    own.umount();
    // The data files of a mount are kept while it waits for the next server.
    let server = stage.batch_server(&stores[0], &["--listen", "127.0.0.1:0"]);
    let served = stage.mount_batch(&stores[1], &[], "served");
    fs::write(served.point.join("large"), vec![7; 200_000]).unwrap();
    server.signal(Signal::TERM);
    server.wait().expect(0);
    batch(&["gc"], &stores[0]).expect(3).says("a mount waits for a server");
    let server = stage.batch_server(&stores[0], &["--listen", "127.0.0.1:0"]);
    served.umount();
    server.signal(Signal::TERM);
    server.wait().expect(0);
    batch(&["gc"], &stores[0]).expect(0);
}
