//! Tests of the permissions: each kind of request, and of operation, with each kind of key.

use std::collections::BTreeSet;

use quell_wire::blob::{
    CellType, FileAttributes, JointDecision, JointId, JointRequest, Outcome, Overflow, Preparation, Proof,
    SnapshotId, TransferId, Transform, TransformKind, Version,
};

use super::*;

const NOW_NS: u64 = 1000 * NS_PER_S;

fn key(rights: &[(Right, &str)], expires_s: Option<u64>) -> Permissions {
    let grant = |(right, prefix): &(Right, &str)| Grant { right: *right, prefix: prefix.as_bytes().to_vec() };
    let access = Access::Grants(rights.iter().map(grant).collect());
    Permissions::of_key(&KeyDescription { access, expires_s }.encode().unwrap()).unwrap()
}

fn name() -> Vec<u8> {
    b"a/b".to_vec()
}

fn state(operations: Vec<Operation>) -> ReadState {
    ReadState { snapshot: None, draft: Draft::Inline(operations) }
}

fn commit(reads: Vec<Read>, operations: Vec<Operation>) -> Request {
    Request::Commit(Transaction { reads, operations, ..Transaction::default() })
}

fn transform(change: impl FnOnce(&mut Transform)) -> Operation {
    let mut transform = Transform::one(TransformKind::Add, CellType::U64, Overflow::Wrap, &[1; 8]);
    change(&mut transform);
    Operation::Transform { name: name(), offset: 0, transform }
}

/// The smallest rights for the blobs below `a/` with which a request is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    Read,
    Write,
    /// The right to write some names, which need not be these.
    AnyWrite,
    /// The right to read or the right to write.
    ReadOrWrite,
    ReadAndWrite,
    Admin,
}
use Needs::{Admin, AnyWrite, Nothing, ReadAndWrite, ReadOrWrite, Write};

/// Returns operations with the rights that they need, at least one of each kind.
fn operations() -> Vec<(Operation, Needs)> {
    vec![
        (Operation::Create { name: name(), may_exist: false }, Write),
        (Operation::Delete { name: name() }, Write),
        (Operation::Write { name: name(), offset: 0, data: vec![1] }, Write),
        (Operation::Append { name: name(), data: vec![1] }, Write),
        (Operation::Resize { name: name(), size_bytes: 1 }, Write),
        (transform(|_| ()), Write),
        (transform(|transform| transform.overflow = Overflow::Saturate), Write),
        (transform(|transform| transform.kind = TransformKind::Max), Write),
        (transform(|transform| transform.returns_before = true), ReadAndWrite),
        (transform(|transform| transform.overflow = Overflow::Check), ReadAndWrite),
        (transform(|transform| transform.kind = TransformKind::CompareAndSet), ReadAndWrite),
        (Operation::Rename { name: name(), to: b"a/c".to_vec() }, ReadAndWrite),
        (
            Operation::SetAttributes {
                name: name(),
                file: Some(FileAttributes { mode: 0o100_644, uid: 0, gid: 0 }),
                modified_ns: None,
            },
            Write,
        ),
    ]
}

