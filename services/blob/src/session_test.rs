//! Tests of the requests of clients.

use std::sync::{LazyLock, mpsc};

use quell_kv::MemoryStore;
use quell_testkit::Random;
use quell_wire::blob::{
    Access, CellType, Grant, KeyDescription, MESSAGE_BYTES_MAX, Operation, OperationResult, Overflow, Part,
    Read, Refusal, Right, Transaction, TransactionId, Transform, TransformKind, Version, WrittenExtent,
};

use super::*;
use crate::extents::{ExtentId, Extents, MemoryExtents};
use crate::options::{Clock, Options};

struct NoClock;

impl Clock for NoClock {
    fn now_ns(&self) -> u64 {
        7
    }
}

const CLIENT: ClientId = ClientId(5);

fn sessions(limits: SessionLimits) -> Arc<Sessions> {
    sessions_with(Arc::default(), limits)
}

fn sessions_with(extents: Arc<MemoryExtents>, limits: SessionLimits) -> Arc<Sessions> {
    let tables = Arc::new(MemoryStore::new());
    let store = OpenStore::open(tables, extents, Arc::new(NoClock), Options::default());
    Arc::new(Sessions::new(store.unwrap(), limits))
}

fn sessions_and_extents() -> (Arc<Sessions>, Arc<MemoryExtents>) {
    let extents = Arc::<MemoryExtents>::default();
    (sessions_with(extents.clone(), SessionLimits::default()), extents)
}

/// Returns the number of extents.
fn numbers(extents: &MemoryExtents) -> usize {
    let mut count = 0;
    extents.list(ExtentId(0), &mut |_| count += 1).unwrap();
    count
}

/// Executes a request of a client with all permissions.
fn call_bytes(sessions: &Arc<Sessions>, client: ClientId, request: &[u8], reply_bytes_max: usize) -> Vec<u8> {
    static ALL: LazyLock<Arc<Permissions>> = LazyLock::new(|| Arc::new(Permissions::all()));
    call_with(sessions, client, &ALL, request, reply_bytes_max)
}

fn call_with(
    sessions: &Arc<Sessions>,
    client: ClientId,
    permissions: &Arc<Permissions>,
    request: &[u8],
    reply_bytes_max: usize,
) -> Vec<u8> {
    let (sender, receiver) = mpsc::channel();
    let replied = Box::new(move |reply| sender.send(reply).unwrap());
    if sessions.execute(client, permissions, request, reply_bytes_max, replied) {
        sessions.store.commit_pending();
    }
    let reply = receiver.try_recv().expect("every request has a reply");
    assert!(receiver.try_recv().is_err());
    reply
}

fn call(sessions: &Arc<Sessions>, request: &Request) -> Reply {
    decode(&call_bytes(sessions, CLIENT, &encode(request), MESSAGE_BYTES_MAX)).unwrap()
}

fn write(name: &[u8], data: &[u8]) -> Vec<Operation> {
    let name = name.to_vec();
    vec![
        Operation::Create { name: name.clone(), may_exist: true },
        Operation::Write { name, offset: 0, data: data.to_vec() },
    ]
}

fn commit(sessions: &Arc<Sessions>, operations: Vec<Operation>) -> Reply {
    call(sessions, &Request::Commit(Transaction { operations, ..Transaction::default() }))
}

fn state(snapshot: Option<SnapshotId>, operations: Vec<Operation>) -> ReadState {
    ReadState { snapshot, draft: Draft::Inline(operations) }
}

fn read(sessions: &Arc<Sessions>, state: ReadState) -> Reply {
    call(sessions, &Request::Read { state, name: b"a".to_vec(), offset: 0, length_bytes: 100 })
}

fn is_failed(reply: &Reply, kind: ErrorKind) -> bool {
    matches!(reply, Reply::Failed(failure) if failure.kind() == kind)
}

