//! Measures two members on the loopback device, both in this process: round trips of 64 bytes, and
//! requests of up to 512 KiB, with each protection, and with each compression and kind of data:
//! `cargo bench -p quell-transport --bench peer [FILTER]`.
//!
//! With the arguments `serve ADDRESS`, and `call FROM TO [FILTER]` in another process, for example
//! in another network namespace, it measures the compressions. `serve` uses the port of ADDRESS and
//! the next two, and ends with its standard input. FROM is an address to listen on, such as
//! 10.0.0.1:0.
//!
//! A chain of calls begins the next call in the function that receives a result; a blocking thread
//! waits for each result. The processor time includes both members, and the kernel's work for them.
//! `QUELL_BENCH_SECONDS` is the duration of each measurement (default 2).

mod payloads;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use payloads::{KINDS, data};
use quell_transport::peer::{
    Compression, Handler, MemberId, PeerNetwork, PoolId, PoolKey, Protection, Reply, Request, Settings,
    Transport,
};

const LIMIT: Duration = Duration::from_secs(60);
const FROM: MemberId = MemberId(1);
const TO: MemberId = MemberId(2);
/// The length of a request for the processor time, which no other request has.
const TIME_REQUEST_BYTES: usize = 65;
const COMPRESSIONS: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

struct Small;

impl Handler for Small {
    fn handle(&self, request: Request, reply: Reply) {
        if request.bytes.len() == TIME_REQUEST_BYTES {
            return reply.send((processor_time().as_millis() as u64).to_le_bytes().to_vec());
        }
        // Replies have 64 bytes, whatever the size of the request.
        reply.send(request.bytes[..64].to_vec());
    }
}

fn member(id: MemberId, listen: SocketAddr, protection: Protection, compression: Compression) -> PeerNetwork {
    let settings = Settings::new(PoolId([1; 16]), PoolKey([2; 32]), id, listen);
    let settings = Settings { protection, compression, ..settings };
    PeerNetwork::start(settings, Arc::new(Small)).expect("the address is free")
}

/// Calls that are in progress, and their end.
struct Chains {
    network: PeerNetwork,
    data: Vec<u8>,
    bytes: usize,
    begun: AtomicUsize,
    is_ending: AtomicBool,
    calls: AtomicU64,
    running: AtomicUsize,
}

impl Chains {
    /// Returns the next part of the data.
    fn request(&self) -> Vec<u8> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) % (self.data.len() / self.bytes);
        self.data[number * self.bytes..][..self.bytes].to_vec()
    }

    /// Returns the processor time of the other process.
    fn their_processor_time(&self) -> Duration {
        let (sender, receiver) = sync_channel(1);
        let done = move |result| sender.send(result).expect("this thread waits");
        let request = vec![0; TIME_REQUEST_BYTES];
        self.network.call(TO, Arc::new(request), 64, Instant::now() + LIMIT, Box::new(done));
        let reply = receiver.recv().expect("every call ends").expect("they are connected");
        Duration::from_millis(u64::from_le_bytes(reply.try_into().expect("8 bytes")))
    }
}

fn next(chains: &Arc<Chains>) {
    let again = chains.clone();
    let done = move |result: quell_vfs::Result<Vec<u8>>| {
        assert_eq!(result.expect("the members are connected").len(), 64);
        again.calls.fetch_add(1, Ordering::Relaxed);
        match again.is_ending.load(Ordering::Relaxed) {
            true => drop(again.running.fetch_sub(1, Ordering::SeqCst)),
            false => next(&again),
        }
    };
    chains.network.call(TO, Arc::new(chains.request()), 64, Instant::now() + LIMIT, Box::new(done));
}

fn blocking(chains: &Arc<Chains>) {
    let (sender, receiver) = sync_channel(1);
    while !chains.is_ending.load(Ordering::Relaxed) {
        let sender = sender.clone();
        let done = move |result| sender.send(result).expect("the thread waits");
        chains.network.call(TO, Arc::new(chains.request()), 64, Instant::now() + LIMIT, Box::new(done));
        assert_eq!(receiver.recv().expect("every call ends").expect("they are connected").len(), 64);
        chains.calls.fetch_add(1, Ordering::Relaxed);
    }
    chains.running.fetch_sub(1, Ordering::SeqCst);
}

/// Returns the processor time of this process, which the kernel counts in hundredths of a second.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    // The second field is a name in parentheses; user and system time are the 14th and 15th.
    let fields = text.rsplit_once(')').expect("a name").1.split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(ticks * 10)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let address = |text: &str| text.parse::<SocketAddr>().expect("an address with a port");
    match arguments[..] {
        ["serve", at] => serve(address(at)),
        ["call", from, to, ..] => {
            print_head();
            let filter = arguments.get(3).copied().unwrap_or_default();
            measure_compressions(filter, &|compression, number| {
                let one = member(FROM, address(from), Protection::Integrity, compression);
                let mut to = address(to);
                to.set_port(to.port() + number);
                one.set_members(&HashMap::from([(TO, to)])).expect("random numbers");
                (one, None)
            });
        }
        [] => measure_all(""),
        [filter, ..] => measure_all(filter),
    }
}

