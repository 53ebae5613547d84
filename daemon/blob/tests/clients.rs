//! Clients of a server in the same process. They get the same results as a program that opens the
//! store itself.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use quell_blob::{Operation, OperationResult, Retries, Store, Transaction, Transform, open_for_server};
use quell_blob_server::{Server, ServerOptions, StoreKey};
use quell_vfs::ErrorKind;

const LONG: Duration = Duration::from_secs(120);
const KEY: [u8; 32] = [9; 32];

fn wait_until(condition: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < end, "the condition did not become true");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A server of a store in a new directory.
struct Served {
    /// `None` while the server is restarted.
    server: Option<Server>,
    directory: PathBuf,
    _parent: tempfile::TempDir,
}

impl Served {
    fn start() -> Served {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("store");
        Served { server: Some(start(&directory)), directory, _parent: parent }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    /// Stops the server, and closes the store.
    fn stop(&mut self) {
        self.server.take().expect("it runs").stop(LONG).unwrap();
    }

    /// Returns a client by the Unix socket.
    fn client(&self) -> Store {
        Store::open(&format!("unix:{}", self.directory.join("socket").display())).unwrap()
    }
}

fn start(directory: &Path) -> Server {
    let (store, _) = open_for_server(directory).unwrap();
    let server = Server::start(store, StoreKey(KEY), ServerOptions::default()).unwrap();
    server.listen_unix(&directory.join("socket")).unwrap();
    server
}

fn write_key(directory: &Path, key: [u8; 32]) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = directory.join("other-key");
    std::fs::write(&path, key).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn read(store: &Store, name: &str, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    let length = store.read(name, 0, &mut data).unwrap();
    data.truncate(length);
    data
}

fn create(name: &str) -> Operation {
    Operation::Create { name: name.into(), may_exist: true }
}

#[test]
fn replaced_extents_are_removed_while_clients_go_on() {
    let served = Served::start();
    let store = served.client();
    store.create("a").unwrap();
    let count = || {
        let mut files = 0;
        for epoch in std::fs::read_dir(served.directory.join("extents")).unwrap() {
            files += std::fs::read_dir(epoch.unwrap().path()).unwrap().count();
        }
        files
    };
    for round in 0..200 {
        store.write("a", 0, &[round; 40_000]).unwrap();
    }
    // Up to 64 of them are still waiting to be removed together.
    wait_until(|| count() <= 65);
    assert_eq!(read(&store, "a", 40_000), [199; 40_000]);
}

#[test]
fn a_client_gets_what_a_program_gets_that_opens_the_store_itself() {
    let served = Served::start();
    let store = served.client();
    store.create("a").unwrap();
    assert_eq!(store.create("a").unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(store.append("a", b"one").unwrap(), 0);
    assert_eq!(store.append("a", b"two").unwrap(), 3);
    store.write("a", 10, b"!").unwrap();
    assert_eq!(read(&store, "a", 100), b"onetwo\0\0\0\0!");
    assert_eq!(store.stat("a").unwrap().unwrap().size_bytes, 11);
    assert_eq!(store.stat("b").unwrap(), None);
    assert_eq!(store.read("b", 0, &mut [0]).unwrap_err().kind(), ErrorKind::NotFound);

    let snapshot = store.snapshot().unwrap();
    store.resize("a", 3).unwrap();
    let mut data = [0; 6];
    assert_eq!(snapshot.read("a", 0, &mut data).unwrap(), 6);
    assert_eq!(&data, b"onetwo");

    // A transaction reads a blob that it has renamed.
    let mut renaming = store.begin().unwrap();
    renaming.write("a", 0, b"O").unwrap();
    renaming.rename("a", "renamed").unwrap();
    let mut renamed = [0; 3];
    assert_eq!(renaming.read("renamed", 0, &mut renamed).unwrap(), 3);
    assert_eq!((&renamed, renaming.stat("a").unwrap()), (b"One", None));
    drop(renaming);

    // A transaction that has seen a transform fail conflicts with a change of the number.
    store.create("number").unwrap();
    let mut failing = store.begin().unwrap();
    failing.transform("number", 0, Transform::compare_and_set_u64(1, 2)).unwrap();
    failing.stat("number").unwrap_err();
    store.write("number", 0, &1_u64.to_le_bytes()).unwrap();
    failing.commit().unwrap_err();
    store.delete("number").unwrap();

    // A transaction reads its own changes, and conflicts with others.
    let mut transaction = store.begin().unwrap();
    transaction.append("a", b"+").unwrap();
    transaction.create("c").unwrap();
    let mut data = [0; 10];
    assert_eq!(transaction.read("a", 0, &mut data).unwrap(), 4);
    assert_eq!(&data[..4], b"one+");
    assert_eq!(transaction.list("", "", 10).unwrap().len(), 2);
    store.append("a", b"-").unwrap();
    assert_eq!(transaction.commit().unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(read(&store, "a", 10), b"one-");

    for number in 0..5000 {
        store.submit(vec![create(&format!("many/{number:04}"))], |result| _ = result.unwrap());
    }
    wait_until(|| store.snapshot().unwrap().list("many/", "", 10_000).unwrap().len() == 5000);
    let some = store.snapshot().unwrap().list("many/", "many/4990", 100).unwrap();
    assert_eq!(some.len(), 9);
    assert_eq!(some[0].0, b"many/4991");
    store.collect().unwrap();
    store.delete("a").unwrap();
    assert_eq!(store.stat("a").unwrap(), None);
}

#[test]
fn large_data_is_written_and_read_in_parts() {
    let served = Served::start();
    let store = served.client();
    let data: Vec<u8> = (0..9_000_000_u32).map(|number| (number / 251) as u8).collect();
    store.create("a").unwrap();
    store.write("a", 5, &data).unwrap();
    assert_eq!(read(&store, "a", 20_000_000)[5..], data);
    let mut transaction = store.begin().unwrap();
    transaction.write("a", 0, &data).unwrap();
    let mut found = vec![0; 3_000_000];
    assert_eq!(transaction.read("a", 0, &mut found).unwrap(), 3_000_000);
    assert_eq!(found, data[..3_000_000]);
    transaction.commit().unwrap();
    assert_eq!(read(&store, "a", 9_000_000), data);
}

#[test]
fn a_program_that_opens_the_directory_of_a_server_becomes_its_client() {
    let mut served = Served::start();
    let location = format!("dir:{}", served.directory.display());
    let store = Store::open(&location).unwrap();
    store.create("a").unwrap();
    assert!(served.client().stat("a").unwrap().is_some());
    drop(store);
    served.stop();
    assert!(Store::open(&location).unwrap().stat("a").unwrap().is_some());
}

#[test]
fn clients_over_tcp_need_the_key() {
    let served = Served::start();
    let address = served.server().listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let parent = served.directory.parent().unwrap();
    let right = format!("quell://{address}?key={}", write_key(parent, KEY).display());
    let store = Store::open(&right).unwrap();
    store.create("a").unwrap();
    assert!(served.client().stat("a").unwrap().is_some());
    write_key(parent, [8; 32]);
    assert_eq!(Store::open(&right).unwrap_err().kind(), ErrorKind::PermissionDenied);
    // The client with the right key can still use the store.
    store.create("b").unwrap();
    assert!(served.server().refused_connections() > 0);
}

#[test]
fn counters_and_appends_of_32_clients_agree() {
    const CLIENTS: usize = 32;
    const TRANSACTIONS: usize = 50;
    let served = Served::start();
    let store = served.client();
    for name in ["counter", "log", "copied"] {
        store.create(name).unwrap();
    }
    let retries = Retries { attempts_max: u32::MAX, ..Retries::default() };
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (served, retries) = (&served, &retries);
            scope.spawn(move || {
                let store = served.client();
                for number in 0..TRANSACTIONS {
                    let record = format!("{client:02} {number:02}\n");
                    let add = |transaction: &mut Transaction| {
                        transaction.transform("counter", 0, Transform::add_i64(1))?;
                        transaction.append("log", record.as_bytes())
                    };
                    store.transact(retries, add).unwrap();
                    if number % 10 == 0 {
                        // The transaction reads, increases and writes the number, so it conflicts
                        // with all others that do the same.
                        let increase = |transaction: &mut Transaction| {
                            let mut bytes = [0; 8];
                            transaction.read("copied", 0, &mut bytes)?;
                            transaction.write("copied", 0, &(i64::from_le_bytes(bytes) + 1).to_le_bytes())
                        };
                        store.transact(retries, increase).unwrap();
                    }
                }
            });
        }
    });
    let number = |name| i64::from_le_bytes(read(&store, name, 8).try_into().unwrap());
    assert_eq!(number("counter"), (CLIENTS * TRANSACTIONS) as i64);
    assert_eq!(number("copied"), (CLIENTS * TRANSACTIONS / 10) as i64);
    let log = String::from_utf8(read(&store, "log", 1 << 20)).unwrap();
    for client in 0..CLIENTS {
        let own: Vec<&str> = log.lines().filter(|line| line.starts_with(&format!("{client:02} "))).collect();
        let expected: Vec<String> =
            (0..TRANSACTIONS).map(|number| format!("{client:02} {number:02}")).collect();
        assert_eq!(own, expected);
    }
    wait_until(|| served.server().clients() == 1);
}