#[test]
fn a_client_reads_snapshots_and_its_own_changes() {
    let sessions = sessions(SessionLimits::default());
    assert!(matches!(call(&sessions, &Request::Hello { protocol: PROTOCOL }), Reply::Welcome { .. }));
    assert!(matches!(commit(&sessions, write(b"a", b"old")), Reply::Committed(_)));
    let Reply::Begun { snapshot, .. } = call(&sessions, &Request::Begin) else { panic!() };
    assert!(matches!(commit(&sessions, write(b"a", b"new")), Reply::Committed(_)));
    assert_eq!(read(&sessions, state(Some(snapshot), vec![])), Reply::Data(b"old".to_vec()));
    assert_eq!(read(&sessions, state(None, vec![])), Reply::Data(b"new".to_vec()));
    let append = Operation::Append { name: b"a".to_vec(), data: b"er".to_vec() };
    assert_eq!(read(&sessions, state(Some(snapshot), vec![append])), Reply::Data(b"older".to_vec()));
    let list = Request::List { state: state(None, vec![]), prefix: vec![], after: vec![], count_max: 10 };
    let Reply::Names { names, is_complete: true } = call(&sessions, &list) else { panic!() };
    assert_eq!(
        names.iter().map(|(name, stat)| (&name[..], stat.size_bytes)).collect::<Vec<_>>(),
        [(&b"a"[..], 3)]
    );
    assert_eq!(call(&sessions, &Request::End(snapshot)), Reply::Done);
    assert_eq!(read(&sessions, state(Some(snapshot), vec![])), Reply::Unknown);
    assert_eq!(sessions.snapshots(), 0);
}

fn write_extent(upload: u64, offset: usize, data: &[u8]) -> Request {
    Request::WriteExtent { upload: TransferId(upload), offset: offset as u64, data: data.to_vec() }
}

/// Returns the commit of a write of an extent to the blob `a`.
fn commit_written(upload: u64, operation: u32, length_bytes: usize, data: &[u8]) -> Request {
    let transaction = Transaction { operations: write(b"a", data), ..Transaction::default() };
    let (upload, length_bytes) = (TransferId(upload), length_bytes as u64);
    Request::CommitWritten { transaction, extents: vec![WrittenExtent { operation, upload, length_bytes }] }
}

#[test]
fn the_data_of_an_operation_is_written_before_its_transaction() {
    let (sessions, extents) = sessions_and_extents();
    let data: Vec<u8> = (0..1_500_001_u32).map(|number| (number / 7) as u8).collect();
    let send = |upload| {
        for (index, part) in data.chunks(DATA_BYTES_MAX).enumerate() {
            let request = write_extent(upload, index * DATA_BYTES_MAX, part);
            assert_eq!(call(&sessions, &request), Reply::Done);
            // A part that is sent again is refused, and not added twice.
            assert!(index == 0 || is_failed(&call(&sessions, &request), ErrorKind::InvalidInput));
        }
    };
    send(1);
    assert_eq!(sessions.kept_bytes(), data.len() as u64);
    assert!(matches!(call(&sessions, &commit_written(1, 1, data.len(), b"")), Reply::Committed(_)));
    assert_eq!(sessions.kept_bytes(), 0);
    let mut found = vec![0; data.len()];
    assert_eq!(sessions.store.snapshot().read(b"a", 0, &mut found).unwrap(), data.len());
    assert!(found == data);
    assert_eq!(call(&sessions, &commit_written(1, 1, data.len(), b"")), Reply::Unknown);
    // A wrong length, another operation, an operation that has data already, and an operation that
    // does not exist.
    for (operation, length_bytes, inline) in
        [(1, data.len() - 1, &b""[..]), (0, data.len(), b""), (1, data.len(), b"x"), (2, data.len(), b"")]
    {
        send(2);
        let reply = call(&sessions, &commit_written(2, operation, length_bytes, inline));
        let is_refused = match &reply {
            Reply::Refused(Refusal::Failed { failure, .. }) => failure.kind() == ErrorKind::InvalidInput,
            other => is_failed(other, ErrorKind::InvalidInput),
        };
        assert!(is_refused, "{reply:?}");
        assert_eq!(sessions.kept_bytes(), 0);
    }
    sessions.store.collect().unwrap();
    assert_eq!(numbers(&extents), 1);
}