/// Returns requests with the rights that they need, at least one of each kind.
fn requests() -> Vec<(Request, Needs)> {
    let read = |part| Read { name: name(), part };
    let names = |prefix: &str| Request::List {
        state: state(vec![]),
        prefix: prefix.as_bytes().to_vec(),
        after: vec![],
        count_max: 1,
    };
    let mut requests = vec![
        (Request::Hello { protocol: 1 }, Nothing),
        (Request::Begin, Nothing),
        (Request::End(SnapshotId(1)), Nothing),
        (Request::Read { state: state(vec![]), name: name(), offset: 0, length_bytes: 1 }, Needs::Read),
        (Request::Stat { state: state(vec![]), name: name() }, Needs::Read),
        (names("a/"), Needs::Read),
        (names("a/bcd"), Needs::Read),
        // The key could read only some of these names.
        (names("a"), Admin),
        (names(""), Admin),
        (Request::Upload { upload: TransferId(1), offset: 0, data: vec![1] }, Nothing),
        (Request::WriteExtent { upload: TransferId(1), offset: 0, data: vec![1] }, AnyWrite),
        (Request::Discard(TransferId(1)), Nothing),
        (commit(vec![], vec![]), Nothing),
        (commit(vec![read(Part::Existence)], vec![]), ReadOrWrite),
        (commit(vec![read(Part::Size)], vec![]), ReadOrWrite),
        (commit(vec![read(Part::Range { start: 0, end: 1 })], vec![]), Needs::Read),
        (commit(vec![read(Part::NamesWithPrefix)], vec![]), Needs::Read),
        (commit(vec![Read { name: b"a".to_vec(), part: Part::NamesWithPrefix }], vec![]), Admin),
        // A session replaces this request by the transaction before the check.
        (Request::CommitUploaded(TransferId(1)), Admin),
        (Request::Fetch { reply: TransferId(1), offset: 0 }, Nothing),
        (Request::Collect, Admin),
        (Request::Counters, Admin),
        (Request::NextData { state: state(vec![]), name: name(), offset: 0 }, Needs::Read),
    ];
    let id = JointId { client: 1, number: 2 };
    let decision = JointDecision { id, coordinator: 0, outcome: Outcome::Aborted, proof: Proof([0; 32]) };
    for (request, needs) in [
        (JointRequest::Commit { id, participants: vec![], votes: vec![] }, Nothing),
        (JointRequest::Resolve(id), Nothing),
        (JointRequest::Apply(decision), Nothing),
        (JointRequest::Forget { id, participants: vec![], confirmations: vec![] }, Nothing),
        (JointRequest::Undecided, Admin),
        (JointRequest::Compare(SnapshotId(1)), Nothing),
        (JointRequest::Hold(1), Nothing),
    ] {
        requests.push((Request::Joint(request), needs));
    }
    for (operation, needs) in operations() {
        let transaction = Transaction { operations: vec![operation.clone()], ..Transaction::default() };
        let (begun, participants) = (Version(1), vec![0, 1]);
        let preparation = Preparation { id, begun, coordinator: 0, participants, transaction };
        requests.push((Request::Joint(JointRequest::Prepare(preparation)), needs));
        requests.push((commit(vec![], vec![operation.clone()]), needs));
        let transaction = Transaction { operations: vec![operation.clone()], ..Transaction::default() };
        requests.push((Request::CommitWritten { transaction, extents: vec![] }, needs));
        // A read of a draft with this operation.
        let state = state(vec![operation]);
        requests.push((Request::Stat { state, name: name() }, ReadAndWrite));
    }
    let uploaded = ReadState { snapshot: None, draft: Draft::Uploaded(TransferId(1)) };
    requests.push((Request::Stat { state: uploaded, name: name() }, Admin));
    requests
}

/// Returns the names of the kinds of a request and its operations. A new kind does not compile
/// without a name here, and the test fails if the lists above do not contain it.
fn kinds(request: &Request) -> Vec<&'static str> {
    let kind = match request {
        Request::Hello { .. } => "hello",
        Request::Begin => "begin",
        Request::End(_) => "end",
        Request::Read { .. } => "read",
        Request::Stat { .. } => "stat",
        Request::List { .. } => "list",
        Request::Upload { .. } => "upload",
        Request::Discard(_) => "discard",
        Request::Commit(transaction) => {
            let operations = transaction.operations.iter().map(|operation| match operation {
                Operation::Create { .. } => "create",
                Operation::Delete { .. } => "delete",
                Operation::Write { .. } => "write",
                Operation::Append { .. } => "append",
                Operation::Resize { .. } => "resize",
                Operation::Transform { .. } => "transform",
                Operation::Rename { .. } => "rename",
                Operation::SetAttributes { .. } => "attributes",
            });
            return operations.chain(["commit"]).collect();
        }
        Request::CommitUploaded(_) => "commit uploaded",
        Request::WriteExtent { .. } => "write an extent",
        Request::CommitWritten { .. } => "commit written",
        Request::Fetch { .. } => "fetch",
        Request::Collect => "collect",
        Request::Counters => "counters",
        Request::NextData { .. } => "next data",
        Request::Joint(JointRequest::Prepare(_)) => "prepare",
        Request::Joint(JointRequest::Commit { .. }) => "commit a joint transaction",
        Request::Joint(JointRequest::Resolve(_)) => "resolve",
        Request::Joint(JointRequest::Apply(_)) => "apply",
        Request::Joint(JointRequest::Forget { .. }) => "forget",
        Request::Joint(JointRequest::Undecided) => "undecided",
        Request::Joint(JointRequest::Compare(_)) => "compare",
        Request::Joint(JointRequest::Hold(_)) => "hold",
    };
    vec![kind]
}
const KINDS: usize = 32;

