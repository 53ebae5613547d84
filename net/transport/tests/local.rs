//! The promises of the local channel: calls of many threads and processes, and the death, stop or
//! silence of either side. Processes that are killed are copies of this test program.

// Tests fork and install signal handlers.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_transport::local::{
    COUNTERS_OF_CLIENT, LocalChannel, LocalServer, PAYLOAD_BYTES_MAX, SLOTS, ServerOptions, Ticket,
    Unanswered, Waker,
};
use quell_vfs::{Error, ErrorKind, Result};

/// Longer than anything takes; a test that waits for it fails.
const LONG: Duration = Duration::from_secs(60);
const ROLE: &str = "QUELL_TRANSPORT_TEST_ROLE";

fn directory() -> tempfile::TempDir {
    let mode = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(mode).tempdir().unwrap()
}

/// A server on a thread of the test.
struct Server {
    directory: tempfile::TempDir,
    waker: Waker,
    stop: Arc<AtomicBool>,
    clients: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers requests as `answer` does, which gets the tickets of all requests that are not
    /// answered, in the order of their arrival.
    fn start(
        options: ServerOptions,
        mut answer: impl FnMut(&mut LocalServer, &mut VecDeque<(Ticket, Vec<u8>)>) + Send + 'static,
    ) -> Server {
        let directory = directory();
        let mut server = LocalServer::bind(directory.path().join("socket"), options).unwrap();
        let (waker, stop) = (server.waker(), Arc::new(AtomicBool::new(false)));
        let clients = Arc::new(AtomicUsize::new(0));
        let (ended, connected) = (stop.clone(), clients.clone());
        let thread = std::thread::spawn(move || {
            let mut requests = VecDeque::new();
            while !ended.load(Ordering::SeqCst) {
                server.wait(Some(LONG)).unwrap();
                server.drain(&mut |ticket, bytes| requests.push_back((ticket, bytes.to_vec())));
                answer(&mut server, &mut requests);
                connected.store(server.clients(), Ordering::SeqCst);
            }
        });
        Server { directory, waker, stop, clients, thread: Some(thread) }
    }

