//! Tests of a server and its clients, over TCP and over a Unix socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use quell_transport::peer::{
    Client, ClientHandler, ClientIdentity, ClientSettings, DESCRIPTION_BYTES_MAX, Endpoint, Handler,
    MemberId, NamedKey, PoolKey, Protection, Reply, Request, Role, Server, ServerSettings,
};
use quell_vfs::{ErrorKind, Result};

use super::members::{LONG, wait_until};

const KEY: PoolKey = PoolKey([3; 32]);

/// Answers each request with the request, or keeps it while it is closed.
#[derive(Default)]
struct Echo {
    requests: AtomicUsize,
    ended: AtomicUsize,
    /// Whether each client has proved a named key.
    named: Mutex<Vec<bool>>,
    is_closed: Mutex<bool>,
    held: Mutex<Vec<(Request, Reply)>>,
}

impl Handler for Echo {
    fn handle(&self, request: Request, reply: Reply) {
        self.requests.fetch_add(1, Ordering::SeqCst);
        if *self.is_closed.lock().unwrap() {
            return self.held.lock().unwrap().push((request, reply));
        }
        reply.send(request.bytes);
    }
}

/// Executes the requests of clients, and refuses the description `unknown`.
struct Clients(Arc<Echo>);

impl ClientHandler for Clients {
    fn handler(&self, client: ClientIdentity<'_>) -> Option<Arc<dyn Handler>> {
        self.0.named.lock().unwrap().push(client.has_named_key);
        (client.description != b"unknown").then(|| self.0.clone() as _)
    }

    fn ended(&self, _client: MemberId) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Echo {
    fn set_closed(&self, is_closed: bool) {
        *self.is_closed.lock().unwrap() = is_closed;
        if !is_closed {
            for (request, reply) in std::mem::take(&mut *self.held.lock().unwrap()) {
                reply.send(request.bytes);
            }
        }
    }
}

fn begin(client: &Client, request: Vec<u8>) -> mpsc::Receiver<Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    let reply_bytes_max = request.len() as u32;
    let done = Box::new(move |result| _ = sender.send(result));
    client.call(request, reply_bytes_max, Instant::now() + LONG, done);
    receiver
}

fn call(client: &Client, request: Vec<u8>) -> Result<Vec<u8>> {
    begin(client, request).recv().expect("every call ends")
}

fn tcp(server: &Server, key: PoolKey) -> Client {
    let address = server.listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    Client::start(ClientSettings::new(Role::Blob, Endpoint::Tcp(address), key)).unwrap()
}

fn unix(path: &Path) -> Client {
    let server = Endpoint::Unix(path.to_owned());
    Client::start(ClientSettings::new(Role::Blob, server, PoolKey([0; 32]))).unwrap()
}

#[test]
fn clients_call_a_server_over_tcp_and_over_a_unix_socket() {
    for protection in [Protection::Integrity, Protection::Encryption] {
        let dir = tempfile::tempdir().unwrap();
        let (socket, echo) = (dir.path().join("socket"), Arc::new(Echo::default()));
        let settings = ServerSettings { protection, ..ServerSettings::new(Role::Blob, KEY) };
        let server = Server::start(settings, Arc::new(Clients(echo.clone()))).unwrap();
        server.listen_unix(&socket).unwrap();
        let address = server.listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let tcp = ClientSettings::new(Role::Blob, Endpoint::Tcp(address), KEY);
        let tcp = Client::start(ClientSettings { protection, ..tcp }).unwrap();
        for client in [unix(&socket), unix(&socket), tcp] {
            for length in [0, 1, 5000, 1 << 20] {
                assert_eq!(call(&client, vec![7; length]).unwrap(), vec![7; length]);
            }
            client.stop(LONG);
        }
        wait_until(|| echo.ended.load(Ordering::SeqCst) == 3);
        assert_eq!(server.clients(), 0);
        server.stop(LONG);
    }
}

#[test]
fn a_client_with_another_key_is_refused() {
    let echo = Arc::new(Echo::default());
    let server =
        Server::start(ServerSettings::new(Role::Blob, KEY), Arc::new(Clients(echo.clone()))).unwrap();
    let client = tcp(&server, PoolKey([4; 32]));
    assert_eq!(call(&client, vec![1]).unwrap_err().kind, ErrorKind::PermissionDenied);
    assert_eq!(echo.requests.load(Ordering::SeqCst), 0);
    assert_eq!(server.clients(), 0);
}

