//! The handshake of a connection, from bytes to bytes: greeting, answer, and the keys that follow
//! from them. docs/formats/peer-protocol.md draws the bytes. No I/O.

use std::fmt;

use snow::{Builder, HandshakeState};

use super::settings::{
    BYTES_HELD_MIN, Compression, DESCRIPTION_BYTES_MAX, MemberId, PoolId, PoolKey, Protection,
    REQUESTS_HELD_MAX, Role,
};

const MAGIC: [u8; 8] = *b"QUELPEER";
const VERSION: u16 = 1;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// The part of the greeting that the prologue of Noise covers, with the description after it.
const PREFIX_BYTES: usize = 48;
const HELLO_BYTES: usize = 32;
/// An ephemeral key, the encrypted hello, and its tag.
const NOISE_BYTES: usize = 32 + HELLO_BYTES + 16;

/// The size of a greeting without the description of the initiator's key, which follows it.
pub(super) const GREETING_BYTES: usize = PREFIX_BYTES + NOISE_BYTES;
/// The size of the header of an answer; a refusal has no more.
pub(super) const ANSWER_HEAD_BYTES: usize = 16;
/// The size of the Noise message in an answer that accepts.
pub(super) const ANSWER_PROOF_BYTES: usize = NOISE_BYTES;

/// The reason for which a handshake was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Version,
    Role,
    Protection,
    Pool,
    NotThisMember,
    UnknownInitiator,
    Proof,
    Stopping,
    Compression,
    Full,
    /// The responder does not know the description of the key.
    Description,
    /// Bytes that are not a greeting or an answer. No answer is sent.
    Malformed,
}

const REFUSALS: [Refusal; 11] = [
    Refusal::Version,
    Refusal::Role,
    Refusal::Protection,
    Refusal::Pool,
    Refusal::NotThisMember,
    Refusal::UnknownInitiator,
    Refusal::Proof,
    Refusal::Stopping,
    Refusal::Compression,
    Refusal::Full,
    Refusal::Description,
];

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Version => "the other member uses another version of the protocol",
            Refusal::Role => "the other process has another role",
            Refusal::Protection => "one member encrypts its connections and the other does not",
            Refusal::Pool => "the other process belongs to another pool",
            Refusal::NotThisMember => "another member of the pool has this address",
            Refusal::UnknownInitiator => "the other member does not know this member",
            Refusal::Proof => "the two processes have different keys",
            Refusal::Stopping => "the other member is stopping",
            Refusal::Compression => "the two members compress their connections in different ways",
            Refusal::Full => "the server has its maximum number of clients, in total or of this user",
            Refusal::Description => "the server does not know keys of this kind",
            Refusal::Malformed => "the other process does not speak this protocol",
        })
    }
}

/// The statement of one member about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub session: u64,
    pub connection: u64,
    pub requests_held_max: u32,
    pub bytes_held_max: u64,
}

