//! Tests of auxiliary servers in the same process, over sockets: their verdicts, forged verdicts,
//! and their end.

mod served;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use quell_batch::{AuxiliaryEvent, AuxiliaryServer, OpenBatch, fsck};
use quell_batch_server::ServerOptions;
use quell_batch_service::{
    AuxiliarySummary, Bytes, PROTOCOL, Reply, Request, SummaryState, VerificationResult, VerificationTask,
};
use quell_transport::peer::{
    self, Client, ClientHandler, ClientIdentity, ClientSettings, Endpoint, Handler, MemberId, NamedKey,
    PoolKey, Role, ServerSettings,
};
use quell_vfs::{Context, Error, ErrorKind, FileSystem, OpenMode, Result, Writable};
use quell_wire::{Failure, decode, encode};

use served::{LONG, NEW, Served};

const NAME: &[u8] = b"auxiliary server";

fn write(fs: &dyn Writable, name: &str) {
    let root = fs.root();
    let (created, file) = fs.create(&Context::OWN, root, name.as_bytes(), NEW, OpenMode::READ_WRITE).unwrap();
    file.write_at(b"bytes", 0).unwrap();
    file.close().unwrap();
    created.into_attributes();
}

fn begin(served: &Served, files: usize) -> OpenBatch {
    let batch = OpenBatch::begin(served.access(), b"", "job", false).unwrap();
    let fs = batch.file_system();
    for number in 0..files {
        write(&*fs, &format!("file-{number}"));
    }
    batch
}

fn committed(entries: u64) -> SummaryState {
    SummaryState::Committed { entries, conflicts: 0 }
}

fn state(served: &Served, number: u64) -> SummaryState {
    let batches = served.access().batches().unwrap();
    batches.into_iter().find(|batch| batch.number == number).unwrap().state
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "it did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `use_it` while an auxiliary server is connected, and returns the batches that it has ended.
fn with_auxiliary(served: &Served, use_it: impl FnOnce()) -> Vec<(u64, Result<(u64, u64)>)> {
    let (is_ending, is_connected) = (AtomicBool::new(false), AtomicBool::new(false));
    let server = AuxiliaryServer::open(&served.path(), "node-1").unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let mut ended = Vec::new();
            let run = server.run(&is_ending, &mut |event| match event {
                AuxiliaryEvent::Connected => is_connected.store(true, Ordering::SeqCst),
                AuxiliaryEvent::Ended { batch, result } => ended.push((batch, result)),
                AuxiliaryEvent::NoServer(_) | AuxiliaryEvent::Begun { .. } => {}
            });
            run.unwrap();
            ended
        });
        wait_until(|| !served.access().auxiliary_servers().unwrap().is_empty());
        assert!(is_connected.load(Ordering::SeqCst));
        let used = std::panic::catch_unwind(std::panic::AssertUnwindSafe(use_it));
        is_ending.store(true, Ordering::SeqCst);
        let ended = running.join().unwrap();
        used.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ended
    })
}

/// Ends the server, and checks that the store is intact and has no files of verifications.
fn check(served: Served) {
    let directory = served.stop();
    let path = directory.path().join("store");
    assert_eq!(verifications(&path), 0);
    let mut problems = Vec::new();
    fsck(&path, LONG, false, &mut |problem| problems.push(problem.clone())).unwrap();
    assert_eq!(problems, []);
}

fn verifications(store: &Path) -> usize {
    let names = std::fs::read_dir(store.join("tables")).unwrap();
    names.filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().starts_with("verify-")).count()
}

