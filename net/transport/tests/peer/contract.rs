//! Tests of the contract of `Transport`, which run with each implementation.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use quell_transport::peer::{
    Compression, Handler, MemberId, PAYLOAD_BYTES_MAX, PeerNetwork, Protection, Settings, Transport,
    was_not_executed,
};
use quell_vfs::ErrorKind;

use crate::members::{
    ANSWER_LATER, Counting, FORGET, KEEP, LONG, PANIC, answer_to, begin, result, settings, wait_until,
};
use crate::memory::{MemoryTransport, Nodes};

/// Starts a member with a number and a handler.
type Start = Box<dyn Fn(u64, Arc<dyn Handler>) -> Arc<dyn Transport>>;

fn tcp(change: fn(&mut Settings)) -> Start {
    Box::new(move |id, handler| {
        let mut settings = settings(id);
        // A ping would send the requests that a test has collected.
        settings.ping_interval = LONG;
        change(&mut settings);
        Arc::new(PeerNetwork::start(settings, handler).unwrap())
    })
}

/// Returns the implementations, and the names of their modes.
fn implementations() -> Vec<(&'static str, Start)> {
    let nodes = Arc::new(Nodes::default());
    vec![
        ("tcp with integrity", tcp(|_| ())),
        ("tcp with encryption", tcp(|settings| settings.protection = Protection::Encryption)),
        ("tcp with lz4", tcp(|settings| settings.compression = Compression::Lz4)),
        ("memory", Box::new(move |id, handler| Arc::new(MemoryTransport::start(id, &nodes, handler)))),
    ]
}

struct Member {
    id: MemberId,
    transport: Arc<dyn Transport>,
    handler: Arc<Counting>,
}

impl Member {
    fn call(&self, to: &Member, request: &[u8]) -> quell_vfs::Result<Vec<u8>> {
        result(&begin(&*self.transport, to.id, request.to_vec(), request.len() as u32, LONG))
    }
}

/// Starts members that know each other.
fn members(start: &Start, count: u64) -> Vec<Member> {
    let members: Vec<Member> = (1..=count)
        .map(|id| {
            let handler = Arc::new(Counting::default());
            Member { id: MemberId(id), transport: start(id, handler.clone()), handler }
        })
        .collect();
    connect(&members);
    members
}

fn connect(members: &[Member]) {
    let addresses: HashMap<_, _> = members.iter().map(|m| (m.id, m.transport.address())).collect();
    members.iter().for_each(|member| member.transport.set_members(&addresses).unwrap());
}

#[test]
fn calls_of_all_members_at_the_same_time_are_executed_once_and_get_their_replies() {
    for (name, start) in implementations() {
        let members = members(&start, 3);
        std::thread::scope(|scope| {
            for member in &members {
                let others: Vec<MemberId> =
                    members.iter().map(|m| m.id).filter(|id| *id != member.id).collect();
                scope.spawn(move || {
                    let mut calls = Vec::new();
                    for number in 0..200_u32 {
                        for to in &others {
                            let mut request = vec![if number % 2 == 0 { ANSWER_LATER } else { 0 }];
                            request.extend(member.id.0.to_le_bytes());
                            request.extend(number.to_le_bytes());
                            request.resize(13 + (number as usize * 97) % 9000, number as u8);
                            let bytes = request.len() as u32;
                            let expected = answer_to(&request);
                            calls.push((expected, begin(&*member.transport, *to, request, bytes, LONG)));
                        }
                    }
                    for (expected, call) in calls {
                        assert!(result(&call).unwrap() == expected);
                    }
                });
            }
        });
        for member in &members {
            assert_eq!(member.handler.executions(), 400, "{name}");
            member.handler.assert_none_twice();
            member.transport.stop(LONG);
        }
    }
}

#[test]
fn payloads_of_every_size_are_carried_in_both_directions() {
    for (name, start) in implementations() {
        let members = members(&start, 2);
        let (one, two) = (&members[0], &members[1]);
        for bytes in [0, 1, 4096, 16_384, 16_385, 65_536, 65_537, 512 << 10, PAYLOAD_BYTES_MAX] {
            let request: Vec<u8> = (0..bytes).map(|i| (i % 199) as u8).collect();
            assert!(one.call(two, &request).unwrap() == answer_to(&request), "{name}: {bytes}");
            assert!(two.call(one, &request).unwrap() == answer_to(&request), "{name}: {bytes}");
        }
        let executions = two.handler.executions();
        let too_large = one.call(two, &vec![0; PAYLOAD_BYTES_MAX + 1]).unwrap_err();
        assert_eq!(too_large.kind, ErrorKind::InvalidInput, "{name}");
        let bytes = PAYLOAD_BYTES_MAX as u32 + 1;
        let too_large = result(&begin(&*one.transport, two.id, vec![0], bytes, LONG)).unwrap_err();
        assert_eq!(too_large.kind, ErrorKind::InvalidInput, "{name}");
        assert_eq!(two.handler.executions(), executions, "{name}");
    }
}

#[test]
fn a_reply_that_is_missing_or_too_large_is_an_error_and_later_calls_succeed() {
    for (name, start) in implementations() {
        let members = members(&start, 2);
        let (one, two) = (&members[0], &members[1]);
        for request in [FORGET, PANIC] {
            let error = one.call(two, &[request]).unwrap_err();
            assert_eq!((error.kind, was_not_executed(&error)), (ErrorKind::Unavailable, false), "{name}");
        }
        let error = result(&begin(&*one.transport, two.id, vec![1; 10], 9, LONG)).unwrap_err();
        assert_eq!((error.kind, was_not_executed(&error)), (ErrorKind::InvalidInput, false), "{name}");
        assert_eq!(one.call(two, b"a").unwrap(), b"b", "{name}");
    }
}

