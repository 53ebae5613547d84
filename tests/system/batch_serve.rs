//! `quell batch serve`: several mounts and batches with one server, which is ended, killed and
//! replaced.

use std::fs::{self, File};
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_testkit::Random;
use quell_testkit::linearizability::{ErrorKind, History, NameOperation, NameResult, ROOT, Rename};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;

use crate::batch::can_mount;
use crate::stage::{Running, Stage, eventually, words};

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
    // A batch whose process was killed is aborted while the server serves.
    let lost = stage.mount_batch(&store.join("dir"), &["--mode", "batch"], "lost");
    let holder = stage.holders().into_iter().max().expect("the process of the last mount");
    crate::stage::send(holder, Signal::KILL);
    drop(lost);
    assert!(eventually(|| {
        stage.run(stage.quell().args(words(&[&"batch", &"abort", &store, &"2"]))).code() == Some(0)
    }));
    // The mounts go on with the next server, and the open file with them.
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
    assert_eq!(fs::read_dir(own.point.join("dir")).unwrap().count(), 101);
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
    serve(&[]).expect(3).says("another process has it open");
    assert!(!store.join("key").exists(), "without TCP there is no key");
    // Commands go through the server.
    assert!(stage.batches(&store).is_empty());
    server.signal(Signal::TERM);
    server.wait().expect(0);
}

const OPERATIONS: usize = 38;
const NAMES: usize = 4;

fn path(point: &Path, name: u8) -> PathBuf {
    point.join(((b'a' + name) as char).to_string())
}

fn perform(point: &Path, operation: &NameOperation) -> std::io::Result<NameResult> {
    Ok(match operation {
        NameOperation::Lookup((_, name)) => match fs::symlink_metadata(path(point, *name)) {
            Ok(found) => NameResult::Found(Some(found.ino())),
            Err(error) if error.kind() == IoErrorKind::NotFound => NameResult::Found(None),
            Err(error) => return Err(error),
        },
        NameOperation::Create { name: (_, name), .. } => {
            let file = File::create_new(path(point, *name))?;
            NameResult::Created(file.metadata()?.ino())
        }
        NameOperation::Remove { name: (_, name), .. } => {
            fs::remove_file(path(point, *name))?;
            NameResult::Done
        }
        NameOperation::Rename { from: (_, from), to: (_, to), mode } => {
            let flags = match mode {
                Rename::Replace => RenameFlags::empty(),
                Rename::Keep => RenameFlags::NOREPLACE,
                Rename::Exchange => RenameFlags::EXCHANGE,
            };
            renameat_with(CWD, path(point, *from), CWD, path(point, *to), flags)?;
            NameResult::Done
        }
    })
}

/// Performs random operations at a mount point.
fn run_client(point: &Path, history: &Mutex<History>, done: &AtomicUsize, seed: u64) {
    let mut random = Random::new(seed);
    for _ in 0..OPERATIONS {
        let name = (ROOT, random.below(NAMES) as u8);
        let to = (ROOT, random.below(NAMES) as u8);
        let operation = match random.below(10) {
            0..3 => NameOperation::Lookup(name),
            3..6 => NameOperation::Create { name, is_dir: false },
            6 => NameOperation::Remove { name, is_dir: false },
            choice => {
                let mode = [Rename::Replace, Rename::Keep, Rename::Exchange][choice - 7];
                NameOperation::Rename { from: name, to, mode }
            }
        };
        let begun = history.lock().unwrap().begin(operation.clone());
        let result = perform(point, &operation);
        let mut history = history.lock().unwrap();
        match result {
            Ok(result) => history.end(begun, result),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => history.end(begun, NameResult::Failed(ErrorKind::NotFound)),
                Some(Errno::EXIST) => history.end(begun, NameResult::Failed(ErrorKind::Exists)),
                // The server was killed, or others have removed the file that was just created.
                Some(Errno::NOTCONN | Errno::STALE) => {}
                _ => panic!("{operation:?}: {error}"),
            },
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// The server is killed at a random position, and others take its place.
#[test]
fn operations_at_several_mounts_are_linearizable_while_the_server_is_killed() {
    if !can_mount() {
        return;
    }
    let histories = std::env::var("QUELL_HISTORIES").map_or(3, |text| text.parse().expect("a number"));
    for seed in 0..histories {
        let stage = Stage::new();
        let store = stage.batch_store();
        let server = stage.batch_server(&store, &[]);
        let mounts: Vec<_> =
            ["one", "two", "three"].into_iter().map(|name| stage.mount_batch(&store, &[], name)).collect();
        let (history, done) = (Mutex::new(History::default()), AtomicUsize::new(0));
        let server = std::thread::scope(|scope| {
            for (number, mount) in mounts.iter().enumerate() {
                let (history, done, point) = (&history, &done, mount.point.clone());
                scope.spawn(move || run_client(&point, history, done, seed * 100 + number as u64));
            }
            let (mut server, mut random) = (server, Random::new(seed));
            for part in 0..2 {
                let position = part * OPERATIONS * mounts.len() / 2 + random.below(30);
                assert!(eventually(|| done.load(Ordering::Relaxed) >= position));
                server.signal(Signal::KILL);
                server.wait();
                server = stage.batch_server(&store, &[]);
            }
            server
        });
        let history = history.into_inner().unwrap();
        assert!(
            history.is_linearizable(),
            "no order of the operations explains the results, seed {seed}:\n{}",
            history.describe()
        );
        mounts.into_iter().for_each(|mount| mount.umount());
        server.signal(Signal::TERM);
        server.wait().expect(0);
    }
}