#[test]
fn snapshots_end_with_their_client() {
    let served = Served::start();
    let store = served.client();
    let snapshots: Vec<_> = (0..10).map(|_| store.snapshot().unwrap()).collect();
    assert_eq!(served.server().snapshots(), 10);
    drop(snapshots);
    wait_until(|| served.server().snapshots() == 0);
    let snapshot = store.snapshot().unwrap();
    drop(store);
    assert!(snapshot.stat("a").unwrap().is_none());
    assert_eq!(served.server().snapshots(), 1);
    drop(snapshot);
    wait_until(|| served.server().clients() == 0);
    assert_eq!(served.server().snapshots(), 0);
}

#[test]
fn commits_continue_on_a_server_that_was_restarted() {
    const NUMBER: usize = 200;
    let mut served = Served::start();
    let store = served.client();
    store.create("log").unwrap();
    let snapshot = store.snapshot().unwrap();
    let (sender, receiver) = mpsc::channel();
    for round in 0..3 {
        for number in 0..NUMBER {
            let sender = sender.clone();
            let data = format!("{round} {number:03}\n").into_bytes();
            store.submit(vec![Operation::Append { name: "log".into(), data }], move |result| {
                sender.send(result.unwrap().results).unwrap();
            });
        }
        served.stop();
        served.server = Some(start(&served.directory));
    }
    let mut offsets: Vec<u64> = (0..3 * NUMBER)
        .map(|_| match receiver.recv().unwrap()[..] {
            [OperationResult::Appended(offset)] => offset,
            ref other => panic!("{other:?}"),
        })
        .collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..3 * NUMBER as u64).map(|number| number * 6).collect::<Vec<u64>>());
    assert_eq!(snapshot.stat("log").unwrap_err().kind(), ErrorKind::Stale);
}

