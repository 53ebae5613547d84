//! Tests of clients of a server in the same process, over sockets.

mod served;

use std::time::Duration;

use quell_batch::{MarkerLocation, OpenBatch, StoreAccess, TransactionOutcome};
use quell_batch_server::ServerOptions;
use quell_batch_service::{NewNode, ROOT, Reply, Request, Resolution, Resolved, SummaryState};
use quell_testkit::conformance::writing::{self, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_vfs::{Context, Error, ErrorKind, FileSystem, NodeId, OpenMode, Writable};

use served::{LONG, NEW, NOW, Served, with_mounts};

/// Runs `check` on mounts of new stores, each of which is a client of the store's server.
fn with_clients(is_tcp: bool, mounts_max: usize, check: impl Fn(&WritableImplementation<'_>)) {
    with_mounts("a store with a server", || (Served::start(is_tcp), None), mounts_max, check);
}

#[test]
fn promises_are_kept_by_mounts_of_a_server() {
    with_clients(false, 2, writing::run);
}

#[test]
fn random_histories_of_two_mounts_match_the_model() {
    let shape = Shape { mounts: 2, ..Shape::DENSE };
    with_clients(false, 2, |implementation| histories::check(implementation, shape, 0..4));
    with_clients(true, 2, |implementation| histories::check(implementation, shape, 4..6));
}

fn write(fs: &dyn Writable, name: &str, bytes: &[u8]) {
    let root = NodeId(ROOT);
    let (created, file) = fs.create(&Context::OWN, root, name.as_bytes(), NEW, OpenMode::READ_WRITE).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.close().unwrap();
    created.into_attributes();
}

fn size_of(fs: &dyn FileSystem, name: &str) -> Option<u64> {
    let found = fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).unwrap();
    found.map(|found| found.into_attributes().size_bytes)
}

#[test]
fn batches_of_several_clients_are_committed_while_the_server_serves_mounts() {
    let served = Served::start(true);
    let mount = served.mount();
    for name in ["one", "two"] {
        mount.make_dir(&Context::OWN, mount.root(), name.as_bytes(), NEW).unwrap().into_attributes();
    }
    let begin = |name: &str| OpenBatch::begin(served.access(), name.as_bytes(), name, false).unwrap();
    let batches = [begin("one"), begin("two")];
    assert_eq!(OpenBatch::begin(served.access(), b"", "all", false).unwrap_err().kind, ErrorKind::Busy);
    std::thread::scope(|scope| {
        for batch in &batches {
            scope.spawn(move || {
                let fs = batch.file_system();
                for number in 0..500 {
                    write(&*fs, &format!("small-{number}"), b"bytes");
                }
                write(&*fs, "large", &[7; 100_000]);
                assert_eq!(
                    batch.commit(LONG).unwrap().state,
                    SummaryState::Committed { entries: 501, conflicts: 0 }
                );
            });
        }
        for number in 0..200 {
            write(&mount, &format!("own-{number}"), b"synchronous");
        }
    });
    let access = served.access();
    for name in ["one", "two"] {
        let fs = access.file_system(name.as_bytes()).unwrap();
        assert_eq!((size_of(&fs, "small-499"), size_of(&fs, "large")), (Some(5), Some(100_000)));
    }
    assert_eq!(size_of(&mount, "own-199"), Some(11));
    let states: Vec<_> = access.batches().unwrap().into_iter().map(|batch| batch.state).collect();
    assert_eq!(states, [const { SummaryState::Committed { entries: 501, conflicts: 0 } }; 2]);
}

#[test]
fn snapshots_of_open_batches_are_listed_with_the_tables_that_they_share() {
    let served = Served::start(false);
    let mount = served.mount();
    for name in ["one", "two", "three"] {
        mount.make_dir(&Context::OWN, mount.root(), name.as_bytes(), NEW).unwrap().into_attributes();
    }
    let begin = |name: &str| OpenBatch::begin(served.access(), name.as_bytes(), name, false).unwrap();
    let one = begin("one");
    let snapshots = || served.access().snapshots().unwrap();
    let first = snapshots().remove(0);
    // The image has the same tables.
    assert_eq!((first.batch, first.name.as_str(), first.uid), (1, "one", 0));
    assert_eq!((first.shared_tables, first.own_bytes), (first.tables, 0));
    assert!(first.entries >= 7 && first.bytes > 0 && first.written.0 > 1_700_000_000, "{first:?}");
    write(&mount, "later", b"bytes");
    let two = begin("two");
    let three = begin("three");
    let listed = snapshots();
    assert_eq!(listed.iter().map(|snapshot| snapshot.batch).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(listed[0], first);
    // The second snapshot has the new file, and the third one has no other change.
    assert_eq!(listed[1].tables, first.tables + 1);
    assert!(listed[1].written > first.written && listed[1].entries > first.entries);
    assert_eq!((listed[2].tables, listed[2].written), (listed[1].tables, listed[1].written));
    one.abort(LONG).unwrap();
    two.commit(LONG).unwrap();
    assert_eq!(snapshots().iter().map(|snapshot| snapshot.batch).collect::<Vec<_>>(), [3]);
    // After a merge of the tables, only the snapshot has the old ones.
    for number in 0..6 {
        let batch = begin("two");
        write(&*batch.file_system(), &format!("file-{number}"), b"bytes");
        batch.commit(LONG).unwrap();
    }
    let last = snapshots().remove(0);
    assert_eq!((last.batch, last.bytes), (3, listed[2].bytes));
    assert!(last.shared_tables < last.tables && last.own_bytes > 0, "{last:?}");
    three.abort(LONG).unwrap();
    assert!(snapshots().is_empty());
}

#[test]
fn a_submitted_batch_is_verified_in_the_background_and_before_names_are_read() {
    let mut served = Served::start(false);
    let submit = |served: &Served, name: &str| {
        let batch = OpenBatch::begin(served.access(), b"", "job", false).unwrap();
        write(&*batch.file_system(), name, b"bytes");
        batch.commit_later(LONG).unwrap();
        batch.record().number
    };
    let state = |served: &Served, number: u64| {
        let batches = served.access().batches().unwrap();
        batches.into_iter().find(|batch| batch.number == number).unwrap().state
    };
    let committed = SummaryState::Committed { entries: 1, conflicts: 0 };
    // The server also commits a batch if clients only list batches, and request no names.
    let first = submit(&served, "first");
    let end = std::time::Instant::now() + LONG;
    while state(&served, first) != committed {
        assert!(std::time::Instant::now() < end, "{:?}", state(&served, first));
        std::thread::yield_now();
    }
    for number in 0..20 {
        let name = format!("file-{number}");
        submit(&served, &name);
        let mount = served.mount();
        assert!(mount.lookup(&Context::OWN, mount.root(), name.as_bytes()).unwrap().is_some(), "{name}");
    }
    // If a server ends meanwhile, the next server commits the batch.
    let last = submit(&served, "last");
    served.restart(false);
    assert_eq!(state(&served, last), committed);
}

#[test]
fn conflicts_of_a_batch_are_listed_in_parts() {
    let served = Served::start(false);
    let mount = served.mount();
    let batch = OpenBatch::begin(served.access(), b"", "job", false).unwrap();
    let aborted = {
        mount.make_dir(&Context::OWN, mount.root(), b"other", NEW).unwrap().into_attributes();
        let refused = OpenBatch::begin(served.access(), b"other", "other", false).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Busy);
        served.access().abort(batch.record().number).unwrap_err().kind
    };
    assert_eq!(aborted, ErrorKind::Busy, "a process uses it");
    let name = |number: u32| format!("{number}-{}", "x".repeat(240));
    let fs = batch.file_system();
    for number in 0..600 {
        write(&*fs, &name(number), b"of the batch");
        write(&mount, &name(number), b"of others");
    }
    let committed = batch.commit(LONG).unwrap();
    assert_eq!(committed.state, SummaryState::Committed { entries: 600, conflicts: 600 });
    let conflicts = served.access().conflicts(committed.number).unwrap();
    let mut names: Vec<_> = conflicts.into_iter().map(|conflict| conflict.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 600);
    // All names, and the conflict names that were kept, are listed in more than one part.
    let mut count = 0;
    served
        .access()
        .name_space()
        .list(ROOT, b"", &mut |_, _, _| {
            count += 1;
            true
        })
        .unwrap();
    assert_eq!(count, 1201);
    // Another client resolves a part of them at the same time.
    let resolve = |names: &[String], how: Resolution| {
        let paths: Vec<Vec<u8>> = names.iter().map(|name| format!("/{name}").into_bytes()).collect();
        loop {
            match served.access().resolve(committed.number, Some(&paths), &how) {
                // The other client is resolving conflicts of the batch.
                Err(error) if error.kind == ErrorKind::Busy => std::thread::yield_now(),
                resolved => return resolved.unwrap(),
            }
        }
    };
    // The paths of the first client are sent in two requests.
    let path_of = |name: &Vec<u8>| String::from_utf8(name.clone()).unwrap();
    let names: Vec<String> = names.iter().map(path_of).collect();
    let results = std::thread::scope(|scope| {
        let mine = scope.spawn(|| resolve(&names[..550], Resolution::Mine));
        let theirs = resolve(&names[550..], Resolution::Theirs);
        [mine.join().unwrap(), theirs]
    });
    assert_eq!(results, [550, 50].map(|resolved| Resolved { resolved, not_kept: 0 }));
    assert_eq!(served.access().conflicts(committed.number).unwrap(), []);
    for (name, content) in [(&names[0], "of the batch"), (&names[599], "of others")] {
        let found = mount.lookup(&Context::OWN, mount.root(), name.as_bytes()).unwrap().unwrap();
        let file = mount.open_as(&Context::OWN, found.into_attributes().node, OpenMode::READ).unwrap();
        let mut bytes = [0; 32];
        let length = file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[..length], *content.as_bytes());
    }
}