#[test]
fn batches_and_parts_are_verified_by_an_auxiliary_server() {
    for is_tcp in [false, true] {
        let served = Served::start(is_tcp);
        let ended = with_auxiliary(&served, || {
            let batch = begin(&served, 100);
            assert_eq!(batch.commit(LONG).unwrap().state, committed(100));
            let number = served.access().begin_for_parts(b"", "parts", false).unwrap().number;
            for part in 0..3 {
                let part =
                    OpenBatch::join(served.access(), b"", number, &format!("part-{part}"), LONG).unwrap();
                let fs = part.file_system();
                fs.make_dir(&Context::OWN, fs.root(), b"common", NEW).unwrap().into_attributes();
                write(&*fs, &format!("of-{}", part.record().number));
                part.close().unwrap();
            }
            // Each part has created the directory. The commit merges them into one.
            assert_eq!(served.access().commit(number).unwrap().state, committed(4));
            // The batch is verified in the background.
            let lazy = begin_named(&served, "lazy");
            lazy.commit_later(LONG).unwrap();
            wait_until(|| state(&served, lazy.record().number) == committed(1));
        });
        let numbers: Vec<_> = ended.iter().map(|(number, result)| (*number, result.is_ok())).collect();
        assert_eq!(numbers, [(1, true), (3, true), (4, true), (5, true), (6, true)]);
        assert_eq!(ended[0].1.as_ref().unwrap(), &(100, 0));
        check(served);
    }
}

fn begin_named(served: &Served, name: &str) -> OpenBatch {
    begin_in(served, "", name)
}

/// Begins a batch in a directory of the store, with one file.
fn begin_in(served: &Served, dir: &str, name: &str) -> OpenBatch {
    let batch = OpenBatch::begin(served.access(), dir.as_bytes(), "job", false).unwrap();
    write(&*batch.file_system(), name);
    batch
}

#[test]
fn a_thread_of_the_server_merges_the_tables_of_batches() {
    let served = Served::start(false);
    for number in 0..12 {
        let batch = begin_named(&served, &format!("file{number}"));
        assert_eq!(batch.commit(LONG).unwrap().state, committed(1));
    }
    let tables = || {
        let names = std::fs::read_dir(served.path().join("tables")).unwrap();
        names
            .filter(|name| name.as_ref().unwrap().path().extension().is_some_and(|end| end == "table"))
            .count()
    };
    wait_until(|| tables() < 12);
    check(served);
}

#[test]
fn a_batch_that_an_auxiliary_server_refuses_is_not_committed() {
    let served = Served::start(false);
    let ended = with_auxiliary(&served, || {
        let batch = begin(&served, 10);
        batch.prepare().unwrap();
        let number = batch.record().number;
        let path = served.path().join(format!("batches/{number}/certificate"));
        let honest = std::fs::read(&path).unwrap();
        let certificate = quell_batch_service::Certificate::decode(&honest).unwrap();
        let inodes_used = certificate.inodes_used + 1;
        let forged = quell_batch_service::Certificate { inodes_used, ..certificate };
        std::fs::write(&path, forged.encode()).unwrap();
        log();
        let refused = served.raw(&Request::Commit { batch: number }).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidInput, "{refused}");
        assert!(log().contains("an auxiliary server has refused a batch"), "{}", log());
        assert!(log().contains("fewer inodes than it states"), "{}", log());
        assert!(refused.to_string().contains("fewer inodes than it states"), "{refused}");
        assert_eq!(state(&served, number), SummaryState::Open);
        let [server] = &served.access().auxiliary_servers().unwrap()[..] else { panic!("one") };
        assert_eq!((server.verified, server.failed), (0, 1));
        std::fs::write(&path, honest).unwrap();
        assert_eq!(batch.commit(LONG).unwrap().state, committed(10));
    });
    let results: Vec<_> = ended.into_iter().map(|(_, result)| result.map_err(|error| error.kind)).collect();
    assert_eq!(results, [Err(ErrorKind::InvalidInput), Ok((10, 0))]);
    check(served);
}

/// An auxiliary server whose messages the test writes.
struct Raw(Client);

impl Raw {
    fn connect(served: &Served) -> Raw {
        let raw = Raw::with_key(served, commit_key(served), true);
        assert!(matches!(raw.call(&Request::Hello { protocol: PROTOCOL }), Ok(Reply::Welcome { .. })));
        raw
    }

