//! Tests of requests that arrive twice, at the same start of a member or at a later start.

use std::rc::Rc;
use std::time::Duration;

use futures_executor::{LocalPool, block_on};
use futures_util::FutureExt;
use futures_util::future::{Either, join, select};
use quell_vfs::ErrorKind;
use quell_wire::pool::{
    FileId, Matching, MemberId, NewKind, NodeKind, Operation, PeerMessage, PeerRequest, RenameMode, Reply,
    Route, Settings, TransactionId, XattrMode,
};
use quell_wire::{Failure, decode, encode};

use super::cluster::Cluster;
use super::time::SimulationRuntime;
use crate::replies::into_owned;

/// The sender of the requests. This member does not run.
const SENDER: MemberId = MemberId(1);
const TRANSACTION: TransactionId = TransactionId { coordinator: SENDER, number: 7 };

type Answer = Result<Reply<'static>, ErrorKind>;

/// Runs a case on a pool of one member that has copies, beside the member that sends the requests.
fn check<F: Future<Output = ()> + 'static>(case: impl FnOnce(Rc<Cluster>) -> F) {
    let mut executor = LocalPool::new();
    let runtime = SimulationRuntime::new(0, &executor);
    let cluster = Cluster::start(&runtime, 2, true);
    cluster.kill(SENDER.0);
    let ended = Rc::new(std::cell::Cell::new(false));
    let (case, ends) = (case(cluster), Rc::clone(&ended));
    runtime.spawn(case.map(move |()| ends.set(true)));
    runtime.run(&mut executor, Duration::from_secs(100), || ended.get());
    assert!(ended.get(), "a request waits forever");
}

/// Sends a request with a number. The sender waits for the replies to `first_waiting` and later
/// requests.
async fn send(cluster: &Rc<Cluster>, number: u64, first_waiting: u64, request: &PeerRequest<'_>) -> Answer {
    let request = request.clone();
    let message = PeerMessage { session: 5, number, first_waiting, abandoned: Vec::new(), request };
    let route = Route::Member { from: SENDER, to: MemberId(0) };
    let member = Rc::clone(&cluster.running(0).unwrap().member);
    let reply = member.serve(&encode(&(route, message))).await;
    let result: Result<Reply<'_>, Failure> = decode(&reply).unwrap();
    result.map(into_owned).map_err(|failure| failure.kind())
}

fn restart(cluster: &Rc<Cluster>) {
    cluster.kill(0);
    cluster.restart(0);
}

/// Returns names in the root directory that the member has.
fn own_names(cluster: &Rc<Cluster>) -> Vec<Vec<u8>> {
    let member = &cluster.running(0).unwrap().member;
    let is_own = |name: &Vec<u8>| {
        let hash = crate::map::NameHash::new(FileId::ROOT, name);
        member.map.owner_of_name(hash) == MemberId(0)
    };
    (b'a'..=b'z').map(|name| vec![name]).filter(is_own).collect()
}

fn create<'a>(name: &'a [u8], kind: NewKind<'static>) -> PeerRequest<'a> {
    let dir = FileId::ROOT;
    PeerRequest::Perform(Operation::Create { dir, name, kind, permissions: 0o700, uid: 1000, gid: 1000 })
}

fn remove(name: &[u8]) -> PeerRequest<'_> {
    PeerRequest::Perform(Operation::Remove { dir: FileId::ROOT, name, matching: Matching::NotDir })
}

fn rename<'a>(from: &'a [u8], to: &'a [u8]) -> PeerRequest<'a> {
    let (from_dir, to_dir, mode) = (FileId::ROOT, FileId::ROOT, RenameMode::Keep);
    PeerRequest::Perform(Operation::Rename { from_dir, from, to_dir, to, mode })
}

