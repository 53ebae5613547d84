//! Simulates the calls of one member to another over connections that are lost and replaced, with
//! restarts of both, from a seed: no request is executed twice, every call ends once with the right
//! result, and all credit returns.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_vfs::Error;
use quell_vfs::ErrorKind::Unavailable;

use super::frame::{Fields, FrameKind, Status, decode_ids};
use super::handshake::Hello;
use super::incoming::{Incoming, RequestAction};
use super::outgoing::{Credit, Frame, Outgoing};
use super::settings::BYTES_HELD_MIN;

const LIMIT: Credit = Credit { requests: 5, bytes: BYTES_HELD_MIN };

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % end
    }
}

/// The ends of calls: for each number, how often it ended and whether with a reply.
type Ends = Arc<Mutex<HashMap<u32, (u32, bool)>>>;

struct Simulation {
    random: Random,
    now: Instant,
    sender: Outgoing,
    receiver: Incoming,
    sessions: (u64, u64),
    connection: u64,
    is_connected: bool,
    /// Frames in transit.
    requests: VecDeque<Frame>,
    replies: VecDeque<Frame>,
    /// Requests that the handler has: session and id of the sender, and the number of the call.
    begun: Vec<(u64, u64, u32)>,
    executed: HashSet<u32>,
    calls: u32,
    ends: Ends,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        Simulation {
            random: Random(seed),
            now: Instant::now(),
            sender: Outgoing::new(),
            receiver: Incoming::new(LIMIT),
            sessions: (1, 1_000_000),
            connection: 0,
            is_connected: false,
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            begun: Vec::new(),
            executed: HashSet::new(),
            calls: 0,
            ends: Ends::default(),
        }
    }

    fn end(&mut self, ended: Vec<super::outgoing::Ended>) {
        for ended in ended {
            (ended.done)(Err(Error::new(Unavailable, "call", "")));
        }
    }

    fn call(&mut self) {
        let (number, ends) = (self.calls, self.ends.clone());
        self.calls += 1;
        let deadline = self.now + Duration::from_millis(1 + self.random.below(300));
        let done = move |result: quell_vfs::Result<Vec<u8>>| {
            let is_right = result.map(|reply| assert_eq!(reply, number.to_le_bytes())).is_ok();
            let mut ends = ends.lock().unwrap();
            let end = ends.entry(number).or_insert((0, is_right));
            end.0 += 1;
        };
        self.sender.call(Arc::new(number.to_le_bytes().to_vec()), 4, deadline, Box::new(done));
    }

    fn lose(&mut self) {
        self.is_connected = false;
        self.requests.clear();
        self.replies.clear();
        self.sender.disconnected();
        self.receiver.disconnected();
    }

    /// Establishes a connection, as `Peer` does.
    fn connect(&mut self) {
        self.connection += 1;
        let theirs = Hello {
            session: self.sessions.1,
            connection: 1,
            requests_held_max: 5,
            bytes_held_max: LIMIT.bytes,
        };
        let lost = self.sender.meet(theirs.session, LIMIT);
        self.end(lost);
        let resume = self.sender.sent();
        self.receiver.resume(self.sessions.0, self.connection, resume.into_iter()).unwrap();
        self.sender.connected();
        self.is_connected = true;
    }

    /// The sender or the receiver starts again, without memory.
    fn restart(&mut self, is_sender: bool) {
        self.lose();
        if is_sender {
            let ended = self.sender.end_all();
            self.end(ended);
            self.sender = Outgoing::new();
            self.sessions.0 += 1;
        } else {
            self.receiver = Incoming::new(LIMIT);
            self.sessions.1 += 1;
            self.begun.clear();
        }
    }

    fn deliver_request(&mut self) {
        let Some(frame) = self.requests.pop_front() else { return };
        let fields = frame.fields;
        match fields.kind {
            FrameKind::Request => {
                if self.receiver.request(&fields, frame.payload.len()).unwrap() == RequestAction::Execute {
                    let number = u32::from_le_bytes(frame.payload[..].try_into().unwrap());
                    assert!(self.executed.insert(number), "call {number} is executed twice");
                    self.begun.push((self.receiver.session(), fields.id, number));
                }
            }
            FrameKind::Cancel => self.receiver.cancel(fields.id).unwrap(),
            FrameKind::Acknowledge => self.receiver.acknowledge(decode_ids(&frame.payload)).unwrap(),
            kind => panic!("{kind:?}"),
        }
    }

    fn deliver_reply(&mut self) {
        let Some(frame) = self.replies.pop_front() else { return };
        if let Some(done) = self.sender.reply(frame.fields.id, frame.payload.len()).unwrap() {
            match frame.fields.status {
                Status::Done => done(Ok(frame.payload.to_vec())),
                _ => done(Err(Error::new(Unavailable, "call", ""))),
            }
        }
    }

    fn answer(&mut self) {
        if self.begun.is_empty() {
            return;
        }
        let chosen = self.random.below(self.begun.len() as u64) as usize;
        let (session, id, number) = self.begun.swap_remove(chosen);
        self.receiver.answer(session, id, Status::Done, number.to_le_bytes().to_vec());
    }

    fn send(&mut self, bytes_max: usize) {
        if self.is_connected {
            let mut frames = Vec::new();
            self.sender.take(self.now, bytes_max, &mut frames);
            self.requests.extend(frames.drain(..));
            self.receiver.take(bytes_max, &mut frames);
            self.replies.extend(frames);
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..10 => self.call(),
            10..40 => {
                let bytes_max = 1 + self.random.below(20) as usize;
                self.send(bytes_max);
            }
            40..60 => self.deliver_request(),
            60..75 => self.deliver_reply(),
            75..88 => self.answer(),
            88..93 if self.is_connected => self.lose(),
            93..98 if !self.is_connected => self.connect(),
            98 if self.random.below(20) == 0 => {
                let is_sender = self.random.below(2) == 0;
                self.restart(is_sender);
            }
            _ => {
                self.now += Duration::from_millis(self.random.below(6));
                let ended = self.sender.expire(self.now);
                self.end(ended);
            }
        }
        assert!(self.receiver.begun() <= LIMIT.requests && self.sender.in_flight() <= LIMIT.requests);
    }

    /// Lets everything end without further losses.
    fn finish(&mut self) {
        if !self.is_connected {
            self.connect();
        }
        for _ in 0..self.calls + 100 {
            self.send(usize::MAX);
            while !self.requests.is_empty() {
                self.deliver_request();
            }
            while !self.begun.is_empty() {
                self.answer();
            }
            self.send(usize::MAX);
            while !self.replies.is_empty() {
                self.deliver_reply();
            }
        }
        self.requests.extend(self.sender.take_acknowledgement());
        self.deliver_request();
        assert_eq!((self.sender.in_flight(), self.sender.queued()), (0, (0, 0)));
        assert_eq!(self.receiver.held(), Credit { requests: 0, bytes: 0 });
        let ends = self.ends.lock().unwrap();
        for number in 0..self.calls {
            let (times, has_reply) = ends[&number];
            assert_eq!(times, 1, "call {number}");
            assert!(!has_reply || self.executed.contains(&number));
        }
    }
}