    /// Requests a batch, and returns the receiver of the task when the server knows it.
    fn wait(&self, served: &Served, name: &str) -> Receiver<Result<Vec<u8>>> {
        let waiting = self.send(&Request::NextVerification { name: name.into() });
        wait_until(|| {
            served
                .server()
                .store()
                .store()
                .auxiliaries()
                .summaries()
                .iter()
                .any(|known| known.name == name && known.batch.is_none())
        });
        waiting
    }

    fn with_key(served: &Served, key: PoolKey, has_named_key: bool) -> Raw {
        let server = served.address().map_or(Endpoint::Unix(served.socket()), Endpoint::Tcp);
        let settings = ClientSettings::new(Role::Batch, server, key);
        let settings = ClientSettings { description: NAME.to_vec(), has_named_key, ..settings };
        Raw(Client::start(settings).unwrap())
    }

    fn send(&self, request: &Request) -> Receiver<Result<Vec<u8>>> {
        let (sender, receiver) = channel();
        let done = Box::new(move |result| _ = sender.send(result));
        self.0.call(encode(request), 1 << 20, Instant::now() + LONG, done);
        receiver
    }

    fn call(&self, request: &Request) -> Result<Reply> {
        reply(&self.send(request).recv().unwrap()?)
    }

    fn verdict(&self, verification: u64, bytes: Vec<u8>) -> Result<Reply> {
        self.call(&Request::Verdict { verification, result: VerificationResult::Verified(Bytes(bytes)) })
    }
}

fn commit_key(served: &Served) -> PoolKey {
    PoolKey(std::fs::read(served.path().join("commit-key")).unwrap().try_into().unwrap())
}

/// Returns the trace of this process so far. The first call begins it.
fn log() -> String {
    static LOG: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();
    let log = LOG.get_or_init(|| {
        let log = Arc::new(Mutex::new(Vec::new()));
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || Writer(writer.clone()));
        subscriber.init();
        log
    });
    String::from_utf8(log.lock().unwrap().clone()).unwrap()
}

struct Writer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the reply with a task.
fn task(waiting: &Receiver<Result<Vec<u8>>>) -> (u64, Box<VerificationTask>) {
    match reply(&waiting.recv().unwrap().unwrap()) {
        Ok(Reply::Verification { verification, task }) => (verification, task),
        other => panic!("{other:?}"),
    }
}

fn cannot(verification: u64) -> Request {
    Request::Verdict { verification, result: VerificationResult::Failed(Failure::from(ErrorKind::NoSpace)) }
}