impl Hello {
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.connection.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.requests_held_max.to_le_bytes());
        bytes[24..].copy_from_slice(&self.bytes_held_max.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Hello, Refusal> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().map_err(|_| Refusal::Malformed)?;
        let hello = Hello {
            session: number(bytes, 0),
            connection: number(bytes, 8),
            requests_held_max: u32::from_le_bytes(bytes[16..20].try_into().expect("4 bytes")),
            bytes_held_max: number(bytes, 24),
        };
        let is_in_bounds = (1..=REQUESTS_HELD_MAX).contains(&hello.requests_held_max)
            && hello.bytes_held_max >= BYTES_HELD_MIN
            && hello.connection != 0
            && bytes[20..24] == [0; 4];
        if is_in_bounds { Ok(hello) } else { Err(Refusal::Malformed) }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The first bytes of a greeting, in clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefix {
    pub role: Role,
    pub protection: Protection,
    pub compression: Compression,
    pub pool: PoolId,
    pub initiator: MemberId,
    pub responder: MemberId,
    /// The length of the description of the initiator's key: 0 between the members of a pool.
    pub description_bytes: u16,
}

fn role_number(role: Role) -> u8 {
    match role {
        Role::Pool => 1,
        Role::Blob => 2,
        Role::Batch => 3,
        Role::Job => 4,
    }
}

fn protection_number(protection: Protection) -> u8 {
    match protection {
        Protection::Integrity => 0,
        Protection::Encryption => 1,
        Protection::None => 2,
    }
}

fn compression_number(compression: Compression) -> u8 {
    match compression {
        Compression::None => 0,
        Compression::Lz4 => 1,
        Compression::Zstd => 2,
    }
}

impl Prefix {
    pub fn encode(&self) -> [u8; PREFIX_BYTES] {
        let mut bytes = [0; PREFIX_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = role_number(self.role);
        bytes[11] = protection_number(self.protection);
        bytes[12] = compression_number(self.compression);
        bytes[14..16].copy_from_slice(&self.description_bytes.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.pool.0);
        bytes[32..40].copy_from_slice(&self.initiator.0.to_le_bytes());
        bytes[40..].copy_from_slice(&self.responder.0.to_le_bytes());
        bytes
    }
}

/// Returns the length of the description after a greeting. It is at most
/// [`DESCRIPTION_BYTES_MAX`], and 0 for services without derived or named keys.
pub(super) fn description_bytes(greeting: &[u8; GREETING_BYTES], role: Role) -> Result<u16, Refusal> {
    let length = u16::from_le_bytes([greeting[14], greeting[15]]);
    let length_max = match role {
        Role::Pool | Role::Job => 0,
        Role::Blob | Role::Batch => DESCRIPTION_BYTES_MAX,
    };
    if usize::from(length) > length_max { Err(Refusal::Malformed) } else { Ok(length) }
}

/// Checks a greeting's first bytes against the responder's own, except the initiator and the length
/// of its description, and returns the initiator's number.
pub(super) fn check_prefix(greeting: &[u8; GREETING_BYTES], own: &Prefix) -> Result<MemberId, Refusal> {
    let initiator = MemberId(number(greeting, 32));
    let description_bytes = description_bytes(greeting, own.role)?;
    let expected = Prefix { initiator, description_bytes, ..*own }.encode();
    let differs = |from: usize, to: usize| greeting[from..to] != expected[from..to];
    match () {
        () if differs(0, 8) => Err(Refusal::Malformed),
        () if differs(8, 10) => Err(Refusal::Version),
        () if differs(10, 11) => Err(Refusal::Role),
        () if differs(11, 12) => Err(Refusal::Protection),
        () if differs(12, 13) => Err(Refusal::Compression),
        () if differs(13, 14) => Err(Refusal::Malformed),
        () if differs(16, 32) => Err(Refusal::Pool),
        () if differs(40, 48) => Err(Refusal::NotThisMember),
        () => Ok(initiator),
    }
}

/// The result of a handshake: the other member's statement, and a key for each direction.
#[derive(Clone)]
pub(super) struct Agreed {
    pub hello: Hello,
    pub initiator_key: [u8; 32],
    pub responder_key: [u8; 32],
}

impl fmt::Debug for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agreed").field("hello", &self.hello).finish_non_exhaustive()
    }
}

/// Returns the state of Noise before the first message. `key` is the key that belongs to the
/// description.
fn noise(prefix: &[u8], description: &[u8], key: &PoolKey, is_initiator: bool) -> HandshakeState {
    let builder = Builder::new(PATTERN.parse().expect("a pattern of Noise"));
    let prologue = [prefix, description].concat();
    let builder = builder.prologue(&prologue).and_then(|builder| builder.psk(0, &key.0));
    let built = builder.and_then(|builder| match is_initiator {
        true => builder.build_initiator(),
        false => builder.build_responder(),
    });
    built.expect("the pattern needs nothing else")
}

fn agreed(mut noise: HandshakeState, hello: Hello) -> Agreed {
    let (initiator_key, responder_key) = noise.dangerously_get_raw_split();
    Agreed { hello, initiator_key, responder_key }
}

/// The initiator's half of a handshake.
#[derive(Debug)]
pub(super) struct Initiator {
    noise: HandshakeState,
    connection: u64,
}

impl Initiator {
    /// Begins a handshake with a key and its description, and returns the greeting to send, which
    /// the description follows.
    pub fn new(
        prefix: &Prefix,
        description: &[u8],
        key: &PoolKey,
        hello: &Hello,
    ) -> (Initiator, [u8; GREETING_BYTES]) {
        let mut greeting = [0; GREETING_BYTES];
        greeting[..PREFIX_BYTES].copy_from_slice(&prefix.encode());
        let mut noise = noise(&greeting[..PREFIX_BYTES], description, key, true);
        let written = noise.write_message(&hello.encode(), &mut greeting[PREFIX_BYTES..]);
        assert_eq!(written.expect("the buffer has the size of the message"), NOISE_BYTES);
        (Initiator { noise, connection: hello.connection }, greeting)
    }

    /// Ends the handshake with the message in an answer that accepts.
    pub fn finish(mut self, proof: &[u8; ANSWER_PROOF_BYTES]) -> Result<Agreed, Refusal> {
        let mut hello = [0; NOISE_BYTES];
        let read = self.noise.read_message(proof, &mut hello).map_err(|_| Refusal::Proof)?;
        let hello = Hello::decode(&hello[..read])?;
        match hello.connection == self.connection {
            true => Ok(agreed(self.noise, hello)),
            false => Err(Refusal::Malformed),
        }
    }
}