    fn echo() -> Server {
        Server::start(ServerOptions::default(), answer_all)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn connect(&self) -> LocalChannel {
        LocalChannel::connect(self.path()).unwrap()
    }

    fn wait_for_clients(&self, count: usize) {
        eventually(|| self.clients.load(Ordering::SeqCst) == count);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the server panicked");
    }
}

/// Answers each request with its bytes, increased by 1.
fn answer_all(server: &mut LocalServer, requests: &mut VecDeque<(Ticket, Vec<u8>)>) {
    for (ticket, bytes) in requests.drain(..) {
        server.reply(ticket, |reply| {
            let to = &mut reply[..bytes.len()];
            to.iter_mut().zip(&bytes).for_each(|(to, from)| *to = from.wrapping_add(1));
            bytes.len()
        });
    }
}

fn eventually(is_true: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < LONG, "it never became true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn call(channel: &LocalChannel, request: &[u8], deadline: Option<Instant>) -> Result<Vec<u8>> {
    let encode = |payload: &mut [u8]| {
        payload[..request.len()].copy_from_slice(request);
        Ok(request.len())
    };
    channel.call(deadline, encode, <[u8]>::to_vec)
}

/// Calls, and checks the reply of [`answer_all`].
fn check_call(channel: &LocalChannel, number: usize, length: usize) {
    let request: Vec<u8> = (0..length).map(|i| (i + number) as u8).collect();
    let expected: Vec<u8> = request.iter().map(|byte| byte.wrapping_add(1)).collect();
    assert!(call(channel, &request, Some(Instant::now() + LONG)).unwrap() == expected);
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind
}

/// A copy of this program in a role of [`role_of_a_process`].
struct Process {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(role: &str, path: &Path) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "--test-threads=1", "role_of_a_process"]);
        command.env(ROLE, format!("{role}\t{}", path.display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process { child, output }
    }

    /// Waits until the process prints a line.
    fn wait_for(&mut self, line: &str) {
        let mut found = String::new();
        while found.trim() != line {
            found.clear();
            assert_ne!(self.output.read_line(&mut found).unwrap(), 0, "the process ended before `{line}`");
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
#[ignore = "the processes that other tests start"]
fn role_of_a_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, path) = role.split_once('\t').unwrap();
    let tell = |line: &str| {
        println!("\n{line}");
        std::io::stdout().flush().unwrap();
    };
    match role {
        "call" => {
            let channel = LocalChannel::connect(path).unwrap();
            (0..500).for_each(|i| check_call(&channel, i, i * 7));
            tell("done");
        }
        "call for ever" => {
            let channel = LocalChannel::connect(path).unwrap();
            check_call(&channel, 0, 1);
            tell("calling");
            for i in 0.. {
                check_call(&channel, i, i * 101 % 9000);
            }
        }
        "serve" | "serve without replies" => {
            let mut server = LocalServer::bind(path, ServerOptions::default()).unwrap();
            tell("serving");
            let mut requests = VecDeque::new();
            loop {
                server.wait(None).unwrap();
                let count = server.drain(&mut |ticket, bytes| requests.push_back((ticket, bytes.to_vec())));
                match role {
                    "serve" => answer_all(&mut server, &mut requests),
                    _ if count != 0 => tell(&format!("taken\n{} in total", requests.len())),
                    _ => {}
                }
            }
        }
        "fork" => {
            let channel = LocalChannel::connect(path).unwrap();
            check_call(&channel, 1, 100);
            // SAFETY: the child calls nothing that another thread of the parent could hold a lock
            // of: the parent's main thread only waits for this one.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let refused = call(&channel, b"x", None).map_err(|error| error.kind);
                let is_refused = refused == Err(ErrorKind::Unavailable) && !channel.is_open();
                drop(channel);
                let own = LocalChannel::connect(path).unwrap();
                check_call(&own, 2, 5000);
                // SAFETY: it ends this process without running code of the parent.
                unsafe { libc::_exit(if is_refused { 0 } else { 1 }) };
            }
            (0..100).for_each(|i| check_call(&channel, i, i));
            let mut status = 0;
            // SAFETY: `status` is valid for the call.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child");
            (0..100).for_each(|i| check_call(&channel, i, i));
            tell("done");
        }
        _ => panic!("{role}"),
    }
}

#[test]
fn calls_of_more_threads_than_slots_get_their_own_replies() {
    let server = Server::echo();
    let channel = server.connect();
    std::thread::scope(|scope| {
        for thread in 0..2 * SLOTS {
            let channel = &channel;
            scope.spawn(move || {
                (0..300).for_each(|i| check_call(channel, thread + i, (thread * 37 + i) % 700))
            });
        }
    });
}

#[test]
fn processes_call_at_the_same_time() {
    let server = Server::echo();
    let mut processes: Vec<_> = (0..6).map(|_| Process::start("call", &server.path())).collect();
    processes.iter_mut().for_each(|process| process.wait_for("done"));
    server.wait_for_clients(0);
}

#[test]
fn a_killed_client_is_forgotten_and_harms_no_other() {
    let server = Server::echo();
    let channel = server.connect();
    for round in 0..5 {
        let mut processes: Vec<_> = (0..3).map(|_| Process::start("call for ever", &server.path())).collect();
        for process in &mut processes {
            process.wait_for("calling");
            check_call(&channel, round, 1000);
        }
        drop(processes);
        (0..100).for_each(|i| check_call(&channel, i, i));
    }
    server.wait_for_clients(1);
}

