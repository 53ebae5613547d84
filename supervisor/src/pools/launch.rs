//! Starting and stopping the daemons of a pool.

use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use quell_mount_spec::PoolConnection;
use quell_vfs::ErrorKind;
use quell_wire::pool::{LINE_BYTES_MAX, Listening, MemberId, MemberSettings, Operation, PoolSettings, Ready};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::display::shown;
use crate::failure::Failure;
use crate::mount_point::END_TIMEOUT;
use crate::pools::registry::{Pool, PoolMember, pool_directory};

/// How often a daemon that is to end is looked for.
const END_INTERVAL: Duration = Duration::from_millis(5);

/// The settings of a pool that is to be started on this node.
#[derive(Debug)]
pub struct NewPool {
    /// The name.
    pub name: String,
    /// The number of daemons.
    pub members: u16,
    /// The directory below which the daemons keep their data; it exists.
    pub directory: PathBuf,
    /// The size of chunks, in bytes.
    pub chunk_bytes: u32,
    /// The number of partitions.
    pub partitions: u16,
    /// Whether the data that daemons send to each other is encrypted.
    pub encrypts: bool,
    /// The daemon's program.
    pub daemon: PathBuf,
}

/// A daemon that is being started. Its process is killed if the start is given up.
struct Starting {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    id: MemberId,
    directory: PathBuf,
}

/// Starts the daemons of a pool and returns the pool when all of them serve.
///
/// # Errors
///
/// Wrong input if the pool exists. If a daemon cannot be started, the others are ended and their
/// directories are removed.
pub fn start_pool(new: &NewPool) -> Result<Pool, Failure> {
    let registered = pool_directory(&new.name)?;
    make_registered(&new.name, &registered)?;
    let started = start_registered(new, &registered);
    if started.is_err() {
        // The failure of the start is the one that the user must know.
        let _ = fs::remove_dir_all(&registered);
        let _ = fs::remove_dir(registered.parent().expect("it is below the directory of all pools"));
    }
    started
}

/// Creates the directory of a pool.
fn make_registered(name: &str, registered: &Path) -> Result<(), Failure> {
    let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
    let failed = |path: &Path, e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(path)));
    let pools = registered.parent().expect("it is below the directory of all pools");
    loop {
        match make(pools) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(pools, e)),
            _ => {}
        }
        match make(registered) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                let name = shown(name);
                return Err(Failure::wrong_input(format!(
                    "the pool {name} exists; choose another name, or end it with `quell pool down {name}`"
                )));
            }
            // The end of the last pool has removed the directory of all pools.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(registered, e)),
        }
    }
}

fn start_registered(new: &NewPool, registered: &Path) -> Result<Pool, Failure> {
    let files = registered.join("files");
    DirBuilder::new()
        .mode(0o700)
        .create(&files)
        .map_err(|e| Failure::cannot(format!("{}: {e}", shown(&files))))?;
    let mut directories = Vec::new();
    let mut starting = Vec::new();
    let result = start_members(new, registered, &mut directories, &mut starting);
    if result.is_err() {
        for mut member in starting {
            // It may have ended by itself.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
        for directory in directories {
            let _ = fs::remove_dir_all(directory);
        }
    }
    result
}

fn start_members(
    new: &NewPool,
    registered: &Path,
    directories: &mut Vec<PathBuf>,
    starting: &mut Vec<Starting>,
) -> Result<Pool, Failure> {
    let (mut key, mut number) = ([0; 32], [0; 16]);
    random(&mut key)?;
    random(&mut number)?;
    // The directory of a pool is not that of an earlier pool of the same name.
    let unique =
        format!("quell-pool-{}-{}-{:08x}", new.name, std::process::id(), u128::from_le_bytes(number) as u32);
    let base = new.directory.join(unique);
    DirBuilder::new()
        .mode(0o700)
        .create(&base)
        .map_err(|e| Failure::cannot(format!("{}: {e}", shown(&base))))?;
    directories.push(base.clone());
    for id in (0..new.members).map(MemberId) {
        starting.push(launch(new, registered, id, base.join(id.0.to_string()))?);
    }
    let mut addresses = Vec::new();
    for member in &mut *starting {
        let settings = MemberSettings {
            pool: u128::from_le_bytes(number),
            key,
            member: member.id,
            directory: member.directory.clone(),
            socket: registered.join(member.id.0.to_string()),
            listen: "127.0.0.1:0".into(),
            encrypts: new.encrypts,
        };
        member.send(&settings)?;
    }
    for member in &mut *starting {
        match member.receive()? {
            Listening::At(address) => addresses.push((member.id, address)),
            Listening::Failed(reason) => return Err(member.failed(&reason)),
        }
    }
    let settings = PoolSettings {
        members: addresses.clone(),
        partitions: new.partitions,
        chunk_bytes: new.chunk_bytes,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    };
    for member in &mut *starting {
        member.send(&settings)?;
    }
    let mut members = Vec::new();
    for (member, (_, address)) in starting.iter_mut().zip(addresses) {
        match member.receive()? {
            Ready::At(socket) => members.push(PoolMember {
                id: member.id,
                pid: member.child.id(),
                directory: member.directory.clone(),
                socket,
                address,
            }),
            Ready::Failed(reason) => return Err(member.failed(&reason)),
        }
    }
    let pool = Pool { name: new.name.clone(), chunk_bytes: new.chunk_bytes, members };
    pool.save()?;
    Ok(pool)
}

/// Starts the process of a daemon. Its messages go to a file in the directory of the pool.
fn launch(new: &NewPool, registered: &Path, id: MemberId, directory: PathBuf) -> Result<Starting, Failure> {
    let failed = |e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(&new.daemon)));
    let messages = registered.join(format!("{}.log", id.0));
    let messages =
        fs::File::create(&messages).map_err(|e| Failure::cannot(format!("{}: {e}", shown(&messages))))?;
    let mut command = Command::new(&new.daemon);
    // The daemon must not keep a directory busy.
    command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(messages);
    let mut child = command.spawn().map_err(failed)?;
    let input = child.stdin.take().expect("it is piped");
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    Ok(Starting { child, input, output, id, directory })
}