#[test]
fn operations_are_executed_while_all_threads_for_commits_are_in_use() {
    let options = ServerOptions { threads: 1, commits_max: 1, ..ServerOptions::default() };
    let served = Served::start_with(false, options);
    let batch = OpenBatch::begin(served.access(), b"", "job", false).unwrap();
    write(&*batch.file_system(), "of-batch", b"bytes");
    let primary = served.server().store().store().primary();
    let guard = primary.lock_commit(batch.record().number);
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| batch.commit(LONG));
        // Several clients get answers before the commit has ended.
        let has_begun = || served.server().store().counters().contains(&("commit", 1));
        while !has_begun() && !committing.is_finished() {
            std::thread::yield_now();
        }
        for number in 0..3 {
            write(&served.mount(), &format!("own-{number}"), b"synchronous");
        }
        assert!(!committing.is_finished());
        drop(guard);
        let expected = SummaryState::Committed { entries: 1, conflicts: 0 };
        assert_eq!(committing.join().unwrap().unwrap().state, expected);
    });
}

#[test]
fn a_server_that_ends_executes_the_commits_that_it_has_begun_and_refuses_the_others() {
    use quell_transport::peer::{Client, ClientSettings, Endpoint, PoolKey, Role};
    let options = ServerOptions { threads: 1, commits_max: 1, ..ServerOptions::default() };
    let mut served = Served::start_with(false, options);
    let mount = served.mount();
    let batch = |name: &str| {
        mount.make_dir(&Context::OWN, mount.root(), name.as_bytes(), NEW).unwrap().into_attributes();
        let batch = OpenBatch::begin(served.access(), name.as_bytes(), name, false).unwrap();
        write(&*batch.file_system(), "file", b"bytes");
        batch
    };
    let (begun, waiting) = (batch("begun"), batch("waiting"));
    waiting.prepare().unwrap();
    let primary = served.server().store().store().primary();
    let guard = primary.lock_commit(begun.record().number);
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| begun.commit(LONG));
        while !served.server().store().counters().contains(&("commit", 1)) && !committing.is_finished() {
            std::thread::yield_now();
        }
        // The server executes the requests of one client in their order, so the commit waits for a
        // thread when the answer to the second request arrives.
        let socket = Endpoint::Unix(served.socket());
        let client = Client::start(ClientSettings::new(Role::Batch, socket, PoolKey([0; 32]))).unwrap();
        let call = |request: &Request| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let done =
                Box::new(move |result: quell_vfs::Result<Vec<u8>>| sender.send(result.unwrap()).unwrap());
            client.call(quell_wire::encode(request), 1 << 20, std::time::Instant::now() + LONG, done);
            receiver
        };
        let refused = call(&Request::Commit { batch: waiting.record().number });
        call(&Request::Sync).recv().unwrap();
        let stopping = scope.spawn(|| served.server().stop(LONG));
        let Reply::Failed(failure) = quell_wire::decode(&refused.recv().unwrap()).unwrap() else {
            panic!("it is not refused")
        };
        assert_eq!(failure.kind(), ErrorKind::Busy);
        let error = failure.into_error("commit", b"a batch").to_string();
        assert!(error.contains("the server ends"), "{error}");
        assert!(!committing.is_finished());
        drop(guard);
        let expected = SummaryState::Committed { entries: 1, conflicts: 0 };
        assert_eq!(committing.join().unwrap().unwrap().state, expected);
        stopping.join().unwrap().unwrap();
    });
    drop(mount);
    served.restart(false);
    let states: Vec<_> = served.access().batches().unwrap().into_iter().map(|batch| batch.state).collect();
    assert_eq!(states, [SummaryState::Committed { entries: 1, conflicts: 0 }, SummaryState::Open]);
    let committed = waiting.commit(LONG).unwrap();
    assert_eq!(committed.state, SummaryState::Committed { entries: 1, conflicts: 0 });
}