/// Serves one member for each compression, until standard input ends.
fn serve(at: SocketAddr) {
    let members: Vec<PeerNetwork> = (0..)
        .zip(COMPRESSIONS)
        .map(|(number, compression)| {
            let listen = SocketAddr::new(at.ip(), at.port() + number);
            let two = member(TO, listen, Protection::Integrity, compression);
            two.set_members(&HashMap::from([(FROM, at)])).expect("random numbers");
            two
        })
        .collect();
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("standard input");
    members.iter().for_each(|member| member.stop(LIMIT));
}

fn print_head() {
    println!("{:<44} {:>10} {:>10} {:>14} {:>8}", "", "calls/s", "MiB/s", "CPU us/call", "sent");
}

/// Starts two members on the loopback device.
fn pair(protection: Protection, compression: Compression) -> (PeerNetwork, PeerNetwork) {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let one = member(FROM, listen, protection, compression);
    let two = member(TO, listen, protection, compression);
    two.set_members(&HashMap::from([(FROM, one.address())])).expect("random numbers");
    one.set_members(&HashMap::from([(TO, two.address())])).expect("random numbers");
    (one, two)
}

fn measure_all(filter: &str) {
    print_head();
    for (name, protection) in [
        ("integrity", Protection::Integrity),
        ("encryption", Protection::Encryption),
        ("none", Protection::None),
    ] {
        for (bytes, in_flight, is_blocking) in [
            (64, 1, false),
            (64, 1, true),
            (64, 4, true),
            (64, 64, false),
            (4096, 64, false),
            (64 << 10, 16, false),
            (512 << 10, 1, false),
            (512 << 10, 16, false),
        ] {
            let kind = if is_blocking { "threads" } else { "in flight" };
            let name = format!("{name}, {bytes} bytes, {in_flight} {kind}");
            if name.contains(filter) {
                let (one, two) = pair(protection, Compression::None);
                measure(&name, one, vec![7; bytes], bytes, in_flight, is_blocking, false);
                two.stop(LIMIT);
            }
        }
    }
    measure_compressions(filter, &|compression, _| {
        let (one, two) = pair(Protection::Integrity, compression);
        (one, Some(two))
    });
}

/// Measures each compression and kind of data. `start` starts the members; the second one is in
/// another process if it is `None`.
fn measure_compressions(
    filter: &str,
    start: &dyn Fn(Compression, u16) -> (PeerNetwork, Option<PeerNetwork>),
) {
    for kind in KINDS {
        for (number, compression) in (0..).zip(COMPRESSIONS) {
            for (bytes, in_flight) in [(1 << 10, 64), (4 << 10, 64), (512 << 10, 16)] {
                let name = format!("{compression:?}, {kind}, {bytes} bytes, {in_flight} in flight");
                if name.contains(filter) {
                    let (one, two) = start(compression, number);
                    measure(&name, one, data(kind), bytes, in_flight, false, two.is_none());
                    if let Some(two) = two {
                        two.stop(LIMIT);
                    }
                }
            }
        }
    }
}

fn measure(
    name: &str,
    one: PeerNetwork,
    data: Vec<u8>,
    bytes: usize,
    in_flight: usize,
    is_blocking: bool,
    is_remote: bool,
) {
    let seconds = std::env::var("QUELL_BENCH_SECONDS").map_or(2.0, |s| s.parse().expect("a number"));
    let chains = Arc::new(Chains {
        network: one,
        data,
        bytes,
        begun: AtomicUsize::new(0),
        is_ending: AtomicBool::new(false),
        calls: AtomicU64::new(0),
        running: AtomicUsize::new(in_flight),
    });
    for _ in 0..in_flight {
        let chains = chains.clone();
        match is_blocking {
            true => drop(std::thread::spawn(move || blocking(&chains))),
            false => next(&chains),
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    let cpu_time = || {
        let theirs = if is_remote { chains.their_processor_time() } else { Duration::ZERO };
        theirs + processor_time()
    };
    let sent = || chains.network.counters()[0].1.bytes_sent;
    let (calls, cpu, bytes_sent) = (chains.calls.load(Ordering::SeqCst), cpu_time(), sent());
    let start = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let calls = (chains.calls.load(Ordering::SeqCst) - calls) as f64;
    let (elapsed, bytes_sent) = (start.elapsed().as_secs_f64(), (sent() - bytes_sent) as f64);
    let cpu = (cpu_time() - cpu).as_secs_f64();
    chains.is_ending.store(true, Ordering::SeqCst);
    while chains.running.load(Ordering::SeqCst) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rate = calls / elapsed;
    let mebibytes = rate * bytes as f64 / f64::from(1 << 20);
    let (cpu, sent) = (cpu * 1e6 / calls, bytes_sent / calls / bytes as f64);
    println!("{name:<44} {rate:>10.0} {mebibytes:>10.0} {cpu:>14.2} {sent:>8.2}");
    chains.network.stop(LIMIT);
}
