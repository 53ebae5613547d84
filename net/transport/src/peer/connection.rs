//! The life of one connection: its handshake over a socket, and the task that serves it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::frame::{Fields, FrameKind, LENGTH_BYTES, LENGTH_MIN, Violation, decode_length};
use super::handshake::{
    ANSWER_HEAD_BYTES, ANSWER_PROOF_BYTES, Agreed, GREETING_BYTES, Initiator, Prefix, Refusal, accept,
    answer_head, check_prefix, decode_answer_head, description_bytes, read_greeting,
};
use super::link::{FrameReader, Link, ReadFailure};
use super::outgoing::Frame;
use super::peer_state::Peer;
use super::seal::Seal;
use super::settings::{MemberId, Settings};
use super::stream::Stream;

/// The reason for which a connection was not established, or has ended.
#[derive(Debug)]
pub(super) enum Failure {
    Refused(Refusal),
    Io(io::Error),
    Violation(Violation),
    Closed,
    TimedOut,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(refusal) => refusal.fmt(f),
            Failure::Io(error) => error.fmt(f),
            Failure::Violation(Violation(text)) => f.write_str(text),
            Failure::Closed => f.write_str("closed"),
            Failure::TimedOut => f.write_str("no frame within the time limit"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

impl From<ReadFailure> for Failure {
    fn from(failure: ReadFailure) -> Failure {
        match failure {
            ReadFailure::Closed => Failure::Closed,
            ReadFailure::Io(error) => Failure::Io(error),
            ReadFailure::Violation(violation) => Failure::Violation(violation),
        }
    }
}

/// A connection whose other side has proved that it knows the key.
#[derive(Debug)]
pub(super) struct Proved {
    stream: Stream,
    /// The description of the initiator's key.
    pub description: Vec<u8>,
    agreed: Agreed,
    sending: Seal,
    receiving: Seal,
}

/// Returns the first bytes of a greeting. `settings` are those of the initiator, or of a responder,
/// which has no description.
fn prefix(settings: &Settings, initiator: MemberId, responder: MemberId) -> Prefix {
    let Settings { role, protection, compression, pool, .. } = *settings;
    let description_bytes = settings.description.len() as u16;
    Prefix { role, protection, compression, pool, initiator, responder, description_bytes }
}

/// Connects to a member and agrees on keys.
pub(super) async fn initiate(settings: &Settings, peer: &Peer, connection: u64) -> Result<Proved, Failure> {
    let attempt = async {
        let mut stream = Stream::connect(&peer.address(), settings.server_user).await?;
        let prefix = prefix(settings, settings.member, peer.id);
        let Settings { key, description, .. } = settings;
        let (initiator, greeting) = Initiator::new(&prefix, description, key, &peer.hello(connection));
        stream.write_all(&[&greeting[..], description].concat()).await?;
        let mut head = [0; ANSWER_HEAD_BYTES];
        stream.read_exact(&mut head).await?;
        decode_answer_head(&head)?;
        let mut proof = [0; ANSWER_PROOF_BYTES];
        stream.read_exact(&mut proof).await?;
        let agreed = initiator.finish(&proof)?;
        let mut sending = Seal::new(settings.protection, &agreed.initiator_key);
        let receiving = Seal::new(settings.protection, &agreed.responder_key);
        let frames = [
            Frame::bare(FrameKind::Confirm, 0),
            Frame::with_ids(FrameKind::Resume, &peer.meet(&agreed.hello)),
        ];
        let mut segments = Vec::new();
        for frame in &frames {
            sending.seal(&frame.fields, &frame.payload, &mut segments);
        }
        for segment in &segments {
            stream.write_all(segment.bytes()).await?;
        }
        Ok(Proved { stream, description: description.clone(), agreed, sending, receiving })
    };
    timeout(settings.handshake_limit, attempt).await.unwrap_or(Err(Failure::TimedOut))
}

/// Answers the greeting on a connection that was accepted, and waits for the proof. `find` returns
/// the state of the initiator, which has proved that it knows the key of the description.
pub(super) async fn respond(
    settings: &Settings,
    mut stream: Stream,
    find: impl Fn(MemberId, &[u8]) -> Result<Arc<Peer>, Refusal>,
) -> Result<(Arc<Peer>, Proved), Failure> {
    let attempt = async {
        let mut greeting = [0; GREETING_BYTES];
        stream.read_exact(&mut greeting).await?;
        let checked = check_prefix(&greeting, &prefix(settings, settings.member, settings.member));
        // The description is read before a refusal also: the close of a connection with unread
        // bytes could keep the answer from the initiator.
        let mut description = Vec::new();
        if checked != Err(Refusal::Malformed) {
            description = vec![0; description_bytes(&greeting, settings.role)?.into()];
            stream.read_exact(&mut description).await?;
        }
        let checked = checked.and_then(|initiator| {
            // The proof is checked first, so that a process without the key learns no member
            // numbers.
            let (theirs, noise) = read_greeting(&greeting, &description, &settings.key_of(&description))?;
            Ok((find(initiator, &description)?, theirs, noise))
        });
        let (peer, theirs, noise) = match checked {
            Ok(checked) => checked,
            Err(refusal) => {
                if refusal != Refusal::Malformed {
                    stream.write_all(&answer_head(Some(refusal))).await?;
                }
                return Err(Failure::Refused(refusal));
            }
        };
        let (answer, agreed) = accept(noise, theirs, &peer.hello(theirs.connection));
        stream.write_all(&answer).await?;
        let sending = Seal::new(settings.protection, &agreed.responder_key);
        let mut receiving = Seal::new(settings.protection, &agreed.initiator_key);
        let mut confirm = [0; LENGTH_BYTES + LENGTH_MIN];
        stream.read_exact(&mut confirm).await?;
        let (length, frame) = confirm.split_first_chunk().expect("the frame is longer");
        if decode_length(*length) != Ok(LENGTH_MIN) {
            return Err(Failure::Refused(Refusal::Proof));
        }
        match receiving.open(frame.to_vec()) {
            Ok((Fields { kind: FrameKind::Confirm, .. }, _)) => {}
            _ => return Err(Failure::Refused(Refusal::Proof)),
        }
        Ok((peer, Proved { stream, description, agreed, sending, receiving }))
    };
    timeout(settings.handshake_limit, attempt).await.unwrap_or(Err(Failure::TimedOut))
}

/// Serves a connection until it ends.
pub(super) async fn serve(
    settings: &Settings,
    peer: &Arc<Peer>,
    proved: Proved,
    is_initiator: bool,
    established: impl FnOnce(),
) -> Failure {
    let (read_half, write_half) = proved.stream.into_split();
    let mut reader = FrameReader::new(read_half, proved.receiving, settings.compression);
    let link = Arc::new(Link::new(write_half, proved.sending, settings.compression));
    let first = timeout(settings.handshake_limit, reader.next()).await;
    let payload = match first {
        Err(_) => return Failure::TimedOut,
        Ok(Err(failure)) => return failure.into(),
        Ok(Ok((Fields { kind: FrameKind::Resume, .. }, payload, _))) => payload,
        Ok(Ok(_)) => return Failure::Violation(Violation("the first frame is not resume")),
    };
    if let Err(violation) = peer.connected(&link, &proved.agreed.hello, &payload, is_initiator) {
        return Failure::Violation(violation);
    }
    established();
    tracing::debug!(peer = %peer.id, "connected");
    let failure = tokio::select! {
        failure = read_frames(peer, &link, &mut reader) => failure,
        failure = write_frames(peer, &link, settings.ping_interval, settings.silent_intervals_max) => failure,
        () = link.close.notified() => Failure::Closed,
    };
    peer.disconnected(&link);
    tracing::debug!(peer = %peer.id, reason = %failure, "connection closed");
    failure
}

/// Passes on the frames of a connection. Frames that they cause are written after the last frame
/// that was already received, with one call.
async fn read_frames(peer: &Arc<Peer>, link: &Arc<Link>, reader: &mut FrameReader) -> Failure {
    loop {
        peer.wait_for_turn().await;
        let mut next = reader.next().await;
        link.is_reading.store(true, Ordering::SeqCst);
        let failure = loop {
            let taken = match next {
                Ok((fields, payload, bytes)) => peer.take_frame(link, fields, payload, bytes),
                Err(failure) => break Some(failure.into()),
            };
            match taken {
                Err(violation) => break Some(Failure::Violation(violation)),
                Ok(()) if !reader.has_frame() || peer.is_full() => break None,
                Ok(()) => next = reader.next().await,
            }
        };
        link.is_reading.store(false, Ordering::SeqCst);
        peer.flush(link);
        if let Some(failure) = failure {
            return failure;
        }
    }
}

/// Writes the frames of a connection when it is woken, and sends pings.
async fn write_frames(
    peer: &Arc<Peer>,
    link: &Arc<Link>,
    ping_interval: Duration,
    silent_intervals_max: u32,
) -> Failure {
    let mut ticks = interval(ping_interval);
    // A process that was stopped does not count the intervals that it has missed.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let (mut silent_intervals, mut frames_seen) = (0, 0);
    loop {
        let is_full = link.is_full.load(Ordering::SeqCst);
        tokio::select! {
            () = link.wake.notified() => {}
            writable = link.writable(), if is_full => {
                if let Err(e) = writable {
                    return e.into();
                }
                link.is_full.store(false, Ordering::SeqCst);
            }
            _ = ticks.tick() => {
                let frames = link.frames_received.load(Ordering::Relaxed);
                silent_intervals = if frames == frames_seen { silent_intervals + 1 } else { 0 };
                frames_seen = frames;
                if silent_intervals >= silent_intervals_max {
                    return Failure::TimedOut;
                }
                peer.ping(link, silent_intervals > 0);
            }
        }
        if !link.is_full.load(Ordering::SeqCst) {
            peer.flush(link);
        }
    }
}