#[test]
fn a_repeated_commit_gets_the_result_of_the_first_one() {
    let served = Served::start(false);
    let batch = OpenBatch::begin(served.access(), b"", "job", false).unwrap();
    let fs = batch.file_system();
    for number in 0..2000 {
        write(&*fs, &number.to_string(), b"");
    }
    batch.prepare().unwrap();
    let store = served.server().store();
    let request = quell_wire::encode(&Request::Commit { batch: batch.record().number });
    let commit = || {
        quell_wire::decode::<Reply>(&store.execute(&quell_batch::Requester::Owner, &request, 1 << 20))
            .unwrap()
    };
    // Both requests have begun before one of them can continue.
    let guard = store.store().primary().lock_commit(batch.record().number);
    std::thread::scope(|scope| {
        let both = [scope.spawn(commit), scope.spawn(commit)];
        while !store.counters().contains(&("commit", 2)) && !both.iter().all(|one| one.is_finished()) {
            std::thread::yield_now();
        }
        drop(guard);
        for reply in both.map(|thread| thread.join().unwrap()) {
            let Reply::Batch(summary) = reply else { panic!("{reply:?}") };
            assert_eq!(summary.state, SummaryState::Committed { entries: 2000, conflicts: 0 });
        }
    });
}

#[test]
fn a_commit_and_an_abort_whose_replies_were_lost_can_be_repeated() {
    let mut served = Served::start(false);
    let committed = SummaryState::Committed { entries: 1, conflicts: 0 };
    let batch = OpenBatch::begin(served.access(), b"", "committed", false).unwrap();
    write(&*batch.file_system(), "file", b"bytes");
    batch.prepare().unwrap();
    let Reply::Batch(first) = served.raw(&Request::Commit { batch: batch.record().number }).unwrap() else {
        panic!()
    };
    assert_eq!(first.state, committed);
    // The server has removed the written changes, and the next one has not sent the reply.
    served.restart(false);
    assert_eq!(batch.commit(LONG).unwrap().state, committed);
    assert_eq!(batch.commit_later(LONG).unwrap().state, committed);

    let batch = OpenBatch::begin(served.access(), b"", "aborted", false).unwrap();
    let number = batch.record().number;
    let Reply::Batch(first) = served.raw(&Request::Abort { batch: number }).unwrap() else { panic!() };
    assert_eq!(first.state, SummaryState::Aborted);
    assert_eq!(batch.abort(LONG).unwrap(), first);
    // The next server does not have the replies of this one.
    served.restart(false);
    assert_eq!(batch.abort(LONG).unwrap(), first);
    let refused = batch.commit(LONG).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotFound, "{refused}");
}

