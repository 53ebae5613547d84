//! Tests of connections that compress: all payloads arrive as they were sent, those that can be
//! compressed as fewer bytes.

use quell_transport::peer::{Compression, PAYLOAD_BYTES_MAX, PeerCounters, Protection, Transport};

use crate::members::{ANSWER_LATER, LONG, Member, answer_to, begin, pair, result};

/// A pair of members for each compression and protection.
fn pairs() -> impl Iterator<Item = (Compression, Member, Member)> {
    let modes = [Compression::Lz4, Compression::Zstd].into_iter().flat_map(|compression| {
        [Protection::Integrity, Protection::Encryption].map(|protection| (compression, protection))
    });
    modes.map(|(compression, protection)| {
        let (one, two) = pair(|settings| {
            settings.compression = compression;
            settings.protection = protection;
        });
        (compression, one, two)
    })
}

fn text(bytes: usize) -> Vec<u8> {
    let lines = (0_usize..).flat_map(|i| format!("{i} chunk {} of file {}\n", i % 71, i % 13).into_bytes());
    lines.take(bytes).collect()
}

/// Returns bytes that cannot be compressed.
fn random(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn counters(of: &Member, to: &Member) -> PeerCounters {
    let counters = of.network.counters().into_iter().find(|(id, _)| *id == to.id);
    counters.expect("it is listed").1
}

#[test]
fn payloads_of_every_size_are_carried_and_take_fewer_bytes() {
    for (compression, one, two) in pairs() {
        for bytes in [1, 100, 4095, 4096, 16_384, 65_535, 65_536, 65_577, 512 << 10, PAYLOAD_BYTES_MAX] {
            for request in [text(bytes), random(bytes, bytes as u64), vec![0; bytes]] {
                assert!(one.call(two.id, &request).unwrap() == answer_to(&request), "{bytes}");
                assert!(two.call(one.id, &request).unwrap() == answer_to(&request), "{bytes}");
            }
        }
        let before = counters(&one, &two);
        let request = text(512 << 10);
        for _ in 0..40 {
            assert!(one.call(two.id, &request).unwrap() == answer_to(&request));
        }
        let after = counters(&one, &two);
        for (sent, saved) in [
            (after.bytes_sent - before.bytes_sent, after.bytes_saved_sent - before.bytes_saved_sent),
            (
                after.bytes_received - before.bytes_received,
                after.bytes_saved_received - before.bytes_saved_received,
            ),
        ] {
            // Random data before it can have ended the attempts for a while.
            assert!(sent + saved >= 40 * (512 << 10), "{compression:?}: {sent} and {saved}");
            assert!(saved > sent / 2, "{compression:?}: {sent} and {saved}");
        }
        let theirs = counters(&two, &one);
        assert_eq!(after.bytes_saved_sent, theirs.bytes_saved_received);
        assert_eq!(after.bytes_saved_received, theirs.bytes_saved_sent);
    }
}

#[test]
fn data_that_cannot_be_compressed_is_sent_as_it_is() {
    for (_, one, two) in pairs() {
        for seed in 1..50 {
            let request = random(20_000, seed);
            assert!(one.call(two.id, &request).unwrap() == answer_to(&request));
        }
        let counters = counters(&one, &two);
        assert_eq!((counters.bytes_saved_sent, counters.bytes_saved_received), (0, 0));
        assert!(counters.bytes_sent > 49 * 20_000);
    }
}

#[test]
fn many_calls_of_both_kinds_and_directions_at_the_same_time_arrive() {
    for (_, one, two) in pairs() {
        std::thread::scope(|scope| {
            for (from, to) in [(&one, &two), (&two, &one)] {
                scope.spawn(move || {
                    let mut calls = Vec::new();
                    for number in 0..300_usize {
                        let bytes = (number * 997) % 60_000;
                        let mut request = [vec![0], number.to_le_bytes().to_vec(), text(bytes)].concat();
                        match number % 3 {
                            0 => request.extend(random(bytes, number as u64)),
                            1 => request[0] = ANSWER_LATER,
                            _ => {}
                        }
                        let sends = from.network.collect();
                        calls.push((answer_to(&request), from.begin(to.id, request, LONG)));
                        sends.send();
                    }
                    for (expected, call) in calls {
                        assert!(result(&call).unwrap() == expected);
                    }
                });
            }
        });
        for member in [&one, &two] {
            member.handler.assert_none_twice();
            assert_eq!(member.handler.executions(), 300);
        }
        one.network.stop(LONG);
        two.network.stop(LONG);
    }
}

#[test]
fn a_compressed_reply_that_is_larger_than_the_request_allows_is_an_error() {
    for (_, one, two) in pairs() {
        // The reply has the length of the request, and would be smaller as a frame.
        let call = begin(&one.network, two.id, vec![0; 100_000], 50_000, LONG);
        let error = result(&call).unwrap_err();
        assert!(error.to_string().contains("larger than the request allows"), "{error}");
        let request = text(100_000);
        assert!(one.call(two.id, &request).unwrap() == answer_to(&request));
    }
}
