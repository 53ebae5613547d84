//! The counters of a view in the program's own processes. They are in a file of the runtime
//! directory, which all processes of one `quell run` map:
//!
//! ```text
//! +0   magic        8 bytes   "QUELLPC1"
//! +8   process      u32       the process that `quell run` became
//! +12  directories  u32       of the view: its logs, trees, pools and batches, in this order
//! +16  counters     u64       for each directory, in the order of `PROCESS_COUNTERS`
//! then              bytes     the view as JSON
//! ```
//!
//! Numbers are little endian. A process of the tree holds a shared lock (flock(2)) on the file,
//! which it has inherited: a file without a lock belongs to processes that have ended.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use quell_vfs::{Error, Result};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::view_variable::View;

/// The names of the counters of a directory.
pub const PROCESS_COUNTERS: [&str; 9] = [
    "opens",
    "opens_refused",
    "lookups",
    "listings",
    "reads",
    "read_bytes",
    "writes",
    "written_bytes",
    "calls_refused",
];

/// The magic number of the file.
const MAGIC: &[u8; 8] = b"QUELLPC1";

/// The offset of the counters.
pub const PROCESS_COUNTERS_OFFSET: usize = 16;

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

const PREFIX: &str = "preload-";
const SUFFIX: &str = ".counters";

/// The counters of one `quell run`.
#[derive(Debug, PartialEq, Eq)]
pub struct ProcessCounters {
    /// The process that `quell run` became.
    pub process: u32,
    /// The directories.
    pub view: View,
    /// The counters of each directory of the view: logs, trees, pools, batches.
    pub values: Vec<[u64; PROCESS_COUNTERS.len()]>,
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |cause| Error::from_io(cause, "write", path.as_os_str().as_encoded_bytes())
}

/// Returns the number of bytes of the counters of a view.
pub fn process_counters_bytes(directories: usize) -> usize {
    directories * PROCESS_COUNTERS.len() * size_of::<u64>()
}

/// Creates the file for this process in the runtime directory, names it in the view, and returns it
/// with a shared lock. Removes the files of processes that have ended.
pub fn create_process_counters(runtime: &Path, view: &mut View) -> Result<File> {
    remove_ended_process_counters(runtime);
    let process = std::process::id();
    let path = runtime.join(format!("{PREFIX}{process}{SUFFIX}"));
    let mut file = create_locked(&path).map_err(failed(&path))?;
    let directories = view.directories();
    let mut bytes = Vec::from(MAGIC);
    bytes.extend_from_slice(&process.to_le_bytes());
    bytes.extend_from_slice(&(directories as u32).to_le_bytes());
    bytes.resize(PROCESS_COUNTERS_OFFSET + process_counters_bytes(directories), 0);
    view.counters = Some(path.clone());
    bytes.extend_from_slice(view.to_json()?.as_bytes());
    file.write_all(&bytes).map_err(failed(&path))?;
    Ok(file)
}

/// Creates a file and locks it.
fn create_locked(path: &Path) -> std::io::Result<File> {
    loop {
        // A process with the same number may have left a file.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        flock(&file, FlockOperation::LockShared)?;
        // Another process may have removed the file before this process had the lock.
        if file.metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// Removes the files of all processes of this user that have ended.
pub fn remove_ended_process_counters(runtime: &Path) {
    for path in paths(runtime) {
        open_unless_ended(&path);
    }
}

/// Reads the counters of all running views of this user, and removes the files of those that have
/// ended.
pub fn read_process_counters(runtime: &Path) -> Vec<ProcessCounters> {
    paths(runtime).filter_map(|path| read(&path)).collect()
}

fn paths(runtime: &Path) -> impl Iterator<Item = PathBuf> {
    let names = std::fs::read_dir(runtime).into_iter().flatten().flatten();
    let is_counters = |name: &str| name.starts_with(PREFIX) && name.ends_with(SUFFIX);
    names.filter(move |entry| is_counters(&entry.file_name().to_string_lossy())).map(|entry| entry.path())
}

fn read(path: &Path) -> Option<ProcessCounters> {
    let mut bytes = Vec::new();
    open_unless_ended(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    decode(&bytes)
}

/// Opens the file of a running process. Removes the file of a process that has ended.
fn open_unless_ended(path: &Path) -> Option<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        // Another process may have removed the file first, and the path may have the file of a
        // running process.
        if file.metadata().is_ok_and(|found| found.nlink() > 0) {
            let _ = std::fs::remove_file(path);
        }
        return None;
    }
    Some(file)
}

fn decode(bytes: &[u8]) -> Option<ProcessCounters> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (process, directories) = (word(8)?, word(12)? as usize);
    if !bytes.starts_with(MAGIC) || directories > bytes.len() {
        return None;
    }
    let end = PROCESS_COUNTERS_OFFSET + process_counters_bytes(directories);
    let counters = bytes.get(PROCESS_COUNTERS_OFFSET..end)?;
    let numbers: Vec<u64> =
        counters.as_chunks().0.iter().map(|number: &[u8; 8]| u64::from_le_bytes(*number)).collect();
    let view = View::parse(bytes.get(end..)?).ok()?;
    if view.directories() != directories {
        return None;
    }
    Some(ProcessCounters { process, view, values: numbers.as_chunks().0.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_while_a_process_holds_the_lock() {
        let runtime = tempfile::tempdir().unwrap();
        let text = br#"{"log":[{"path":"/m","stores":["/s"]}],"tree":[{"path":"/t","index":"/i"}]}"#;
        let mut view = View::parse(text).unwrap();
        let file = create_process_counters(runtime.path(), &mut view).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, &7_u64.to_le_bytes(), 16 + 72 + 8).unwrap();
        let read = read_process_counters(runtime.path());
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].process, &read[0].view), (std::process::id(), &view));
        assert_eq!(read[0].values, [[0; 9], [0, 7, 0, 0, 0, 0, 0, 0, 0]]);
        drop(file);
        assert_eq!(read_process_counters(runtime.path()), []);
        assert_eq!(std::fs::read_dir(runtime.path()).unwrap().count(), 0, "the file is removed");
    }

    #[test]
    fn the_files_of_processes_that_have_ended_are_removed() {
        let runtime = tempfile::tempdir().unwrap();
        let view = || View::parse(br#"{"log":[{"path":"/m","stores":["/s"]}]}"#).unwrap();
        let ended = runtime.path().join("preload-1.counters");
        std::fs::write(&ended, b"").unwrap();
        let file = create_process_counters(runtime.path(), &mut view()).unwrap();
        assert!(!ended.exists());
        remove_ended_process_counters(runtime.path());
        assert_eq!(read_process_counters(runtime.path()).len(), 1, "the process runs");
        drop(file);
        remove_ended_process_counters(runtime.path());
        assert_eq!(std::fs::read_dir(runtime.path()).unwrap().count(), 0);
    }

    #[test]
    fn damaged_counters_are_refused() {
        let runtime = tempfile::tempdir().unwrap();
        let mut view = View::parse(br#"{"log":[{"path":"/m","stores":["/s"]}]}"#).unwrap();
        let _file = create_process_counters(runtime.path(), &mut view).unwrap();
        let bytes = std::fs::read(view.counters.unwrap()).unwrap();
        assert!(decode(&bytes).is_some());
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), None);
        }
        let mut many = bytes;
        many[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&many), None);
    }
}