#[test]
fn a_client_with_a_named_key_proves_it_over_tcp_and_over_a_unix_socket() {
    const NAME: &[u8] = b"verify";
    const NAMED: PoolKey = PoolKey([5; 32]);
    let dir = tempfile::tempdir().unwrap();
    let (socket, echo) = (dir.path().join("socket"), Arc::new(Echo::default()));
    let settings = ServerSettings::new(Role::Batch, KEY);
    let settings = ServerSettings { named_keys: vec![NamedKey { name: NAME, key: NAMED }], ..settings };
    let server = Server::start(settings, Arc::new(Clients(echo.clone()))).unwrap();
    server.listen_unix(&socket).unwrap();
    let tcp = Endpoint::Tcp(server.listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap());
    let connect = |server: &Endpoint, name: &[u8], key: PoolKey, has_named_key| {
        let settings = ClientSettings::new(Role::Batch, server.clone(), key);
        Client::start(ClientSettings { description: name.to_vec(), has_named_key, ..settings }).unwrap()
    };
    let zero = PoolKey([0; 32]);
    for server in [Endpoint::Unix(socket), tcp] {
        assert_eq!(call(&connect(&server, NAME, NAMED, true), vec![1]).unwrap(), [1]);
        assert_eq!(call(&connect(&server, b"", KEY, false), vec![2]).unwrap(), [2]);
        // Without the key, the name does not help, and the key proves no other name.
        std::thread::scope(|scope| {
            for (name, key, has_named_key) in [
                (NAME, KEY, true),
                (NAME, KEY.derived(NAME), true),
                (NAME, zero.derived(NAME), true),
                (NAME, zero.clone(), false),
                (b"verif", NAMED, true),
                (b"", NAMED, true),
            ] {
                let client = connect(&server, name, key, has_named_key);
                scope.spawn(move || {
                    let refused = call(&client, vec![3]).unwrap_err();
                    assert_eq!(refused.kind, ErrorKind::PermissionDenied, "{refused}");
                });
            }
        });
    }
    assert_eq!(*echo.named.lock().unwrap(), [true, false, true, false]);
    server.stop(LONG);
}

#[test]
fn a_client_with_a_derived_key_proves_its_description() {
    let echo = Arc::new(Echo::default());
    let server =
        Server::start(ServerSettings::new(Role::Blob, KEY), Arc::new(Clients(echo.clone()))).unwrap();
    let address = server.listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let connect = |description: &[u8], key: PoolKey| {
        let settings = ClientSettings::new(Role::Blob, Endpoint::Tcp(address), key);
        Client::start(ClientSettings { description: description.to_vec(), ..settings })
    };
    let derived = |description: &[u8]| connect(description, KEY.derived(description)).unwrap();
    let longest = vec![7; DESCRIPTION_BYTES_MAX];
    for description in [&b"read"[..], &longest] {
        assert_eq!(call(&derived(description), vec![1]).unwrap(), [1]);
    }
    assert_eq!(connect(&[7; DESCRIPTION_BYTES_MAX + 1], KEY).unwrap_err().kind, ErrorKind::InvalidInput);
    let changed = connect(b"write", KEY.derived(b"read")).unwrap();
    let refused = call(&changed, vec![1]).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::PermissionDenied);
    let unknown = call(&derived(b"unknown"), vec![1]).unwrap_err();
    assert_eq!(unknown.kind, ErrorKind::Unsupported, "{unknown}");
    assert_eq!(echo.requests.load(Ordering::SeqCst), 2);
}

#[test]
fn more_clients_than_the_maximum_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let settings = ServerSettings { clients_max: 2, ..ServerSettings::new(Role::Blob, KEY) };
    let server = Server::start(settings, Arc::new(Clients(Arc::default()))).unwrap();
    server.listen_unix(&socket).unwrap();
    let clients = [unix(&socket), unix(&socket)];
    clients.iter().for_each(|client| assert!(call(client, vec![1]).is_ok()));
    let third = unix(&socket);
    let refused = call(&third, vec![1]).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    assert!(refused.to_string().contains("maximum number of clients"), "{refused}");
    clients[0].stop(LONG);
    wait_until(|| call(&third, vec![1]).is_ok());
}

