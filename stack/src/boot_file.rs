//! A boot image that is about to be written: one process at a time reads the old one, joins and replaces it, so that of two
//! recordings that end at once neither is lost. What writers left behind that were killed is removed by the next.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use quell_fs::{Error, Result};
use rustix::fs::{FlockOperation, flock, fstat, stat};
use rustix::io::Errno;

use crate::index_file::{ASIDE, aside_prefix, replace_file};

/// A place for an image that nobody else writes to until this goes.
#[derive(Debug)]
pub struct BootPlace {
    path: PathBuf,
    lock: PathBuf,
    _held: File,
}

impl BootPlace {
    /// Waits for whoever writes there now. A file system without locks leaves writers on their own: the last one stays.
    pub fn claim(path: &Path) -> Result<BootPlace> {
        let mut name = aside_prefix(path);
        name.push("lock");
        let lock = path.with_file_name(name);
        let failed = |e| Error::from_io(e, "write", path.as_os_str().as_bytes());
        loop {
            let file = File::options().create(true).append(true).open(&lock).map_err(failed)?;
            let is_alone = match flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => true,
                Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => false,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(failed(e.into())),
            };
            // It may have been removed by the one that held the lock before.
            let ours = fstat(&file).map_err(|e| failed(e.into()))?;
            let there = stat(&lock).ok();
            if there.is_none_or(|there| (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)) {
                continue;
            }
            let place = BootPlace { path: path.into(), lock, _held: file };
            if is_alone {
                place.sweep();
            }
            return Ok(place);
        }
    }

    /// Puts an image there in one step.
    pub fn replace(&self, bytes: &[u8]) -> Result<()> {
        replace_file(&self.path, bytes, |_| Ok(()))
    }

    /// Nobody else is at work here, so what was written aside belongs to nobody.
    fn sweep(&self) {
        let directory = self.lock.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(entries) = fs::read_dir(directory) else { return };
        let prefix = aside_prefix(&self.path);
        for entry in entries.flatten() {
            let name: OsString = entry.file_name();
            let middle = name
                .as_bytes()
                .strip_prefix(prefix.as_bytes())
                .and_then(|n| n.strip_suffix(ASIDE.as_bytes()));
            if middle.is_some_and(|random| random.iter().all(u8::is_ascii_alphanumeric)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for BootPlace {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.lock);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_at_a_time_is_there_and_nothing_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.boot");
        let (inside, rounds) = (AtomicU32::new(0), 50);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let place = BootPlace::claim(&path).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        let old = fs::read(&path).unwrap_or_default();
                        place.replace(&[old, vec![1]].concat()).unwrap();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(fs::read(&path).unwrap().len(), 4 * rounds);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_killed_writers_left_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let mut others =
            [".app.boot.backup", ".app.boot.a-b.aside", ".app.bootx.123456.aside", "app.boot.123456.aside"];
        for name in others.iter().chain(&[".app.boot.aB3456.aside", ".app.boot.lock"]) {
            fs::write(directory.path().join(name), "x").unwrap();
        }
        drop(BootPlace::claim(&directory.path().join("app.boot")).unwrap());
        let mut left: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        others.sort_unstable();
        assert_eq!(left, others);
    }
}
