//! Measures round trips of 64 bytes through the local channel, and for comparison through a plain
//! Unix socket and with futexes alone: `cargo bench -p quell-transport --bench local [FILTER]`.
//!
//! The daemon and the clients are processes, which this program starts as copies of itself.
//! `QUELL_BENCH_SECONDS` is the duration of each measurement (default 2).

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_transport::local::{LocalChannel, LocalServer, ServerOptions};
use rustix::thread::{CpuSet, futex, sched_setaffinity};

const BYTES: usize = 64;
const ROLE: &str = "QUELL_BENCH_ROLE";

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        let role: Vec<&str> = role.split(' ').collect();
        match role[..] {
            ["daemon", transport, cpu, poll_us, path] => daemon(transport, cpu, poll_us, Path::new(path)),
            ["client", transport, cpu, threads, pause_us, path] => {
                let pause = Duration::from_micros(pause_us.parse().unwrap());
                client(transport, cpu, threads.parse().unwrap(), pause, path.to_owned())
            }
            ["idle", count, path] => {
                raise_descriptor_limit();
                let connect = |_| LocalChannel::connect(path).unwrap();
                let channels: Vec<_> = (0..count.parse().unwrap()).map(connect).collect();
                channels.iter().for_each(call);
                println!("ready");
                std::io::stdin().read_line(&mut String::new()).unwrap();
            }
            ["busy"] => loop {
                std::hint::spin_loop();
            },
            _ => panic!("{role:?}"),
        }
        return;
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    println!("{:<52} {:>12} {:>16} {:>16}", "64-byte round trips", "calls/s", "CPU us/call", "of the daemon");
    for (transport, poll_us) in [("channel", "50"), ("channel", "0"), ("socket", "0")] {
        let cases = [
            ("any processor", "-", "-", 1, 1, 0),
            ("one processor", "0", "0", 1, 1, 0),
            ("two processors", "0", "1", 1, 1, 0),
            ("any processor", "-", "-", 4, 1, 0),
            ("any processor", "-", "-", 1, 4, 0),
            ("one processor", "0", "0", 4, 1, 0),
            ("daemon on one, clients on the other", "0", "1", 4, 1, 0),
            ("beside 2 busy programs", "-", "-", 1, 1, 2),
            ("beside 2 busy programs", "-", "-", 4, 1, 2),
        ];
        for (place, daemon_cpu, client_cpu, processes, threads, busy) in cases {
            let name = format!("{transport}, poll {poll_us} us, {processes}x{threads}, {place}");
            if name.contains(&filter) {
                let _busy: Vec<Killed> = (0..busy).map(|_| Killed(start("busy".into()))).collect();
                let (client, load) = (format!("{client_cpu} {threads} 0"), (processes, 0, poll_us));
                measure(&name, transport, daemon_cpu, &client, load);
            }
        }
        for pause_us in [20, 100, 1000] {
            let name = format!("{transport}, poll {poll_us} us, 1x1, a call each {pause_us} us");
            if name.contains(&filter) {
                measure(&name, transport, "-", &format!("- 1 {pause_us}"), (1, 0, poll_us));
            }
        }
        for idle in [64, 1024, 4000] {
            let name = format!("{transport}, poll {poll_us} us, 1x1, two processors, {idle} idle clients");
            if transport == "channel" && name.contains(&filter) {
                measure(&name, transport, "0", "1 1 0", (1, idle, poll_us));
            }
        }
    }
    if "futex".contains(&filter) {
        futex_alone();
    }
}

/// Starts a process with idle connections to a daemon.
fn start_idle(count: usize, path: &str) -> Killed {
    let mut process = Killed(start(format!("idle {count} {path}")));
    let mut output = BufReader::new(process.0.stdout.take().unwrap());
    assert_eq!(output.read_line(&mut String::new()).unwrap(), 6);
    process
}

fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

fn pin(cpu: &str) {
    if let Ok(cpu) = cpu.parse() {
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        sched_setaffinity(None, &cpus).unwrap();
    }
}

