//! The pools of this user on one node: a directory in the runtime directory for each. The daemons
//! of the node create the directory, write the description, and remove both.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use quell_wire::pool::{Consistency, DaemonId, PoolDaemon, PoolMember};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::directory::{is_private, make_private, named_directory, pool_runtime_directory};
use crate::refusal::{Refusal, shown};

/// The description of a pool in its directory.
const DESCRIPTION: &str = "pool.json";
/// The file with the number of the pool and the boot id of the node. It exists as long as the
/// directory.
const IDENTITY: &str = "identity";
/// The empty directory in which programs see the files of the pool, unless the user names another
/// one.
const FILES: &str = "files";
/// The end of the name of the file with the messages of a daemon, after its number.
const LOG_SUFFIX: &str = ".log";
/// The largest description that is read, in bytes.
const DESCRIPTION_BYTES_MAX: u64 = 4 << 20;
/// The largest identity that is read, in bytes.
const IDENTITY_BYTES_MAX: u64 = 256;
/// The longest name of a pool, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// The number of attempts to create a directory that other processes may remove meanwhile.
const ATTEMPTS_MAX: u32 = 100;

/// A running pool, as the daemons of one node have described it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name, unique among the pools of this user on this node.
    pub name: String,
    /// The size of its chunks, in bytes.
    pub chunk_bytes: u32,
    /// The number of copies of all names and data.
    pub replicas: u16,
    /// The time at which the sizes of files are visible.
    pub consistency: Consistency,
    /// The node of this description, as `PoolMember::node`.
    pub node: String,
    /// The daemons, on all nodes.
    pub daemons: Vec<PoolDaemon>,
    /// The members, in the order of their numbers.
    pub members: Vec<PoolMember>,
    /// The daemons that have ended.
    pub ended: Vec<PoolDaemon>,
    /// Whether each member runs and has all its backups, and they are complete.
    pub is_complete: bool,
}

impl Pool {
    /// Returns a daemon, which may have ended.
    pub fn daemon(&self, id: DaemonId) -> Option<&PoolDaemon> {
        self.daemons.iter().chain(&self.ended).find(|daemon| daemon.id == id)
    }

    /// Returns the daemons on this node that have not ended.
    pub fn own_daemons(&self) -> impl Iterator<Item = &PoolDaemon> {
        self.daemons.iter().filter(|daemon| daemon.node == self.node)
    }

    /// Returns the sockets on this node to which programs connect: one of each daemon.
    pub fn sockets(&self) -> impl Iterator<Item = PathBuf> {
        self.own_daemons().filter_map(|daemon| {
            let is_served = |member: &&PoolMember| member.serves_clients && member.daemon == daemon.id;
            self.members.iter().find(is_served).map(|member| daemon.socket(member.id))
        })
    }

    /// Returns whether a socket belongs to a member that runs on this node. Programs may be
    /// connected to it although they were to connect to another member of the same daemon: the
    /// member was moved there while they connected.
    pub fn has_socket(&self, socket: &Path) -> bool {
        let has_it = |daemon: &PoolDaemon| {
            let mut members = self.members.iter().filter(|member| member.daemon == daemon.id);
            members.any(|member| daemon.socket(member.id) == socket)
        };
        self.own_daemons().any(has_it)
    }
}

/// The directory of all pools of a user on this node.
#[derive(Debug, Clone)]
pub struct Registry {
    pools: PathBuf,
}

/// The registration of a daemon in the directory of its pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The directory of the pool on this node.
    pub directory: PathBuf,
    /// Identifies the node: daemons with the same value have the same runtime directory.
    pub node: String,
    identity: String,
}

/// The socket of a member that a daemon runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    path: PathBuf,
    /// Device and inode number, and the time of the creation, because an inode number can be
    /// reused.
    identity: (u64, u64, i64, i64),
}

impl Socket {
    /// Returns the socket with this path, which a daemon has created.
    ///
    /// # Errors
    ///
    /// The errors of lstat(2).
    pub fn new(path: PathBuf) -> std::io::Result<Socket> {
        let identity = Socket::identity_of(&path)?;
        Ok(Socket { path, identity })
    }

