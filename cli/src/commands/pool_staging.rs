//! `quell pool stage-in` and `stage-out`. Source and destination are chosen here; `quell-staging`
//! copies the files.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use quell_mount_spec::{PoolConnection, open_pool};
use quell_runtime::Pool;
use quell_supervisor::find_pool;
use quell_vfs::FileSystem;

use crate::arguments::{PoolStageInArgs, PoolStageOutArgs};
use crate::failure::{Failure, NO, YES};
use crate::inputs::shown;
use crate::staging::{make_dir, make_dirs, open_sources, run, source_in, sync_file_system};
use crate::views::first_socket;

const INTERRUPTED: &str = "every file that has its final name is complete; run the command again to continue";

pub fn stage_in(args: &PoolStageInArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (pool, path) = pool_and_path(&args.destination)?;
    let fs = connect(&pool)?;
    let sources = open_sources(&args.sources)?;
    let target = make_dirs(&fs, path)?;
    let title = format!("copying to {}", shown(&args.destination));
    let options = (&args.staging, args.part.part);
    let is_complete = run((&title, INTERRUPTED), &sources, &target, options, quiet, || Ok(()))?;
    Ok(ExitCode::from(if is_complete { YES } else { NO }))
}

pub fn stage_out(args: &PoolStageOutArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (pool, path) = pool_and_path(&args.source)?;
    let (fs, socket) = connect_to_the_rest(&pool)?;
    // The marks are read before the first listing, so that they do not include later changes. If a
    // daemon has ended, everything else is copied.
    let is_whole = args.part.part.is_none() && is_root(path);
    let marks = match is_whole {
        true => {
            let connection = PoolConnection::open(&socket)?;
            Some((connection.marks(), connection))
        }
        false => None,
    };
    let source = source_in(&fs, path, &shown(&args.source).to_string())?;
    let target = make_dir(&args.destination)?;
    let title = format!("copying from {}", shown(&args.source));
    let options = (&args.staging, args.part.part);
    let is_complete = run((&title, INTERRUPTED), &[source], &target, options, quiet, || {
        sync_file_system(&args.destination)
    })?;
    if let Some((marks, connection)) = marks
        && is_complete
    {
        // If this fails, all files were copied, but `pool down` refuses to end the pool.
        connection.record_marks(&marks?)?;
    }
    Ok(ExitCode::from(if is_complete { YES } else { NO }))
}

/// Returns whether a path in a pool is the path of its root.
fn is_root(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|name| matches!(name, b"" | b"."))
}

/// Parses `NAME:/PATH`, and finds the pool.
pub(super) fn pool_and_path(text: &str) -> Result<(Pool, &[u8]), Failure> {
    let Some((name, path)) =
        text.split_once(':').filter(|(_, path)| path.is_empty() || path.starts_with('/'))
    else {
        return Err(Failure::wrong_input(format!(
            "{}: a path in a pool has the form NAME:/PATH",
            shown(text)
        )));
    };
    Ok((find_pool(name)?, path.as_bytes()))
}

fn connect(pool: &Pool) -> Result<Arc<dyn FileSystem>, Failure> {
    Ok(Arc::new(open_pool(&first_socket(pool)?, pool.chunk_bytes)?))
}

/// Connects to the first daemon of this node that serves. If one daemon has ended, the data of the
/// other daemons can still be used.
fn connect_to_the_rest(pool: &Pool) -> Result<(Arc<dyn FileSystem>, PathBuf), Failure> {
    let mut refused = None;
    for socket in pool.sockets() {
        match open_pool(&socket, pool.chunk_bytes) {
            Ok(fs) => return Ok((Arc::new(fs.with_reachable_parts()), socket)),
            // For example ECONNRESET while a killed daemon ends.
            Err(error) => _ = refused.get_or_insert(error),
        }
    }
    match refused {
        Some(error) => Err(error.into()),
        None => Err(Failure::cannot(format!("the pool {} has no daemon on this node", shown(&pool.name)))),
    }
}