#[test]
fn calls_end_once_and_are_executed_at_most_once_over_lost_connections_and_restarts() {
    let (mut replies, mut calls) = (0, 0);
    for seed in 0..300 {
        let mut simulation = Simulation::new(seed);
        for _ in 0..1500 {
            simulation.step();
        }
        simulation.finish();
        calls += simulation.calls;
        replies += simulation.ends.lock().unwrap().values().filter(|(_, has_reply)| *has_reply).count();
    }
    // The simulation does not end most calls with errors.
    assert!(replies * 3 > calls as usize, "{replies} of {calls} calls have a reply");
}

#[test]
fn a_delayed_connection_cannot_replace_a_later_one() {
    let mut receiver = Incoming::new(LIMIT);
    receiver.resume(1, 5, [].into_iter()).unwrap();
    assert!(receiver.resume(1, 5, [].into_iter()).is_err());
    assert!(receiver.resume(1, 4, [].into_iter()).is_err());
    receiver.resume(2, 1, [].into_iter()).unwrap();
    assert!(receiver.resume(1, 6, [].into_iter()).is_err(), "a session that was replaced");
    receiver.resume(2, 2, [].into_iter()).unwrap();
}

#[test]
fn an_executed_request_has_an_unsent_answer_until_it_is_repeated_on_the_next_connection() {
    let mut receiver = Incoming::new(LIMIT);
    receiver.resume(1, 1, [].into_iter()).unwrap();
    let request = Fields::new(FrameKind::Request, 1);
    assert_eq!(receiver.request(&request, 1).unwrap(), RequestAction::Execute);
    assert!(receiver.answer(1, 1, Status::Done, Vec::new()));
    assert!(receiver.has_output() && !receiver.has_unsent_answer());
    // The connection is lost, and the reply with it.
    receiver.disconnected();
    receiver.resume(1, 2, [1].into_iter()).unwrap();
    assert!(!receiver.has_output() && receiver.has_unsent_answer());
    assert_eq!(receiver.request(&request, 1).unwrap(), RequestAction::Ignore);
    assert!(receiver.has_output() && !receiver.has_unsent_answer());
}
