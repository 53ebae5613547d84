//! The steps of the clients of the simulation.

use super::*;

impl Simulation {
    fn send(&mut self, index: usize, to: u32, request: Request) {
        let number = self.number();
        self.network.push((number, self.clients[index].id, to, encode(&request)));
        self.clients[index].calls.sent.insert(number, (to, request));
    }

    /// Begins the next state of a client with its requests.
    fn begin(&mut self, index: usize, state: State, requests: Vec<(u32, Request)>) {
        self.clients[index].calls = Calls::default();
        self.clients[index].state = state;
        requests.into_iter().for_each(|(to, request)| self.send(index, to, request));
    }

    /// Makes a client process its replies and send its next requests.
    pub(super) fn act(&mut self, index: usize) {
        // Requests without a reply are sent again.
        if !self.clients[index].calls.sent.is_empty() {
            if self.random.one_in(8) {
                let sent = std::mem::take(&mut self.clients[index].calls.sent);
                sent.into_values().for_each(|(to, request)| self.send(index, to, request));
            }
            return;
        }
        let replies = std::mem::take(&mut self.clients[index].calls.replies);
        match std::mem::replace(&mut self.clients[index].state, State::Idle) {
            State::Idle => self.start(index),
            State::Latest(list) => self.take_read(index, list, replies, None),
            State::Begin => {
                let begun = replies.into_values().map(|reply| match reply {
                    Reply::Begun { snapshot, version } => (snapshot, version),
                    other => panic!("{other:?}"),
                });
                let snapshots: Vec<_> = begun.collect();
                let compare = |(to, (id, _)): (u32, &(SnapshotId, Version))| {
                    (to, Request::Joint(JointRequest::Compare(*id)))
                };
                let requests = (0..).zip(&snapshots).map(compare).collect();
                self.begin(index, State::Compare(snapshots), requests);
            }
            State::Compare(snapshots) => {
                if replies.into_values().any(|reply| reply != Reply::Joint(JointReply::Latest(true))) {
                    return self.begin_snapshot(index);
                }
                let lists = (0..LISTS).filter(|_| self.random.one_in(2)).collect();
                self.read_next(index, snapshots, lists);
            }
            State::Read(snapshots, mut lists) => {
                let Some(list) = lists.pop() else { return self.commit(index, &snapshots) };
                self.take_read(index, list, replies, Some((snapshots, lists)));
            }
            State::Validate(split) => {
                if replies.into_values().all(|reply| matches!(reply, Reply::Committed(_))) {
                    return self.prepare(index, split);
                }
                self.end(index, Outcome::Refused);
            }
            State::Single => match replies.into_values().next() {
                Some(Reply::Committed(_)) => self.end(index, Outcome::Committed),
                // Another copy of the request can still be executed when the lock is released.
                Some(Reply::Refused(Refusal::Failed { .. } | Refusal::Locked { .. })) => {
                    self.end(index, Outcome::Unknown);
                }
                Some(Reply::Refused(_)) => self.end(index, Outcome::Refused),
                other => panic!("{other:?}"),
            },
            State::Joint(joint) => self.continue_joint(index, *joint, replies),
        }
    }

    fn start(&mut self, index: usize) {
        self.clients[index].begun = self.time;
        if self.random.one_in(3) {
            let list = self.random.below(LISTS as usize) as u64;
            return self.read_latest(index, list);
        }
        self.begin_snapshot(index);
    }

    fn begin_snapshot(&mut self, index: usize) {
        let requests = (0..GROUPS).map(|to| (to, Request::Begin)).collect();
        self.begin(index, State::Begin, requests);
    }

    fn read_latest(&mut self, index: usize, list: u64) {
        let request = read_request(list, None);
        self.begin(index, State::Latest(list), vec![(group_of(&list_name(list), GROUPS), request)]);
    }

    fn read_next(&mut self, index: usize, snapshots: Snapshots, lists: Vec<u64>) {
        let request = lists.last().map(|list| {
            let to = group_of(&list_name(*list), GROUPS);
            (to, read_request(*list, Some(snapshots[to as usize].0)))
        });
        self.begin(index, State::Read(snapshots, lists), Vec::from_iter(request));
    }

    /// Processes the reply to a read of a list. If `rest` is `None`, the latest state was read.
    fn take_read(
        &mut self,
        index: usize,
        list: u64,
        replies: BTreeMap<u32, Reply>,
        rest: Option<(Snapshots, Vec<u64>)>,
    ) {
        let name = list_name(list);
        let to = group_of(&name, GROUPS);
        let bytes = match replies.into_values().next() {
            Some(Reply::Data(bytes)) => bytes,
            Some(Reply::Refused(Refusal::Locked { coordinator, .. })) if self.bug == Bug::OldValues => {
                self.old_value(to, coordinator, &name)
            }
            Some(Reply::Refused(Refusal::Locked { id, coordinator })) => {
                self.end(index, Outcome::Refused);
                if self.random.one_in(2) {
                    let joint = JointTransaction::resolve(id, coordinator, to);
                    self.clients[index].begun = self.time;
                    self.send_joint(index, joint);
                }
                return;
            }
            // The snapshot has ended, or it does not contain a transaction that was committed
            // meanwhile.
            Some(Reply::Unknown | Reply::Failed(_)) => return self.end(index, Outcome::Refused),
            other => panic!("{other:?}"),
        };
        let client = &mut self.clients[index];
        client.operations.push(HistoryOperation::Read(list, numbers(&bytes)));
        match rest {
            None => self.end(index, Outcome::Committed),
            Some((snapshots, lists)) => {
                client.reads.push(Read { name: name.clone(), part: Part::Existence });
                client.reads.push(Read { name, part: Part::Range { start: 0, end: 1 << 20 } });
                self.read_next(index, snapshots, lists);
            }
        }
    }

