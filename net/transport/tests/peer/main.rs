//! Tests of the connections between members, with several members in this process.

mod clients;
mod compression;
mod contract;
mod interference;
mod members;
mod memory;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use members::{
    ANSWER_LATER, FORGET, KEEP, LONG, Member, PANIC, answer_to, begin, kind, pair, result, settings, text,
    wait_until,
};
use quell_transport::peer::{Compression, MemberId, PoolId, PoolKey, Protection, Transport};
use quell_vfs::ErrorKind;

const MODES: [Protection; 2] = [Protection::Integrity, Protection::Encryption];

#[test]
fn five_members_call_each_other_at_the_same_time() {
    for protection in MODES {
        let members: Vec<Member> = (1..=5)
            .map(|id| {
                let mut settings = settings(id);
                settings.protection = protection;
                settings.threads = 1 + id as usize % 2;
                Member::start(settings)
            })
            .collect();
        let addresses: HashMap<_, _> = members.iter().map(|m| (m.id, m.network.address())).collect();
        members.iter().for_each(|member| member.network.set_members(&addresses).unwrap());
        std::thread::scope(|scope| {
            for member in &members {
                scope.spawn(|| {
                    let mut calls = Vec::new();
                    for number in 0..400_u32 {
                        for to in members.iter().filter(|to| to.id != member.id) {
                            let mut request = vec![if number % 2 == 0 { ANSWER_LATER } else { 0 }];
                            request.extend(member.id.0.to_le_bytes());
                            request.extend(number.to_le_bytes());
                            request.resize(13 + (number as usize * 37) % 3000, number as u8);
                            calls.push((answer_to(&request), member.begin(to.id, request, LONG)));
                        }
                    }
                    for (expected, call) in calls {
                        assert_eq!(result(&call).unwrap(), expected);
                    }
                });
            }
        });
        for member in &members {
            assert_eq!(member.handler.executions(), 1600);
            member.handler.assert_none_twice();
            for (_, counters) in member.network.counters() {
                assert_eq!(
                    (counters.connections, counters.calls_queued, counters.calls_in_flight),
                    (1, 0, 0)
                );
            }
            member.network.stop(LONG);
        }
    }
}

#[test]
fn a_member_with_another_key_is_refused() {
    let short = |settings: &mut quell_transport::peer::Settings| {
        settings.unreachable_after = Duration::from_millis(200);
        if settings.member == MemberId(2) {
            settings.key = PoolKey([8; 32]);
        }
    };
    let (one, two) = pair(short);
    wait_until(|| two.network.refused_connections() > 0);
    wait_until(|| kind(one.call(two.id, b"a")) == ErrorKind::PermissionDenied);
    assert_eq!(kind(two.call(one.id, b"a")), ErrorKind::Unavailable);
    assert_eq!((one.handler.executions(), two.handler.executions()), (0, 0));
}

#[test]
fn members_with_different_settings_are_refused_with_the_reason() {
    type Change = fn(&mut quell_transport::peer::Settings);
    let changes: [(Change, &str); 4] = [
        (|settings| settings.pool = PoolId([2; 16]), "another pool"),
        (|settings| settings.protection = Protection::Encryption, "encrypts its connections"),
        (|settings| settings.compression = Compression::Lz4, "compress their connections"),
        (|settings| settings.compression = Compression::Zstd, "compress their connections"),
    ];
    for (change, reason) in changes {
        let (one, two) = pair(|settings| {
            settings.unreachable_after = Duration::from_millis(200);
            if settings.member == MemberId(2) {
                change(settings);
            }
        });
        wait_until(|| text(one.call(two.id, b"a")).contains(reason));
        assert_eq!(kind(two.call(one.id, b"a")), ErrorKind::Unavailable);
        assert_eq!((one.handler.executions(), two.handler.executions()), (0, 0));
    }
}

#[test]
fn a_member_of_another_version_is_told_the_version_of_this_one() {
    let two = Member::start(settings(2));
    let mut stream = TcpStream::connect(two.network.address()).unwrap();
    let mut greeting = [0; 128];
    greeting[..10].copy_from_slice(b"QUELPEER\x02\0");
    stream.write_all(&greeting).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"QUELPEER\x01\0\x01\0\0\0\0\0");
    wait_until(|| two.network.refused_connections() == 1);
}

#[test]
fn a_repeated_greeting_does_not_replace_the_connection_of_a_member() {
    let (one, two) = pair(|_| ());
    assert!(one.call(two.id, &[1]).is_ok());
    // Greets as member 1 with the key, as an attacker can that has recorded a greeting, but sends
    // no proof.
    let recorded = recorded_greeting();
    let mut stream = TcpStream::connect(two.network.address()).unwrap();
    stream.write_all(&recorded).unwrap();
    let mut answer = [0; 96];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[10], 0, "the greeting is right");
    stream.write_all(&[0; 44]).unwrap();
    assert!(!matches!(stream.read(&mut [0; 64]), Ok(1..)));
    wait_until(|| two.network.refused_connections() == 1);
    assert_eq!(one.call(two.id, &[2]).unwrap(), [3]);
    assert_eq!(one.network.counters()[0].1.connections, 1);
}