#[test]
fn an_extent_of_a_client_that_has_ended_is_removed() {
    let (sessions, extents) = sessions_and_extents();
    let part = vec![1; 40_000];
    for upload in 0..3 {
        assert_eq!(call(&sessions, &write_extent(upload, 0, &part)), Reply::Done);
    }
    assert_eq!(call(&sessions, &Request::Discard(TransferId(0))), Reply::Done);
    // The upload begins again.
    assert_eq!(call(&sessions, &write_extent(1, 0, &part)), Reply::Done);
    assert_eq!(sessions.kept_bytes(), 80_000);
    sessions.end(CLIENT);
    assert_eq!(sessions.kept_bytes(), 0);
    assert_eq!(call(&sessions, &write_extent(1, 40_000, &part)), Reply::Unknown);
    assert_eq!(call(&sessions, &commit_written(2, 1, 40_000, b"")), Reply::Unknown);
    sessions.store.collect().unwrap();
    assert_eq!(numbers(&extents), 0);
    // Small data is not an extent.
    assert_eq!(call(&sessions, &write_extent(1, 0, b"x")), Reply::Done);
    assert!(is_failed(&call(&sessions, &commit_written(1, 1, 1, b"")), ErrorKind::InvalidInput));
}

#[test]
fn a_long_transaction_is_uploaded_in_parts() {
    let sessions = sessions(SessionLimits::default());
    let data: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
    let transaction = Transaction { operations: write(b"a", &data), ..Transaction::default() };
    let encoded = encode(&transaction);
    let upload = TransferId(1);
    assert_eq!(call(&sessions, &Request::CommitUploaded(upload)), Reply::Unknown);
    for (index, part) in encoded.chunks(DATA_BYTES_MAX).enumerate() {
        let offset = (index * DATA_BYTES_MAX) as u64;
        let request = Request::Upload { upload, offset, data: part.to_vec() };
        assert_eq!(call(&sessions, &request), Reply::Done);
        // A part that is sent again is refused, and not added twice.
        assert!(offset == 0 || is_failed(&call(&sessions, &request), ErrorKind::InvalidInput));
    }
    assert_eq!(sessions.kept_bytes(), encoded.len() as u64);
    assert!(matches!(call(&sessions, &Request::CommitUploaded(upload)), Reply::Committed(_)));
    assert_eq!(sessions.kept_bytes(), 0);
    let request = Request::Read {
        state: state(None, vec![]),
        name: b"a".to_vec(),
        offset: 2_500_000,
        length_bytes: DATA_BYTES_MAX as u32,
    };
    assert_eq!(call(&sessions, &request), Reply::Data(data[2_500_000..].to_vec()));
}

#[test]
fn a_result_that_is_longer_than_the_reply_is_fetched() {
    let sessions = sessions(SessionLimits::default());
    let mut transform = Transform::one(TransformKind::Add, CellType::U8, Overflow::Wrap, &[1]);
    (transform.count, transform.returns_before) = (100_000, true);
    let mut operations = write(b"a", &[]);
    operations.push(Operation::Transform { name: b"a".to_vec(), offset: 0, transform });
    let id = Some(TransactionId { client: 1, number: 1, begun: Version(0) });
    let request = encode(&Request::Commit(Transaction { id, operations, ..Transaction::default() }));
    let Reply::Long { reply, length_bytes } = decode(&call_bytes(&sessions, CLIENT, &request, 4096)).unwrap()
    else {
        panic!("the reply has 100 kB")
    };
    let mut encoded = Vec::new();
    while (encoded.len() as u64) < length_bytes {
        let request = Request::Fetch { reply, offset: encoded.len() as u64 };
        let Reply::Data(part) = call(&sessions, &request) else { panic!() };
        encoded.extend(part);
    }
    let Reply::Committed(committed) = decode(&encoded).unwrap() else { panic!() };
    assert_eq!(committed.results[2], OperationResult::Before(vec![0; 100_000]));
    assert_eq!(call(&sessions, &Request::Discard(reply)), Reply::Done);
    assert_eq!(sessions.kept_bytes(), 0);
}