    /// Ends the transaction of a client: it has only read, or it also appends to one or more lists.
    fn commit(&mut self, index: usize, snapshots: &[(SnapshotId, Version)]) {
        let appends: BTreeSet<u64> =
            (0..self.random.below(4)).map(|_| self.random.below(LISTS as usize) as u64).collect();
        if appends.is_empty() {
            // A transaction that only reads a snapshot needs no commit.
            return self.end(index, Outcome::Committed);
        }
        let mut operations = Vec::new();
        for list in appends {
            let value = self.number();
            self.clients[index].operations.push(HistoryOperation::Append(list, value));
            operations.push(Operation::Append { name: list_name(list), data: value.to_le_bytes().to_vec() });
        }
        let reads = std::mem::take(&mut self.clients[index].reads);
        let versions: Vec<Version> = snapshots.iter().map(|(_, version)| *version).collect();
        let split =
            Split::new(Transaction { reads, operations, ..Transaction::default() }, &versions, GROUPS)
                .expect("split");
        if self.bug == Bug::NoReadLocks && split.parts.len() > 1 {
            let validate = |(to, part): (&u32, &GroupPart)| {
                let transaction = Transaction { operations: Vec::new(), ..part.transaction.clone() };
                (*to, Request::Commit(transaction))
            };
            let requests = split.parts.iter().map(validate).collect();
            return self.begin(index, State::Validate(split), requests);
        }
        self.prepare(index, split);
    }

    fn prepare(&mut self, index: usize, split: Split) {
        self.clients[index].has_sent = true;
        let (client, number) = (u128::from(self.clients[index].id), self.number());
        let begun =
            |part: &Transaction, server: &Server| part.snapshot.unwrap_or_else(|| server.store.version());
        if let [(to, part)] = &split.parts.iter().collect::<Vec<_>>()[..] {
            let begun = begun(&part.transaction, &self.servers[**to as usize]);
            let id = Some(TransactionId { client, number, begun });
            let transaction = Transaction { id, is_repeated: false, ..part.transaction.clone() };
            return self.begin(index, State::Single, vec![(**to, Request::Commit(transaction))]);
        }
        let participants: Vec<u32> = split.parts.keys().copied().collect();
        let coordinator = participants[number as usize % participants.len()];
        let id = JointId { client, number };
        let part = |(to, part): (&u32, &GroupPart)| {
            let mut transaction = part.transaction.clone();
            let begun = begun(&transaction, &self.servers[*to as usize]);
            if self.bug == Bug::NoReadLocks {
                (transaction.reads, transaction.snapshot) = (Vec::new(), None);
            }
            let participants = participants.clone();
            (*to, Preparation { id, begun, coordinator, participants, transaction })
        };
        let parts = split.parts.iter().map(part).collect();
        self.send_joint(index, JointTransaction::begin(parts).expect("parts"));
    }

    fn send_joint(&mut self, index: usize, joint: JointTransaction) {
        let requests = joint.requests().into_iter().map(|(to, request)| (to, Request::Joint(request)));
        let requests = requests.collect();
        self.begin(index, State::Joint(Box::new(joint)), requests);
    }

    fn continue_joint(&mut self, index: usize, mut joint: JointTransaction, replies: BTreeMap<u32, Reply>) {
        let phase = joint.ended_phases();
        for (from, reply) in replies {
            if joint.ended_phases() == phase {
                joint.receive(from, Ok(reply));
            }
        }
        let has_prepared = matches!(joint.requests().first(), Some((_, JointRequest::Commit { .. })));
        let result = match joint.result() {
            _ if self.bug == Bug::EarlyAcknowledge && has_prepared => Some(Outcome::Committed),
            Some(JointResult::Committed(_)) => Some(Outcome::Committed),
            // The outcome is unknown only after the removal of an old result, and the histories are
            // too short for this.
            Some(JointResult::Refused(..)) => Some(Outcome::Refused),
            None => None,
        };
        if let Some(outcome) = result
            && !self.clients[index].is_reported
        {
            let client = &mut self.clients[index];
            let operations = std::mem::take(&mut client.operations);
            if !operations.is_empty() {
                self.history.push(HistoryTransaction {
                    begun: client.begun,
                    ended: self.time,
                    outcome,
                    operations,
                });
            }
            client.is_reported = true;
        }
        match joint.requests().is_empty() {
            true => self.end(index, Outcome::Refused),
            false => self.send_joint(index, joint),
        }
    }
}