#[test]
fn the_server_verifies_a_batch_itself_if_its_auxiliary_server_is_overdue() {
    log();
    let options = ServerOptions { verification_limit: Duration::from_secs(3), ..ServerOptions::default() };
    let served = Served::start_with(false, options);
    let raw = Raw::connect(&served);
    let first = begin_named(&served, "first");
    let verification = std::thread::scope(|scope| {
        let waiting = raw.wait(&served, "overdue");
        let committing = scope.spawn(|| first.commit(LONG));
        let (verification, _) = task(&waiting);
        // The auxiliary server answers requests, but does not verify the batch.
        while !committing.is_finished() {
            assert!(raw.call(&Request::Hello { protocol: PROTOCOL }).is_ok());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(committing.join().unwrap().unwrap().state, committed(1));
        verification
    });
    let line =
        "an auxiliary server has not verified a batch within the limit batch=1 server=\"overdue\" limit_s=3";
    assert!(log().contains(line), "{}", log());
    // No other commit waits for this auxiliary server.
    begin_named(&served, "second").commit(LONG).unwrap();
    assert!(!log().contains("became idle within the limit batch=2 limit_s=3"), "{}", log());
    let [server] = &served.access().auxiliary_servers().unwrap()[..] else { panic!("one") };
    assert_eq!((server.batch, server.failed), (Some(1), 1));
    assert_eq!(raw.call(&cannot(verification)).unwrap_err().kind, ErrorKind::Stale);
    // The auxiliary server gets the next batch only after it has requested one.
    let mount = served.mount();
    for dir in ["third", "fourth"] {
        mount.make_dir(&Context::OWN, mount.root(), dir.as_bytes(), NEW).unwrap().into_attributes();
    }
    drop(mount);
    let third = begin_in(&served, "third", "file");
    std::thread::scope(|scope| {
        let waiting = raw.wait(&served, "overdue");
        let committing = scope.spawn(|| third.commit(LONG));
        let (verification, task) = task(&waiting);
        assert_eq!(task.record.number, 3);
        // A commit that waits for the auxiliary server continues when the auxiliary server is
        // overdue again.
        begin_in(&served, "fourth", "file").commit(LONG).unwrap();
        assert_eq!(committing.join().unwrap().unwrap().state, committed(1));
        // Until the third commit has stopped waiting, the server accepts the verdict.
        assert_eq!(raw.call(&cannot(verification)).unwrap_err().kind, ErrorKind::Stale);
    });
    raw.0.stop(LONG);
    check(served);
}

#[test]
fn a_verdict_is_received_while_the_requests_of_other_clients_wait_for_it() {
    /// More than the server executes and holds for all clients.
    const REQUESTS: usize = 1100;
    let served = Served::start(false);
    let raw = Raw::connect(&served);
    let waiting = raw.wait(&served, "raw");
    let lazy = begin_named(&served, "lazy");
    lazy.commit_later(LONG).unwrap();
    let (verification, _) = task(&waiting);
    let clients = [(), ()].map(|()| {
        let settings = ClientSettings::new(Role::Batch, Endpoint::Unix(served.socket()), PoolKey([0; 32]));
        Client::start(settings).unwrap()
    });
    let look_up = encode(&Request::Lookup { dir: 0, name: Bytes(b"lazy".to_vec()) });
    let (sender, found) = channel();
    for number in 0..REQUESTS {
        let sender = sender.clone();
        let done = Box::new(move |result| _ = sender.send(result));
        clients[number % 2].call(look_up.clone(), 1 << 10, Instant::now() + LONG, done);
    }
    // The requests are received, and wait for the commit.
    std::thread::sleep(Duration::from_secs(1));
    assert!(found.try_recv().is_err());
    assert!(matches!(raw.call(&cannot(verification)), Ok(Reply::Done)));
    for _ in 0..REQUESTS {
        let found = reply(&found.recv_timeout(LONG).unwrap().unwrap()).unwrap();
        assert!(matches!(found, Reply::Found(Some(_))), "{found:?}");
    }
    clients.iter().for_each(|client| client.stop(LONG));
    raw.0.stop(LONG);
    check(served);
}

/// A server of another version.
struct OtherVersion;

impl ClientHandler for OtherVersion {
    fn handler(&self, _client: ClientIdentity<'_>) -> Option<Arc<dyn Handler>> {
        Some(Arc::new(OtherVersion))
    }

    fn ended(&self, _client: MemberId) {}
}

impl Handler for OtherVersion {
    fn handle(&self, request: peer::Request, reply: peer::Reply) {
        assert_eq!(decode::<Request>(&request.bytes).unwrap(), Request::Hello { protocol: PROTOCOL });
        let source = Some("the server has version 1 of the protocol".into());
        let error = Error { source, ..Error::new(ErrorKind::Unsupported, "greet", "") };
        reply.send(encode(&Reply::Failed(Failure::new(&error))));
    }
}

#[test]
fn an_auxiliary_server_ends_if_the_server_has_another_version() {
    let served = Served::start(false);
    served.server().stop(LONG).unwrap();
    let auxiliary = AuxiliaryServer::open(&served.path(), "node-1").unwrap();
    let named = NamedKey { name: NAME, key: commit_key(&served) };
    let cases = [
        (vec![named], ErrorKind::Unsupported, "the server has version 1"),
        (Vec::new(), ErrorKind::PermissionDenied, "its version of Quell has no auxiliary servers"),
    ];
    for (named_keys, kind, text) in cases {
        let settings = ServerSettings { named_keys, ..ServerSettings::new(Role::Batch, PoolKey([0; 32])) };
        let server = peer::Server::start(settings, Arc::new(OtherVersion)).unwrap();
        server.listen_unix(&served.socket()).unwrap();
        let refused = auxiliary.run(&AtomicBool::new(false), &mut |_| ()).unwrap_err();
        assert_eq!(refused.kind, kind, "{refused}");
        assert!(refused.to_string().contains(text), "{refused}");
        server.stop(LONG);
    }
    // A server gives no batch to an auxiliary server that has not stated its version.
    let mut served = served;
    served.restart(false);
    let raw = Raw::with_key(&served, commit_key(&served), true);
    let refused = raw.call(&Request::NextVerification { name: "old".into() }).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unsupported, "{refused}");
    assert!(served.access().auxiliary_servers().unwrap().is_empty());
    raw.0.stop(LONG);
    check(served);
}

