//! `quell pool`: starts, describes and ends pools.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::HumanBytes;
use quell_mount_spec::{PoolConnection, VIEW_VARIABLE, View, open_pool_at, remove_ended_process_counters};
use quell_runtime::{Pool, Registry};
use quell_supervisor::{MemberState, find_pool, member_states, pools, runtime_directory, stop_pool};
use quell_vfs::{Context, Cursor, FileSystem, Space, Writable};
use quell_wire::pool::{Consistency, PoolDaemon};
use serde::Serialize;

use crate::arguments::{PoolCommand, PoolDownArgs, PoolEnvArgs, PoolLsArgs, PoolStatusArgs};
use crate::commands::{pool_change, pool_map, pool_metrics, pool_staging, pool_top, pool_up};
use crate::failure::{Failure, NO};
use crate::inputs::shown;
use crate::installed::{PRELOAD_LIBRARY, library};
use crate::output::{errln, outln};
use crate::views::{POOL_DIRECTORY_VARIABLE, first_socket, pool_of_argument};

pub fn run(command: PoolCommand, quiet: bool) -> Result<ExitCode, Failure> {
    match command {
        PoolCommand::Up(args) => pool_up::run(args, quiet),
        PoolCommand::Ls(args) => list(&args),
        PoolCommand::Status(args) => status(&args),
        PoolCommand::Map(args) => pool_map::run(&args),
        PoolCommand::Top(args) => pool_top::run(&args),
        PoolCommand::Metrics(args) => pool_metrics::run(&args, quiet),
        PoolCommand::Env(args) => environment(&args),
        PoolCommand::StageIn(args) => pool_staging::stage_in(&args, quiet),
        PoolCommand::StageOut(args) => pool_staging::stage_out(&args, quiet),
        PoolCommand::Expand(args) => pool_change::expand(&args, quiet),
        PoolCommand::Shrink(args) => pool_change::shrink(&args, quiet),
        PoolCommand::Repair(args) => pool_change::repair(&args, quiet),
        PoolCommand::Down(args) => down(&args),
    }
}

#[derive(Serialize)]
struct PoolSummary {
    name: String,
    daemons: usize,
}

