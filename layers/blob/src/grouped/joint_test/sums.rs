//! Transactions that add to one number in each group. They commute, so they do not wait for each
//! other, and all groups have the same number in each state that is read.

use quell_wire::blob::Transform;

use super::*;

const ADDERS: usize = 12;

/// Returns the name of the number of a group.
fn sum_name(group: u32) -> Vec<u8> {
    let mut names = (0..).map(|number: u32| format!("sum-{number}").into_bytes());
    names.find(|name| group_of(name, GROUPS) == group).expect("a name")
}

/// Returns the number in the latest state of a group, or in a snapshot; `None` if it is locked.
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

/// Sends a request of a joint transaction to its server. Returns the refusal if a preparation is
/// refused.
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

/// Runs additions in all groups at once. If `waits` is set, reads and other operations are executed
/// too, and wait for the additions. Returns the number of states that were read, and the number of
/// operations that were refused.
fn run_sums(seed: u64, waits: bool) -> (usize, usize) {
    let mut random = Random::new(seed);
    let (objects, clock) = (MemoryObjects::new(), Arc::<TestClock>::default());
    let mut servers: Vec<Server> = (0..GROUPS).map(|number| open(&objects, number, &clock)).collect();
    for (group, server) in (0..).zip(&servers) {
        let operations = vec![Operation::Create { name: sum_name(group), may_exist: false }];
        server.store.commit(Transaction { operations, ..Transaction::default() }).expect("created");
    }
    let mut adders: Vec<JointTransaction> = Vec::new();
    let (mut number, mut committed, mut abandoned, mut local) = (0, 0, Vec::new(), [0; GROUPS as usize]);
    let (mut reads, mut together, mut has_waited) = (0, 0, false);
    for step in 0..400 {
        clock.advance_ms(1);
        // Sometimes there are so few additions that the numbers are not always locked.
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
                servers[server] = open(&objects, server as u32, &clock);
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
                // A snapshot must have the same number of additions in all groups.
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
    let (objects, clock) = (MemoryObjects::new(), Arc::default());
    let servers: Vec<Server> = (0..GROUPS).map(|number| open(&objects, number, &clock)).collect();
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

/// Appends to the blob of a sum in one group. Returns false if the blob is locked.
fn append(server: &Server, group: u32, number: u64) -> bool {
    let id = Some(TransactionId { client: 7, number, begun: Version(u64::MAX) });
    let operations = vec![Operation::Append { name: sum_name(group), data: b"x".to_vec() }];
    match call(server, &Request::Commit(Transaction { id, operations, ..Transaction::default() })) {
        Reply::Committed(_) => true,
        Reply::Refused(Refusal::Locked { .. }) => false,
        other => panic!("{other:?}"),
    }
}

/// Runs additions that follow each other without a pause, and operations that do not commute with
/// them. Returns the number of operations that were refused.
fn run_waiters(seed: u64) -> usize {
    let mut random = Random::new(seed);
    let (objects, clock) = (MemoryObjects::new(), Arc::<TestClock>::default());
    let servers: Vec<Server> = (0..GROUPS).map(|number| open(&objects, number, &clock)).collect();
    for (group, server) in (0..).zip(&servers) {
        let operations = vec![Operation::Create { name: sum_name(group), may_exist: false }];
        server.store.commit(Transaction { operations, ..Transaction::default() }).expect("created");
    }
    let mut number = 0;
    let mut next_addition = || {
        number += 1;
        begin_addition(number)
    };
    // The flag marks the additions that can have refused the last operation.
    let mut adders: Vec<(JointTransaction, bool)> = (0..ADDERS).map(|_| (next_addition(), false)).collect();
    let mut refused = 0;
    for round in 0..40 {
        for _ in 0..random.below(80) {
            go_on(&servers, &mut adders, &mut next_addition, &mut random);
        }
        let (group, is_read) = (random.below(GROUPS as usize) as u32, random.one_in(2));
        let server = &servers[group as usize];
        let attempt = || match is_read {
            true => read_sum(server, group, None).is_some(),
            false => append(server, group, round),
        };
        if attempt() {
            continue;
        }
        refused += 1;
        adders.iter_mut().for_each(|(_, is_met)| *is_met = true);
        // The client repeats the operation within 100 ms after each refusal, unless it dies.
        let dies = random.one_in(4);
        let mut is_done = false;
        while !is_done && adders.iter().any(|(_, is_met)| *is_met) {
            go_on(&servers, &mut adders, &mut next_addition, &mut random);
            if !dies && random.one_in(10) {
                clock.advance_ms(random.below(100));
                is_done = attempt();
            }
        }
        if !dies {
            clock.advance_ms(random.below(100));
            assert!(is_done || attempt(), "seed {seed}, round {round}: the number is locked again");
            continue;
        }
        clock.advance_ms(100);
        let mut steps =
            (0..100 * ADDERS).map(|_| go_on(&servers, &mut adders, &mut next_addition, &mut random));
        assert!(steps.any(|has_committed| has_committed), "seed {seed}, round {round}: a dead client");
    }
    refused
}

/// Sends a request of an addition. When an addition has ended, the next one begins at once. Returns
/// whether an addition was committed.
fn go_on(
    servers: &[Server],
    adders: &mut [(JointTransaction, bool)],
    next_addition: &mut impl FnMut() -> JointTransaction,
    random: &mut Random,
) -> bool {
    let (joint, is_met) = &mut adders[random.below(adders.len())];
    send_one(servers, joint, random);
    if !joint.requests().is_empty() {
        return false;
    }
    *is_met = false;
    is_committed(&std::mem::replace(joint, next_addition()))
}

#[test]
fn an_operation_that_additions_have_refused_succeeds_when_they_have_ended() {
    let refused: usize = (0..8).map(run_waiters).sum();
    assert!(refused > 80, "{refused}");
}