/// Returns the greeting that member 1 sends to member 2.
fn recorded_greeting() -> [u8; 128] {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let one = Member::start(settings(1));
    let address = listener.local_addr().unwrap();
    one.network.set_members(&HashMap::from([(MemberId(2), address)])).unwrap();
    let mut greeting = [0; 128];
    listener.accept().unwrap().0.read_exact(&mut greeting).unwrap();
    greeting
}

#[test]
fn an_address_of_another_member_is_refused() {
    let (_one, two) = pair(|_| ());
    let mut settings = settings(1);
    settings.unreachable_after = Duration::from_millis(200);
    let other = Member::start(settings);
    let three = MemberId(3);
    other.network.set_members(&HashMap::from([(three, two.network.address())])).unwrap();
    wait_until(|| text(other.call(three, b"a")).contains("another member"));
    assert_eq!(kind(other.call(MemberId(9), b"a")), ErrorKind::Unavailable);
}

#[test]
fn a_handler_that_fails_gives_an_error_and_the_connection_stays() {
    let (one, two) = pair(|_| ());
    for request in [FORGET, PANIC] {
        assert_eq!(kind(one.call(two.id, &[request])), ErrorKind::Unavailable);
    }
    assert_eq!(kind(result(&begin(&one.network, two.id, vec![1; 10], 9, LONG))), ErrorKind::InvalidInput);
    assert_eq!(one.call(two.id, b"a").unwrap(), b"b");
    assert_eq!(one.network.counters()[0].1.connections, 1);
}

#[test]
fn a_call_ends_at_its_deadline_and_its_credit_returns_with_the_answer() {
    let (one, two) = pair(|settings| settings.requests_held_max = 1);
    // A deadline that passes before the request is sent proves nothing: the call is then repeated
    // with a longer one.
    let mut limit = Duration::from_millis(50);
    while two.handler.executions() == 0 {
        let late = one.begin(two.id, vec![KEEP], limit);
        assert_eq!(kind(result(&late)), ErrorKind::TimedOut);
        limit *= 2;
    }
    // The credit is in use, because the handler has the request.
    let blocked = one.begin(two.id, vec![1], Duration::from_millis(50));
    assert_eq!(kind(result(&blocked)), ErrorKind::TimedOut);
    assert_eq!(two.handler.executions(), 1);
    two.handler.release();
    assert_eq!(one.call(two.id, &[2]).unwrap(), [3]);
    assert_eq!(one.network.counters()[0].1.calls_in_flight, 0);
}

#[test]
fn credit_bounds_the_requests_at_a_member_that_does_not_answer() {
    let (one, two) = pair(|settings| {
        settings.requests_held_max = 8;
        settings.calls_queued_max = 10;
    });
    assert!(one.call(two.id, &[1]).is_ok());
    let calls: Vec<_> = (0..8).map(|n| one.begin(two.id, vec![KEEP, n], LONG)).collect();
    one.wait(two.id, |counters| counters.calls_in_flight == 8);
    let queued: Vec<_> = (0..10).map(|n| one.begin(two.id, vec![n], LONG)).collect();
    assert_eq!(kind(result(&one.begin(two.id, vec![0], LONG))), ErrorKind::Busy);
    wait_until(|| two.handler.kept.lock().unwrap().len() == 8);
    assert_eq!(two.handler.executions(), 9);
    // The other direction has its own credit.
    assert_eq!(two.call(one.id, &[5]).unwrap(), [6]);
    two.handler.release();
    for call in calls.iter().chain(&queued) {
        result(call).unwrap();
    }
}

#[test]
fn credit_bounds_the_bytes_at_a_member_that_does_not_answer() {
    let (one, two) = pair(|settings| settings.bytes_held_max = 4 << 20);
    // Each counts twice: for its request and for its reply.
    let request = |n: u8| {
        let mut request = vec![n; 512 << 10];
        request[0] = KEEP;
        request
    };
    let calls: Vec<_> = (0..9).map(|n| one.begin(two.id, request(n), LONG)).collect();
    wait_until(|| two.handler.kept.lock().unwrap().len() == 4);
    one.wait(two.id, |counters| counters.calls_in_flight == 4 && counters.calls_queued == 5);
    for end in [8, 9] {
        two.handler.release();
        wait_until(|| two.handler.executions() == end);
    }
    two.handler.release();
    for call in &calls {
        result(call).unwrap();
    }
}