#[test]
fn a_call_ends_at_its_deadline_and_a_late_reply_is_ignored() {
    for (name, start) in implementations() {
        let members = members(&start, 2);
        let (one, two) = (&members[0], &members[1]);
        assert!(one.call(two, &[1]).is_ok());
        let late = begin(&*one.transport, two.id, vec![KEEP], 1, Duration::from_millis(50));
        assert_eq!(result(&late).unwrap_err().kind, ErrorKind::TimedOut, "{name}");
        two.handler.release();
        assert_eq!(one.call(two, &[2]).unwrap(), [3], "{name}");
        assert!(late.recv().is_err(), "{name}: a second result");
    }
}

#[test]
fn calls_to_a_member_that_is_not_listed_fail_until_it_is_listed_again() {
    for (name, start) in implementations() {
        let members = members(&start, 2);
        let (one, two) = (&members[0], &members[1]);
        let call = begin(&*one.transport, two.id, vec![KEEP], 1, LONG);
        wait_until(|| two.handler.kept.lock().unwrap().len() == 1);
        one.transport.set_members(&HashMap::new()).unwrap();
        let error = result(&call).unwrap_err();
        assert_eq!((error.kind, was_not_executed(&error)), (ErrorKind::Unavailable, false), "{name}");
        for _ in 0..2 {
            let error = one.call(two, &[1]).unwrap_err();
            assert_eq!((error.kind, was_not_executed(&error)), (ErrorKind::Unavailable, true), "{name}");
        }
        connect(&members);
        assert_eq!(one.call(two, &[2]).unwrap(), [3], "{name}");
        two.handler.release();
        assert_eq!(two.call(one, &[4]).unwrap(), [5], "{name}");
        assert_eq!(two.handler.executions(), 2, "{name}");
    }
}

#[test]
fn stop_answers_what_was_begun_and_refuses_the_rest() {
    for (name, start) in implementations() {
        let members = members(&start, 3);
        let (one, two, three) = (&members[0], &members[1], &members[2]);
        let begun = begin(&*one.transport, two.id, vec![KEEP], 1, LONG);
        let own = begin(&*two.transport, one.id, vec![KEEP], 1, LONG);
        wait_until(|| [one, two].iter().all(|m| m.handler.kept.lock().unwrap().len() == 1));
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| two.transport.stop(LONG));
            // Requests of this kind are executed until the member begins to stop.
            wait_until(|| match one.call(two, &[7]) {
                Ok(_) => false,
                Err(error) => error.kind == ErrorKind::Unavailable && was_not_executed(&error),
            });
            assert!(!stopping.is_finished());
            // The handler of the request that was begun can need another member for its answer.
            assert_eq!(two.call(three, &[3]).unwrap(), [4], "{name}");
            two.handler.release();
            stopping.join().unwrap();
        });
        assert_eq!(result(&begun).unwrap(), [KEEP + 1], "{name}");
        assert_eq!(result(&own).unwrap_err().kind, ErrorKind::Unavailable, "{name}");
        let error = two.call(one, &[1]).unwrap_err();
        assert_eq!((error.kind, was_not_executed(&error)), (ErrorKind::Unavailable, true), "{name}");
        two.transport.stop(LONG);
        one.handler.release();
    }
}

#[test]
fn collected_calls_are_sent_on_request_and_at_the_end_of_the_collection() {
    for (name, start) in implementations() {
        let members = members(&start, 2);
        let (one, two) = (&members[0], &members[1]);
        let begin = |number| begin(&*one.transport, two.id, vec![0, number], 2, LONG);
        let sends = one.transport.collect();
        let calls: Vec<_> = (0..10).map(begin).collect();
        sends.send();
        assert!(calls.iter().all(|call| result(call).is_ok()), "{name}");
        let last = begin(10);
        drop(sends);
        assert!(result(&last).is_ok(), "{name}");
        assert!(one.call(two, &[0, 11]).is_ok(), "{name}");
        assert_eq!(two.handler.executions(), 12, "{name}");
    }
}

#[test]
fn the_traffic_is_counted_and_kept_for_members_that_are_no_longer_listed() {
    for (name, start) in implementations() {
        let members = members(&start, 2);
        let (one, two) = (&members[0], &members[1]);
        let requests = 10;
        for number in 0..requests {
            one.call(two, &vec![number; 20_000]).unwrap();
        }
        let sent = u64::from(requests) * 20_000;
        for member in [one, two] {
            // A reply can arrive before its sender has counted it.
            wait_until(|| {
                let traffic = member.transport.traffic();
                traffic.sent_bytes + traffic.sent_saved_bytes >= sent
                    && traffic.received_bytes + traffic.received_saved_bytes >= sent
            });
            let traffic = member.transport.traffic();
            let is_compressed = name.contains("lz4");
            assert_eq!(traffic.sent_saved_bytes > sent / 2, is_compressed, "{name}: {traffic:?}");
            assert_eq!(traffic.received_saved_bytes > sent / 2, is_compressed, "{name}: {traffic:?}");
        }
        let before = one.transport.traffic();
        one.transport.set_members(&HashMap::new()).unwrap();
        let after = one.transport.traffic();
        assert!(after.sent_bytes >= before.sent_bytes, "{name}");
        assert!(after.received_bytes >= before.received_bytes, "{name}");
    }
}