    /// Returns the path.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Removes the socket, if its path still leads to it.
    ///
    /// # Errors
    ///
    /// The errors of unlink(2).
    pub fn remove(&self) -> std::io::Result<()> {
        match self.exists() {
            true => fs::remove_file(&self.path),
            false => Ok(()),
        }
    }

    /// Returns whether the path still leads to this socket, and not to the socket of another daemon
    /// that runs the member now.
    pub fn exists(&self) -> bool {
        Socket::identity_of(&self.path).is_ok_and(|found| found == self.identity)
    }

    fn identity_of(path: &Path) -> std::io::Result<(u64, u64, i64, i64)> {
        let found = fs::symlink_metadata(path)?;
        Ok((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
    }
}

/// A pool in a directory of the registry, distinguished from later pools of the same name.
#[derive(Debug, Clone)]
pub struct Described {
    directory: PathBuf,
    identity: String,
}

impl Described {
    /// Returns the pool that is registered in a directory now.
    ///
    /// # Errors
    ///
    /// `Refusal::WrongInput` if no pool is registered there.
    pub fn within(directory: &Path) -> Result<Described, Refusal> {
        match read_text(&directory.join(IDENTITY), IDENTITY_BYTES_MAX)? {
            Some(identity) => Ok(Described { directory: directory.to_owned(), identity }),
            None => Err(Refusal::WrongInput(format!("there is no pool in {}", shown(directory)))),
        }
    }

    /// Returns the present description, or `None` if the pool has ended on this node.
    pub fn read(&self) -> Result<Option<Pool>, Refusal> {
        let found = read(&self.directory)?;
        // A later pool of this name gets its identity before its description. If the description
        // that was read belongs to a later pool, the identity of that pool is read now.
        let identity = read_text(&self.directory.join(IDENTITY), IDENTITY_BYTES_MAX)?;
        Ok(found.filter(|_| identity.as_ref() == Some(&self.identity)))
    }

    /// Returns a value that differs between descriptions, or `None` if there is no description.
    pub fn version(&self) -> Option<impl PartialEq + Send + use<>> {
        Socket::identity_of(&self.directory.join(DESCRIPTION)).ok()
    }
}

/// Checks that a name is valid as a component of a path.
pub fn check_pool_name(name: &str) -> Result<(), Refusal> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_refused = name.is_empty()
        || name.len() > NAME_BYTES_MAX
        || !name.chars().all(is_plain)
        || name.starts_with(['.', '-']);
    match is_refused {
        false => Ok(()),
        true => Err(Refusal::WrongInput(format!(
            "{} is not a valid name for a pool: use at most {NAME_BYTES_MAX} letters, digits, '-', '_' and '.', not beginning with '-' or '.'",
            shown(name)
        ))),
    }
}

impl Registry {
    /// Returns the registry of this user: in `$QUELL_RUNTIME_DIR`, or in a directory that depends
    /// on the user only.
    pub fn of_user() -> Result<Registry, Refusal> {
        Registry::within(named_directory())
    }

    /// Returns the registry in a runtime directory. Without one, it is in a directory that depends
    /// on the user only.
    pub fn within(runtime: Option<PathBuf>) -> Result<Registry, Refusal> {
        Ok(Registry { pools: pool_runtime_directory(runtime)?.join("pools") })
    }

    /// Returns the number of the pool of this name, if a daemon has created its directory on this
    /// node.
    pub fn number(&self, name: &str) -> Result<Option<u128>, Refusal> {
        let identity = read_text(&self.directory(name)?.join(IDENTITY), IDENTITY_BYTES_MAX)?;
        Ok(identity.and_then(|text| u128::from_str_radix(text.get(..32)?, 16).ok()))
    }

    /// Returns the path of the directory of the pool of this name, whether it exists or not.
    pub fn directory(&self, name: &str) -> Result<PathBuf, Refusal> {
        check_pool_name(name)?;
        Ok(self.pools.join(name))
    }

    /// Returns the directory in which programs see the files of a pool, unless the user names
    /// another one.
    pub fn files_directory(&self, name: &str) -> Result<PathBuf, Refusal> {
        Ok(self.directory(name)?.join(FILES))
    }