#[test]
fn everything_that_is_kept_for_a_client_is_bounded_and_ends_with_it() {
    let limits = SessionLimits {
        snapshots_max: 2,
        snapshots_total_max: 3,
        kept_bytes_max: 10,
        kept_bytes_total_max: 15,
    };
    let sessions = sessions(limits);
    let other = |request: &Request| -> Reply {
        decode(&call_bytes(&sessions, ClientId(6), &encode(request), MESSAGE_BYTES_MAX)).unwrap()
    };
    for _ in 0..2 {
        assert!(matches!(call(&sessions, &Request::Begin), Reply::Begun { .. }));
    }
    assert!(is_failed(&call(&sessions, &Request::Begin), ErrorKind::Busy));
    assert!(matches!(other(&Request::Begin), Reply::Begun { .. }));
    assert!(is_failed(&other(&Request::Begin), ErrorKind::Busy));
    let upload =
        |upload, bytes| Request::Upload { upload: TransferId(upload), offset: 0, data: vec![0; bytes] };
    assert_eq!(call(&sessions, &upload(1, 10)), Reply::Done);
    assert!(is_failed(&call(&sessions, &upload(2, 1)), ErrorKind::Busy));
    assert!(is_failed(&other(&upload(1, 6)), ErrorKind::Busy));
    assert_eq!(other(&upload(1, 5)), Reply::Done);
    sessions.end(CLIENT);
    assert_eq!((sessions.snapshots(), sessions.kept_bytes()), (1, 5));
    sessions.end(ClientId(6));
    assert_eq!((sessions.snapshots(), sessions.kept_bytes()), (0, 0));
}

#[test]
fn random_requests_get_replies() {
    let sessions = sessions(SessionLimits::default());
    let mut random = Random::new(3);
    let state = state(None, write(b"a", b"x"));
    let messages = [
        encode(&Request::Begin),
        encode(&Request::Read { state: state.clone(), name: b"a".to_vec(), offset: 0, length_bytes: 9 }),
        encode(&Request::List { state, prefix: vec![], after: vec![], count_max: u32::MAX }),
        encode(&Request::Commit(Transaction { operations: write(b"a", b"y"), ..Transaction::default() })),
        encode(&Request::Upload { upload: TransferId(1), offset: 0, data: vec![1] }),
        encode(&Request::Fetch { reply: TransferId(1), offset: u64::MAX }),
    ];
    for _ in 0..5000 {
        let mut message = random.pick(&messages).clone();
        let at = random.below(message.len());
        message[at] = random.below(256) as u8;
        let reply = call_bytes(&sessions, CLIENT, &message, 64);
        assert!(reply.len() <= 64);
        decode::<Reply>(&reply).unwrap();
    }
}

fn permissions(grants: Vec<Grant>) -> Arc<Permissions> {
    let key = KeyDescription { access: Access::Grants(grants), expires_s: None };
    Arc::new(Permissions::of_key(&key.encode().unwrap()).unwrap())
}

