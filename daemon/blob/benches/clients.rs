//! Durable commits and reads of clients of a server, over its Unix socket and over TCP, and the
//! same calls of threads in a process that has the store open itself. Server and clients are in one
//! process, and the store is on the file system of `$TMPDIR`. Each measurement takes two seconds,
//! and all are repeated three times in turn.
//!
//! ```text
//! cargo bench -p quell-blob-server --bench clients
//! ```

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_blob::{Store, Transform, open_for_server};
use quell_blob_server::{Server, ServerOptions, StoreKey};

const TIME: Duration = Duration::from_secs(2);
const REPETITIONS: usize = 3;
const KEY: [u8; 32] = [1; 32];
/// The size of the blob that is read, in bytes.
const READ_FROM_BYTES: u64 = 4 << 20;

/// Runs `call` with the number of the client and of the call, each client on a thread of its own,
/// and prints the calls per second.
fn measure(name: &str, stores: &[Store], call: impl Fn(&Store, u64) + Sync) {
    let (count, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (client, store) in stores.iter().enumerate() {
            let (count, is_over, call) = (&count, &is_over, &call);
            scope.spawn(move || {
                for number in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    call(store, number * 1009 + client as u64);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(TIME);
        is_over.store(true, Ordering::Relaxed);
    });
    let rate = count.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    let latency_us = stores.len() as f64 / rate * 1e6;
    println!("{name:<44} {:>3} clients {rate:>10.0}/s {latency_us:>9.0} us", stores.len());
}

fn measure_all(kind: &str, stores: &[Store]) {
    measure(&format!("{kind}: read of 800 bytes"), stores, |store, number| {
        let mut data = [0; 800];
        let offset = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (READ_FROM_BYTES - 800);
        assert_eq!(store.read("data", offset, &mut data).expect("read"), 800);
    });
    measure(&format!("{kind}: append of 100 bytes"), stores, |store, _| {
        store.append("log", &[7; 100]).expect("appended");
    });
    measure(&format!("{kind}: addition to one number"), stores, |store, _| {
        store.transform("sum", 0, Transform::add_i64(1)).expect("added");
    });
}

fn prepare(store: &Store) {
    for name in ["data", "log", "sum"] {
        store.create(name).expect("created");
    }
    for part in 0..READ_FROM_BYTES / 16384 {
        store.write("data", part * 16384, &[part as u8; 16384]).expect("written");
    }
}

fn clients(location: &str, count: usize) -> Vec<Store> {
    (0..count).map(|_| Store::open(location).expect("connected")).collect()
}

fn write_key(path: &Path) {
    std::fs::write(path, KEY).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("changed");
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let embedded = Store::open(&directory.path().join("embedded").display().to_string()).expect("opened");
    prepare(&embedded);
    let served = directory.path().join("served");
    let (store, _) = open_for_server(&served).expect("opened");
    let server = Server::start(store, StoreKey(KEY), ServerOptions::default()).expect("started");
    server.listen_unix(&served.join("socket")).expect("listening");
    let address = server.listen_tcp(([127, 0, 0, 1], 0).into()).expect("listening");
    let key = directory.path().join("key");
    write_key(&key);
    let unix = format!("unix:{}", served.join("socket").display());
    let tcp = format!("quell://{address}?key={}", key.display());
    prepare(&clients(&unix, 1)[0]);
    for _ in 0..REPETITIONS {
        for count in [1, 8, 32] {
            measure_all("embedded", &vec![embedded.clone(); count]);
            measure_all("unix", &clients(&unix, count));
            measure_all("tcp", &clients(&tcp, count));
        }
    }
    server.stop(TIME).expect("stopped");
}
