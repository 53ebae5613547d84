//! A store in a temporary directory with a server, and its clients.

// Each test binary uses only a part of this module.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_batch::{BatchFs, BatchStore, ServedPartitions, StoreAccess};
use quell_batch_server::{PartitionServer, Server, ServerOptions};
use quell_batch_service::{Reply, Request};
use quell_testkit::MemoryStore;
use quell_testkit::conformance::writing::{Mounts, WritableImplementation};
use quell_transport::peer::{Client, ClientSettings, Endpoint, PoolKey, Role};
use quell_vfs::{Error, FileSystem, NewEntry, Time};

pub const LONG: Duration = Duration::from_secs(120);
pub const NOW: Time = Time { seconds: 100, nanoseconds: 0 };
pub const NEW: NewEntry = NewEntry { permissions: 0o755, uid: 1000, gid: 1000 };

/// Listens at an address. Until the server is restarted, another test can use its port.
fn listen_tcp(server: &Server, address: SocketAddr) -> SocketAddr {
    let end = Instant::now() + LONG;
    loop {
        match server.listener().listen_tcp(address) {
            Err(error) if is_in_use(&error) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            listening => return listening.unwrap(),
        }
    }
}

fn is_in_use(error: &Error) -> bool {
    let cause = error.source.as_ref().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::AddrInUse)
}

/// Runs `check` on mounts of new stores, each of which is a client of the server that `start` has
/// started.
pub fn with_mounts(
    name: &'static str,
    start: impl Fn() -> (Served, Option<PartitionServer>),
    mounts_max: usize,
    check: impl Fn(&WritableImplementation<'_>),
) {
    let make = |count: usize| {
        // The data is in memory, because file systems differ in the largest offset.
        let (servers, data) = (start(), MemoryStore::new());
        let mount = |_| -> Arc<dyn FileSystem> {
            Arc::new(BatchFs::new(servers.0.access().name_space(), data.root(), 0))
        };
        Mounts { mounts: (0..count).map(mount).collect(), keep: Some(Box::new(servers)) }
    };
    check(&WritableImplementation {
        name,
        make: &make,
        mounts_max,
        name_bytes_max: 255,
        path_bytes_max: usize::MAX,
        uid: NEW.uid,
        gid: NEW.gid,
        owners: true,
        rename_kinds: true,
        hard_links: true,
        locks: false,
        xattrs: true,
        writes_zeros: false,
    });
}

/// A store with a server.
pub struct Served {
    /// `None` while the server is restarted.
    server: Option<Server>,
    address: Option<SocketAddr>,
    options: ServerOptions,
    /// The number of creations after which a directory is divided; 0: never.
    creations: u64,
    path: PathBuf,
    directory: tempfile::TempDir,
}

/// Starts a partition server, which has no Unix socket if `is_tcp` is set.
pub fn partition_server(store: &Path, is_tcp: bool) -> PartitionServer {
    let options = ServerOptions { has_key: is_tcp, ..ServerOptions::default() };
    let partitions = ServedPartitions::open_free(store).unwrap();
    let server = PartitionServer::start(partitions, &options).unwrap();
    if is_tcp {
        let address = server.listener().listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        server.listener().publish(&address.to_string()).unwrap();
    } else {
        server.listener().listen_unix().unwrap();
    }
    server
}

impl Served {
    /// Starts a server, which has no Unix socket if `is_tcp` is set.
    pub fn start(is_tcp: bool) -> Served {
        Served::start_with(is_tcp, ServerOptions::default())
    }

    /// As [`start`](Self::start), with options.
    pub fn start_with(is_tcp: bool, options: ServerOptions) -> Served {
        Served::start_new(is_tcp, options, |path| BatchStore::create(path).map(drop))
    }

    /// As [`start_with`](Self::start_with), with a new store that `create` has created.
    pub fn start_new(
        is_tcp: bool,
        options: ServerOptions,
        create: impl FnOnce(&Path) -> quell_vfs::Result<()>,
    ) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        create(&path).unwrap();
        let mut served = Served { server: None, address: None, options, creations: 0, path, directory };
        served.begin(is_tcp);
        served
    }

    /// Starts a server as [`start`](Self::start) does, which divides directories after this number
    /// of creations.
    pub fn start_dividing(is_tcp: bool, creations: u64) -> Served {
        let mut served = Served::start(is_tcp);
        served.creations = creations;
        served.restart(is_tcp);
        served
    }

    fn begin(&mut self, is_tcp: bool) {
        let store = BatchStore::open_dividing(&self.path, LONG, self.creations).unwrap();
        let options = ServerOptions { has_key: is_tcp, ..self.options.clone() };
        let server = Server::start(store, &options).unwrap();
        if is_tcp {
            // The next server has the same address. Clients would find another address only after 5
            // s.
            let address = self.address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
            let address = listen_tcp(&server, address);
            server.listener().publish(&address.to_string()).unwrap();
            self.address = Some(address);
        } else {
            server.listener().listen_unix().unwrap();
        }
        self.server = Some(server);
    }

    /// Ends the server, and starts another one.
    pub fn restart(&mut self, is_tcp: bool) {
        self.server.take().expect("it runs").stop(LONG).unwrap();
        self.begin(is_tcp);
    }

    /// Ends the server, and returns the directory with the store.
    pub fn stop(mut self) -> tempfile::TempDir {
        self.server.take().expect("it runs").stop(LONG).unwrap();
        self.directory
    }

    /// Sends a request of a client of the owner, and returns the reply.
    pub fn raw(&self, request: &Request) -> quell_vfs::Result<Reply> {
        let (server, key) = match self.address {
            Some(address) => {
                let key = std::fs::read(self.path.join("key")).unwrap();
                (Endpoint::Tcp(address), PoolKey(key.try_into().unwrap()))
            }
            None => (Endpoint::Unix(self.socket()), PoolKey([0; 32])),
        };
        let client = Client::start(ClientSettings::new(Role::Batch, server, key)).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = Box::new(move |result: quell_vfs::Result<Vec<u8>>| sender.send(result).unwrap());
        client.call(quell_wire::encode(request), 1 << 20, std::time::Instant::now() + LONG, done);
        let reply = receiver.recv().unwrap()?;
        client.stop(LONG);
        match quell_wire::decode(&reply)? {
            Reply::Failed(failure) => Err(failure.into_error("test", b"")),
            reply => Ok(reply),
        }
    }

    /// Returns the path of the store.
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the path of the Unix socket of the server.
    pub fn socket(&self) -> PathBuf {
        self.path.join("socket")
    }

    /// Returns a client.
    pub fn access(&self) -> StoreAccess {
        StoreAccess::open(&self.path, LONG).unwrap()
    }

    /// Returns a mount with its own client. The client lives as long as the mount.
    pub fn mount(&self) -> BatchFs {
        self.access().file_system(b"").unwrap()
    }
}