fn is_denied(reply: &Reply) -> bool {
    match reply {
        Reply::Failed(failure) | Reply::Refused(Refusal::Failed { failure, .. }) => {
            failure.kind() == ErrorKind::PermissionDenied
        }
        _ => false,
    }
}

#[test]
fn each_request_needs_its_rights() {
    let admin = KeyDescription { access: Access::Admin, expires_s: Some(1001) }.encode().unwrap();
    let (read, write) = ((Right::Read, "a/"), (Right::Write, "a/"));
    let keys = [
        ("none", key(&[], None), &[Nothing][..]),
        ("read", key(&[read], None), &[Nothing, Needs::Read, ReadOrWrite]),
        ("write", key(&[write], None), &[Nothing, Write, AnyWrite, ReadOrWrite]),
        (
            "read and write",
            key(&[write, (Right::Read, "b"), read], Some(1001)),
            &[Nothing, Needs::Read, Write, AnyWrite, ReadOrWrite, ReadAndWrite],
        ),
        ("other blobs", key(&[(Right::Read, "a/c"), (Right::Write, "a/b/")], None), &[Nothing, AnyWrite]),
        ("expired", key(&[read, write], Some(1000)), &[]),
        (
            "administrator",
            Permissions::of_key(&admin).unwrap(),
            &[Nothing, Needs::Read, Write, AnyWrite, ReadOrWrite, ReadAndWrite, Admin],
        ),
    ];
    let mut found = BTreeSet::new();
    for (request, needs) in requests() {
        found.extend(kinds(&request));
        for (name, permissions, allowed) in &keys {
            let checked = permissions.check(&request, NOW_NS);
            assert_eq!(checked.is_ok(), allowed.contains(&needs), "{name}: {request:?}");
            assert!(checked.is_ok() || is_denied(&checked.unwrap_err()));
        }
        Permissions::all().check(&request, u64::MAX).unwrap();
    }
    assert_eq!(found.len(), KINDS, "{found:?}");
}

#[test]
fn a_prefix_is_compared_by_bytes() {
    for (prefix, name, is_allowed) in [
        ("", "a", true),
        ("a", "a", true),
        ("a", "abc/d", true),
        ("a/b", "a/bc", true),
        ("a/b/", "a/bc", false),
        ("a/b/", "a/b", false),
        ("a/b", "A/b", false),
    ] {
        let request = Request::Stat { state: state(vec![]), name: name.into() };
        let checked = key(&[(Right::Read, prefix)], None).check(&request, NOW_NS);
        assert_eq!(checked.is_ok(), is_allowed, "{prefix} {name}");
    }
}

#[test]
fn a_rename_needs_rights_for_both_names() {
    let rename = commit(vec![], vec![Operation::Rename { name: name(), to: b"b".to_vec() }]);
    let (read, write) = ((Right::Read, "a/"), (Right::Write, "a/"));
    let to = (Right::Write, "b");
    key(&[read, write, to], None).check(&rename, NOW_NS).unwrap();
    for rights in [&[read, write][..], &[read, to], &[write, to], &[write, to, (Right::Read, "b")]] {
        assert!(is_denied(&key(rights, None).check(&rename, NOW_NS).unwrap_err()), "{rights:?}");
    }
}

#[test]
fn a_refusal_names_the_right_the_blob_and_the_operation() {
    let permissions = key(&[(Right::Write, "a/"), (Right::Read, "r/")], None);
    let create = |name: &str| Operation::Create { name: name.into(), may_exist: true };
    let commit = Transaction {
        operations: vec![create("a/b"), create("b\n")],
        snapshot: Some(Version(1)),
        ..Transaction::default()
    };
    let refused = permissions.check(&Request::Commit(commit), NOW_NS).unwrap_err();
    let Reply::Refused(refusal @ Refusal::Failed { operation: Some(1), .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(refusal.to_string().contains("no right to write b\\n"), "{refusal}");
    let list = Request::List { state: state(vec![]), prefix: vec![], after: vec![], count_max: 1 };
    let Reply::Failed(failure) = permissions.check(&list, NOW_NS).unwrap_err() else { panic!() };
    let text = failure.to_string();
    assert!(text.contains("no right to list all names") && text.ends_with("begin with r/)"), "{text}");
}
