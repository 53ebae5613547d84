//! Requests of commands to each daemon of a running pool: its state, and its end.

use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use quell_mount_spec::PoolConnection;
use quell_pool::{ask, done, space};
use quell_runtime::{Pool, Registry};
use quell_threads::{into_inner, lock};
use quell_vfs::{Error, ErrorKind, Result, Space, errno};
use quell_wire::pool::{MemberCounters, MemberId, Operation, PoolDaemon, PoolMember, Reply};

use crate::display::shown;
use crate::failure::Failure;
use crate::pools::control::end_keeper;

/// The largest number of simultaneous requests to daemons: fewer than one connection can carry.
const PARALLEL_REQUESTS_MAX: usize = 12;
/// How long a daemon may take to remove its files.
const END_LIMIT: Duration = Duration::from_secs(60);

/// The state of a member.
#[derive(Debug)]
pub struct MemberState {
    /// The member.
    pub member: PoolMember,
    /// The space of the file system with its data, or the reason why it does not answer.
    pub space: Result<Space>,
    /// The time until the answer or the error.
    pub elapsed: Duration,
}

/// Requests the states of all members of a pool, and waits at most `limit` for each. Daemons of
/// this node get the request directly, and the others get it through a daemon of this node. The
/// states are in the order of the members' numbers.
pub fn member_states(pool: &Pool, limit: Duration) -> Vec<MemberState> {
    let request = |member| Operation::MemberSpace { member };
    let answers = ask_members(pool, limit, &request, &space);
    let state = |(member, Answer { result: space, elapsed, .. })| MemberState { member, space, elapsed };
    answers.into_iter().map(state).collect()
}

/// The counters of a member at one time.
#[derive(Debug)]
pub struct CountedMember {
    /// The member.
    pub member: PoolMember,
    /// The name of its node.
    pub host: String,
    /// The counters, or the reason why the member does not answer.
    pub counters: Result<MemberCounters>,
    /// When the answer arrived.
    pub at: Instant,
}

/// Requests the counters of all members of a pool, as [`member_states`] does.
pub fn member_counters(pool: &Pool, limit: Duration) -> Vec<CountedMember> {
    let request = |member| Operation::Counters { member };
    let read = |reply: Reply<'_>| match reply {
        Reply::Counters(counters) => Some(*counters),
        _ => None,
    };
    let answers = ask_members(pool, limit, &request, &read);
    let counted = |(member, Answer { result: counters, at, .. }): (PoolMember, _)| {
        let host = pool.daemon(member.daemon).map_or("-", |daemon| daemon.host.as_str()).to_owned();
        CountedMember { member, host, counters, at }
    };
    answers.into_iter().map(counted).collect()
}

/// The answer of a member.
struct Answer<T> {
    result: Result<T>,
    elapsed: Duration,
    at: Instant,
}