/// Returns the initiator's statement and the state of Noise after a greeting whose prefix was
/// checked. `key` is the key that belongs to the description.
pub(super) fn read_greeting(
    greeting: &[u8; GREETING_BYTES],
    description: &[u8],
    key: &PoolKey,
) -> Result<(Hello, HandshakeState), Refusal> {
    let mut noise = noise(&greeting[..PREFIX_BYTES], description, key, false);
    let mut hello = [0; NOISE_BYTES];
    let read = noise.read_message(&greeting[PREFIX_BYTES..], &mut hello).map_err(|_| Refusal::Proof)?;
    Ok((Hello::decode(&hello[..read])?, noise))
}

/// Returns the answer that accepts a greeting, and the result of the handshake.
pub(super) fn accept(
    mut noise: HandshakeState,
    theirs: Hello,
    own: &Hello,
) -> ([u8; ANSWER_HEAD_BYTES + ANSWER_PROOF_BYTES], Agreed) {
    let mut answer = [0; ANSWER_HEAD_BYTES + ANSWER_PROOF_BYTES];
    answer[..ANSWER_HEAD_BYTES].copy_from_slice(&answer_head(None));
    let written = noise.write_message(&own.encode(), &mut answer[ANSWER_HEAD_BYTES..]);
    assert_eq!(written.expect("the buffer has the size of the message"), ANSWER_PROOF_BYTES);
    (answer, agreed(noise, theirs))
}

/// Returns the header of an answer; it is the whole answer if it refuses.
pub(super) fn answer_head(refusal: Option<Refusal>) -> [u8; ANSWER_HEAD_BYTES] {
    let mut head = [0; ANSWER_HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..10].copy_from_slice(&VERSION.to_le_bytes());
    let code = refusal.map(|refusal| REFUSALS.iter().position(|listed| *listed == refusal));
    head[10] = code.map_or(0, |code| code.expect("Malformed is not answered") as u8 + 1);
    head
}

