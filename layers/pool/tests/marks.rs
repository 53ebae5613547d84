//! The marks of a pool: changes that no complete copy has are found on every member.

mod simulated;

use quell_pool::Daemon;
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
    // Reads of the marks between a change and the copy do not hide the change.
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
