//! Entry points for the fuzz targets. The input is arbitrary: a decoder must refuse it, or the
//! decoded value must be the same after it was encoded and decoded again. Compiled with the feature
//! `fuzzing`, which only fuzz/ and the tests enable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::compression::{Compressor, expand};
use super::frame::{
    FIELD_BYTES, Fields, FrameKind, LENGTH_BYTES, LENGTH_MIN, Status, decode_ids, decode_length,
    encode_length,
};
use super::handshake::{
    ANSWER_HEAD_BYTES, ANSWER_PROOF_BYTES, GREETING_BYTES, Hello, Initiator, Prefix, accept, answer_head,
    check_prefix, decode_answer_head, description_bytes, read_greeting,
};
use super::incoming::{Incoming, RequestAction};
use super::key_file::{self, ClientKey};
use super::outgoing::{Credit, Frame, Outgoing};
use super::seal::Seal;
use super::settings::{BYTES_HELD_MIN, Compression, MemberId, PoolId, PoolKey, Protection, Role};

const KEY: PoolKey = PoolKey([7; 32]);
const PREFIX: Prefix = Prefix {
    role: Role::Pool,
    protection: Protection::Integrity,
    compression: Compression::None,
    pool: PoolId([1; 16]),
    initiator: MemberId(1),
    responder: MemberId(2),
    description_bytes: 0,
};
const HELLO: Hello =
    Hello { session: 3, connection: 1, requests_held_max: 4, bytes_held_max: BYTES_HELD_MIN };

/// Reads bytes as a greeting, as an answer, as a hello, and as the file of a derived key.
pub fn check_handshake(bytes: &[u8]) {
    if let Some(key) = key_file::decode(bytes) {
        assert_eq!(key.file_content(), bytes);
    }
    for role in [Role::Pool, Role::Blob] {
        let own = Prefix { role, ..PREFIX };
        if let Some((greeting, rest)) = bytes.split_first_chunk::<GREETING_BYTES>()
            && let Ok(initiator) = check_prefix(greeting, &own)
        {
            let length = description_bytes(greeting, role).expect("it was checked");
            let expected = Prefix { initiator, description_bytes: length, ..own };
            assert_eq!(greeting[..48], expected.encode());
            if let Some(description) = rest.get(..length.into())
                && let Ok((theirs, noise)) = read_greeting(greeting, description, &KEY.derived(description))
            {
                accept(noise, theirs, &HELLO);
            }
        }
    }
    if let Some((head, rest)) = bytes.split_first_chunk::<ANSWER_HEAD_BYTES>()
        && decode_answer_head(head).is_ok()
    {
        assert_eq!(*head, answer_head(None));
        if let Some(proof) = rest.first_chunk::<ANSWER_PROOF_BYTES>() {
            let (initiator, _) = Initiator::new(&PREFIX, b"", &KEY, &HELLO);
            assert!(initiator.finish(proof).is_err(), "the proof of an ephemeral key cannot be known");
        }
    }
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(hello.encode(), bytes);
    }
}

const ALGORITHMS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

/// Expands the payload of a frame with each algorithm, and compresses it. Returns its length before
/// compression, or `None` if no algorithm can expand it.
fn check_compression(fields: &Fields, payload: &[u8]) -> Option<usize> {
    if fields.expanded_bytes == 0 {
        for compression in ALGORITHMS {
            if let Some((compressed, bytes)) = Compressor::new(compression).compress(fields, payload) {
                assert!(expand(compression, &compressed, bytes).expect("it was compressed") == payload);
            }
        }
        return Some(payload.len());
    }
    assert!(expand(Compression::None, fields, payload.to_vec()).is_err());
    let expanded = ALGORITHMS.map(|compression| expand(compression, fields, payload.to_vec()));
    for expanded in expanded.iter().flatten() {
        assert_eq!(expanded.len(), fields.expanded_bytes as usize);
    }
    expanded.iter().flatten().next().map(Vec::len)
}