#[test]
fn the_error_of_a_file_is_returned_by_each_repetition_of_the_commit() {
    let served = Served::start(false);
    let batch = OpenBatch::begin(served.access(), b"", "job", false).unwrap();
    let fs = batch.file_system();
    write(&*fs, "file", b"bytes");
    let root = NodeId(ROOT);
    let (_, removed) = fs.create(&Context::OWN, root, b"removed", NEW, OpenMode::READ_WRITE).unwrap();
    removed.write_at(&[1; 100_000], 0).unwrap();
    fs.remove(&Context::OWN, root, b"removed").unwrap();
    // The data file of the removed file is missing when the commit removes it.
    std::fs::remove_dir_all(served.path().join("data").join(batch.record().number.to_string())).unwrap();
    let first = batch.commit(LONG).unwrap_err();
    assert_eq!(size_of(&served.mount(), "file"), Some(5), "{first}");
    let second = batch.commit(LONG).unwrap_err();
    assert_eq!(second.kind, first.kind, "{second}");
    assert!(second.to_string().contains(&first.to_string()), "{second}");
}

#[test]
fn a_batch_is_committed_with_a_transaction_through_the_server() {
    let error = || Error::new(ErrorKind::TimedOut, "commit", "the transaction");
    for outcome in ["committed", "refused", "unknown, committed", "unknown, refused", "aborted"] {
        let mut served = Served::start(false);
        let batch = OpenBatch::begin(served.access(), b"", "job", false).unwrap();
        write(&*batch.file_system(), "file", b"bytes");
        batch.prepare().unwrap();
        let number = batch.record().number;
        drop(batch);
        served.access().check_commit_with(number).unwrap();
        let location = MarkerLocation { location: "dir:/blobs", prefix: "markers/" };
        let access = served.access();
        let ended = access.commit_with(number, location, |_| {
            // Another client sees the state, and the next server has it as well.
            let checked = served.access().check_commit_with(number).unwrap_err();
            assert_eq!(checked.kind, ErrorKind::Busy, "{checked}");
            served.restart(false);
            match outcome {
                "committed" => TransactionOutcome::Committed,
                "refused" => TransactionOutcome::Refused(error()),
                _ => TransactionOutcome::Unknown(error()),
            }
        });
        assert_eq!(ended.is_ok(), outcome == "committed", "{ended:?}");
        let access = served.access();
        let resolved = match outcome {
            "aborted" => access.roll_back_without_blobs(number).unwrap(),
            _ => {
                let resolved = access.resolve_prepared(number, |_| Ok(outcome.ends_with("committed")));
                resolved.unwrap().map(|(summary, _)| summary)
            }
        };
        let committed = SummaryState::Committed { entries: 1, conflicts: 0 };
        let is_committed = outcome.ends_with("committed");
        let expected = if is_committed { committed.clone() } else { SummaryState::Open };
        let is_resolved = outcome != "committed" && outcome != "refused";
        assert_eq!(resolved.map(|summary| summary.state), is_resolved.then(|| expected.clone()), "{outcome}");
        assert_eq!(access.batches().unwrap()[0].state, expected, "{outcome}");
        if !is_committed {
            assert_eq!(access.commit(number).unwrap().state, committed);
        }
        assert_eq!(size_of(&served.mount(), "file"), Some(5));
    }
}