#[test]
fn a_reply_to_a_client_that_has_ended_is_dropped() {
    let (ticket_sender, tickets) = mpsc::channel();
    let (replies, late) = mpsc::channel::<Ticket>();
    let (dropped_sender, dropped) = mpsc::channel();
    let server = Server::start(ServerOptions::default(), move |server, requests| {
        requests.drain(..).for_each(|(ticket, _)| ticket_sender.send(ticket).unwrap());
        while let Ok(ticket) = late.try_recv() {
            let is_connected = server.is_connected(ticket.client());
            let is_sent = server.reply(ticket, |_| panic!("the client has ended"));
            dropped_sender.send((is_connected, is_sent)).unwrap();
        }
    });
    let channel = server.connect();
    assert_eq!(kind(call(&channel, b"x", Some(Instant::now()))), ErrorKind::TimedOut);
    let ticket = tickets.recv_timeout(LONG).unwrap();
    drop(channel);
    server.wait_for_clients(0);
    let _other_client_with_the_same_number = server.connect();
    server.wait_for_clients(1);
    replies.send(ticket).unwrap();
    server.waker.wake();
    assert_eq!(dropped.recv_timeout(LONG).unwrap(), (false, false));
}

#[test]
fn a_call_fails_when_the_daemon_is_killed() {
    let directory = directory();
    let path = directory.path().join("socket");
    let mut daemon = Process::start("serve without replies", &path);
    daemon.wait_for("serving");
    let channel = LocalChannel::connect(&path).unwrap();
    std::thread::scope(|scope| {
        let calls: Vec<_> =
            (0..SLOTS + 2).map(|_| scope.spawn(|| kind(call(&channel, b"x", None)))).collect();
        daemon.wait_for("taken");
        daemon.signal(rustix::process::Signal::KILL);
        calls.into_iter().for_each(|call| assert_eq!(call.join().unwrap(), ErrorKind::Unavailable));
    });
    assert!(!channel.is_open());
    assert_eq!(kind(call(&channel, b"x", None)), ErrorKind::Unavailable);
    assert_eq!(kind(LocalChannel::connect(&path)), ErrorKind::Unavailable);
}

/// Calls without a deadline, and returns whether the daemon has taken the request before the
/// connection was lost.
fn was_taken(channel: &LocalChannel) -> bool {
    match channel.try_call(None, |_| Ok(1), |_| ()) {
        Err(Unanswered::Lost { error, was_taken }) => {
            assert_eq!(error.kind, ErrorKind::Unavailable);
            was_taken
        }
        other => panic!("{other:?}"),
    }
}

fn wait_until_stopped(daemon: &Process) {
    daemon.signal(rustix::process::Signal::STOP);
    // SIGSTOP has been sent, but a thread of the daemon may run until it takes effect.
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.child.id())).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    };
    eventually(is_stopped);
}

#[test]
fn a_lost_call_tells_whether_the_daemon_has_taken_its_request() {
    for is_killed in [true, false] {
        let directory = directory();
        let path = directory.path().join("socket");
        let mut daemon = Process::start("serve without replies", &path);
        daemon.wait_for("serving");
        let flag = Arc::new(AtomicBool::new(false));
        let is_replaced = flag.clone();
        let check = Box::new(move || is_replaced.load(Ordering::SeqCst));
        let channel = LocalChannel::connect_checked(&path, |fd| fd, Some(check)).unwrap();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| was_taken(&channel));
            daemon.wait_for("taken");
            wait_until_stopped(&daemon);
            // Some of these calls wait for a slot.
            let others: Vec<_> = (0..SLOTS + 3).map(|_| scope.spawn(|| was_taken(&channel))).collect();
            std::thread::sleep(Duration::from_millis(20));
            match is_killed {
                true => daemon.signal(rustix::process::Signal::KILL),
                false => flag.store(true, Ordering::SeqCst),
            }
            assert!(taken.join().unwrap());
            others.into_iter().for_each(|other| assert!(!other.join().unwrap()));
        });
        assert!(!channel.is_open() && !was_taken(&channel));
        if !is_killed {
            // The daemon takes no withdrawn request when it continues.
            daemon.signal(rustix::process::Signal::CONT);
            let next = LocalChannel::connect(&path).unwrap();
            let deadline = Some(Instant::now() + Duration::from_millis(1));
            assert_eq!(kind(call(&next, b"x", deadline)), ErrorKind::TimedOut);
            drop(channel);
            daemon.wait_for("taken");
            let mut total = String::new();
            daemon.output.read_line(&mut total).unwrap();
            assert_eq!(total, "2 in total\n");
        }
    }
}