#[test]
fn a_client_that_takes_no_results_harms_no_other_client() {
    let served = Served::start();
    let (slow, other) = (served.client(), served.client());
    other.create("a").unwrap();
    let (release, is_released) = mpsc::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    // The receiver of the first result blocks the thread that reads the replies of this client.
    let first = Operation::Append { name: "a".into(), data: vec![1; 10] };
    slow.submit(vec![first], move |_| _ = is_released.recv());
    for _ in 0..3000 {
        let sender = sender.clone();
        let operation = Operation::Append { name: "a".into(), data: vec![2; 10] };
        slow.submit(vec![operation], move |result| sender.send(result.is_ok()).unwrap());
    }
    let before = other.stat("a").unwrap().unwrap().size_bytes;
    for _ in 0..100 {
        other.append("a", &[3; 10]).unwrap();
    }
    assert!(other.stat("a").unwrap().unwrap().size_bytes >= before + 1000);
    drop(release);
    assert!((0..3000).all(|_| receiver.recv().unwrap()));
    assert_eq!(other.stat("a").unwrap().unwrap().size_bytes, (1 + 3000 + 100) * 10);
}

#[test]
fn a_future_has_the_result_of_a_commit() {
    let served = Served::start();
    let store = served.client();
    let mut future = Box::pin(store.commit_async(vec![create("a")]));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let end = Instant::now() + LONG;
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(result) => break assert_eq!(result.unwrap().results.len(), 1),
            std::task::Poll::Pending => assert!(Instant::now() < end),
        }
        std::thread::yield_now();
    }
    assert!(store.stat("a").unwrap().is_some());
}