/// Reads bytes as frames without protection, and passes them to the state of a member that has sent
/// three requests and executed one in three of the other's.
pub fn check_frames(bytes: &[u8]) {
    let limit = Credit { requests: 4, bytes: BYTES_HELD_MIN };
    let (mut incoming, mut outgoing) = (Incoming::new(limit), Outgoing::new());
    incoming.resume(1, 1, [].into_iter()).expect("the first connection");
    outgoing.meet(1, limit);
    outgoing.connected();
    let now = Instant::now();
    for _ in 0..3 {
        outgoing.call(Arc::new(vec![0; 10]), 100, now + Duration::from_secs(1), Box::new(|_| ()));
    }
    let mut frames = Vec::new();
    outgoing.take(now, usize::MAX, &mut frames);
    assert_eq!(frames.len(), 3);
    let mut rest = bytes;
    let mut connection = 1;
    while let Some((length, after)) = rest.split_first_chunk::<LENGTH_BYTES>()
        && let Ok(length) = decode_length(*length)
        && length <= after.len()
    {
        let (frame, after) = after.split_at(length);
        rest = after;
        let payload_bytes = length - LENGTH_MIN;
        assert_eq!(encode_length(payload_bytes), (length as u32).to_le_bytes());
        let payload = &frame[..payload_bytes];
        let fields = frame[payload_bytes..payload_bytes + FIELD_BYTES].try_into().expect("its size");
        let Ok(decoded) = Fields::decode(fields, payload_bytes) else { return };
        assert_eq!(decoded.encode(), *fields);
        // A frame that was not sealed is refused.
        assert!(Seal::new(Protection::Integrity, &[7; 32]).open(frame.to_vec()).is_err());
        let Some(expanded_bytes) = check_compression(&decoded, payload) else { return };
        let taken = match decoded.kind {
            FrameKind::Request => incoming.request(&decoded, expanded_bytes).map(|verdict| {
                if verdict == RequestAction::Execute && decoded.id.is_multiple_of(3) {
                    incoming.answer(1, decoded.id, Status::Done, vec![0; 5]);
                }
            }),
            FrameKind::Reply => outgoing.reply(decoded.id, expanded_bytes).map(drop),
            FrameKind::Cancel => incoming.cancel(decoded.id),
            FrameKind::Acknowledge => incoming.acknowledge(decode_ids(payload)),
            FrameKind::Resume => {
                connection += 1;
                incoming.disconnected();
                outgoing.disconnected();
                let resumed = incoming.resume(1, connection, decode_ids(payload));
                outgoing.meet(1, limit);
                outgoing.connected();
                resumed
            }
            _ => Ok(()),
        };
        if taken.is_err() {
            return;
        }
        let mut frames: Vec<Frame> = Vec::new();
        incoming.take(1 << 10, &mut frames);
        outgoing.take(now, 1 << 10, &mut frames);
        assert!(incoming.begun() <= limit.requests && outgoing.in_flight() <= 3);
    }
}

/// Returns the seeds: target, name and bytes.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let (initiator, greeting) = Initiator::new(&PREFIX, b"", &KEY, &HELLO);
    let (theirs, noise) = read_greeting(&greeting, b"", &KEY).expect("the same key");
    let (answer, _) = accept(noise, theirs, &HELLO);
    initiator.finish(answer.last_chunk().expect("it is longer")).expect("the same key");
    let description = b"read";
    let of_client = Prefix { role: Role::Blob, description_bytes: description.len() as u16, ..PREFIX };
    let (_, derived) = Initiator::new(&of_client, description, &KEY.derived(description), &HELLO);
    let frame = |fields: Fields, payload: &[u8]| {
        let tag = [0; 16];
        [&encode_length(payload.len())[..], payload, &fields.encode(), &tag].concat()
    };
    let request = |id| {
        let fields = Fields { deadline_ms: 9, reply_bytes_max: 64, ..Fields::new(FrameKind::Request, id) };
        frame(fields, b"hello")
    };
    let compressed = |compression, id| {
        let fields = Fields { reply_bytes_max: 64, ..Fields::new(FrameKind::Request, id) };
        let payload: Vec<u8> = (0..4096).map(|i| (i / 100) as u8).collect();
        let (fields, payload) =
            Compressor::new(compression).compress(&fields, &payload).expect("a payload that is worth it");
        frame(fields, &payload)
    };
    let of_kind = |kind, id| frame(Fields::new(kind, id), b"");
    let ids = |kind, id: u64| frame(Fields::new(kind, 0), &id.to_le_bytes());
    let cancelled = Fields { status: Status::Cancelled, ..Fields::new(FrameKind::Reply, 3) };
    vec![
        ("peer_handshake", "greeting", greeting.to_vec()),
        ("peer_handshake", "derived", [&derived[..], description].concat()),
        ("peer_handshake", "answer", answer.to_vec()),
        ("peer_handshake", "hello", HELLO.encode().to_vec()),
        ("peer_handshake", "key_file", ClientKey::derive(&KEY, description.to_vec()).file_content()),
        ("peer_frames", "requests", [request(3), request(4), ids(FrameKind::Acknowledge, 3)].concat()),
        ("peer_frames", "lz4", compressed(Compression::Lz4, 3)),
        ("peer_frames", "zstd", compressed(Compression::Zstd, 3)),
        ("peer_frames", "cancel", [request(4), of_kind(FrameKind::Cancel, 4)].concat()),
        (
            "peer_frames",
            "replies",
            [
                frame(Fields::new(FrameKind::Reply, 1), b"hello"),
                frame(cancelled, b""),
                of_kind(FrameKind::Ping, 0),
            ]
            .concat(),
        ),
        (
            "peer_frames",
            "resume",
            [request(6), request(7), ids(FrameKind::Resume, 6), request(6), request(8)].concat(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_and_their_changes_are_accepted_or_refused() {
        for (target, _, seed) in seeds() {
            let check = if target == "peer_frames" { check_frames } else { check_handshake };
            check(&seed);
            for at in 0..seed.len() {
                check(&seed[..at]);
                for bit in [0, 3, 7] {
                    let mut changed = seed.clone();
                    changed[at] ^= 1 << bit;
                    check(&changed);
                }
            }
        }
    }
}