    /// Creates the directory of a pool, or finds the one that another daemon of the same pool has
    /// created on this node. `number` is the number of the pool, and `boot` the number of the
    /// node's boot.
    ///
    /// # Errors
    ///
    /// `Refusal::WrongInput` if another pool has the name.
    pub fn join(&self, name: &str, number: u128, boot: u64) -> Result<Registration, Refusal> {
        let directory = self.directory(name)?;
        let identity = format!("{number:032x} {boot:016x}\n");
        for attempt in 0..ATTEMPTS_MAX {
            if self.create(&directory, &identity, attempt)? {
                return registration(directory, boot, identity);
            }
            let Some(found) = read_text(&directory.join(IDENTITY), IDENTITY_BYTES_MAX)? else {
                // The last daemon of another pool, or a command, is removing the directory.
                std::thread::sleep(std::time::Duration::from_millis(10));
                continue;
            };
            if found == identity {
                return registration(directory, boot, identity);
            }
            let is_same_pool = found.get(..32) == identity.get(..32);
            return Err(match is_same_pool {
                true => Refusal::Cannot(format!(
                    "{} is shared by several nodes; set QUELL_RUNTIME_DIR to a directory of each node",
                    shown(&self.pools)
                )),
                false => Refusal::WrongInput(format!(
                    "the pool {name} exists; choose another name, or end it with `quell pool down {name}`"
                )),
            });
        }
        Err(Refusal::Cannot(format!("{} is damaged; remove it", shown(&directory))))
    }

    /// Creates the directory with its identity. Returns whether it did not exist.
    fn create(&self, directory: &Path, identity: &str, attempt: u32) -> Result<bool, Refusal> {
        let failed = |path: &Path, e: &std::io::Error| Refusal::from_io(path, e);
        make_private(&self.pools).map_err(|e| failed(&self.pools, &e))?;
        if !is_private(&self.pools, rustix::process::geteuid().as_raw()).unwrap_or(false) {
            return Err(Refusal::Cannot(format!("other users have access to {}", shown(&self.pools))));
        }
        let new = self.pools.join(format!(".new-{}-{attempt}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&new);
        let made = made.and_then(|()| fs::write(new.join(IDENTITY), identity));
        let made = made.and_then(|()| DirBuilder::new().mode(0o700).create(new.join(FILES)));
        // A directory that is not empty is not replaced.
        let renamed = made.and_then(|()| fs::rename(&new, directory));
        match renamed {
            Ok(()) => Ok(true),
            Err(e) => {
                // No other process uses the new directory.
                let _ = fs::remove_dir_all(&new);
                use std::io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotFound};
                match e.kind() {
                    // The last daemon of the last pool has removed the directory of all pools.
                    AlreadyExists | DirectoryNotEmpty | NotFound => Ok(false),
                    _ => Err(failed(directory, &e)),
                }
            }
        }
    }

    /// Writes the description, which makes the pool known on this node.
    pub fn save(&self, pool: &Pool, writer: DaemonId) -> Result<(), Refusal> {
        let directory = self.directory(&pool.name)?;
        let failed = |e: std::io::Error| Refusal::from_io(&directory, &e);
        let text = serde_json::to_vec_pretty(pool)
            .map_err(|e| Refusal::Cannot(format!("the description of the pool: {e}")))?;
        let new = directory.join(format!("pool.json.{}", writer.0));
        fs::write(&new, text).map_err(failed)?;
        fs::rename(&new, directory.join(DESCRIPTION)).map_err(failed)
    }

    /// Removes the sockets of the members that a daemon ran until its end, and the file with its
    /// messages. The last daemon of this node also removes the directory of the pool. Has no effect
    /// if the directory belongs to another pool.
    pub fn leave(
        &self,
        registration: &Registration,
        daemon: DaemonId,
        sockets: &[Socket],
    ) -> Result<(), Refusal> {
        let directory = &registration.directory;
        // Without a lock, the directory of a new pool of the same name could be removed.
        let lock = match File::open(&self.pools) {
            Ok(lock) => lock,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Refusal::from_io(&self.pools, &e)),
        };
        flock(&lock, FlockOperation::LockExclusive).map_err(|e| Refusal::from_io(&self.pools, &e.into()))?;
        if read_text(&directory.join(IDENTITY), IDENTITY_BYTES_MAX)?.as_ref() != Some(&registration.identity)
        {
            return Ok(());
        }
        let own = sockets.iter().filter(|socket| socket.exists()).map(|socket| socket.path.clone());
        for path in own.chain([registration.log(daemon)]) {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Refusal::from_io(&path, &e));
                }
                _ => {}
            }
        }
        // A daemon that was killed has left its files.
        let ended = read(directory)?.map_or(Vec::new(), |pool| pool.ended);
        for other in fs::read_dir(directory).map_err(|e| Refusal::from_io(directory, &e))? {
            let other = other.map_err(|e| Refusal::from_io(directory, &e))?;
            if daemon_of_log(&other.file_name()).is_some_and(|id| ended.iter().all(|ended| ended.id != id)) {
                return Ok(());
            }
        }
        self.remove(directory)
    }

    /// Removes the directory of a pool. It is no error if it does not exist.
    pub fn forget(&self, name: &str) -> Result<(), Refusal> {
        self.remove(&self.directory(name)?)
    }

    fn remove(&self, directory: &Path) -> Result<(), Refusal> {
        match fs::remove_dir_all(directory) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Refusal::from_io(directory, &e));
            }
            _ => {}
        }
        // Other pools may exist.
        let _ = fs::remove_dir(&self.pools);
        Ok(())
    }

    /// Removes the directory of a pool whose start was interrupted, so that its name is free.
    /// Returns whether there was one.
    pub fn forget_incomplete(&self, name: &str) -> Result<bool, Refusal> {
        let directory = self.directory(name)?;
        if directory.join(DESCRIPTION).exists() || !directory.exists() {
            return Ok(false);
        }
        self.forget(name).map(|()| true)
    }

    /// Returns the pool of this name on this node.
    pub fn find(&self, name: &str) -> Result<Pool, Refusal> {
        match read(&self.directory(name)?)? {
            Some(pool) => Ok(pool),
            None => Err(Refusal::WrongInput(format!(
                "there is no pool {name} on this node; `quell pool ls` lists the pools, and `quell pool up {name}` starts one"
            ))),
        }
    }

    /// Returns all pools on this node, sorted by name.
    pub fn pools(&self) -> Result<Vec<Pool>, Refusal> {
        let entries = match fs::read_dir(&self.pools) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Refusal::from_io(&self.pools, &e)),
        };
        let mut pools = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| Refusal::from_io(&self.pools, &e))?;
            pools.extend(read(&entry.path())?);
        }
        pools.sort_by(|a: &Pool, b: &Pool| a.name.cmp(&b.name));
        Ok(pools)
    }
}