#[test]
fn calls_time_out_while_the_daemon_is_stopped_and_their_slots_are_used_again() {
    let directory = directory();
    let path = directory.path().join("socket");
    let mut daemon = Process::start("serve", &path);
    daemon.wait_for("serving");
    let channel = LocalChannel::connect(&path).unwrap();
    check_call(&channel, 0, 10);
    wait_until_stopped(&daemon);
    // The calls after the first 16 wait for a slot.
    for _ in 0..SLOTS + 3 {
        let deadline = Instant::now() + Duration::from_millis(2);
        assert_eq!(kind(call(&channel, b"late", Some(deadline))), ErrorKind::TimedOut);
    }
    daemon.signal(rustix::process::Signal::CONT);
    std::thread::scope(|scope| {
        for thread in 0..2 * SLOTS {
            let channel = &channel;
            scope.spawn(move || (0..20).for_each(|i| check_call(channel, thread, i)));
        }
    });
}

#[test]
fn a_caller_waits_for_a_slot_while_all_are_in_use() {
    let (release, is_released) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (may_reply, held) = (release.clone(), is_released.clone());
    let server = Server::start(ServerOptions::default(), move |server, requests| {
        held.store(requests.len(), Ordering::SeqCst);
        if may_reply.load(Ordering::SeqCst) {
            requests.make_contiguous().reverse();
            answer_all(server, requests);
        }
    });
    let channel = server.connect();
    std::thread::scope(|scope| {
        for thread in 0..SLOTS {
            let channel = &channel;
            scope.spawn(move || check_call(channel, thread, 100 + thread));
        }
        eventually(|| is_released.load(Ordering::SeqCst) == SLOTS);
        let deadline = Instant::now() + Duration::from_millis(5);
        assert_eq!(kind(call(&channel, b"17th", Some(deadline))), ErrorKind::TimedOut);
        let waiting = scope.spawn(|| check_call(&channel, 99, 1));
        release.store(true, Ordering::SeqCst);
        server.waker.wake();
        waiting.join().unwrap();
    });
}

#[test]
fn requests_and_replies_have_up_to_the_maximum_length() {
    let server = Server::echo();
    let channel = server.connect();
    for length in [0, 1, 4095, 65_536, PAYLOAD_BYTES_MAX - 1, PAYLOAD_BYTES_MAX] {
        check_call(&channel, length, length);
    }
    let too_long = channel.call(None, |payload| Ok(payload.len() + 1), |_| ());
    assert_eq!(kind(too_long), ErrorKind::InvalidInput);
    let refused = channel.call(None, |_| Err(Error::new(ErrorKind::NoSpace, "encode", "")), |_| ());
    assert_eq!(kind(refused), ErrorKind::NoSpace);
    std::thread::scope(|scope| {
        for thread in 0..SLOTS {
            let channel = &channel;
            scope.spawn(move || check_call(channel, thread, PAYLOAD_BYTES_MAX));
        }
    });
}

#[test]
fn a_panic_in_a_callback_frees_the_slot() {
    let server = Server::echo();
    let channel = server.connect();
    for i in 0..2 * SLOTS {
        let panics = std::panic::AssertUnwindSafe(|| match i % 2 {
            0 => channel.call(None, |_| panic!("in encode"), |_| ()),
            _ => channel.call(None, |_| Ok(1), |_| panic!("in decode")),
        });
        assert!(std::panic::catch_unwind(panics).is_err());
    }
    check_call(&channel, 1, 1);
}

