//! Measures two members on the loopback device, both in this process: round trips of 64 bytes, and
//! requests of 512 KiB, with each protection:
//! `cargo bench -p quell-transport --bench peer [FILTER]`.
//!
//! A chain of calls begins the next call in the function that receives a result; a blocking thread
//! waits for each result. The processor time is that of both members and of the kernel for them.
//! `QUELL_BENCH_SECONDS` is the duration of each measurement (default 2).

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use quell_transport::peer::{
    Handler, MemberId, PeerNetwork, PoolId, PoolKey, Protection, Reply, Request, Settings,
};

const LIMIT: Duration = Duration::from_secs(60);
const TO: MemberId = MemberId(2);

struct Small;

impl Handler for Small {
    fn handle(&self, request: Request, reply: Reply) {
        // Replies have 64 bytes, whatever the size of the request.
        reply.send(request.bytes[..64].to_vec());
    }
}

fn member(id: u64, protection: Protection) -> PeerNetwork {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut settings = Settings::new(PoolId([1; 16]), PoolKey([2; 32]), MemberId(id), listen);
    settings.protection = protection;
    PeerNetwork::start(settings, Arc::new(Small)).expect("the loopback device")
}

/// Calls that are in progress, and their end.
struct Chains {
    network: PeerNetwork,
    bytes: usize,
    is_ending: AtomicBool,
    calls: AtomicU64,
    running: AtomicUsize,
}

fn next(chains: &Arc<Chains>) {
    let again = chains.clone();
    chains.network.call(TO, vec![7; chains.bytes], 64, Instant::now() + LIMIT, move |result| {
        assert_eq!(result.expect("the members are connected").len(), 64);
        again.calls.fetch_add(1, Ordering::Relaxed);
        match again.is_ending.load(Ordering::Relaxed) {
            true => drop(again.running.fetch_sub(1, Ordering::SeqCst)),
            false => next(&again),
        }
    });
}

fn blocking(chains: &Arc<Chains>) {
    let (sender, receiver) = sync_channel(1);
    while !chains.is_ending.load(Ordering::Relaxed) {
        let sender = sender.clone();
        chains.network.call(TO, vec![7; chains.bytes], 64, Instant::now() + LIMIT, move |result| {
            sender.send(result).expect("the thread waits");
        });
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
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let seconds = std::env::var("QUELL_BENCH_SECONDS").map_or(2.0, |s| s.parse().expect("a number"));
    println!("{:<44} {:>10} {:>10} {:>14}", "", "calls/s", "MiB/s", "CPU us/call");
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
            if name.contains(&filter) {
                measure(&name, protection, bytes, in_flight, is_blocking, Duration::from_secs_f64(seconds));
            }
        }
    }
}

fn measure(
    name: &str,
    protection: Protection,
    bytes: usize,
    in_flight: usize,
    is_blocking: bool,
    time: Duration,
) {
    let (one, two) = (member(1, protection), member(2, protection));
    two.set_members(&HashMap::from([(MemberId(1), one.address())])).expect("random numbers");
    one.set_members(&HashMap::from([(TO, two.address())])).expect("random numbers");
    let chains = Arc::new(Chains {
        network: one,
        bytes,
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
    let (calls, cpu, start) = (chains.calls.load(Ordering::SeqCst), processor_time(), Instant::now());
    std::thread::sleep(time);
    let calls = (chains.calls.load(Ordering::SeqCst) - calls) as f64;
    let (cpu, elapsed) = ((processor_time() - cpu).as_secs_f64(), start.elapsed().as_secs_f64());
    chains.is_ending.store(true, Ordering::SeqCst);
    while chains.running.load(Ordering::SeqCst) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rate = calls / elapsed;
    let mebibytes = rate * bytes as f64 / f64::from(1 << 20);
    println!("{name:<44} {rate:>10.0} {mebibytes:>10.0} {:>14.2}", cpu * 1e6 / calls);
    chains.network.stop(LIMIT);
    two.stop(LIMIT);
}
