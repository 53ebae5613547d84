//! Transactions that add to one number in each group. They commute, so none waits for another one,
//! and all groups have the same number in each state that is read.

use quell_wire::blob::Transform;

use super::*;

const ADDERS: usize = 12;

/// Returns the name of the number of a group.
fn sum_name(group: u32) -> Vec<u8> {
    let mut names = (0..).map(|number: u32| format!("sum-{number}").into_bytes());
    names.find(|name| group_of(name, GROUPS) == group).expect("a name")
}

/// Returns the number that the latest state of a group, or a snapshot, has; `None` if it is locked.
fn read_sum(server: &Server, group: u32, snapshot: Option<SnapshotId>) -> Option<i64> {
    let state = ReadState { snapshot, draft: Draft::Inline(Vec::new()) };
    let read = Request::Read { state, name: sum_name(group), offset: 0, length_bytes: 8 };
    match call(server, &read) {
        // The blob is empty at first.
        Reply::Data(bytes) => Some(bytes.try_into().map_or(0, i64::from_le_bytes)),
        Reply::Refused(Refusal::Locked { .. }) => None,
        // A transaction that was prepared at the time of the snapshot was committed.
        Reply::Failed(_) if snapshot.is_some() => None,
        other => panic!("{other:?}"),
    }
}

fn begin_addition(number: u64) -> JointTransaction {
    let id = JointId { client: 1, number };
    let coordinator = (number % u64::from(GROUPS)) as u32;
    let part = |group| {
        let name = sum_name(group);
        let create = Operation::Create { name: name.clone(), may_exist: true };
        let add = Operation::Transform { name, offset: 0, transform: Transform::add_i64(1) };
        let transaction = Transaction { operations: vec![create, add], ..Transaction::default() };
        let participants = (0..GROUPS).collect();
        (group, Preparation { id, begun: Version(u64::MAX), coordinator, participants, transaction })
    };
    JointTransaction::begin((0..GROUPS).map(part).collect()).expect("parts")
}

/// Sends a request of a joint transaction to its server. The refusal of a preparation is returned.
fn send_one(servers: &[Server], joint: &mut JointTransaction, random: &mut Random) -> Option<Refusal> {
    let requests = joint.requests();
    let (group, request) = requests[random.below(requests.len())].clone();
    let is_preparation = matches!(request, JointRequest::Prepare(_));
    let reply = call(&servers[group as usize], &Request::Joint(request));
    let refusal = match &reply {
        Reply::Refused(refusal) if is_preparation => Some(refusal.clone()),
        _ => None,
    };
    joint.receive(group, Ok(reply));
    refusal
}

fn is_committed(joint: &JointTransaction) -> bool {
    matches!(joint.result(), Some(JointResult::Committed(_)))
}

/// Ends transactions, and returns the number of those that are committed.
fn end_all(servers: &[Server], all: &mut Vec<JointTransaction>, random: &mut Random) -> i64 {
    let mut committed = 0;
    for mut joint in all.drain(..) {
        while !joint.requests().is_empty() {
            send_one(servers, &mut joint, random);
        }
        committed += i64::from(is_committed(&joint));
    }
    committed
}

