//! The directories that the command line names for a view in the program's own process.

use std::path::{Component, Path, PathBuf};

use quell_mount_spec::{ViewLog, ViewPool};
use quell_runtime::{Pool, Registry};
use quell_supervisor::{LogOptions, find_pool, log_plan};

use crate::failure::Failure;
use crate::inputs::{real_path, shown};

/// Parses `STORE[,STORE...]=DIR`, and checks the stores.
pub fn log_of_argument(text: &str, options: LogOptions) -> Result<ViewLog, Failure> {
    let refused = |reason: &str| Failure::wrong_input(format!("--log {}: {reason}", shown(text)));
    let (stores, path) =
        text.rsplit_once('=').ok_or_else(|| refused("it has the form STORE[,STORE...]=DIR"))?;
    let stores: Vec<PathBuf> =
        stores.split(',').filter(|store| !store.is_empty()).map(PathBuf::from).collect();
    if stores.is_empty() || path.is_empty() {
        return Err(refused("it has the form STORE[,STORE...]=DIR"));
    }
    log_of_paths(&stores, Path::new(path), options)
}

/// Checks the stores of a directory, and returns its description. The directory need not exist.
pub fn log_of_paths(stores: &[PathBuf], directory: &Path, options: LogOptions) -> Result<ViewLog, Failure> {
    let path = match real_path(directory) {
        Ok(path) if !path.is_dir() => {
            return Err(Failure::wrong_input(format!("{} is not a directory", shown(&path))));
        }
        Ok(path) => path,
        Err(_) if directory.is_absolute() => directory.to_owned(),
        Err(_) => {
            return Err(Failure::wrong_input(format!("{}: it is not an absolute path", shown(directory))));
        }
    };
    let plan = log_plan(stores, &path, options, false)?;
    Ok(ViewLog {
        aliases: aliases(directory, &path),
        path,
        stores: plan.stores,
        index: options.index,
        buffer_bytes: options.buffer_bytes.map(|bytes| bytes as usize),
        flatten_threshold_bytes: options.flatten_threshold_bytes,
        new_files: options.new_files,
    })
}

/// The variable with the directory of the first pool.
pub const POOL_DIRECTORY_VARIABLE: &str = "QUELL_POOL_DIR";

/// Parses `NAME[=DIR]`, and finds the pool. Without DIR the pool has a directory of its own.
pub fn pool_of_argument(text: &str) -> Result<ViewPool, Failure> {
    let (name, directory) = match text.split_once('=') {
        Some((name, directory)) => (name, Some(Path::new(directory))),
        None => (text, None),
    };
    let pool = find_pool(name)?;
    let named = match directory {
        Some(directory) => directory.to_owned(),
        None => Registry::of_user()?.files_directory(&pool.name)?,
    };
    let path = real_path(&named)?;
    if !path.is_dir() {
        return Err(Failure::wrong_input(format!("{} is not a directory", shown(&path))));
    }
    let socket = first_socket(&pool)?;
    Ok(ViewPool { aliases: aliases(&named, &path), path, socket, chunk_bytes: pool.chunk_bytes })
}

/// Returns the socket of the first daemon of a pool on this node.
pub fn first_socket(pool: &Pool) -> Result<PathBuf, Failure> {
    match pool.sockets().next() {
        Some(socket) => Ok(socket),
        None => Err(Failure::cannot(format!("the pool {} has no daemon on this node", shown(&pool.name)))),
    }
}

/// Returns the path as the user named it, if it leads to `path` through symbolic links: programs
/// use it, too.
pub fn aliases(named: &Path, path: &Path) -> Vec<PathBuf> {
    let is_plain = |named: &PathBuf| !named.components().any(|part| part == Component::ParentDir);
    let named = std::path::absolute(named).ok().filter(is_plain);
    // Without repeated slashes and a slash at the end.
    let named = named.map(|named| named.components().collect::<PathBuf>());
    named.filter(|named| named != path).into_iter().collect()
}