#[test]
fn an_auxiliary_server_waits_while_the_address_of_the_server_is_not_known() {
    let mut served = Served::start(true);
    let address = served.path().join("address");
    let published = std::fs::read(&address).unwrap();
    served.server().stop(LONG).unwrap();
    // The resolver refuses this name without a network request.
    std::fs::write(&address, "host..invalid:70 integrity\n").unwrap();
    let server = AuxiliaryServer::open(&served.path(), "node-1").unwrap();
    let is_ending = AtomicBool::new(false);
    let (sender, events) = channel();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            server.run(&is_ending, &mut |event| {
                let _ = sender.send(match event {
                    AuxiliaryEvent::NoServer(error) => error.to_string(),
                    event => format!("{event:?}"),
                });
            })
        });
        let waiting = events.recv_timeout(LONG).unwrap();
        assert!(
            waiting.contains("cannot resolve the address of the server, `host..invalid:70`"),
            "{waiting}"
        );
        served.restart(true);
        assert_eq!(std::fs::read(&address).unwrap(), published);
        assert_eq!(events.recv_timeout(LONG).unwrap(), "Connected");
        is_ending.store(true, Ordering::SeqCst);
        running.join().unwrap().unwrap();
    });
    check(served);
}

fn reply(bytes: &[u8]) -> Result<Reply> {
    match decode(bytes)? {
        Reply::Failed(failure) => Err(failure.into_error("test", b"")),
        reply => Ok(reply),
    }
}

#[test]
fn only_a_process_that_proves_the_commit_key_verifies_batches() {
    for is_tcp in [false, true] {
        let served = Served::start(is_tcp);
        // A wrong key, no key, and the key of clients.
        let mut keys = vec![(PoolKey([7; 32]), true), (PoolKey([0; 32]), false)];
        if is_tcp {
            let key = PoolKey(std::fs::read(served.path().join("key")).unwrap().try_into().unwrap());
            keys.extend([(key.derived(NAME), true), (key, true)]);
        } else {
            keys.push((PoolKey([0; 32]).derived(NAME), true));
        }
        std::thread::scope(|scope| {
            for (key, has_named_key) in keys {
                let raw = Raw::with_key(&served, key, has_named_key);
                scope.spawn(move || {
                    let refused = raw.call(&Request::Hello { protocol: PROTOCOL }).unwrap_err();
                    assert_eq!(refused.kind, ErrorKind::PermissionDenied, "{refused}");
                });
            }
        });
        // A client of the owner is not an auxiliary server.
        let failed = VerificationResult::Failed(Failure::from(ErrorKind::InvalidInput));
        let verdict = Request::Verdict { verification: 1, result: failed };
        for request in [Request::NextVerification { name: "x".into() }, verdict] {
            let refused = served.raw(&request).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::PermissionDenied, "{refused}");
        }
        assert!(served.access().auxiliary_servers().unwrap().is_empty());
        // The commit key does not permit other requests.
        let raw = Raw::connect(&served);
        assert!(matches!(raw.call(&Request::Hello { protocol: PROTOCOL }), Ok(Reply::Welcome { .. })));
        let other = raw.call(&Request::Hello { protocol: PROTOCOL + 1 }).unwrap_err();
        assert_eq!(other.kind, ErrorKind::Unsupported);
        for request in
            [Request::Commit { batch: 1 }, Request::Counters, Request::Sync, Request::AuxiliaryServers]
        {
            assert_eq!(raw.call(&request).unwrap_err().kind, ErrorKind::PermissionDenied);
        }
        let long = raw.call(&Request::NextVerification { name: "x".repeat(256) }).unwrap_err();
        assert_eq!(long.kind, ErrorKind::InvalidInput);
        raw.0.stop(LONG);
        check(served);
    }
}