impl Starting {
    fn failed(&self, reason: &str) -> Failure {
        Failure::cannot(format!("the daemon {} in {}: {reason}", self.id.0, shown(&self.directory)))
    }

    fn send(&mut self, message: &impl Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(message)
            .map_err(|e| self.failed(&format!("cannot write its settings: {e}")))?;
        line.push(b'\n');
        // A daemon that has failed has reported the reason, and does not read any more.
        match self.input.write_all(&line).and_then(|()| self.input.flush()) {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(self.failed(&e.to_string())),
            _ => Ok(()),
        }
    }

    fn receive<T: DeserializeOwned>(&mut self) -> Result<T, Failure> {
        let mut line = String::new();
        let read = (&mut self.output).take(LINE_BYTES_MAX).read_line(&mut line);
        match read {
            Ok(0) => Err(self.failed("it has ended without a message")),
            Ok(_) => {
                serde_json::from_str(&line).map_err(|e| self.failed(&format!("its answer is damaged: {e}")))
            }
            Err(e) => Err(self.failed(&e.to_string())),
        }
    }
}

fn random(bytes: &mut [u8]) -> Result<(), Failure> {
    match getrandom(&mut *bytes, GetRandomFlags::empty()) {
        // The kernel gives up to 256 bytes at once.
        Ok(_) => Ok(()),
        Err(e) => Err(Failure::cannot(format!("no random numbers: {e}"))),
    }
}

/// Ends the daemons of a pool and removes its files. Daemons that have ended before are no error.
///
/// # Errors
///
/// The exit code for "cannot" if a daemon does not answer.
pub fn stop_pool(pool: &Pool) -> Result<(), Failure> {
    for member in &pool.members {
        match PoolConnection::open(&member.socket).and_then(|daemon| daemon.send(&Operation::Stop)) {
            Ok(()) => {}
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Unavailable) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for member in &pool.members {
        wait_for_end(member)?;
        match fs::remove_dir_all(&member.directory) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::cannot(format!("{}: {e}", shown(&member.directory))));
            }
            _ => {}
        }
    }
    // The directory of all members, if no other file is in it.
    if let Some(base) = pool.members.first().and_then(|member| member.directory.parent()) {
        let _ = fs::remove_dir(base);
    }
    pool.forget()
}

/// Waits until no process has the store of a member open.
fn wait_for_end(member: &PoolMember) -> Result<(), Failure> {
    let deadline = Instant::now() + END_TIMEOUT;
    while member.socket.exists() {
        match PoolConnection::open(&member.socket) {
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Unavailable) => return Ok(()),
            _ if Instant::now() > deadline => {
                return Err(Failure::cannot(format!(
                    "the daemon {} (process {}) does not end",
                    member.id.0, member.pid
                )));
            }
            _ => std::thread::sleep(END_INTERVAL),
        }
    }
    Ok(())
}