#[test]
fn a_restarted_member_executes_no_request_again() {
    let (one, two) = pair(|_| ());
    assert!(one.call(two.id, &[1]).is_ok());
    let sent = one.begin(two.id, vec![KEEP, 1], LONG);
    wait_until(|| two.handler.kept.lock().unwrap().len() == 1);
    let address = two.network.address();
    // The process ends without a message: nothing is answered, and its own calls end.
    let own = two.begin(one.id, vec![KEEP], LONG);
    let Member { network, handler, .. } = two;
    drop(network);
    assert_eq!(kind(result(&own)), ErrorKind::Unavailable);
    one.wait(MemberId(2), |counters| !counters.is_connected);
    let waiting = one.begin(MemberId(2), vec![2], LONG);
    let mut settings = settings(2);
    settings.listen = address;
    let again = Member::restart(&settings);
    again.knows(&one, one.network.address());
    assert!(text(result(&sent)).contains("restarted"));
    assert_eq!(result(&waiting).unwrap(), [3]);
    assert_eq!((handler.executions(), again.handler.executions()), (2, 1));
    assert_eq!(again.call(one.id, &[4]).unwrap(), [5]);
}

#[test]
fn a_member_that_restarts_as_initiator_is_accepted() {
    let (one, two) = pair(|_| ());
    assert!(two.call(one.id, &[1]).is_ok());
    let address = one.network.address();
    drop(one);
    let mut settings = settings(1);
    settings.listen = address;
    let again = Member::restart(&settings);
    again.knows(&two, two.network.address());
    assert_eq!(again.call(two.id, &[2]).unwrap(), [3]);
    assert_eq!(two.call(again.id, &[4]).unwrap(), [5]);
}

#[test]
fn stop_answers_what_was_begun_and_refuses_the_rest() {
    let (one, two) = pair(|_| ());
    let begun = one.begin(two.id, vec![KEEP], LONG);
    wait_until(|| two.handler.kept.lock().unwrap().len() == 1);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| two.network.stop(LONG));
        // Requests of this kind are executed until the member begins to stop.
        wait_until(|| {
            let refused = one.call(two.id, &[7]);
            refused.is_err_and(|error| error.to_string().contains("stopping"))
        });
        assert!(!stopping.is_finished());
        two.handler.release();
        stopping.join().unwrap();
    });
    assert_eq!(result(&begun).unwrap(), [KEEP + 1]);
    one.wait(two.id, |counters| !counters.is_connected);
    assert_eq!(kind(two.call(one.id, &[1])), ErrorKind::Unavailable);
}

#[test]
fn calls_to_a_removed_member_fail() {
    let (one, two) = pair(|_| ());
    let call = one.begin(two.id, vec![KEEP], LONG);
    wait_until(|| two.handler.kept.lock().unwrap().len() == 1);
    one.network.set_members(&HashMap::new()).unwrap();
    assert_eq!(kind(result(&call)), ErrorKind::Unavailable);
    assert_eq!(kind(one.call(two.id, &[1])), ErrorKind::Unavailable);
    two.wait(one.id, |counters| !counters.is_connected);
    // A member that is added again has a new session.
    one.knows(&two, two.network.address());
    assert_eq!(one.call(two.id, &[1]).unwrap(), [2]);
    two.handler.release();
    assert_eq!(two.call(one.id, &[1]).unwrap(), [2]);
}

#[test]
fn calls_to_a_member_without_a_connection_fail_soon() {
    let mut settings = settings(1);
    settings.unreachable_after = Duration::from_millis(100);
    let one = Member::start(settings);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    one.network.set_members(&HashMap::from([(MemberId(0), nobody), (MemberId(2), nobody)])).unwrap();
    for other in [0, 2] {
        assert_eq!(kind(one.call(MemberId(other), &[1])), ErrorKind::Unavailable);
    }
}

#[test]
fn strangers_on_the_port_do_not_disturb_the_members() {
    let two = Member::start({
        let mut settings = settings(2);
        settings.unproved_connections_max = 4;
        settings.handshake_limit = Duration::from_millis(300);
        settings
    });
    let address = two.network.address();
    // Connections that send nothing, or a little: each is closed by a later one or the time limit.
    let mut slow: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (number, stream) in slow.iter_mut().enumerate() {
        stream.write_all(&b"QUELPEER\x01\0\x01\0"[..number % 12]).ok();
    }
    let mut garbage = TcpStream::connect(address).unwrap();
    garbage.write_all(&[0x55; 4096]).ok();
    let one = Member::start(settings(1));
    one.knows(&two, address);
    two.knows(&one, one.network.address());
    assert_eq!(one.call(two.id, &[1]).unwrap(), [2]);
    for stream in slow.iter_mut().chain([&mut garbage]) {
        // The other side closes: with an end of file or a reset.
        stream.set_read_timeout(Some(LONG)).unwrap();
        assert!(!matches!(stream.read(&mut [0; 64]), Ok(1..)), "a client without the key gets no answer");
    }
    wait_until(|| two.network.refused_connections() >= 41);
    assert_eq!(two.call(one.id, &[1]).unwrap(), [2]);
    assert_eq!(one.network.counters()[0].1.connections, 1);
}
