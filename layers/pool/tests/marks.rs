//! The marks of a pool, which show changes on every member that no complete copy contains.

mod simulated;

use std::sync::Arc;

use quell_pool::{Daemon, PoolFs};
use quell_vfs::{Context, FileSystem, NewEntry, OpenMode};
use quell_wire::pool::{FileId, Mark, MemberId, NewKind, Operation, Reply};

use simulated::{Connection, SimulatedPool};

fn marks(client: &Connection) -> Vec<Mark> {
    let mut found = Vec::new();
    client
        .call(None, &Operation::Marks, &mut |reply| match reply {
            Ok(Reply::Marks(marks)) => found = marks,
            other => panic!("{other:?}"),
        })
        .unwrap();
    found
}

fn done(client: &Connection, operation: &Operation<'_>) {
    client.call(None, operation, &mut |reply| drop(reply.unwrap())).unwrap();
}

fn create(client: &Connection, name: &str) {
    let (kind, permissions) = (NewKind::File, 0o600);
    let name = name.as_bytes();
    done(client, &Operation::Create { dir: FileId::ROOT, name, kind, permissions, uid: 0, gid: 0 });
}

fn record(client: &Connection, marks: &[Mark]) {
    let marks = marks.iter().map(|mark| (mark.member, mark.changes)).collect();
    done(client, &Operation::RecordMarks { marks });
}

fn changed(client: &Connection) -> Vec<MemberId> {
    marks(client).iter().filter(|mark| mark.changes != mark.saved).map(|mark| mark.member).collect()
}

#[test]
fn a_change_after_the_begin_of_a_copy_is_not_part_of_it() {
    let pool = SimulatedPool::start(3, 4096);
    let (client, other) = (pool.connect(0), pool.connect(1));
    assert_eq!(changed(&client), []);
    for number in 0..50 {
        create(&other, &number.to_string());
    }
    assert_eq!(changed(&client).len(), 3, "each member has some of the names");
    let before = marks(&client);
    record(&client, &before);
    assert_eq!(changed(&client), []);
    // Reading the marks between a change and the copy does not hide the change.
    create(&other, "first");
    let before = marks(&client);
    create(&other, "second");
    marks(&client);
    record(&client, &before);
    assert_eq!(changed(&other).len(), 1);
    // Marks that no member has returned are not recorded.
    let forged = [Mark { member: MemberId(9), changes: 1, saved: 0 }];
    record(&client, &forged);
    let larger: Vec<Mark> =
        before.iter().map(|mark| Mark { changes: mark.changes + 1000, ..*mark }).collect();
    record(&client, &larger);
    assert_eq!(changed(&client).len(), 1);
    // A copy that began earlier and ends later changes nothing.
    let latest = marks(&client);
    record(&client, &latest);
    record(&client, &before);
    assert_eq!(changed(&client), []);
}

#[test]
fn data_that_is_written_without_requests_counts_as_a_change() {
    let sum = |client: &Connection| marks(client).iter().map(|mark| mark.changes).sum::<u64>();
    // The first client can access the chunks of its member.
    let pool = SimulatedPool::start(1, 4096);
    let (fs, other) = (PoolFs::new(Arc::new(pool.connect(0)), 4096), pool.connect(0));
    let new = NewEntry { permissions: 0o644, uid: 1000, gid: 1000 };
    let context = Context::default();
    let (_entry, file) =
        fs.writable().unwrap().create(&context, fs.root(), b"file", new, OpenMode::READ_WRITE).unwrap();
    // Inline data is written with requests.
    file.write_at(b"first", 5000).unwrap();
    let first = sum(&other);
    assert_eq!(sum(&other), first);
    file.write_at(b"second", 5000).unwrap();
    let second = sum(&other);
    assert!(second > first);
    assert_eq!(sum(&other), second);
    file.write_at(b"third", 5000).unwrap();
    file.close().unwrap();
    drop((file, _entry));
    let third = sum(&other);
    assert!(third > second);
    assert_eq!(sum(&other), third);
}