#[test]
fn a_batch_is_committed_if_its_auxiliary_server_leaves_or_sends_no_usable_verdict() {
    let served = Served::start(false);
    type End = fn(&Raw, u64, &VerificationTask);
    let ends: [(&str, End); 5] = [
        ("it leaves", |raw, _, _| raw.0.stop(LONG)),
        ("its files cannot be read", |raw, verification, _| {
            let result = VerificationResult::Failed(Failure::from(ErrorKind::NoSpace));
            raw.call(&Request::Verdict { verification, result }).unwrap();
        }),
        ("the bytes are no verdict", |raw, verification, _| {
            raw.verdict(verification, vec![0xFF; 100]).unwrap();
        }),
        ("the verdict is one about another batch", |raw, verification, task| {
            let other = [&encode(&(task.record.number + 1))[..], &[0; 8]].concat();
            raw.verdict(verification, other).unwrap();
        }),
        ("the tables do not exist", |raw, verification, task| {
            let number = (1_u64 << 40) + (task.record.number << 20);
            let table = encode(&(number, 4000_u64, 10_u64, 7_u64));
            let verdict = [&encode(&task.record.number)[..], &[1], &table, &[10, 0, 0, 0, 0, 0, 0]].concat();
            raw.verdict(verification, verdict).unwrap();
        }),
    ];
    log();
    for (text, end) in ends {
        let raw = Raw::connect(&served);
        let batch = begin_named(&served, text);
        std::thread::scope(|scope| {
            let waiting = raw.send(&Request::NextVerification { name: "raw".into() });
            wait_until(|| !served.access().auxiliary_servers().unwrap().is_empty());
            let committing = scope.spawn(|| batch.commit(LONG));
            let Ok(Reply::Verification { verification, task }) = reply(&waiting.recv().unwrap().unwrap())
            else {
                panic!("a task")
            };
            assert_eq!(task.record.number, batch.record().number);
            let [server] = &served.access().auxiliary_servers().unwrap()[..] else { panic!("one") };
            let expected =
                AuxiliarySummary { name: "raw".into(), batch: Some(task.batch), verified: 0, failed: 0 };
            assert_eq!(*server, expected);
            assert!(!committing.is_finished());
            end(&raw, verification, &task);
            assert_eq!(committing.join().unwrap().unwrap().state, committed(1), "{text}");
            // The verification has ended.
            if text != "it leaves" {
                let repeated = raw.verdict(verification, vec![0xFF; 100]).unwrap_err();
                assert_eq!(repeated.kind, ErrorKind::Stale, "{text}");
            }
        });
        raw.0.stop(LONG);
        wait_until(|| served.access().auxiliary_servers().unwrap().is_empty());
    }
    for line in [
        "an auxiliary server was lost batch=1 server=\"raw\"",
        "an auxiliary server could not verify a batch batch=2 server=\"raw\"",
        "the verdict of an auxiliary server is refused batch=3 server=\"raw\"",
        "its bytes do not have the format of a verdict",
        "it states the number of another batch",
        "the verdict of an auxiliary server is refused batch=5 server=\"raw\"",
    ] {
        assert!(log().contains(line), "{line}: {}", log());
    }
    check(served);
}