#[test]
fn a_key_is_checked_for_uploaded_operations() {
    let sessions = sessions(SessionLimits::default());
    let grant = |right, prefix: &str| Grant { right, prefix: prefix.into() };
    let key = permissions(vec![grant(Right::Read, "a"), grant(Right::Write, "a")]);
    let call = |request: &Request| -> Reply {
        decode(&call_with(&sessions, CLIENT, &key, &encode(request), MESSAGE_BYTES_MAX)).unwrap()
    };
    let upload = TransferId(1);
    let send = |data: Vec<u8>| {
        assert_eq!(call(&Request::Upload { upload, offset: 0, data }), Reply::Done);
    };
    for (name, is_allowed) in [(b"a", true), (b"b", false)] {
        let operations = write(name, b"x");
        send(encode(&Draft::Inline(operations.clone())));
        let state = ReadState { snapshot: None, draft: Draft::Uploaded(upload) };
        let reply = call(&Request::Stat { state, name: b"a".to_vec() });
        assert_eq!(matches!(reply, Reply::Stat(_)), is_allowed, "{reply:?}");
        let part = Read { name: name.to_vec(), part: Part::Range { start: 0, end: 1 } };
        for reads in [vec![], vec![part]] {
            let snapshot = Some(sessions.store.version());
            send(encode(&Transaction {
                reads,
                snapshot,
                operations: operations.clone(),
                ..Transaction::default()
            }));
            let reply = call(&Request::CommitUploaded(upload));
            assert_eq!(matches!(reply, Reply::Committed(_)), is_allowed, "{reply:?}");
        }
    }
    let state = state(None, vec![]);
    let list = Request::List { state, prefix: vec![], after: vec![], count_max: 9 };
    let Reply::Names { names, .. } = self::call(&sessions, &list) else { panic!() };
    assert_eq!(names.len(), 1);
}

#[test]
fn a_client_with_the_number_of_an_ended_one_gets_none_of_its_state() {
    let sessions = sessions(SessionLimits::default());
    let Reply::Begun { snapshot, .. } = call(&sessions, &Request::Begin) else { panic!() };
    let upload = Request::Upload { upload: TransferId(1), offset: 0, data: vec![1; 9] };
    assert_eq!(call(&sessions, &upload), Reply::Done);
    let other = permissions(vec![Grant { right: Right::Read, prefix: vec![] }]);
    let stat = Request::Stat { state: state(Some(snapshot), vec![]), name: b"a".to_vec() };
    let reply = call_with(&sessions, CLIENT, &other, &encode(&stat), MESSAGE_BYTES_MAX);
    assert_eq!(decode::<Reply>(&reply).unwrap(), Reply::Unknown);
    assert_eq!((sessions.snapshots(), sessions.kept_bytes()), (0, 0));
}

#[test]
fn requests_are_counted() {
    let sessions = sessions(SessionLimits::default());
    commit(&sessions, write(b"a", &[7; 40_000]));
    commit(&sessions, write(b"a", &[8; 40_000]));
    commit(&sessions, vec![Operation::Delete { name: b"missing".to_vec() }]);
    call(&sessions, &Request::Begin);
    read(&sessions, state(None, vec![]));
    let snapshot = Some(Version(1));
    let reads = vec![quell_wire::blob::Read { name: b"a".to_vec(), part: Part::Existence }];
    call(&sessions, &Request::Commit(Transaction { snapshot, reads, ..Transaction::default() }));
    let other = ClientId(6);
    let stat = encode(&Request::Stat { state: state(None, vec![]), name: b"a".to_vec() });
    call_with(&sessions, other, &permissions(vec![]), &stat, MESSAGE_BYTES_MAX);
    call_bytes(&sessions, CLIENT, &[200], MESSAGE_BYTES_MAX);
    let Reply::Counters(counters) = call(&sessions, &Request::Counters) else { panic!() };
    // In the order of their kinds: read, stat, list, commit, snapshot, transfer, other.
    assert_eq!(counters.requests, [1, 1, 0, 4, 1, 0, 1]);
    assert_eq!(counters.failed, [0, 1, 0, 2, 0, 0, 1]);
    assert_eq!((counters.conflicts, counters.denied, counters.operations), (1, 1, 4));
    assert_eq!((counters.read_bytes, counters.written_bytes), (100, 80_000));
    assert_eq!((counters.reads.count(), counters.commits.count()), (2, 4));
    assert_eq!((counters.clients, counters.snapshots, counters.in_flight), (2, 1, 1));
    assert_eq!((counters.extents, counters.extent_bytes), (2, 80_000));
    assert_eq!((counters.unused_extents, counters.unused_extent_bytes), (1, 40_000));
}