#[test]
fn a_forked_child_cannot_use_the_channel_and_does_not_harm_the_parent() {
    let server = Server::echo();
    Process::start("fork", &server.path()).wait_for("done");
    server.wait_for_clients(0);
}

#[test]
fn signals_do_not_interrupt_a_call() {
    extern "C" fn ignore(_signal: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = ignore;
    // SAFETY: the handler does nothing; without SA_RESTART, sleeping calls return EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let release = Arc::new(AtomicBool::new(false));
    let may_reply = release.clone();
    let server = Server::start(ServerOptions::default(), move |server, requests| {
        if may_reply.load(Ordering::SeqCst) {
            answer_all(server, requests);
        }
    });
    let channel = server.connect();
    std::thread::scope(|scope| {
        let (sender, thread) = mpsc::channel();
        let channel = &channel;
        let caller = scope.spawn(move || {
            // SAFETY: it has no requirements.
            sender.send(unsafe { libc::pthread_self() }).unwrap();
            check_call(channel, 3, 300);
        });
        let thread = thread.recv().unwrap();
        for _ in 0..50 {
            // SAFETY: the thread has not ended, because it waits for the reply.
            assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
            std::thread::sleep(Duration::from_millis(1));
        }
        release.store(true, Ordering::SeqCst);
        server.waker.wake();
        caller.join().unwrap();
    });
}

#[test]
fn silent_and_wrong_connections_do_not_stop_the_server() {
    let server = Server::echo();
    let connect = || UnixStream::connect(server.path()).unwrap();
    let mut silent: Vec<_> = (0..100).map(|_| connect()).collect();
    let mut wrong = connect();
    wrong.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut partial = connect();
    partial.write_all(b"QUELL").unwrap();
    check_call(&server.connect(), 1, 100);
    wrong.set_read_timeout(Some(LONG)).unwrap();
    // The end of the stream, or ECONNRESET because the server did not read all bytes.
    assert!(matches!(wrong.read(&mut [0; 64]), Ok(0) | Err(_)));
    // The oldest silent connections were closed.
    silent[0].set_read_timeout(Some(LONG)).unwrap();
    assert!(matches!(silent[0].read(&mut [0; 64]), Ok(0)));
    // The rest of a message arrives later.
    partial.write_all(b"LC1\x01\0\0\0\0\0\0\0").unwrap();
    partial.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(partial.read(&mut [0; 64]).unwrap(), 24);
    let mut other_version = connect();
    other_version.write_all(b"QUELLLC1\x63\0\0\0\0\0\0\0").unwrap();
    let mut answer = [0; 24];
    other_version.read_exact(&mut answer).unwrap();
    assert_eq!(answer[12], 2);
}

#[test]
fn clients_above_the_maximum_are_refused() {
    let options = ServerOptions { clients_max: 2, ..ServerOptions::default() };
    let server = Server::start(options, answer_all);
    let clients = [server.connect(), server.connect()];
    assert_eq!(kind(LocalChannel::connect(server.path())), ErrorKind::Busy);
    drop(clients);
    eventually(|| LocalChannel::connect(server.path()).is_ok());
}

#[test]
fn further_descriptors_reach_the_client_and_are_closed_by_exec() {
    let contents = directory();
    std::fs::write(contents.path().join("file"), "found").unwrap();
    let opened: OwnedFd = std::fs::File::open(contents.path()).unwrap().into();
    let options = ServerOptions { descriptors: vec![opened], ..ServerOptions::default() };
    let server = Server::start(options, answer_all);
    let channel = server.connect();
    assert_eq!(channel.descriptors().len(), 1);
    let received = channel.descriptors().next().unwrap();
    let path = format!("/proc/self/fd/{}/file", received.as_raw_fd());
    assert_eq!(std::fs::read_to_string(path).unwrap(), "found");
    let flags = rustix::io::fcntl_getfd(received).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn a_waker_ends_the_current_or_the_next_wait() {
    let directory = directory();
    let options = ServerOptions { poll_time: Duration::ZERO, ..ServerOptions::default() };
    let mut server = LocalServer::bind(directory.path().join("socket"), options).unwrap();
    let waker = server.waker();
    waker.wake();
    server.wait(None).unwrap();
    for _ in 0..1000 {
        let clone = waker.clone();
        let thread = std::thread::spawn(move || clone.wake());
        server.wait(None).unwrap();
        thread.join().unwrap();
    }
    assert_eq!(server.drain(&mut |_, _| panic!("there are no clients")), 0);
}

#[test]
fn a_socket_that_other_users_could_reach_is_refused() {
    let directory = directory();
    let open = std::fs::Permissions::from_mode(0o750);
    std::fs::set_permissions(directory.path(), open).unwrap();
    let path = directory.path().join("socket");
    let refused = LocalServer::bind(&path, ServerOptions::default());
    assert_eq!(kind(refused), ErrorKind::PermissionDenied);
    assert_eq!(kind(LocalChannel::connect(&path)), ErrorKind::NotFound);
}

/// Answers each request with the counters of the server.
fn answer_counters(server: &mut LocalServer, requests: &mut VecDeque<(Ticket, Vec<u8>)>) {
    for (ticket, _) in requests.drain(..) {
        let bytes: Vec<u8> = server.counters().into_iter().flat_map(u64::to_ne_bytes).collect();
        server.reply_bytes(ticket, &bytes);
    }
}

fn counters(channel: &LocalChannel) -> [u64; COUNTERS_OF_CLIENT] {
    let read = |bytes: &[u8]| -> Vec<u64> {
        bytes.chunks_exact(8).map(|long| u64::from_ne_bytes(long.try_into().unwrap())).collect()
    };
    channel.call(None, |_| Ok(0), read).unwrap().try_into().unwrap()
}

#[test]
fn the_counters_of_clients_are_added_up_and_survive_the_clients() {
    let server = Server::start(ServerOptions::default(), answer_counters);
    let reader = server.connect();
    assert_eq!(counters(&reader), [0; 4]);
    let channel = server.connect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| channel.count(1, 3)));
        }
    });
    reader.count(1, 5);
    reader.count(3, 7);
    assert_eq!(counters(&reader), [0, 12_005, 0, 7]);
    channel.count(0, 1);
    // The end of the client before its counters are read again.
    drop(channel);
    server.wait_for_clients(1);
    assert_eq!(counters(&reader), [1, 12_005, 0, 7]);
    // A new client, which may get the number of the former one, begins with 0.
    let channel = server.connect();
    channel.count(2, 2);
    assert_eq!(counters(&reader), [1, 12_005, 2, 7]);
}

#[test]
fn no_value_of_a_client_decreases_the_sum_of_its_counter() {
    let server = Server::start(ServerOptions::default(), answer_counters);
    let (reader, hostile) = (server.connect(), server.connect());
    reader.count(0, 10);
    hostile.count(0, 100);
    assert_eq!(counters(&reader)[0], 110);
    // The counter of the client becomes 50.
    hostile.count(0, 0_u64.wrapping_sub(50));
    assert_eq!(counters(&reader)[0], 110);
    hostile.count(0, 1);
    assert_eq!(counters(&reader)[0], 111);
    hostile.count(0, u64::MAX - 51);
    hostile.count(1, u64::MAX);
    reader.count(1, 9);
    assert_eq!(counters(&reader), [u64::MAX, u64::MAX, 0, 0]);
    drop(hostile);
    server.wait_for_clients(1);
    reader.count(0, 1);
    assert_eq!(counters(&reader), [u64::MAX, u64::MAX, 0, 0]);
}
