//! `quell pool`: starts, describes and ends pools.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::HumanBytes;
use quell_mount_spec::{PoolConnection, VIEW_VARIABLE, View, open_pool};
use quell_supervisor::{NewPool, Pool, find_pool, forget_incomplete_pool, pools, start_pool, stop_pool};
use quell_vfs::{Context, Cursor, FileSystem, Space, Writable};
use serde::Serialize;

use super::pool_staging;
use crate::arguments::{PoolCommand, PoolDownArgs, PoolEnvArgs, PoolLsArgs, PoolStatusArgs, PoolUpArgs};
use crate::failure::{Failure, NO};
use crate::inputs::{real_path, shown};
use crate::installed::{PRELOAD_LIBRARY, daemon, library};
use crate::output::{errln, outln};
use crate::views::{POOL_DIRECTORY_VARIABLE, pool_of_argument};

/// The number of partitions of a pool: enough for an even distribution on all daemons.
const PARTITIONS: u16 = 4096;

pub fn run(command: PoolCommand, quiet: bool) -> Result<ExitCode, Failure> {
    match command {
        PoolCommand::Up(args) => up(args),
        PoolCommand::Ls(args) => list(&args),
        PoolCommand::Status(args) => status(&args),
        PoolCommand::Env(args) => environment(&args),
        PoolCommand::StageIn(args) => pool_staging::stage_in(&args, quiet),
        PoolCommand::StageOut(args) => pool_staging::stage_out(&args, quiet),
        PoolCommand::Down(args) => down(&args),
    }
}

fn up(args: PoolUpArgs) -> Result<ExitCode, Failure> {
    let directory = real_path(&args.dir.unwrap_or_else(std::env::temp_dir))?;
    start_pool(&NewPool {
        name: args.name,
        members: args.local,
        directory,
        chunk_bytes: args.chunk_kib << 10,
        partitions: PARTITIONS,
        encrypts: args.encrypt,
        daemon: daemon()?,
    })?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct PoolSummary {
    name: String,
    daemons: usize,
}

fn list(args: &PoolLsArgs) -> Result<ExitCode, Failure> {
    let summary = |pool: Pool| PoolSummary { name: pool.name, daemons: pool.members.len() };
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
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    daemons: Vec<DaemonStatus>,
}

#[derive(Serialize)]
struct DaemonStatus {
    number: u16,
    pid: u32,
    directory: PathBuf,
    address: String,
    /// The reason why the daemon does not answer.
    error: Option<String>,
}

fn status(args: &PoolStatusArgs) -> Result<ExitCode, Failure> {
    let pool = find_pool(&args.name)?;
    let mut space: Option<Space> = None;
    let mut daemons = Vec::new();
    for member in &pool.members {
        let found = open_pool(&member.socket, pool.chunk_bytes)
            .and_then(|fs| fs.attributes(&Context::OWN, fs.root()).and_then(|_| fs.space()));
        let error = found.as_ref().err().map(ToString::to_string);
        space = space.or(found.ok());
        daemons.push(DaemonStatus {
            number: member.id.0,
            pid: member.pid,
            directory: member.directory.clone(),
            address: member.address.clone(),
            error,
        });
    }
    let is_complete = daemons.iter().all(|daemon| daemon.error.is_none());
    let status = PoolStatus {
        name: pool.name,
        chunk_bytes: pool.chunk_bytes,
        total_bytes: space.map(|space| space.total_bytes),
        available_bytes: space.map(|space| space.available_bytes),
        daemons,
    };
    print_status(&status, args.json);
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_status(status: &PoolStatus, as_json: bool) {
    if as_json {
        outln!("{}", serde_json::to_string_pretty(status).expect("paths were checked"));
        return;
    }
    outln!("pool {}, chunks of {}", status.name, HumanBytes(u64::from(status.chunk_bytes)));
    if let (Some(total), Some(available)) = (status.total_bytes, status.available_bytes) {
        outln!("space: {} available of {}", HumanBytes(available), HumanBytes(total));
    }
    for daemon in &status.daemons {
        let DaemonStatus { number, pid, directory, address, error } = daemon;
        let state = error.as_deref().unwrap_or("serves");
        outln!("daemon {number}  process {pid}  {address}  {}  {state}", shown(directory));
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
    if forget_incomplete_pool(&args.name)? {
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
                "it cannot be found out whether all files of the pool {name} were copied out of it: {error}; \
                 copy those that can be read, then end it with --discard"
            )),
        },
    };
    if let Some(reason) = refused {
        return Err(Failure::with_code(NO, reason));
    }
    stop_pool(&pool)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns whether a pool has files, and changes that were not part of a complete copy of it.
/// Without a daemon that answers it has none that can be saved.
fn has_unsaved_files(pool: &Pool) -> Result<bool, Failure> {
    for member in &pool.members {
        let fs = match open_pool(&member.socket, pool.chunk_bytes) {
            Ok(fs) => fs,
            Err(error) => {
                errln!("quell: the daemon {} does not answer: {error}", member.id.0);
                continue;
            }
        };
        let mut has_entries = false;
        fs.list(&Context::OWN, fs.root(), Cursor::START, &mut |_| {
            has_entries = true;
            false
        })?;
        return Ok(has_entries && PoolConnection::open(&member.socket)?.marks()?.has_unsaved_changes());
    }
    Ok(false)
}
