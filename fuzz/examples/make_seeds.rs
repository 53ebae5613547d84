//! Writes the seeds of the image targets, small trees with all kinds of entries, and those of the
//! log, peer, pool, batch and blob targets. Run with `cargo run --example make_seeds` in this
//! directory.

use std::sync::Arc;

use quell_index::{BuildOptions, BuildProgress, Xattrs, build, encode};
use quell_testkit::MemoryDir;
use quell_testkit::operations::{Shape, random_tree};

fn main() {
    for seed in 0..6 {
        let shape = Shape { entries: 1 + 4 * seed as usize, extremes: seed % 2 == 1, xattrs: true };
        let tree = random_tree(seed, shape);
        // Long attributes make seeds long without reaching more code.
        let tree = tree.without(|node| node.xattrs.values().any(|value| value.len() > 300));
        let exclude = vec!["*.tmp".to_owned()];
        let options = BuildOptions { xattrs: Xattrs::Always, exclude, ..Default::default() };
        let source = Arc::new(MemoryDir::new(Arc::new(tree)));
        let built =
            build(source, b"/tree", &options, 1, None, &BuildProgress::default()).expect("it is in memory");
        let bytes = encode(&built).expect("it is small");
        for target in ["index_image", "index_image_checksummed"] {
            std::fs::write(format!("seeds/{target}/tree-{seed}"), &bytes).expect("run this in fuzz/");
        }
    }
    let seeds = quell_log::fuzzing::seeds().into_iter().chain(quell_transport::peer::fuzzing::seeds());
    let seeds = seeds.chain(quell_batch_service::fuzzing::seeds());
    for (target, name, bytes) in seeds.chain(pool_messages()).chain(blobs()) {
        std::fs::write(format!("seeds/{target}/{name}"), bytes).expect("run this in fuzz/");
    }
}

/// A message of each of the three types.
fn pool_messages() -> impl Iterator<Item = (&'static str, &'static str, Vec<u8>)> {
    use quell_wire::pool::{FileId, NewKind, Operation, PeerRequest, RenameMode, Reply};
    let kind = NewKind::Symlink(b"target");
    let create =
        Operation::Create { dir: FileId(7), name: b"name", kind, permissions: 0o644, uid: 1000, gid: 1000 };
    let (from_dir, to_dir, mode) = (FileId(7), FileId(8), RenameMode::Exchange);
    let rename = Operation::Rename { from_dir, from: b"a", to_dir, to: b"b", mode };
    let found: Result<Reply<'_>, quell_wire::Failure> = Ok(Reply::Bytes(b"data"[..].into()));
    [
        ("pool_messages", "create", quell_wire::encode(&create)),
        ("pool_messages", "rename", quell_wire::encode(&PeerRequest::Perform(rename))),
        ("pool_messages", "bytes", quell_wire::encode(&found)),
    ]
    .into_iter()
}

/// The requests of a client, the description of a key, and the tables that a store has after them.
fn blobs() -> impl Iterator<Item = (&'static str, &'static str, Vec<u8>)> {
    use quell_blob_service::{MemoryExtents, OpenStore, Options};
    use quell_kv::{KeyRange, KeyValue, MemoryStore};
    use quell_wire::blob::{
        Access, Draft, Grant, KeyDescription, Operation, PROTOCOL, ReadState, Request, Right, SnapshotId,
        Transaction, Transform,
    };
    let name = || b"a".to_vec();
    let grants = vec![Grant { right: Right::Read, prefix: name() }];
    let key = KeyDescription { access: Access::Grants(grants), expires_s: Some(1 << 31) };
    let operations = vec![
        Operation::Create { name: name(), may_exist: false },
        Operation::Append { name: name(), data: vec![7; 700] },
        Operation::Write { name: name(), offset: 5000, data: vec![8; 40_000] },
        Operation::Transform { name: name(), offset: 8, transform: Transform::add_i64(1) },
        Operation::Resize { name: name(), size_bytes: 30_000 },
    ];
    let transaction = Transaction { operations, ..Transaction::default() };
    let draft = Draft::Inline(vec![Operation::Delete { name: name() }]);
    let state = |draft| ReadState { snapshot: Some(SnapshotId(2)), draft };
    let requests = vec![
        Request::Hello { protocol: PROTOCOL },
        Request::Commit(transaction.clone()),
        Request::Begin,
        Request::Read { state: state(Draft::Inline(vec![])), name: name(), offset: 100, length_bytes: 900 },
        Request::Stat { state: state(draft), name: name() },
        Request::List { state: state(Draft::Inline(vec![])), prefix: vec![], after: vec![], count_max: 10 },
        Request::Collect,
    ];
    let (tables, extents) = (Arc::new(MemoryStore::new()), Arc::new(MemoryExtents::default()));
    let clock = Arc::new(quell_fuzz::NoClock);
    let store = OpenStore::open(tables.clone(), extents, clock, Options::default()).expect("it is empty");
    store.commit(transaction).expect("it has no conflict");
    drop(store);
    let mut entries = Vec::new();
    let all = KeyRange::all();
    let mut add = |key: &[u8], value: &[u8]| {
        entries.push((key.to_vec(), value.to_vec()));
        true
    };
    tables.scan(&all, &mut add).expect("it is in memory");
    [
        ("blob_session", "requests", quell_wire::encode(&requests)),
        ("blob_session", "key", key.encode().expect("it is short")),
        ("blob_tables", "store", quell_wire::encode(&entries)),
    ]
    .into_iter()
}
