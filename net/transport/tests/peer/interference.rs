//! Tests with a process between two members that changes, repeats, reorders, withholds and ends
//! their bytes, from a seed.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use quell_transport::peer::{Protection, Settings, Transport};
use quell_vfs::ErrorKind;

use crate::members::{ANSWER_LATER, KEEP, LONG, Member, answer_to, kind, result, settings, wait_until};

/// The behaviour of a proxy.
#[derive(Default)]
struct Behaviour {
    /// The proxy interferes with one in this number of chunks; 0: with no chunk.
    rate: AtomicU32,
    /// Whether the proxy holds back all bytes.
    is_holding: AtomicBool,
}

/// Passes connections on to `target`. Its threads end with their connections.
fn start_proxy(target: SocketAddr, behaviour: Arc<Behaviour>, seed: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut random = Random(seed);
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            let Ok(server) = TcpStream::connect(target) else { continue };
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let (behaviour, random) = (behaviour.clone(), Random(random.next()));
                std::thread::spawn(move || pass_on(from, to, &behaviour, random));
            }
        }
    });
    address
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, behaviour: &Behaviour, mut random: Random) {
    let mut former = Vec::new();
    let mut buffer = vec![0; 8192];
    // Small chunks separate frames, large ones contain many.
    while let Ok(bytes @ 1..) = {
        let end = 1 + random.below(8192);
        from.read(&mut buffer[..end])
    } {
        while behaviour.is_holding.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut chunk = buffer[..bytes].to_vec();
        let rate = behaviour.rate.load(Ordering::SeqCst) as usize;
        if rate != 0 && random.below(rate) == 0 {
            match random.below(6) {
                0 => chunk[random.below(bytes)] ^= 1 << random.below(8),
                1 => drop(chunk.splice(0..0, former.clone())),
                2 => chunk.rotate_left(random.below(bytes)),
                3 => chunk.truncate(random.below(bytes)),
                4 => std::thread::sleep(Duration::from_millis(random.below(20) as u64)),
                _ => break,
            }
        }
        if to.write_all(&chunk).is_err() {
            break;
        }
        former = chunk;
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

/// Two members; the connection of the first to the second passes through a proxy.
fn pair_with_proxy(seed: u64, change: impl Fn(&mut Settings)) -> (Member, Member, Arc<Behaviour>) {
    let start = |id| {
        let mut settings = settings(id);
        settings.backoff_max = Duration::from_millis(40);
        change(&mut settings);
        Member::start(settings)
    };
    let (one, two) = (start(1), start(2));
    let behaviour = Arc::new(Behaviour::default());
    one.knows(&two, start_proxy(two.network.address(), behaviour.clone(), seed));
    two.knows(&one, one.network.address());
    (one, two, behaviour)
}

/// Calls in both directions through a proxy that interferes, then without interference.
fn interfere(seed: u64) {
    let (one, two, behaviour) = pair_with_proxy(seed, |settings| {
        // A withheld byte would keep a connection silent.
        settings.ping_interval = Duration::from_millis(50);
        settings.silent_intervals_max = 4;
        settings.handshake_limit = Duration::from_millis(400);
        settings.unreachable_after = LONG;
        settings.requests_held_max = 32;
        if seed % 2 == 1 {
            settings.protection = Protection::Encryption;
        }
    });
    behaviour.rate.store(15, Ordering::SeqCst);
    let mut random = Random(seed);
    let mut calls = Vec::new();
    for number in 0..600_u32 {
        let (from, to) = if random.below(2) == 0 { (&one, &two) } else { (&two, &one) };
        let mut request = vec![if random.below(3) == 0 { ANSWER_LATER } else { 0 }];
        request.extend(number.to_le_bytes());
        let bytes = if random.below(20) == 0 { 100_000 } else { 2_000 };
        request.resize(5 + random.below(bytes), number as u8);
        // Some calls end at their deadline, before or after their request was sent.
        let limit = if random.below(8) == 0 { Duration::from_millis(random.below(40) as u64) } else { LONG };
        calls.push((answer_to(&request), limit, from.begin(to.id, request, limit)));
    }
    std::thread::sleep(Duration::from_millis(300));
    behaviour.rate.store(0, Ordering::SeqCst);
    for (expected, limit, call) in calls {
        match result(&call) {
            Ok(reply) => assert!(reply == expected, "seed {seed}: a wrong reply"),
            Err(error) => {
                assert!(limit < LONG, "seed {seed}: {error}");
                assert_eq!(error.kind, ErrorKind::TimedOut, "seed {seed}: {error}");
            }
        }
    }
    for (from, to) in [(&one, &two), (&two, &one)] {
        to.handler.assert_none_twice();
        assert_eq!(from.call(to.id, b"last").unwrap(), answer_to(b"last"));
        from.wait(to.id, |counters| counters.calls_in_flight == 0 && counters.calls_queued == 0);
    }
}

#[test]
fn interference_causes_no_wrong_reply_and_no_second_execution() {
    for seed in 0..8 {
        interfere(seed);
    }
}

#[test]
#[ignore = "takes minutes; run with --ignored"]
fn interference_with_many_seeds() {
    for seed in 8..200 {
        interfere(seed);
    }
}

#[test]
fn calls_to_a_silent_member_end_and_the_connection_is_replaced() {
    let (one, two, behaviour) = pair_with_proxy(0, |settings| {
        settings.ping_interval = Duration::from_millis(20);
        settings.handshake_limit = Duration::from_millis(200);
        settings.unreachable_after = LONG;
    });
    assert_eq!(one.call(two.id, &[1]).unwrap(), [2]);
    behaviour.is_holding.store(true, Ordering::SeqCst);
    let short = one.begin(two.id, vec![1], Duration::from_millis(50));
    let patient = one.begin(two.id, vec![2], LONG);
    assert_eq!(kind(result(&short)), ErrorKind::TimedOut);
    // Both members notice the silence.
    one.wait(two.id, |counters| !counters.is_connected);
    two.wait(one.id, |counters| !counters.is_connected);
    behaviour.is_holding.store(false, Ordering::SeqCst);
    assert_eq!(result(&patient).unwrap(), [3]);
    two.handler.assert_none_twice();
}

#[test]
fn calls_to_a_silent_member_end_when_it_counts_as_unreachable() {
    let (one, two, behaviour) = pair_with_proxy(0, |settings| {
        settings.ping_interval = Duration::from_millis(20);
        settings.handshake_limit = Duration::from_millis(100);
        settings.unreachable_after = Duration::from_millis(100);
    });
    wait_until(|| one.call(two.id, &[1]).is_ok());
    behaviour.is_holding.store(true, Ordering::SeqCst);
    let patient = one.begin(two.id, vec![2], LONG);
    assert_eq!(kind(result(&patient)), ErrorKind::Unavailable);
    behaviour.is_holding.store(false, Ordering::SeqCst);
    wait_until(|| one.call(two.id, &[4]).is_ok());
}

#[test]
fn a_kept_reply_survives_the_loss_of_the_connection() {
    let (one, two, behaviour) = pair_with_proxy(0, |settings| {
        settings.ping_interval = Duration::from_millis(20);
        settings.handshake_limit = Duration::from_millis(200);
        settings.unreachable_after = LONG;
    });
    let calls: Vec<_> = (0..50).map(|number| one.begin(two.id, vec![KEEP, number], LONG)).collect();
    wait_until(|| two.handler.kept.lock().unwrap().len() == 50);
    behaviour.is_holding.store(true, Ordering::SeqCst);
    two.wait(one.id, |counters| !counters.is_connected);
    // Half of the requests are answered without a connection, half after the repetition.
    let rest = two.handler.kept.lock().unwrap().split_off(25);
    two.handler.release();
    behaviour.is_holding.store(false, Ordering::SeqCst);
    for call in &calls[..25] {
        result(call).unwrap();
    }
    two.handler.kept.lock().unwrap().extend(rest);
    two.handler.release();
    for (number, call) in calls.iter().enumerate() {
        if number >= 25 {
            assert_eq!(result(call).unwrap(), [KEEP + 1, number as u8 + 1]);
        }
    }
    two.handler.assert_none_twice();
    assert_eq!(two.handler.executions(), 50);
}

#[test]
fn a_member_that_does_not_read_does_not_grow_the_memory_of_the_sender() {
    let (one, two, behaviour) = pair_with_proxy(0, |settings| {
        settings.bytes_held_max = 4 << 20;
        settings.bytes_queued_max = 8 << 20;
        settings.unreachable_after = LONG;
    });
    assert_eq!(one.call(two.id, &[1]).unwrap(), [2]);
    behaviour.is_holding.store(true, Ordering::SeqCst);
    let limit = Duration::from_millis(500);
    let calls: Vec<_> = (0..200).map(|n| one.begin(two.id, vec![n; 256 << 10], limit)).collect();
    // At most 8 are sent and 32 wait; the others are refused.
    let refused =
        calls.iter().map(result).filter(|ended| matches!(ended, Err(e) if e.kind == ErrorKind::Busy));
    assert!(refused.count() >= 160);
    behaviour.is_holding.store(false, Ordering::SeqCst);
    wait_until(|| one.call(two.id, &[4]).is_ok());
}