fn list(args: &PoolLsArgs) -> Result<ExitCode, Failure> {
    let summary = |pool: Pool| PoolSummary { name: pool.name, daemons: pool.daemons.len() };
    let found: Vec<PoolSummary> = pools()?.into_iter().map(summary).collect();
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&found).expect("names and numbers"));
        return Ok(ExitCode::SUCCESS);
    }
    for PoolSummary { name, daemons } in found {
        outln!("{name}  {daemons} daemon{}", if daemons == 1 { "" } else { "s" });
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct PoolStatus {
    name: String,
    chunk_bytes: u32,
    /// The number of copies of all names and data.
    replicas: u16,
    /// The value of `--consistency`.
    consistency: &'static str,
    /// Whether all copies exist. Missing copies are being made, if there are enough daemons.
    is_complete: bool,
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    daemons: Vec<DaemonStatus>,
}

#[derive(Serialize)]
struct DaemonStatus {
    number: u16,
    host: String,
    pid: u32,
    /// The directory with the data of the daemon, unless the data is in memory.
    directory: Option<PathBuf>,
    memory_bytes: Option<u64>,
    address: String,
    /// The parts of the pool that the daemon serves.
    members: Vec<u16>,
    /// The space of the file system with the data of the daemon.
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    /// The longest time until the answer or the error of a member.
    milliseconds: u64,
    /// The reason why the daemon does not answer.
    error: Option<String>,
}

fn status(args: &PoolStatusArgs) -> Result<ExitCode, Failure> {
    let pool = find_pool(&args.name)?;
    let limit = Duration::from_millis(u64::from(args.wait_ms));
    let states = member_states(&pool, limit);
    let is_used = |daemon: &&PoolDaemon| pool.members.iter().any(|member| member.daemon == daemon.id);
    let failed = pool.ended.iter().filter(is_used);
    let daemons: Vec<DaemonStatus> =
        pool.daemons.iter().chain(failed).map(|daemon| daemon_status(daemon, &states)).collect();
    let is_complete = daemons.iter().all(|daemon| daemon.error.is_none());
    let space = if is_complete { Some(space_of(&pool)?) } else { None };
    let status = PoolStatus {
        name: pool.name,
        chunk_bytes: pool.chunk_bytes,
        replicas: pool.replicas,
        consistency: match pool.consistency {
            Consistency::Synchronous => "sync",
            Consistency::Commit => "commit",
        },
        is_complete: pool.is_complete,
        total_bytes: space.map(|space| space.total_bytes),
        available_bytes: space.map(|space| space.available_bytes),
        daemons,
    };
    print_status(&status, args.json);
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn daemon_status(daemon: &PoolDaemon, states: &[MemberState]) -> DaemonStatus {
    let own: Vec<&MemberState> = states.iter().filter(|state| state.member.daemon == daemon.id).collect();
    let space = own.iter().find_map(|state| state.space.as_ref().ok());
    let error = own.iter().find_map(|state| state.space.as_ref().err());
    DaemonStatus {
        number: daemon.id.0,
        host: daemon.host.clone(),
        pid: daemon.pid,
        directory: daemon.memory_bytes.is_none().then(|| daemon.directory.clone()),
        memory_bytes: daemon.memory_bytes,
        address: daemon.address.clone(),
        members: own.iter().map(|state| state.member.id.0).collect(),
        total_bytes: space.map(|space| space.total_bytes),
        available_bytes: space.map(|space| space.available_bytes),
        milliseconds: own.iter().map(|state| state.elapsed.as_millis() as u64).max().unwrap_or(0),
        error: error.map(|error| error.to_string()),
    }
}

/// Returns the space of the pool, in which a file system that several daemons use counts once.
fn space_of(pool: &Pool) -> Result<Space, Failure> {
    Ok(open_pool_at(&first_socket(pool)?, pool.chunk_bytes)?.space()?)
}

fn print_status(status: &PoolStatus, as_json: bool) {
    if as_json {
        outln!("{}", serde_json::to_string_pretty(status).expect("paths were checked"));
        return;
    }
    let chunk_bytes = HumanBytes(u64::from(status.chunk_bytes));
    outln!("pool {}, chunks of {chunk_bytes}, consistency {}", status.name, status.consistency);
    if status.replicas > 1 {
        let state = if status.is_complete { "all exist" } else { "some are missing" };
        outln!("copies: {}, {state}", status.replicas);
    }
    if let (Some(total), Some(available)) = (status.total_bytes, status.available_bytes) {
        outln!("space: {} available of {}", HumanBytes(available), HumanBytes(total));
    }
    for daemon in &status.daemons {
        let DaemonStatus { number, host, pid, address, .. } = daemon;
        let storage = match &daemon.directory {
            Some(directory) => shown(directory),
            None => "in memory".into(),
        };
        let state = match (&daemon.error, daemon.available_bytes) {
            (None, Some(available)) => format!("up, {} available", HumanBytes(available)),
            (None, None) => "up, without parts of the pool".into(),
            (error, _) => format!(
                "no answer after {} ms: {}",
                daemon.milliseconds,
                error.as_deref().unwrap_or("no answer")
            ),
        };
        outln!("daemon {number}  {host}  process {pid}  {address}  {storage}  {state}");
    }
}

fn environment(args: &PoolEnvArgs) -> Result<ExitCode, Failure> {
    let pool = pool_of_argument(&args.pool)?;
    let directory = pool.path.clone();
    let view = View { pools: vec![pool], ..View::default() };
    View::parse(view.to_json()?.as_bytes())?;
    let library = library(PRELOAD_LIBRARY, "install the library with `make install`")?;
    outln!("{VIEW_VARIABLE}={}", view.to_json()?);
    outln!("LD_PRELOAD={}", library.display());
    outln!("{POOL_DIRECTORY_VARIABLE}={}", directory.display());
    Ok(ExitCode::SUCCESS)
}

fn down(args: &PoolDownArgs) -> Result<ExitCode, Failure> {
    if Registry::of_user()?.forget_incomplete(&args.name)? {
        return Ok(ExitCode::SUCCESS);
    }
    let pool = find_pool(&args.name)?;
    let name = shown(Path::new(&pool.name));
    let refused = match args.discard {
        true => None,
        false => match has_unsaved_files(&pool) {
            Ok(false) => None,
            Ok(true) => Some(format!(
                "the pool {name} has files or changes that were not copied out of it; copy all with \
                 `quell pool stage-out {name}:/ DIR`, or end it with --discard, also after a copy of a part"
            )),
            Err(error) => Some(format!(
                "it cannot be determined whether all files of the pool {name} were copied out of it: {error}; \
                 copy those that can be read, then end it with --discard"
            )),
        },
    };
    if let Some(reason) = refused {
        return Err(Failure::with_code(NO, reason));
    }
    stop_pool(&pool)?;
    // Removes the counters of programs that have used the pool.
    if let Ok(runtime) = runtime_directory() {
        remove_ended_process_counters(&runtime);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns whether a pool has files, and changes that no complete copy contains. Returns false if
/// no daemon of this node answers, because nothing can be copied then.
fn has_unsaved_files(pool: &Pool) -> Result<bool, Failure> {
    for socket in pool.sockets() {
        let fs = match open_pool_at(&socket, pool.chunk_bytes) {
            Ok(fs) => fs,
            Err(error) => {
                errln!("quell: a daemon of this node does not answer: {error}");
                continue;
            }
        };
        let mut has_entries = false;
        fs.list(&Context::OWN, fs.root(), Cursor::START, &mut |_| {
            has_entries = true;
            false
        })?;
        return Ok(has_entries && PoolConnection::open(&socket)?.marks()?.has_unsaved_changes());
    }
    Ok(false)
}
