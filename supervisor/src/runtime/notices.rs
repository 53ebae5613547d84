//! Messages and refusals that are common to all ranks of a job on a node, so that they are printed
//! and determined only once. Files in the runtime directory record them: they are created with
//! `O_EXCL` and are valid for a short time. Runs that do not share a view are not affected.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use xxhash_rust::xxh3::xxh3_64;

use crate::protocol::answer::Refusal;

/// The time for which a file is valid. The ranks of a job start on a node within seconds of one
/// another. A later run with the same job number, for example in the shell of an allocation, prints
/// its messages again.
const VALID_FOR: Duration = Duration::from_secs(30);
const REFUSAL_BYTES_MAX: u64 = 1 << 20;
const NOTICE_PREFIX: &str = "said-";
const REFUSAL_SUFFIX: &str = ".refused";

/// Returns whether this process is the first of the job on this node to print the message. `job` is
/// `None` for a run outside a job.
pub fn is_first_notice(directory: Option<&Path>, job: Option<&str>, message: &str) -> bool {
    let (Some(directory), Some(job)) = (directory, job) else { return true };
    let name =
        format!("{NOTICE_PREFIX}{:016x}", xxh3_64(&[job.as_bytes(), b"\0", message.as_bytes()].concat()));
    let path = directory.join(name);
    remove_old(&path);
    match create(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => false,
        // If the file cannot be created, printing twice is better than not at all.
        _ => true,
    }
}

/// Records for the other ranks of the job that the view of this key was refused.
pub fn record_refusal(directory: &Path, key: &str, refusal: &Refusal) {
    sweep(directory);
    let text = serde_json::to_vec(refusal).expect("a refusal is always JSON");
    // If the file cannot be created, the next rank tries the view itself.
    let _ = create(&refusal_path(directory, key)).and_then(|mut file| file.write_all(&text));
}

/// Returns the recent refusal of the view of this key to another rank.
pub fn recent_refusal(directory: &Path, key: &str) -> Option<Refusal> {
    let path = refusal_path(directory, key);
    remove_old(&path);
    let mut text = Vec::new();
    File::open(path).ok()?.take(REFUSAL_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn refusal_path(directory: &Path, key: &str) -> PathBuf {
    directory.join(format!("{key}{REFUSAL_SUFFIX}"))
}

fn create(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    File::options().write(true).create_new(true).mode(0o600).custom_flags(flags).open(path)
}

fn remove_old(path: &Path) {
    let Ok(modified) = std::fs::symlink_metadata(path).and_then(|found| found.modified()) else { return };
    // A file with a time in the future counts as old.
    if modified.elapsed().map_or(true, |age| age >= VALID_FOR) {
        let _ = std::fs::remove_file(path);
    }
}

fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(NOTICE_PREFIX) || name.ends_with(REFUSAL_SUFFIX))
        {
            remove_old(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("quell-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        path
    }

    fn age(path: &Path) {
        let past = std::time::SystemTime::now() - VALID_FOR;
        File::options().write(true).open(path).unwrap().set_modified(past).unwrap();
    }

    #[test]
    fn one_rank_of_a_job_prints_a_message_and_each_run_outside_a_job() {
        let directory = directory("notices");
        let first = || is_first_notice(Some(&directory), Some("job"), "message");
        let count = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(first)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).filter(|is_first| *is_first).count()
        });
        assert_eq!(count, 1);
        assert!(is_first_notice(Some(&directory), Some("job"), "other message"));
        assert!(is_first_notice(Some(&directory), Some("other job"), "message"));
        for _ in 0..2 {
            assert!(is_first_notice(Some(&directory), None, "message"));
            assert!(is_first_notice(None, Some("job"), "message"));
        }
        for entry in std::fs::read_dir(&directory).unwrap().flatten() {
            age(&entry.path());
        }
        assert!(first() && !first(), "printed once more after the time has passed");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_refusal_is_valid_for_a_short_time_and_for_its_key() {
        let directory = directory("refused");
        assert!(recent_refusal(&directory, "view-1").is_none());
        record_refusal(&directory, "view-1", &Refusal { code: 3, message: "old".into(), is_final: false });
        let again = recent_refusal(&directory, "view-1").unwrap();
        assert_eq!((again.code, again.message.as_str()), (3, "old"));
        assert!(recent_refusal(&directory, "view-2").is_none());
        age(&refusal_path(&directory, "view-1"));
        assert!(recent_refusal(&directory, "view-1").is_none());
        std::fs::remove_dir_all(directory).unwrap();
    }
}