#[test]
fn clients_go_on_with_the_next_server() {
    let mut served = Served::start(true);
    let (access, fs) = (served.access(), served.mount());
    let names = access.name_space();
    names.create(ROOT, b"before", NewNode::File, NEW, NOW).unwrap();
    let (open, file) = fs.create(&Context::OWN, fs.root(), b"open", NEW, OpenMode::READ_WRITE).unwrap();
    open.into_attributes();
    // Operations that begin while there is no server wait for the next one.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| names.create(ROOT, b"meanwhile", NewNode::File, NEW, NOW));
        served.restart(true);
        waiting.join().unwrap().unwrap();
    });
    file.write_at(b"after", 0).unwrap();
    file.close().unwrap();
    for name in [&b"before"[..], b"meanwhile", b"open"] {
        assert!(names.lookup(ROOT, name).unwrap().is_some());
    }
    assert_eq!(size_of(&fs, "open"), Some(5));
}

#[test]
fn requests_out_of_their_limits_and_keys_of_others_are_refused() {
    use quell_transport::peer::{Client, ClientSettings, Endpoint, PoolKey, Role};
    let served = Served::start(true);
    let store = served.server().store();
    let failed = |request: &[u8]| {
        let quell_batch_service::Reply::Failed(failure) =
            quell_wire::decode(&store.execute(&quell_batch::Requester::Owner, request, 1 << 20)).unwrap()
        else {
            panic!("it is not refused")
        };
        failure.kind()
    };
    use quell_batch_service::{Bytes, Request};
    let long = || vec![b'a'; 256];
    for request in [
        Request::List { dir: ROOT, after: Bytes(long()) },
        Request::Find { number: 7, place: quell_batch_service::Place::Name { dir: ROOT, name: long() } },
        Request::Find { number: 7, place: quell_batch_service::Place::Name { dir: ROOT, name: Vec::new() } },
        Request::Create {
            dir: ROOT,
            name: Bytes(b"a".into()),
            node: NewNode::Symlink(vec![b'a'; 4096]),
            new: NEW.into(),
            now: NOW.into(),
        },
    ] {
        assert_eq!(failed(&quell_wire::encode(&request)), ErrorKind::InvalidInput, "{request:?}");
    }
    for name in [&b"."[..], b"..", b"a/b", b""] {
        let create = Request::Create {
            dir: ROOT,
            name: Bytes(name.into()),
            node: NewNode::File,
            new: NEW.into(),
            now: NOW.into(),
        };
        assert_eq!(failed(&quell_wire::encode(&create)), ErrorKind::InvalidInput);
    }
    assert_eq!(
        failed(&quell_wire::encode(&Request::Hello { protocol: quell_batch_service::PROTOCOL + 1 })),
        ErrorKind::Unsupported
    );
    assert_eq!(failed(b"\xff\xff"), ErrorKind::Damaged);
    // A client with another key is refused.
    let server = Endpoint::Tcp(served.address().unwrap());
    let client = Client::start(ClientSettings {
        unreachable_after: Duration::from_millis(300),
        ..ClientSettings::new(Role::Batch, server, PoolKey([1; 32]))
    })
    .unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let done =
        Box::new(move |result: quell_vfs::Result<Vec<u8>>| sender.send(result.unwrap_err().kind).unwrap());
    client.call(quell_wire::encode(&Request::Sync), 1000, std::time::Instant::now() + LONG, done);
    assert_eq!(receiver.recv().unwrap(), ErrorKind::PermissionDenied);
    assert!(served.server().listener().refused_connections() > 0);
}

#[test]
fn a_store_without_a_server_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    quell_batch::BatchStore::create(&path).unwrap();
    let own = StoreAccess::open(&path, LONG).unwrap();
    let refused = StoreAccess::open(&path, Duration::ZERO).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Busy);
    drop(own);
    StoreAccess::open(&path, Duration::ZERO).unwrap();
}