impl Registration {
    /// Returns the path of the file with the messages of a daemon. The file exists as long as the
    /// daemon.
    pub fn log(&self, daemon: DaemonId) -> PathBuf {
        self.directory.join(format!("{}{LOG_SUFFIX}", daemon.0))
    }
}

/// Returns the daemon to which a file with messages belongs.
fn daemon_of_log(name: &OsStr) -> Option<DaemonId> {
    name.to_str()?.strip_suffix(LOG_SUFFIX)?.parse().ok().map(DaemonId)
}

fn registration(directory: PathBuf, boot: u64, identity: String) -> Result<Registration, Refusal> {
    let found = fs::symlink_metadata(&directory).map_err(|e| Refusal::from_io(&directory, &e))?;
    let node = format!("{boot:016x}-{:x}-{:x}", found.dev(), found.ino());
    Ok(Registration { directory, node, identity })
}

fn read(directory: &Path) -> Result<Option<Pool>, Refusal> {
    let path = directory.join(DESCRIPTION);
    let Some(text) = read_text(&path, DESCRIPTION_BYTES_MAX)? else { return Ok(None) };
    let pool = serde_json::from_str(&text);
    pool.map(Some).map_err(|e| Refusal::WrongInput(format!("{} is damaged: {e}", shown(&path))))
}