#[test]
fn a_repeated_request_is_performed_once() {
    for restarts in [false, true] {
        check(move |cluster| async move {
            let names = own_names(&cluster);
            let Ok(Reply::Held(file)) = send(&cluster, 1, 1, &create(&names[0], NewKind::File)).await else {
                panic!("the file was not created")
            };
            let id = file.id;
            let settings = Settings { size_bytes: Some(100), ..Settings::default() };
            let set = Operation::SetXattr { id, name: b"user.a", value: b"1", mode: XattrMode::Create };
            let requests = [
                create(&names[1], NewKind::File),
                create(&names[2], NewKind::Dir),
                rename(&names[1], &names[3]),
                PeerRequest::Perform(set),
                PeerRequest::Perform(Operation::RemoveXattr { id, name: b"user.a" }),
                PeerRequest::Perform(Operation::Change { id, settings }),
                PeerRequest::Perform(Operation::Reserve { id, bytes: 10 }),
                remove(&names[3]),
            ];
            for (number, request) in (2..).zip(&requests) {
                let first = send(&cluster, number, number, request).await;
                assert!(first.is_ok(), "{request:?}: {first:?}");
                for _ in 0..2 {
                    if restarts {
                        restart(&cluster);
                    }
                    assert_eq!(send(&cluster, number, number, request).await, first, "{request:?}");
                }
            }
            // A new request is performed.
            assert_eq!(send(&cluster, 50, 50, &remove(&names[3])).await, Err(ErrorKind::NotFound));
            let reserve = PeerRequest::Perform(Operation::Reserve { id, bytes: 1 });
            assert_eq!(send(&cluster, 51, 51, &reserve).await, Ok(Reply::Offset(110)));
        });
    }
}

#[test]
fn a_repeated_write_of_inline_data_does_not_undo_a_later_one() {
    for restarts in [false, true] {
        check(move |cluster| async move {
            let names = own_names(&cluster);
            let Ok(Reply::Held(file)) = send(&cluster, 1, 1, &create(&names[0], NewKind::File)).await else {
                panic!("the file was not created")
            };
            let id = file.id;
            let write = |data| PeerRequest::Perform(Operation::WriteInline { id, offset: 0, data });
            assert_eq!(send(&cluster, 2, 2, &write(b"first")).await, Ok(Reply::Written(true)));
            assert_eq!(send(&cluster, 3, 2, &write(b"later")).await, Ok(Reply::Written(true)));
            if restarts {
                restart(&cluster);
            }
            assert_eq!(send(&cluster, 2, 2, &write(b"first")).await, Ok(Reply::Written(true)));
            let read = PeerRequest::Perform(Operation::ReadInline { id, offset: 0, bytes: 9 });
            let data = std::borrow::Cow::Borrowed(&b"later"[..]);
            assert_eq!(send(&cluster, 4, 4, &read).await, Ok(Reply::Inline { data, size_bytes: 5 }));
        });
    }
}

#[test]
fn a_request_that_has_failed_is_not_performed_later() {
    check(|cluster| async move {
        let names = own_names(&cluster);
        assert!(send(&cluster, 1, 1, &create(&names[0], NewKind::File)).await.is_ok());
        let again = create(&names[0], NewKind::File);
        assert_eq!(send(&cluster, 2, 1, &again).await, Err(ErrorKind::Exists));
        assert_eq!(send(&cluster, 3, 1, &remove(&names[0])).await, Ok(Reply::Done));
        assert_eq!(send(&cluster, 2, 1, &again).await, Err(ErrorKind::Exists));
        // The sender has received both replies.
        assert_eq!(send(&cluster, 4, 4, &remove(&names[0])).await, Err(ErrorKind::NotFound));
        assert_eq!(send(&cluster, 2, 1, &again).await, Err(ErrorKind::Unavailable));
    });
}

#[test]
fn a_request_without_an_effect_is_performed_after_a_start() {
    check(|cluster| async move {
        let names = own_names(&cluster);
        assert_eq!(send(&cluster, 1, 1, &remove(&names[0])).await, Err(ErrorKind::NotFound));
        restart(&cluster);
        assert!(send(&cluster, 2, 1, &create(&names[0], NewKind::File)).await.is_ok());
        assert_eq!(send(&cluster, 1, 1, &remove(&names[0])).await, Ok(Reply::Done));
    });
}

#[test]
fn a_repeated_creation_makes_a_reference_after_a_start() {
    check(|cluster| async move {
        let names = own_names(&cluster);
        let request = create(&names[0], NewKind::File);
        let Ok(Reply::Held(file)) = send(&cluster, 1, 1, &request).await else { panic!("no reference") };
        restart(&cluster);
        let is_held = || {
            let member = Rc::clone(&cluster.running(0).unwrap().member);
            let holds = member.member_holds.borrow();
            holds.is_held(file.id)
        };
        assert!(!is_held());
        assert_eq!(send(&cluster, 1, 1, &request).await, Ok(Reply::Held(file)));
        assert!(is_held());
        let returned = PeerRequest::Return { references: vec![(file.id, 1)], unanswered: Vec::new() };
        assert_eq!(send(&cluster, 2, 1, &returned).await, Ok(Reply::Done));
        // A late copy of the request makes no further reference.
        assert_eq!(send(&cluster, 1, 1, &request).await, Ok(Reply::Held(file)));
        assert!(!is_held());
    });
}