#[test]
fn requests_wait_at_the_clients_while_the_handler_has_the_maximum() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, echo) = (dir.path().join("socket"), Arc::new(Echo::default()));
    let settings = ServerSettings { requests_begun_max: 10, ..ServerSettings::new(Role::Blob, KEY) };
    let server = Server::start(settings, Arc::new(Clients(echo.clone()))).unwrap();
    server.listen_unix(&socket).unwrap();
    echo.set_closed(true);
    let clients = [unix(&socket), unix(&socket), unix(&socket)];
    let begun: Vec<_> = (0..300).map(|number| begin(&clients[number % 3], vec![number as u8])).collect();
    wait_until(|| echo.requests.load(Ordering::SeqCst) >= 10);
    std::thread::sleep(Duration::from_millis(100));
    assert!(echo.requests.load(Ordering::SeqCst) <= 13);
    echo.set_closed(false);
    for (number, begun) in begun.into_iter().enumerate() {
        assert_eq!(begun.recv().unwrap().unwrap(), [number as u8]);
    }
}

#[test]
fn rubbish_and_silent_connections_harm_no_other_client() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let server =
        Server::start(ServerSettings::new(Role::Blob, KEY), Arc::new(Clients(Arc::default()))).unwrap();
    server.listen_unix(&socket).unwrap();
    let client = unix(&socket);
    assert!(call(&client, vec![1]).is_ok());
    let mut rubbish = UnixStream::connect(&socket).unwrap();
    // The server may close the connection before it has read everything.
    let _ = rubbish.write_all(&[0x5a; 4096]);
    assert!(!matches!(rubbish.read(&mut [0; 64]), Ok(1..)));
    let _silent: Vec<_> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    assert!(call(&client, vec![2]).is_ok());
    assert!(call(&unix(&socket), vec![3]).is_ok());
}

#[test]
fn requests_without_a_reply_end_when_the_server_stops() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, echo) = (dir.path().join("socket"), Arc::new(Echo::default()));
    let server =
        Server::start(ServerSettings::new(Role::Blob, KEY), Arc::new(Clients(echo.clone()))).unwrap();
    server.listen_unix(&socket).unwrap();
    let client = unix(&socket);
    echo.set_closed(true);
    let begun = begin(&client, vec![1]);
    wait_until(|| echo.requests.load(Ordering::SeqCst) == 1);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        echo.set_closed(false);
    });
    // The request that was begun is answered before the end.
    server.stop(LONG);
    assert_eq!(begun.recv().unwrap().unwrap(), [1]);
    opener.join().unwrap();
    assert_eq!(call(&client, vec![2]).unwrap_err().kind, ErrorKind::Unavailable);
}

/// The socket to which a program of another user connects.
const SOCKET: &str = "QUELL_TEST_SOCKET";

#[test]
#[ignore = "a program that tests start"]
fn program_of_another_user() {
    let socket = std::env::var_os(SOCKET).expect("a test has set it");
    let mut stream = UnixStream::connect(socket).unwrap();
    // The server may have closed the connection already.
    let _ = stream.write_all(&[0; 128]);
    assert!(!matches!(stream.read(&mut [0; 1]), Ok(1..)), "the server has answered");
}

#[test]
fn processes_of_other_users_are_refused_at_the_unix_socket() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: asking as another user needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let echo = Arc::new(Echo::default());
    let server =
        Server::start(ServerSettings::new(Role::Blob, KEY), Arc::new(Clients(echo.clone()))).unwrap();
    server.listen_unix(&socket).unwrap();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    // Only the check of the user remains.
    for path in [dir.path(), &socket] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let program = dir.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = std::process::Command::new(program);
    command.args(["--exact", "clients::program_of_another_user", "--ignored"]).env(SOCKET, &socket);
    let ended = command.current_dir("/").uid(65534).gid(65534).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"));
    wait_until(|| server.refused_connections() == 1);
    assert!(call(&unix(&socket), vec![1]).is_ok());
    assert_eq!(echo.requests.load(Ordering::SeqCst), 1);
}
