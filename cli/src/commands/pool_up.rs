//! `quell pool up`: starts a pool on this node or on several.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use quell_runtime::{check_pool_name, named_directory};
use quell_supervisor::{Compression, Consistency, NewPool, start_kept_pool};

use crate::arguments::{PoolCompression, PoolConsistency, PoolUpArgs};
use crate::commands::pool_daemons::new_daemons;
use crate::failure::Failure;
use crate::inputs::{real_path, shown};
use crate::progress::watch_line;
use crate::trace::filter;

/// The number of partitions of a pool: enough for an even distribution on all daemons.
const PARTITIONS: u16 = 4096;

pub fn run(args: PoolUpArgs, quiet: bool) -> Result<ExitCode, Failure> {
    check_pool_name(&args.name)?;
    let is_local = args.launch.local.is_some();
    let daemons = new_daemons(&args.launch, args.expand_to.is_none_or(|daemons| daemons <= 1), &|_| true)?;
    let count = daemons.len();
    if usize::from(args.replicas) > count {
        return Err(Failure::wrong_input(format!(
            "--replicas {} needs as many daemons; the pool would have {count}",
            args.replicas
        )));
    }
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))
    };
    let directory = match (&args.dir, is_local) {
        // Resolves symbolic links as the user's shell does on this node.
        (Some(directory), true) => Some(real_path(directory)?),
        (Some(directory), false) => Some(absolute(directory)?),
        (None, _) => None,
    };
    let new = NewPool {
        name: args.name,
        daemons,
        members: args.expand_to.unwrap_or(0).max(count as u16),
        directory,
        memory_bytes: args.memory,
        runtime: named_directory().map(|path| absolute(&path)).transpose()?,
        chunk_bytes: args.chunk_kib << 10,
        partitions: PARTITIONS,
        consistency: match args.consistency {
            PoolConsistency::Sync => Consistency::Synchronous,
            PoolConsistency::Commit => Consistency::Commit,
        },
        replicas: args.replicas,
        encrypts: args.encrypt,
        compression: match args.compress {
            PoolCompression::None => Compression::None,
            PoolCompression::Lz4 => Compression::Lz4,
            PoolCompression::Zstd => Compression::Zstd,
        },
        is_detached: is_local,
        timeout_ms: u64::from(args.launch.timeout) * 1000,
        log_filter: filter()?,
    };
    let line = |elapsed: Duration| format!("starting {count} daemons: {} s", elapsed.as_secs());
    watch_line(&line, quiet, &|| (), || start_kept_pool(&new))?;
    Ok(ExitCode::SUCCESS)
}