#[test]
fn a_repetition_waits_for_the_first_execution() {
    check(|cluster| async move {
        let names = own_names(&cluster);
        let (name, dir, id) = (&names[0], FileId::ROOT, FileId(77));
        let (transaction, kind, mode) = (TRANSACTION, NodeKind::File, RenameMode::Replace);
        let prepare = PeerRequest::PrepareName { transaction, dir, name, id, kind, mode };
        assert_eq!(send(&cluster, 1, 1, &prepare).await, Ok(Reply::Prepared(None)));
        // The name is locked.
        let request = create(name, NewKind::File);
        let both = join(send(&cluster, 2, 2, &request), send(&cluster, 2, 2, &request)).boxed_local();
        let pause = cluster.runtime.sleep(Duration::from_millis(10));
        let Either::Right((_, waiting)) = select(both, pause).await else {
            panic!("the creation does not wait");
        };
        let abort = PeerRequest::EndTransaction { transaction, is_committed: false };
        assert_eq!(send(&cluster, 3, 2, &abort).await, Ok(Reply::Done));
        let (first, second) = waiting.await;
        assert!(matches!(first, Ok(Reply::Held(_))), "{first:?}");
        assert_eq!(first, second);
    });
}

#[test]
fn a_prepared_change_is_prepared_once() {
    for restarts in [false, true] {
        check(move |cluster| async move {
            let names = own_names(&cluster);
            let mut nodes = Vec::new();
            for (number, kind) in (1..).zip([NewKind::File, NewKind::File, NewKind::Dir]) {
                let request = create(&names[number as usize], kind);
                let Ok(Reply::Held(node)) = send(&cluster, number, number, &request).await else {
                    panic!("the node was not created")
                };
                nodes.push(node.id);
            }
            let (name, dir, id) = (&names[1], FileId::ROOT, nodes[1]);
            let (transaction, kind, mode) = (TRANSACTION, NodeKind::File, RenameMode::Replace);
            let prepare = [
                PeerRequest::PrepareName { transaction, dir, name, id, kind, mode },
                PeerRequest::PrepareNode { transaction, id, name: Some((dir, name)) },
                PeerRequest::PrepareRemoval { transaction, dir: nodes[2] },
            ];
            for (number, request) in (4..).zip(&prepare) {
                let first = send(&cluster, number, number, request).await;
                assert!(first.is_ok(), "{request:?}: {first:?}");
                if restarts {
                    restart(&cluster);
                }
                assert_eq!(send(&cluster, number, number, request).await, first, "{request:?}");
                // The same request for another transaction is not a repetition, and is refused.
                let number = 10 * number;
                let other = TransactionId { number, ..TRANSACTION };
                let request = match request.clone() {
                    PeerRequest::PrepareName { dir, name, id, kind, mode, .. } => {
                        PeerRequest::PrepareName { transaction: other, dir, name, id, kind, mode }
                    }
                    PeerRequest::PrepareNode { id, name, .. } => {
                        PeerRequest::PrepareNode { transaction: other, id, name }
                    }
                    _ => PeerRequest::PrepareRemoval { transaction: other, dir: nodes[2] },
                };
                assert_eq!(send(&cluster, number, 4, &request).await, Err(ErrorKind::Busy));
            }
        });
    }
}

#[test]
fn a_pool_without_copies_records_no_results() {
    let executor = LocalPool::new();
    let runtime = SimulationRuntime::new(0, &executor);
    for (has_copies, records) in [(false, 0), (true, 1)] {
        let cluster = Cluster::start(&runtime, 2, has_copies);
        let names = own_names(&cluster);
        for (number, request) in [(1, create(&names[0], NewKind::File)), (2, remove(&names[0]))] {
            // The second request uses the slot of the first one.
            assert!(block_on(send(&cluster, number, number, &request)).is_ok());
        }
        let mut count = 0;
        let first = crate::keys::all_results();
        let scan = &mut |_: &[u8], _: &[u8]| {
            count += 1;
            true
        };
        let store = &cluster.disk(0).store;
        quell_kv::KeyValue::scan(&**store, &quell_kv::KeyRange::prefix(&first), scan).unwrap();
        assert_eq!(count, records);
    }
}