fn seconds() -> f64 {
    std::env::var("QUELL_BENCH_SECONDS").map_or(2.0, |seconds| seconds.parse().unwrap())
}

/// Starts a copy of this program, whose input and output are pipes.
fn start(role: String) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Returns the processor time of a process in microseconds; its resolution is 10 ms.
fn processor_time_us(process: &Child) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) * 10_000.0
}

/// A process that is killed when the value is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// `client`: processor, threads, and pause of each client. `load`: the number of client processes,
/// the number of idle clients, and the polling time of the daemon.
fn measure(name: &str, transport: &str, daemon_cpu: &str, client: &str, load: (usize, usize, &str)) {
    let (processes, idle, poll_us) = load;
    let mode = std::fs::Permissions::from_mode(0o700);
    let directory = tempfile::Builder::new().permissions(mode).tempdir().unwrap();
    let path = directory.path().join("socket");
    let path = path.to_str().unwrap();
    let mut daemon = start(format!("daemon {transport} {daemon_cpu} {poll_us} {path}"));
    let mut line = String::new();
    BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _idle = (idle != 0).then(|| start_idle(idle, path));
    let role = format!("client {transport} {client} {path}");
    let mut clients: Vec<Child> = (0..processes).map(|_| start(role.clone())).collect();
    let mut outputs: Vec<_> = clients.iter_mut().map(|c| BufReader::new(c.stdout.take().unwrap())).collect();
    for output in &mut outputs {
        output.read_line(&mut line).unwrap();
    }
    let (daemon_us, clients_us) =
        (processor_time_us(&daemon), clients.iter().map(processor_time_us).sum::<f64>());
    let began = Instant::now();
    for client in &mut clients {
        client.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
    let mut calls = 0.0;
    for output in &mut outputs {
        line.clear();
        output.read_line(&mut line).unwrap();
        calls += line.trim().parse::<f64>().unwrap();
    }
    let elapsed = began.elapsed().as_secs_f64();
    let daemon_us = processor_time_us(&daemon) - daemon_us;
    let clients_us = clients.iter().map(processor_time_us).sum::<f64>() - clients_us;
    println!(
        "{name:<52} {:>12.0} {:>16.2} {:>16.2}",
        calls / elapsed,
        (daemon_us + clients_us) / calls,
        daemon_us / calls
    );
    for mut client in clients {
        drop(client.stdin.take());
        client.wait().unwrap();
    }
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

fn daemon(transport: &str, cpu: &str, poll_us: &str, path: &Path) {
    pin(cpu);
    if transport == "socket" {
        return socket_daemon(path);
    }
    raise_descriptor_limit();
    let poll_time = Duration::from_micros(poll_us.parse().unwrap());
    let mut server =
        LocalServer::bind(path, ServerOptions { poll_time, ..ServerOptions::default() }).unwrap();
    println!("ready");
    let mut tickets = Vec::new();
    loop {
        server.wait(None).unwrap();
        server.drain(&mut |ticket, request| {
            assert_eq!(request.len(), BYTES);
            tickets.push(ticket);
        });
        for ticket in tickets.drain(..) {
            server.reply_bytes(ticket, &[7; BYTES]);
        }
    }
}

/// Serves the connections with one thread, which waits in epoll(7).
fn socket_daemon(path: &Path) {
    use rustix::event::epoll;
    let listener = UnixListener::bind(path).unwrap();
    println!("ready");
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&epoll, &listener, epoll::EventData::new_u64(u64::MAX), epoll::EventFlags::IN).unwrap();
    let mut streams: Vec<UnixStream> = Vec::new();
    let empty = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    loop {
        let mut events = [empty; 16];
        let count = epoll::wait(&epoll, &mut events, None).unwrap();
        for event in &events[..count] {
            if event.data.u64() == u64::MAX {
                let (stream, _) = listener.accept().unwrap();
                let data = epoll::EventData::new_u64(streams.len() as u64);
                epoll::add(&epoll, &stream, data, epoll::EventFlags::IN).unwrap();
                streams.push(stream);
                continue;
            }
            let mut stream = &streams[event.data.u64() as usize];
            let mut bytes = [0; BYTES];
            match stream.read_exact(&mut bytes) {
                Ok(()) => stream.write_all(&bytes).unwrap(),
                Err(_) => epoll::delete(&epoll, stream).unwrap(),
            }
        }
    }
}

/// Calls from several threads until the time has passed, after a line on standard input.
fn client(transport: &str, cpu: &str, threads: usize, pause: Duration, path: String) {
    pin(cpu);
    let channel = (transport == "channel").then(|| Arc::new(LocalChannel::connect(&path).unwrap()));
    let (begin, end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let calls = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (channel, path) = (channel.clone(), path.clone());
            let (begin, end, calls) = (begin.clone(), end.clone(), calls.clone());
            std::thread::spawn(move || {
                let mut stream = channel.is_none().then(|| UnixStream::connect(path).unwrap());
                let mut call = || match (&channel, &mut stream) {
                    (Some(channel), _) => call(channel),
                    (None, Some(stream)) => {
                        let mut bytes = [7; BYTES];
                        stream.write_all(&bytes).unwrap();
                        stream.read_exact(&mut bytes).unwrap();
                    }
                    (None, None) => unreachable!("one of them is open"),
                };
                (0..1000).for_each(|_| call());
                while !begin.load(Ordering::Relaxed) {
                    std::thread::park();
                }
                let mut count = 0;
                while !end.load(Ordering::Relaxed) {
                    call();
                    count += 1;
                    let called = Instant::now();
                    while !pause.is_zero() && called.elapsed() < pause {
                        std::hint::spin_loop();
                    }
                }
                calls.fetch_add(count, Ordering::Relaxed);
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    begin.store(true, Ordering::Relaxed);
    workers.iter().for_each(|worker| worker.thread().unpark());
    std::thread::sleep(Duration::from_secs_f64(seconds()));
    end.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.join().unwrap();
    }
    println!("{}", calls.load(Ordering::Relaxed));
    std::io::stdin().read_line(&mut line).unwrap();
}

fn call(channel: &LocalChannel) {
    let encode = |bytes: &mut [u8]| {
        bytes[..BYTES].fill(3);
        Ok(BYTES)
    };
    let length = channel.call(None, encode, |reply| reply.len()).unwrap();
    assert_eq!(length, BYTES);
}

/// Two threads that wake each other with futexes, and never poll: a lower bound for two sides that
/// sleep.
fn futex_alone() {
    for (place, cpus) in
        [("any processor", ["-", "-"]), ("one processor", ["0", "0"]), ("two processors", ["0", "1"])]
    {
        let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let rounds = 50_000_u32;
        let side = |own: usize, cpu: &'static str| {
            let words = words.clone();
            std::thread::spawn(move || {
                pin(cpu);
                for round in 1..=rounds {
                    if own == 0 {
                        words[1].store(round, Ordering::SeqCst);
                        futex::wake(&words[1], futex::Flags::PRIVATE, 1).unwrap();
                    }
                    while words[own].load(Ordering::SeqCst) != round {
                        let _ = futex::wait(&words[own], futex::Flags::PRIVATE, round - 1, None);
                    }
                    if own == 1 {
                        words[0].store(round, Ordering::SeqCst);
                        futex::wake(&words[0], futex::Flags::PRIVATE, 1).unwrap();
                    }
                }
            })
        };
        let start = Instant::now();
        let sides = [side(0, cpus[0]), side(1, cpus[1])];
        for side in sides {
            side.join().unwrap();
        }
        let rate = f64::from(rounds) / start.elapsed().as_secs_f64();
        println!("{:<52} {rate:>12.0}", format!("futexes alone, {place}"));
    }
}