/// Runs additions in all groups at once. With `waits`, reads and other operations also wait for
/// them. Returns the numbers of states that were read, and of operations that were refused.
fn run_sums(seed: u64, waits: bool) -> (usize, usize) {
    let mut random = Random::new(seed);
    let objects = MemoryObjects::new();
    let mut servers: Vec<Server> = (0..GROUPS).map(|number| open(&objects, number)).collect();
    for (group, server) in (0..).zip(&servers) {
        let operations = vec![Operation::Create { name: sum_name(group), may_exist: false }];
        server.store.commit(Transaction { operations, ..Transaction::default() }).expect("created");
    }
    let mut adders: Vec<JointTransaction> = Vec::new();
    let (mut number, mut committed, mut abandoned, mut local) = (0, 0, Vec::new(), [0; GROUPS as usize]);
    let (mut reads, mut together, mut has_waited) = (0, 0, false);
    for step in 0..400 {
        // Sometimes there are so few that the numbers are not always locked.
        let adders_max = if step % 80 < 40 { ADDERS } else { 1 };
        if adders_max == 1 {
            committed += end_all(&servers, &mut abandoned, &mut random);
        }
        while adders.len() < adders_max {
            number += 1;
            adders.push(begin_addition(number));
        }
        let index = random.below(adders.len());
        let refusal = send_one(&servers, &mut adders[index], &mut random);
        assert!(refusal.is_none() || has_waited, "an addition has met a lock");
        if adders[index].requests().is_empty() {
            committed += i64::from(is_committed(&adders.swap_remove(index)));
        } else if random.one_in(20) {
            abandoned.push(adders.swap_remove(index));
        }
        match random.below(12) {
            0 => {
                let server = random.below(GROUPS as usize);
                servers[server] = open(&objects, server as u32);
            }
            1 => {
                // An addition in one group commutes as well.
                let group = random.below(GROUPS as usize);
                let transform = Transform::add_i64(1_000_000);
                let add = Operation::Transform { name: sum_name(group as u32), offset: 0, transform };
                let transaction = Transaction { operations: vec![add], ..Transaction::default() };
                let reply = call(&servers[group], &Request::Commit(transaction));
                assert!(matches!(reply, Reply::Committed(_)), "{reply:?}");
                local[group] += 1_000_000;
            }
            2 if waits => {
                has_waited = true;
                let name = sum_name(0);
                let append = Operation::Append { name, data: b"x".to_vec() };
                let undecided = call(&servers[0], &Request::Joint(JointRequest::Undecided));
                let is_locked = undecided != Reply::Joint(JointReply::Undecided(Vec::new()));
                if is_locked && read_sum(&servers[0], 0, None).is_none() {
                    let transaction = Transaction { operations: vec![append], ..Transaction::default() };
                    let reply = call(&servers[0], &Request::Commit(transaction));
                    assert!(matches!(reply, Reply::Refused(Refusal::Locked { .. })), "{reply:?}");
                    together += 1;
                }
            }
            3..=5 if waits => {
                has_waited = true;
                // All groups have the same number of additions over all groups.
                let begun = servers.iter().map(|server| match call(server, &Request::Begin) {
                    Reply::Begun { snapshot, .. } => snapshot,
                    other => panic!("{other:?}"),
                });
                let begun: Vec<SnapshotId> = begun.collect();
                let found: Option<Vec<i64>> = (0..GROUPS)
                    .map(|group| read_sum(&servers[group as usize], group, Some(begun[group as usize])))
                    .collect();
                for (server, snapshot) in servers.iter().zip(begun) {
                    call(server, &Request::End(snapshot));
                }
                if let Some(found) = found {
                    let joint: Vec<i64> =
                        found.iter().zip(local).map(|(found, local)| found - local).collect();
                    assert!(joint.iter().all(|sum| *sum == joint[0] && *sum >= committed), "{joint:?}");
                    reads += 1;
                }
            }
            _ => {}
        }
    }
    abandoned.append(&mut adders);
    committed += end_all(&servers, &mut abandoned, &mut random);
    for (group, local) in (0..).zip(local) {
        assert_eq!(read_sum(&servers[group as usize], group, None), Some(committed + local));
    }
    (reads, together)
}

#[test]
fn additions_in_several_groups_do_not_wait_for_each_other() {
    for seed in 0..30 {
        run_sums(seed, false);
    }
    let runs = (0..100).map(|seed| run_sums(seed, true));
    let totals = runs.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    println!("{totals:?}");
    assert!(totals.0 > 100 && totals.1 > 100, "states were read, and operations refused: {totals:?}");
}

#[test]
fn no_further_additions_lock_a_number_that_others_wait_for() {
    let objects = MemoryObjects::new();
    let servers: Vec<Server> = (0..GROUPS).map(|number| open(&objects, number)).collect();
    for (group, server) in (0..).zip(&servers) {
        let operations = vec![Operation::Create { name: sum_name(group), may_exist: false }];
        server.store.commit(Transaction { operations, ..Transaction::default() }).expect("created");
    }
    let mut additions: Vec<JointTransaction> = (1..=3).map(begin_addition).collect();
    let mut prepare = |index: usize| {
        let request = additions[index].requests().into_iter().find(|(group, _)| *group == 0);
        let reply = call(&servers[0], &Request::Joint(request.expect("a part").1));
        additions[index].receive(0, Ok(reply.clone()));
        matches!(reply, Reply::Joint(JointReply::Prepared { .. }))
    };
    assert!(prepare(0) && prepare(1));
    assert_eq!(read_sum(&servers[0], 0, None), None);
    assert!(!prepare(2), "a read waits");
    let mut random = Random::new(1);
    for joint in &mut additions {
        while !joint.requests().is_empty() {
            send_one(&servers, joint, &mut random);
        }
    }
    assert_eq!(read_sum(&servers[0], 0, None), Some(2));
}
