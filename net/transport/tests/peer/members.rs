//! Members of a pool in this process: their settings, a handler that counts, and calls that wait.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_transport::peer::{
    Handler, MemberId, PeerNetwork, PoolId, PoolKey, Reply, Request, Settings, Transport,
};
use quell_vfs::{Error, ErrorKind, Result};

/// Longer than any test needs on a slow machine.
pub const LONG: Duration = Duration::from_secs(120);

/// The first bytes of requests that the handler keeps, or drops without a reply.
pub const KEEP: u8 = 0xf0;
pub const FORGET: u8 = 0xf1;
pub const PANIC: u8 = 0xf2;
pub const ANSWER_LATER: u8 = 0xf3;

/// Answers a request with its bytes, each increased by one, and counts the executions of each.
#[derive(Default)]
pub struct Counting {
    pub executed: Mutex<HashMap<Vec<u8>, u32>>,
    /// Replies to requests that begin with `KEEP`.
    pub kept: Mutex<Vec<(Request, Reply)>>,
}

pub fn answer_to(request: &[u8]) -> Vec<u8> {
    request.iter().map(|byte| byte.wrapping_add(1)).collect()
}

impl Handler for Counting {
    fn handle(&self, request: Request, reply: Reply) {
        let key = request.bytes[..request.bytes.len().min(64)].to_vec();
        // Locked until the request is kept, so that a test that has seen the count can release it.
        let mut executed = self.executed.lock().unwrap();
        *executed.entry(key).or_default() += 1;
        if request.bytes.first() == Some(&KEEP) {
            return self.kept.lock().unwrap().push((request, reply));
        }
        drop(executed);
        match request.bytes.first() {
            Some(&FORGET) => drop(reply),
            Some(&PANIC) => panic!("a handler with an error (expected in this test)"),
            Some(&ANSWER_LATER) => drop(std::thread::spawn(move || reply.send(answer_to(&request.bytes)))),
            _ => reply.send(answer_to(&request.bytes)),
        }
    }
}

impl Counting {
    pub fn executions(&self) -> usize {
        self.executed.lock().unwrap().values().map(|count| *count as usize).sum()
    }

    pub fn assert_none_twice(&self) {
        let executed = self.executed.lock().unwrap();
        assert!(executed.values().all(|count| *count == 1), "a request was executed twice");
    }

    /// Answers all requests that were kept.
    pub fn release(&self) {
        for (request, reply) in self.kept.lock().unwrap().drain(..) {
            reply.send(answer_to(&request.bytes));
        }
    }
}

pub fn settings(id: u64) -> Settings {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Settings::new(PoolId([1; 16]), PoolKey([7; 32]), MemberId(id), listen)
}

/// Begins a call.
pub fn begin(
    from: &dyn Transport,
    to: MemberId,
    request: Vec<u8>,
    reply_bytes_max: u32,
    limit: Duration,
) -> Receiver<Result<Vec<u8>>> {
    let (sender, receiver) = channel();
    let done = move |result| drop(sender.send(result));
    from.call(to, Arc::new(request), reply_bytes_max, Instant::now() + limit, Box::new(done));
    receiver
}

/// A member with its handler.
pub struct Member {
    pub id: MemberId,
    pub network: PeerNetwork,
    pub handler: Arc<Counting>,
}

impl Member {
    pub fn start(settings: Settings) -> Member {
        let handler = Arc::new(Counting::default());
        let id = settings.member;
        let network = PeerNetwork::start(settings, handler.clone()).unwrap();
        Member { id, network, handler }
    }

    /// Starts a member on the address of one that has just ended, as soon as it is free.
    pub fn restart(settings: &Settings) -> Member {
        let handler = Arc::new(Counting::default());
        let end = Instant::now() + LONG;
        loop {
            match PeerNetwork::start(settings.clone(), handler.clone()) {
                Ok(network) => return Member { id: settings.member, network, handler },
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Makes `other` known, at this address.
    pub fn knows(&self, other: &Member, address: SocketAddr) {
        self.network.set_members(&HashMap::from([(other.id, address)])).unwrap();
    }

    /// Begins a call.
    pub fn begin(&self, to: MemberId, request: Vec<u8>, limit: Duration) -> Receiver<Result<Vec<u8>>> {
        let reply_bytes_max = request.len() as u32;
        begin(&self.network, to, request, reply_bytes_max, limit)
    }

    /// Calls and waits.
    pub fn call(&self, to: MemberId, request: &[u8]) -> Result<Vec<u8>> {
        result(&self.begin(to, request.to_vec(), LONG))
    }

    /// Waits until the counters of a member have a property.
    pub fn wait(&self, to: MemberId, has: impl Fn(&quell_transport::peer::PeerCounters) -> bool) {
        let counters = || self.network.counters().into_iter().find(|(id, _)| *id == to).map(|(_, c)| c);
        wait_until(|| counters().is_some_and(|counters| has(&counters)));
    }
}

/// Waits for the result of a call, which always comes.
pub fn result(receiver: &Receiver<Result<Vec<u8>>>) -> Result<Vec<u8>> {
    receiver.recv_timeout(LONG + LONG).expect("every call ends")
}

pub fn wait_until(condition: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < end, "the condition does not become true");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn kind(result: Result<Vec<u8>>) -> ErrorKind {
    result.expect_err("the call fails").kind
}

pub fn text(result: Result<Vec<u8>>) -> String {
    let error: Error = result.expect_err("the call fails");
    error.to_string()
}

/// Two members that know each other.
pub fn pair(change: impl Fn(&mut Settings)) -> (Member, Member) {
    let start = |id| {
        let mut settings = settings(id);
        change(&mut settings);
        Member::start(settings)
    };
    let (one, two) = (start(1), start(2));
    one.knows(&two, two.network.address());
    two.knows(&one, one.network.address());
    (one, two)
}