/// Decodes the header of an answer: an error if it refuses.
pub(super) fn decode_answer_head(head: &[u8; ANSWER_HEAD_BYTES]) -> Result<(), Refusal> {
    if head[..8] != MAGIC {
        return Err(Refusal::Malformed);
    }
    match usize::from(head[10]) {
        0 if head[8..10] == VERSION.to_le_bytes() && head[11..] == [0; 5] => Ok(()),
        0 => Err(Refusal::Malformed),
        code => Err(REFUSALS.get(code - 1).copied().unwrap_or(Refusal::Malformed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: Prefix = Prefix {
        role: Role::Pool,
        protection: Protection::Integrity,
        compression: Compression::None,
        pool: PoolId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        initiator: MemberId(1),
        responder: MemberId(2),
        description_bytes: 0,
    };

    fn hello(session: u64) -> Hello {
        Hello { session, connection: 1, requests_held_max: 16, bytes_held_max: 8 << 20 }
    }

    fn answer(
        greeting: &[u8; GREETING_BYTES],
        key: &PoolKey,
    ) -> Result<([u8; ANSWER_HEAD_BYTES + ANSWER_PROOF_BYTES], Agreed), Refusal> {
        let (theirs, noise) = read_greeting(greeting, b"", key)?;
        Ok(accept(noise, theirs, &hello(20)))
    }

    #[test]
    fn the_example_of_the_format_is_encoded() {
        let bytes = PREFIX.encode();
        assert_eq!(bytes[..16], *b"QUELPEER\x01\0\x01\0\0\0\0\0");
        assert_eq!(bytes[16..32], PREFIX.pool.0);
        assert_eq!(bytes[32..], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn both_members_agree_on_keys_and_know_the_other_session() {
        let key = PoolKey([3; 32]);
        let (initiator, greeting) = Initiator::new(&PREFIX, b"", &key, &hello(10));
        assert_eq!(check_prefix(&greeting, &PREFIX), Ok(MemberId(1)));
        let (answer, at_responder) = answer(&greeting, &key).unwrap();
        decode_answer_head(answer.first_chunk().unwrap()).unwrap();
        let at_initiator = initiator.finish(answer.last_chunk().unwrap()).unwrap();
        assert_eq!((at_responder.hello.session, at_initiator.hello.session), (10, 20));
        assert_eq!(at_initiator.initiator_key, at_responder.initiator_key);
        assert_eq!(at_initiator.responder_key, at_responder.responder_key);
        assert_ne!(at_initiator.initiator_key, at_initiator.responder_key);
    }

    #[test]
    fn each_side_refuses_another_key() {
        let (initiator, greeting) = Initiator::new(&PREFIX, b"", &PoolKey([3; 32]), &hello(10));
        assert_eq!(answer(&greeting, &PoolKey([4; 32])).unwrap_err(), Refusal::Proof);
        // A responder without the key can only invent an answer, for example with another key.
        let (_, other) = Initiator::new(&PREFIX, b"", &PoolKey([4; 32]), &hello(10));
        let (forged, _) = answer(&other, &PoolKey([4; 32])).unwrap();
        let refused = initiator.finish(forged.last_chunk().unwrap());
        assert_eq!(refused.unwrap_err(), Refusal::Proof);
    }

    #[test]
    fn every_changed_byte_of_a_handshake_is_detected() {
        let key = PoolKey([3; 32]);
        let (_, greeting) = Initiator::new(&PREFIX, b"", &key, &hello(10));
        for at in 0..GREETING_BYTES {
            let mut changed = greeting;
            changed[at] ^= 1 << (at % 8);
            assert!(answer(&changed, &key).is_err(), "byte {at}");
        }
        for at in 0..ANSWER_PROOF_BYTES {
            let (initiator, greeting) = Initiator::new(&PREFIX, b"", &key, &hello(10));
            let (mut changed, _) = answer(&greeting, &key).unwrap();
            changed[ANSWER_HEAD_BYTES + at] ^= 1 << (at % 8);
            assert!(initiator.finish(changed.last_chunk().unwrap()).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_greeting_for_another_pool_version_member_mode_or_compression_is_refused() {
        let check = |change: &dyn Fn(&mut [u8; GREETING_BYTES])| {
            let (_, mut greeting) = Initiator::new(&PREFIX, b"", &PoolKey([3; 32]), &hello(10));
            change(&mut greeting);
            check_prefix(&greeting, &PREFIX)
        };
        assert_eq!(check(&|_| ()), Ok(MemberId(1)));
        for (at, refusal) in [
            (0, Refusal::Malformed),
            (8, Refusal::Version),
            (10, Refusal::Role),
            (11, Refusal::Protection),
            (12, Refusal::Compression),
            (13, Refusal::Malformed),
            // A member of a pool has no description.
            (14, Refusal::Malformed),
            (31, Refusal::Pool),
            (40, Refusal::NotThisMember),
        ] {
            assert_eq!(check(&|greeting| greeting[at] ^= 0x80), Err(refusal), "byte {at}");
            if refusal != Refusal::Malformed {
                assert_eq!(decode_answer_head(&answer_head(Some(refusal))), Err(refusal));
            }
        }
    }

    #[test]
    fn a_derived_key_proves_its_own_description_only() {
        let key = PoolKey([3; 32]);
        let prefix = |description: &[u8]| Prefix {
            role: Role::Blob,
            description_bytes: description.len() as u16,
            ..PREFIX
        };
        let own = Prefix { role: Role::Blob, ..PREFIX };
        let derived = key.derived(b"read a");
        let (initiator, greeting) = Initiator::new(&prefix(b"read a"), b"read a", &derived, &hello(10));
        assert_eq!(check_prefix(&greeting, &own), Ok(MemberId(1)));
        assert_eq!(description_bytes(&greeting, Role::Blob), Ok(6));
        let read_greeting = |greeting: &[u8; GREETING_BYTES], description: &[u8], key: &PoolKey| {
            read_greeting(greeting, description, &key.derived(description))
        };
        let (theirs, noise) = read_greeting(&greeting, b"read a", &key).unwrap();
        let (answer, _) = accept(noise, theirs, &hello(20));
        initiator.finish(answer.last_chunk().unwrap()).unwrap();
        // Another description, no description, and the key of another server.
        for (description, key) in [(&b"read b"[..], [3; 32]), (b"", [3; 32]), (b"read a", [4; 32])] {
            let refused = read_greeting(&greeting, description, &PoolKey(key)).unwrap_err();
            assert_eq!(refused, Refusal::Proof);
        }
        // A description that was changed before the handshake, also with the same key.
        for key_of_client in [&derived, &key] {
            let (_, greeting) = Initiator::new(&prefix(b"read b"), b"read b", key_of_client, &hello(10));
            assert_eq!(read_greeting(&greeting, b"read b", &key).unwrap_err(), Refusal::Proof);
        }
        let mut too_long = prefix(b"");
        too_long.description_bytes = DESCRIPTION_BYTES_MAX as u16 + 1;
        let (_, greeting) = Initiator::new(&too_long, b"", &key, &hello(10));
        assert_eq!(check_prefix(&greeting, &own), Err(Refusal::Malformed));
    }
}
