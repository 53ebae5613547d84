//! Servers that are killed under load and started again: no acknowledged commit is lost, and none
//! is performed twice.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_blob::{Retries, Store, Transaction, Transform, open_for_server};
use quell_blob_server::{Server, ServerOptions, StoreKey};

const DIRECTORY: &str = "QUELL_TEST_DIRECTORY";
const CLIENTS: usize = 4;

/// A server in its own process. It is killed at the end of the test.
struct Killed {
    directory: PathBuf,
    child: Child,
}

impl Killed {
    fn start(directory: &Path) -> Killed {
        // Otherwise a client could connect to the socket of the previous server.
        let _ = std::fs::remove_file(directory.join("socket"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "server_program", "--ignored", "--nocapture"]).env(DIRECTORY, directory);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let killed = Killed { directory: directory.to_owned(), child };
        let end = Instant::now() + Duration::from_secs(120);
        while std::os::unix::net::UnixStream::connect(directory.join("socket")).is_err() {
            assert!(Instant::now() < end, "the server does not start");
            std::thread::sleep(Duration::from_millis(2));
        }
        killed
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn client(&self) -> Store {
        Store::open(&format!("unix:{}", self.directory.join("socket").display())).unwrap()
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // The server may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "a program that tests start"]
fn server_program() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("a test has set it"));
    let (store, _) = open_for_server(&directory).unwrap();
    let server = Server::start(store, StoreKey([0; 32]), ServerOptions::default()).unwrap();
    server.listen_unix(&directory.join("socket")).unwrap();
    loop {
        std::thread::park();
    }
}

fn read(store: &Store, name: &str, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    let length = store.read(name, 0, &mut data).unwrap();
    data.truncate(length);
    data
}

/// Kills the server `QUELL_KILLS` times, 5 by default.
#[test]
fn no_acknowledged_commit_is_lost_or_performed_twice_when_servers_are_killed() {
    let kills: usize = std::env::var("QUELL_KILLS").map_or(5, |count| count.parse().unwrap());
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    let mut server = Killed::start(&directory);
    let store = server.client();
    store.create("sum").unwrap();
    store.create("log").unwrap();
    let (is_ending, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let clients: Vec<Store> = (0..CLIENTS).map(|_| server.client()).collect();
    let (mut start_max, mut recovery_max) = (Duration::ZERO, Duration::ZERO);
    std::thread::scope(|scope| {
        let counts: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(client, store)| {
                let (is_ending, acknowledged) = (&is_ending, &acknowledged);
                scope.spawn(move || {
                    let mut count = 0_u64;
                    while !is_ending.load(Ordering::Relaxed) {
                        let record = format!("{client} {count:08}\n");
                        let add = |transaction: &mut Transaction| {
                            transaction.transform("sum", 0, Transform::add_i64(1))?;
                            transaction.append("log", record.as_bytes())
                        };
                        store.transact(&Retries::default(), add).unwrap();
                        count += 1;
                        acknowledged.fetch_add(1, Ordering::Relaxed);
                    }
                    count
                })
            })
            .collect();
        let wait_for = |number: u64| {
            let end = Instant::now() + Duration::from_secs(120);
            while acknowledged.load(Ordering::Relaxed) < number {
                assert!(Instant::now() < end, "the clients do not continue");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for kill in 0..kills {
            let before = acknowledged.load(Ordering::Relaxed);
            // Each server is killed at a different time after its start.
            wait_for(before + 20 + (kill as u64 * 37) % 100);
            server.kill();
            let killed = Instant::now();
            let before = acknowledged.load(Ordering::Relaxed);
            server = Killed::start(&directory);
            start_max = start_max.max(killed.elapsed());
            wait_for(before + CLIENTS as u64);
            recovery_max = recovery_max.max(killed.elapsed());
        }
        is_ending.store(true, Ordering::Relaxed);
        let counts: Vec<u64> = counts.into_iter().map(|thread| thread.join().unwrap()).collect();
        let total: u64 = counts.iter().sum();
        assert_eq!(read(&store, "sum", 8), total.to_le_bytes());
        let log = String::from_utf8(read(&store, "log", 64 << 20)).unwrap();
        let mut next: HashMap<&str, u64> = HashMap::new();
        for line in log.lines() {
            let (client, number) = line.split_once(' ').unwrap();
            let next = next.entry(client).or_default();
            assert_eq!(number.parse::<u64>().unwrap(), *next, "client {client}");
            *next += 1;
        }
        assert_eq!(next.values().sum::<u64>(), total);
        println!("{kills} kills, {total} commits");
        println!("longest time to a server {start_max:?}, to its commits {recovery_max:?}");
    });
}