/// Reads a file. `None` if it does not exist.
fn read_text(path: &Path, bytes_max: u64) -> Result<Option<String>, Refusal> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Refusal::from_io(path, &e)),
    };
    let mut text = String::new();
    file.take(bytes_max).read_to_string(&mut text).map_err(|e| Refusal::from_io(path, &e))?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use quell_wire::pool::MemberId;

    use super::*;

    #[test]
    fn a_name_is_one_plain_component() {
        for bad in ["", ".", "..", "-p", "a/b", "a b", "\u{e4}", &"x".repeat(65)] {
            assert!(check_pool_name(bad).is_err(), "{bad}");
        }
        check_pool_name("job-17_a.b").unwrap();
    }

    #[test]
    fn programs_connect_to_the_serving_members_of_the_daemons_of_their_node() {
        let daemon = |id, node: &str| PoolDaemon {
            id: DaemonId(id),
            host: node.into(),
            node: node.into(),
            pid: 1,
            directory: "/data".into(),
            memory_bytes: None,
            sockets: "/run/p".into(),
            address: "127.0.0.1:1".into(),
        };
        let member = |id, daemon, serves_clients| PoolMember {
            id: MemberId(id),
            daemon: DaemonId(daemon),
            backups: Vec::new(),
            serves_clients,
        };
        let pool = Pool {
            name: "p".into(),
            chunk_bytes: 4096,
            replicas: 2,
            consistency: Consistency::Synchronous,
            node: "here".into(),
            daemons: vec![daemon(1, "here"), daemon(2, "there")],
            members: vec![member(0, 1, false), member(1, 1, true), member(2, 2, true)],
            ended: vec![daemon(0, "here")],
            is_complete: true,
        };
        assert_eq!(pool.sockets().collect::<Vec<_>>(), [Path::new("/run/p/1")]);
        let has = |socket: &str| pool.has_socket(Path::new(socket));
        assert!(has("/run/p/0"), "the member has moved to the other daemon of the node");
        assert!(has("/run/p/1") && !has("/run/p/2") && !has("/run/p/3"));
    }

    #[test]
    fn the_daemons_of_a_pool_share_its_directory_and_the_last_one_removes_it() {
        let runtime = tempfile::tempdir().unwrap();
        fs::set_permissions(runtime.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let registry = Registry::within(Some(runtime.path().to_owned())).unwrap();
        let first = registry.join("p", 7, 1).unwrap();
        assert_eq!(registry.join("p", 7, 1).unwrap(), first);
        let path = |member: u16| first.directory.join(member.to_string());
        let sockets = [0, 1].map(|number| {
            fs::write(path(number), "").unwrap();
            fs::write(first.log(DaemonId(number)), "").unwrap();
            Socket::new(path(number)).unwrap()
        });
        assert!(matches!(registry.join("p", 8, 1), Err(Refusal::WrongInput(_))), "another pool");
        assert!(matches!(registry.join("p", 7, 2), Err(Refusal::Cannot(_))), "another node");
        // A daemon that was killed does not keep the directory.
        fs::write(first.log(DaemonId(2)), "").unwrap();
        let ended = PoolDaemon {
            id: DaemonId(2),
            host: "n1".into(),
            node: first.node.clone(),
            pid: 1,
            directory: "/data/2".into(),
            memory_bytes: None,
            sockets: first.directory.clone(),
            address: "127.0.0.1:1".into(),
        };
        let pool = Pool {
            name: "p".into(),
            chunk_bytes: 4096,
            replicas: 1,
            consistency: Consistency::Synchronous,
            node: first.node.clone(),
            daemons: Vec::new(),
            members: Vec::new(),
            ended: vec![ended],
            is_complete: true,
        };
        registry.save(&pool, DaemonId(1)).unwrap();
        assert_eq!(registry.find("p").unwrap(), pool);
        // Another daemon runs the member now.
        let new = first.directory.join("new");
        fs::write(&new, "").unwrap();
        fs::rename(&new, path(0)).unwrap();
        let again = Socket::new(path(0)).unwrap();
        registry.leave(&first, DaemonId(0), &sockets[..1]).unwrap();
        assert!(path(0).exists(), "it belongs to the other daemon");
        registry.leave(&first, DaemonId(0), &[again]).unwrap();
        assert_eq!(registry.pools().unwrap(), [pool]);
        registry.leave(&first, DaemonId(1), &sockets[1..]).unwrap();
        registry.leave(&first, DaemonId(1), &sockets[1..]).unwrap();
        assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 0);
        registry.join("p", 8, 1).unwrap();
        registry.leave(&first, DaemonId(1), &sockets[1..]).unwrap();
        assert!(registry.directory("p").unwrap().exists(), "it is that of another pool");
    }
}