#[test]
fn a_verdict_for_another_auxiliary_server_or_for_an_earlier_primary_server_is_refused() {
    let mut served = Served::start(false);
    let (raw, other) = (Raw::connect(&served), Raw::connect(&served));
    let batch = begin_named(&served, "file");
    let old = std::thread::scope(|scope| {
        let waiting = raw.send(&Request::NextVerification { name: "raw".into() });
        wait_until(|| !served.access().auxiliary_servers().unwrap().is_empty());
        let committing = scope.spawn(|| batch.commit(LONG));
        let Ok(Reply::Verification { verification, .. }) = reply(&waiting.recv().unwrap().unwrap()) else {
            panic!("a task")
        };
        let refused = other.verdict(verification, vec![0]).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Stale);
        let waits = other.send(&Request::NextVerification { name: "other".into() });
        wait_until(|| served.access().auxiliary_servers().unwrap().len() == 2);
        assert_eq!(other.verdict(verification, vec![0]).unwrap_err().kind, ErrorKind::Stale);
        // The server ends, and completes the commit itself.
        served.server().stop(LONG).unwrap();
        committing.join().unwrap().unwrap();
        let refused = reply(&waits.recv().unwrap().unwrap()).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Unavailable, "{refused}");
        verification
    });
    served.restart(false);
    assert_eq!(raw.verdict(old, vec![0]).unwrap_err().kind, ErrorKind::Stale);
    raw.0.stop(LONG);
    other.0.stop(LONG);
    check(served);
}

#[test]
fn an_auxiliary_server_waits_for_the_server_and_follows_the_next_one() {
    let mut served = Served::start(false);
    let server = AuxiliaryServer::open(&served.path(), "node-1").unwrap();
    let is_ending = AtomicBool::new(false);
    let (sender, events) = channel();
    served.server().stop(LONG).unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            server.run(&is_ending, &mut |event| {
                let _ = sender.send(match event {
                    AuxiliaryEvent::Connected => "connected",
                    AuxiliaryEvent::NoServer(_) => "waiting",
                    AuxiliaryEvent::Begun { .. } => "begun",
                    AuxiliaryEvent::Ended { .. } => "ended",
                });
            })
        });
        let next = || events.recv_timeout(LONG).unwrap();
        assert_eq!(next(), "waiting");
        for name in ["first", "second"] {
            served.restart(false);
            assert_eq!(next(), "connected");
            wait_until(|| !served.access().auxiliary_servers().unwrap().is_empty());
            begin_named(&served, name).commit(LONG).unwrap();
            served.server().stop(LONG).unwrap();
            assert_eq!([next(), next(), next()], ["begun", "ended", "waiting"]);
        }
        is_ending.store(true, Ordering::SeqCst);
        running.join().unwrap().unwrap();
    });
    served.restart(false);
    check(served);
}

#[test]
fn an_auxiliary_server_with_another_key_ends() {
    let served = Served::start(false);
    let path = served.path().join("commit-key");
    std::fs::write(&path, [9; 32]).unwrap();
    let server = AuxiliaryServer::open(&served.path(), "node-1").unwrap();
    let refused: Error = server.run(&AtomicBool::new(false), &mut |_| ()).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::PermissionDenied, "{refused}");
    std::fs::remove_file(&path).unwrap();
    let missing = server.run(&AtomicBool::new(false), &mut |_| ()).unwrap_err();
    assert_eq!(missing.kind, ErrorKind::NotFound);
    // The next server creates a key, as for a store of an earlier version.
    let mut served = served;
    served.restart(false);
    let ended = with_auxiliary(&served, || {
        assert_eq!(begin(&served, 1).commit(LONG).unwrap().state, committed(1));
    });
    assert_eq!(ended.len(), 1);
    check(served);
}
