//! The pools of this user on this node: a directory in the runtime directory for each.

use std::fs;
use std::path::{Path, PathBuf};

use quell_wire::pool::MemberId;
use serde::{Deserialize, Serialize};

use crate::display::shown;
use crate::failure::Failure;
use crate::runtime::directory::runtime_directory;

/// The description of a pool in its directory.
const DESCRIPTION: &str = "pool.json";
/// The largest description that is read, in bytes.
const DESCRIPTION_BYTES_MAX: u64 = 4 << 20;
/// The longest name of a pool, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// A running pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name, unique among the pools of this user.
    pub name: String,
    /// The size of its chunks, in bytes.
    pub chunk_bytes: u32,
    /// Its daemons.
    pub members: Vec<PoolMember>,
}

/// A daemon of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolMember {
    /// Its number.
    pub id: MemberId,
    /// Its process id on its node.
    pub pid: u32,
    /// The directory with its data.
    pub directory: PathBuf,
    /// The socket for the clients of its node.
    pub socket: PathBuf,
    /// The address at which other members reach it.
    pub address: String,
}

impl Pool {
    /// Returns the empty directory at which programs see the files of the pool, unless they name
    /// another one.
    pub fn files_directory(&self) -> Result<PathBuf, Failure> {
        Ok(pool_directory(&self.name)?.join("files"))
    }

    /// Writes the description, which makes the pool known.
    pub(super) fn save(&self) -> Result<(), Failure> {
        let directory = pool_directory(&self.name)?;
        let failed = |e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(&directory)));
        let text = serde_json::to_vec_pretty(self)
            .map_err(|e| Failure::cannot(format!("the description of the pool: {e}")))?;
        let new = directory.join("pool.json.new");
        fs::write(&new, text).map_err(failed)?;
        fs::rename(&new, directory.join(DESCRIPTION)).map_err(failed)
    }

    /// Removes the description and the directory.
    pub(super) fn forget(&self) -> Result<(), Failure> {
        let directory = pool_directory(&self.name)?;
        let removed = fs::remove_dir_all(&directory);
        removed.map_err(|e| Failure::cannot(format!("{}: {e}", shown(&directory))))?;
        // Other pools may exist.
        let _ = fs::remove_dir(directory.parent().expect("it is below the directory of all pools"));
        Ok(())
    }
}

/// Returns the directory of the pool of this name, whether it exists or not.
pub(super) fn pool_directory(name: &str) -> Result<PathBuf, Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) || name.starts_with('.')
    {
        return Err(Failure::wrong_input(format!(
            "{} is not a name of a pool: use at most {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'",
            shown(name)
        )));
    }
    Ok(runtime_directory()?.join("pools").join(name))
}

/// Returns the pool of this name on this node.
pub fn find_pool(name: &str) -> Result<Pool, Failure> {
    let directory = pool_directory(name)?;
    match read(&directory)? {
        Some(pool) => Ok(pool),
        None => Err(Failure::wrong_input(format!(
            "there is no pool {}; `quell pool ls` lists the pools, and `quell pool up {}` starts it",
            shown(name),
            shown(name)
        ))),
    }
}

/// Removes the directory of a pool whose start was interrupted, so that its name is free. Returns
/// whether there was one.
pub fn forget_incomplete_pool(name: &str) -> Result<bool, Failure> {
    let directory = pool_directory(name)?;
    if directory.join(DESCRIPTION).exists() || !directory.exists() {
        return Ok(false);
    }
    let removed = fs::remove_dir_all(&directory);
    removed.map(|()| true).map_err(|e| Failure::cannot(format!("{}: {e}", shown(&directory))))
}

/// Returns all pools of this user on this node, sorted by name.
pub fn pools() -> Result<Vec<Pool>, Failure> {
    let directory = runtime_directory()?.join("pools");
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Failure::cannot(format!("{}: {e}", shown(&directory)))),
    };
    let mut pools = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| Failure::cannot(format!("{}: {e}", shown(&directory))))?;
        pools.extend(read(&entry.path())?);
    }
    pools.sort_by(|a: &Pool, b: &Pool| a.name.cmp(&b.name));
    Ok(pools)
}

fn read(directory: &Path) -> Result<Option<Pool>, Failure> {
    use std::io::Read;
    let path = directory.join(DESCRIPTION);
    let failed = |e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(&path)));
    let file = match fs::File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let mut text = Vec::new();
    file.take(DESCRIPTION_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
    let pool = serde_json::from_slice(&text);
    pool.map(Some).map_err(|e| Failure::wrong_input(format!("{} is damaged: {e}", shown(&path))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_plain_component() {
        for bad in ["", ".", "..", "a/b", "a b", "\u{e4}", &"x".repeat(65)] {
            assert!(pool_directory(bad).is_err(), "{bad}");
        }
        assert!(pool_directory("job-17_a.b").unwrap().ends_with("pools/job-17_a.b"));
    }
}