/// Sends a request to each member of a pool, and waits at most `limit` for each answer. The answers
/// are in the order of the members' numbers.
fn ask_members<T: Send>(
    pool: &Pool,
    limit: Duration,
    request: &(dyn Fn(MemberId) -> Operation<'static> + Sync),
    read: &(dyn Fn(Reply<'_>) -> Option<T> + Sync),
) -> Vec<(PoolMember, Answer<T>)> {
    let gateway = gateway(pool);
    for_each(pool.members.iter().collect(), &|member: &&PoolMember| {
        let begun = Instant::now();
        let result = with_connection(pool, member, gateway.as_ref(), |connection| {
            let number = member.id.0.to_string();
            let described = ("ask member", number.as_bytes());
            ask(connection, Some(Instant::now() + limit), &request(member.id), described, read)
        });
        let at = Instant::now();
        ((*member).clone(), Answer { result, elapsed: at - begun, at })
    })
}

/// Ends the daemons of a pool, which remove their files, and removes the files of the daemons of
/// this node that have ended before.
///
/// # Errors
/// `Failure::cannot` if a daemon of this node does not answer, or a daemon of another node cannot
/// be reached. The other daemons have ended then.
pub fn stop_pool(pool: &Pool) -> std::result::Result<(), Failure> {
    let gateway = gateway(pool);
    let (own, others): (Vec<_>, Vec<_>) = pool.daemons.iter().partition(|daemon| daemon.node == pool.node);
    // A daemon ends with the first of its members that ends. The keeper ends those without members.
    let stop = |daemon: &PoolDaemon| {
        let mut ended = Ok(());
        for member in pool.members.iter().filter(|member| member.daemon == daemon.id) {
            let operation = Operation::StopMember { member: member.id };
            ended = with_connection(pool, member, gateway.as_ref(), |connection| {
                ask(connection, Some(Instant::now() + END_LIMIT), &operation, ("end", b""), done)
            });
            if ended.is_ok() {
                break;
            }
        }
        ended
    };
    let mut left = Vec::new();
    for (daemon, ended) in others.iter().zip(for_each(others.clone(), &|daemon| stop(daemon))) {
        if let Err(error) = ended {
            let PoolDaemon { id, host, directory, memory_bytes, .. } = daemon;
            let data = match memory_bytes {
                Some(_) => String::new(),
                None => format!("; its data is in {}", shown(directory)),
            };
            left.push(format!("the daemon {} on {host}: {error}{data}", id.0));
        }
    }
    // The daemons of this node end last, because the requests to the others pass through them.
    for (daemon, ended) in own.iter().zip(for_each(own.clone(), &|daemon| stop(daemon))) {
        match ended {
            Ok(()) => {}
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Unavailable) => {
                remove_files_of(daemon)?;
            }
            Err(error) => left.push(format!("the daemon {} (process {}): {error}", daemon.id.0, daemon.pid)),
        }
    }
    for daemon in &pool.ended {
        let PoolDaemon { host, directory, memory_bytes, .. } = daemon;
        let has_other_daemon = pool.daemons.iter().any(|other| other.node == daemon.node);
        let has_only_data = pool.members.iter().any(|member| member.daemon == daemon.id);
        if daemon.node == pool.node {
            remove_files_of(daemon)?;
        } else if memory_bytes.is_none() && (has_only_data || !has_other_daemon) {
            left.push(format!("the daemon on {host} has failed before; its data is in {}", shown(directory)));
        }
    }
    end_keeper(&pool.name)?;
    if left.is_empty() {
        // The last daemon of the node has removed the directory of the pool, unless it was killed.
        return Ok(Registry::of_user()?.forget(&pool.name)?);
    }
    Err(Failure::cannot(format!("the pool {} has not ended completely:\n  {}", pool.name, left.join("\n  "))))
}

/// Returns a connection to a daemon of this node, through which daemons of other nodes are reached.
fn gateway(pool: &Pool) -> Option<PoolConnection> {
    let has_others = pool.daemons.iter().any(|daemon| daemon.node != pool.node);
    let mut sockets = pool.sockets().filter(|_| has_others);
    sockets.find_map(|socket| PoolConnection::open(&socket).ok())
}

/// Calls `request` with a connection through which a member can be reached.
fn with_connection<T>(
    pool: &Pool,
    member: &PoolMember,
    gateway: Option<&PoolConnection>,
    request: impl FnOnce(&PoolConnection) -> Result<T>,
) -> Result<T> {
    let unavailable = |reason: &str| {
        let error = Error::new(ErrorKind::Unavailable, "ask member", member.id.0.to_string());
        Err(Error { source: Some(reason.to_owned().into()), ..error })
    };
    match pool.daemons.iter().find(|daemon| daemon.id == member.daemon) {
        Some(daemon) if daemon.node == pool.node => {
            let socket = daemon.socket(member.id);
            match PoolConnection::open(&socket) {
                Ok(connection) => request(&connection),
                // A daemon that leaves the pool refuses connections, and serves other daemons.
                Err(error) if error.kind == ErrorKind::Os(errno::ECONNRESET) => {
                    let mut others = pool.sockets().filter(|other| *other != socket);
                    match others.find_map(|other| PoolConnection::open(&other).ok()) {
                        Some(connection) => request(&connection),
                        None => Err(error),
                    }
                }
                Err(error) => Err(error),
            }
        }
        Some(_) => match gateway {
            Some(connection) => request(connection),
            None => unavailable("no daemon on this node answers"),
        },
        None => unavailable("its daemon has ended"),
    }
}

/// Calls a function for each element, several at a time, and returns the results in order.
fn for_each<E: Send, T: Send>(elements: Vec<E>, call: &(dyn Fn(&E) -> T + Sync)) -> Vec<T> {
    let results = Mutex::new(Vec::new());
    let threads = elements.len().min(PARALLEL_REQUESTS_MAX);
    quell_threads::run(threads, elements.into_iter().enumerate(), |(number, element), _| {
        let result = call(&element);
        lock(&results).push((number, result));
    });
    let mut results = into_inner(results);
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Removes the files of a daemon of this node that was killed.
fn remove_files_of(daemon: &PoolDaemon) -> std::result::Result<(), Failure> {
    match fs::remove_dir_all(&daemon.directory) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::cannot(format!("{}: {e}", shown(&daemon.directory))));
        }
        _ => {}
    }
    // The directory of all daemons of the node, if it is empty.
    if let Some(base) = daemon.directory.parent() {
        let _ = fs::remove_dir(base);
    }
    Ok(())
}
