//! Single cases with a fixed order of events, about the state that a member keeps for clients of
//! other members.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures_executor::LocalPool;
use quell_kv::{KeyRange, KeyValue};
use quell_wire::pool::{FileId, Matching, NewKind, Operation, Reply, Settings};

use super::cluster::{Client, Cluster};
use super::invariants;
use super::time::SimulationRuntime;
use crate::LEASE;

/// The names of entries. Each member has some of them.
const NAMES: &[u8] = b"abcdefghijklmnop";

/// Runs a case on a pool of three members, and checks that nothing is left afterwards.
fn check<F: Future<Output = ()> + 'static>(case: impl FnOnce(Rc<Cluster>) -> F) {
    let mut executor = LocalPool::new();
    let runtime = SimulationRuntime::new(0, &executor);
    let cluster = Cluster::start(&runtime, 3, false);
    let has_ended = Rc::new(Cell::new(false));
    let (case, ends) = (case(Rc::clone(&cluster)), Rc::clone(&has_ended));
    runtime.spawn(async move {
        case.await;
        ends.set(true);
    });
    runtime.run(&mut executor, Duration::from_secs(1000), || has_ended.get());
    assert!(has_ended.get(), "an operation waits forever");
    runtime.run(&mut executor, runtime.now() + LEASE * 2, || false);
    let wrong = invariants::violations(&cluster);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn perform(client: &Client, operation: Operation<'_>) -> Reply<'static> {
    client.perform(&operation).await.expect("the member is running").unwrap()
}

/// Creates files, each with a chunk, and returns them. The client keeps references.
async fn create_files(client: &Client) -> Vec<FileId> {
    let mut files = Vec::new();
    for name in NAMES.chunks(1) {
        let create = Operation::Create {
            dir: FileId::ROOT,
            name,
            kind: NewKind::File,
            permissions: 0o600,
            uid: 1000,
            gid: 1000,
        };
        let Reply::Held(node) = perform(client, create).await else { panic!("no reference") };
        let (id, data) = (node.id, &[1; 8]);
        perform(client, Operation::Write { id, chunk: 0, offset: 0, data }).await;
        perform(client, Operation::Grow { id, size_bytes_min: 8 }).await;
        files.push(id);
    }
    files
}

async fn remove_files(client: &Client) {
    for name in NAMES.chunks(1) {
        perform(client, Operation::Remove { dir: FileId::ROOT, name, matching: Matching::NotDir }).await;
    }
}

/// Returns the number of files and directories on a member.
fn count_nodes(cluster: &Cluster, member: u16) -> usize {
    let mut count = 0;
    let first = crate::keys::inode(FileId(0));
    let scan = &mut |_: &[u8], _: &[u8]| {
        count += 1;
        true
    };
    cluster.disk(member).store.scan(&KeyRange::prefix(&first[..1]), scan).unwrap();
    count
}

#[test]
fn a_chunk_is_removed_although_its_size_was_never_recorded() {
    // The file is removed before or after the chunk was reported to its member.
    for delay_s in [0, 3] {
        check(|cluster| async move {
            let client = cluster.connect(0).unwrap();
            for name in NAMES.chunks(1) {
                let (dir, kind) = (FileId::ROOT, NewKind::File);
                let create = Operation::Create { dir, name, kind, permissions: 0o600, uid: 1000, gid: 1000 };
                let Reply::Held(node) = perform(&client, create).await else { panic!("no reference") };
                let (id, data) = (node.id, &[1; 8]);
                perform(&client, Operation::Write { id, chunk: 0, offset: 0, data }).await;
            }
            client.end();
            cluster.runtime.sleep(Duration::from_secs(delay_s)).await;
            remove_files(&cluster.connect(1).unwrap()).await;
        });
    }
}

#[test]
fn the_references_of_a_member_that_is_gone_end() {
    check(|cluster| async move {
        let client = cluster.connect(1).unwrap();
        create_files(&client).await;
        remove_files(&client).await;
        let nodes = |member| count_nodes(&cluster, member);
        assert!(nodes(0) + nodes(2) > 1, "open files are kept");
        cluster.kill(1);
        cluster.runtime.sleep(LEASE / 2).await;
        assert!(nodes(0) + nodes(2) > 1, "the member may continue");
        cluster.runtime.sleep(LEASE).await;
        // All members are needed to remove the chunks.
        cluster.restart(1);
        cluster.runtime.sleep(Duration::from_secs(5)).await;
        assert_eq!(nodes(0) + nodes(2), 1, "the root directory");
    });
}

#[test]
fn open_files_without_a_name_survive_the_start_of_their_member() {
    check(|cluster| async move {
        let client = cluster.connect(0).unwrap();
        let files = create_files(&client).await;
        remove_files(&client).await;
        for member in [1, 2] {
            cluster.kill(member);
            cluster.restart(member);
        }
        cluster.runtime.sleep(LEASE * 2).await;
        for id in files {
            assert!(matches!(perform(&client, Operation::Attributes { id }).await, Reply::Node(_)));
            let read = Operation::Read { id, chunk: 0, offset: 0, bytes: 8 };
            assert_eq!(perform(&client, read).await, Reply::Bytes(vec![1; 8].into()));
        }
        client.end();
    });
}

#[test]
fn inline_data_is_valid_after_a_move_that_was_interrupted_and_the_next_move_removes_its_chunk() {
    check(|cluster| async move {
        let client = cluster.connect(0).unwrap();
        let map = cluster.running(0).unwrap().member.map.clone();
        let mut moved = 0;
        for (number, name) in NAMES.chunks(1).enumerate() {
            let (dir, kind, permissions) = (FileId::ROOT, NewKind::File, 0o600);
            let create = Operation::Create { dir, name, kind, permissions, uid: 1000, gid: 1000 };
            let Reply::Held(node) = perform(&client, create).await else { panic!("no reference") };
            let (id, home) = (node.id, map.home(node.id).unwrap().0);
            let owner = map.owner_of_chunk(id, 0).0;
            if owner == home || home == 0 {
                continue;
            }
            let write = Operation::WriteInline { id, offset: 0, data: b"abcdefgh" };
            assert_eq!(perform(&client, write).await, Reply::Written(true));
            let has_chunk = || {
                let names = cluster.disk(owner).chunks.root().names().unwrap();
                names.contains(&id.data_name(0))
            };
            // Some commits fail.
            cluster.disk(home).set_full(true);
            let note = Operation::NoteData { id };
            for _ in 0..3 {
                if !has_chunk() {
                    client.perform(&note).await.unwrap().unwrap_err();
                }
            }
            assert!(has_chunk());
            cluster.disk(home).set_full(false);
            if number % 2 == 0 {
                cluster.kill(home);
                cluster.restart(home);
            }
            let read = Operation::ReadInline { id, offset: 2, bytes: 100 };
            let inline = Reply::Inline { data: b"cdefgh"[..].into(), size_bytes: 8 };
            assert_eq!(perform(&client, read).await, inline);
            let resized = |size_bytes| Operation::Change {
                id,
                settings: Settings { size_bytes: Some(size_bytes), ..Settings::default() },
            };
            perform(&client, resized(2)).await;
            assert_eq!(perform(&client, note).await, Reply::Done);
            assert_eq!(
                perform(&client, resized(8)).await,
                perform(&client, Operation::Attributes { id }).await
            );
            let read = Operation::Read { id, chunk: 0, offset: 0, bytes: 8 };
            assert_eq!(perform(&client, read).await, Reply::Bytes(b"ab"[..].into()));
            moved += 1;
        }
        assert!(moved > 1, "the data of few files moves to another member");
        remove_files(&client).await;
        client.end();
    });
}
