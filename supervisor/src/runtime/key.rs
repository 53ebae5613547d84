//! The keys of holders, which determine the runs that share a holder.

use std::ffi::OsString;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::failure::Failure;
use crate::inputs::InputFile;
use crate::protocol::plan::Plan;
use crate::protocol::transfer::Address;

/// The version of the messages between processes and holders. It must change when the messages
/// change.
const PROTOCOL: &str = "protocol 6";

/// Returns the key of a holder for exactly this plan and job, in the caller's namespaces. `job` is
/// `None` for a holder that is not shared.
pub fn view_key(plan: &Plan, files: &[InputFile], job: Option<&str>) -> Result<String, Failure> {
    let cannot = |e: std::io::Error| Failure::cannot(format!("/proc/self/ns: {e}"));
    let mut text = OsString::new();
    for namespace in ["/proc/self/ns/mnt", "/proc/self/ns/user"] {
        text.push(std::fs::read_link(namespace).map_err(cannot)?);
    }
    // Processes of other versions use another protocol.
    text.push(PROTOCOL);
    // The options for messages and for the start do not change the view.
    let shared =
        Plan { quiet: false, verbose: false, log_file: None, answer_timeout_s: None, ..plan.clone() };
    text.push(serde_json::to_string(&shared).map_err(|e| Failure::cannot(e.to_string()))?);
    for file in files {
        // Another file at the same path may be another generation.
        text.push(file.identity()?);
    }
    let unshared = format!("process {}", std::process::id());
    text.push(job.unwrap_or(&unshared));
    Ok(format!("view-{:016x}", xxh3_64(text.as_encoded_bytes())))
}

/// Returns the key of the holder that serves a mount point.
pub fn mount_key(mountpoint: &Path) -> String {
    format!("mount-{:016x}", xxh3_64(mountpoint.as_os_str().as_encoded_bytes()))
}

/// Removes the lock file of a holder that was not created. The caller holds the lock; processes
/// that wait for it then create a new file.
pub fn remove_lock(address: &Address) {
    let _ = std::fs::remove_file(address.directory.join(format!("{}.lock", address.key)));
}

/// Returns the keys of all holders with a socket in the directory.
pub fn holder_keys(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut keys: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".sock")?.to_owned()))
        .collect();
    keys.sort();
    keys
}
