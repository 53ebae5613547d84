//! The runtime directory, in which the sockets, locks and messages of holders and daemons are.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::refusal::{Refusal, shown};

/// The number of directories in /tmp that are tried, because another user may have created some of
/// them.
const SHARED_DIRECTORIES_MAX: u32 = 16;

/// Returns a directory that only this user can access: `$QUELL_RUNTIME_DIR`, or
/// `$XDG_RUNTIME_DIR/quell` if that variable names a directory of this user. Without these
/// variables, returns the first of `/run/quell` (only for root), `/tmp/quell-UID`,
/// `/tmp/quell-UID-1`, `-2`, ... that exists and belongs to this user, or creates the first that
/// can be created. All processes of a user therefore find the same directory.
pub fn runtime_directory() -> Result<PathBuf, Refusal> {
    let uid = rustix::process::geteuid().as_raw();
    let session = variable("XDG_RUNTIME_DIR")
        .filter(|path| std::fs::metadata(path).is_ok_and(|m| m.uid() == uid))
        .map(|path| path.join("quell"));
    match named_directory().or(session) {
        Some(path) => private_directory(path),
        None => shared_directory(uid, Path::new("/run"), Path::new("/tmp")),
    }
}

/// Returns the runtime directory of pools. Unlike the runtime directory of holders, it does not
/// depend on `$XDG_RUNTIME_DIR`, because this variable is set after a remote login, but may not be
/// set in a task of a job. It is `named`, or without `named` the first of the other directories of
/// [`runtime_directory`].
pub fn pool_runtime_directory(named: Option<PathBuf>) -> Result<PathBuf, Refusal> {
    match named {
        Some(path) => private_directory(path),
        None => shared_directory(rustix::process::geteuid().as_raw(), Path::new("/run"), Path::new("/tmp")),
    }
}

/// Returns the directory that `$QUELL_RUNTIME_DIR` names.
pub fn named_directory() -> Option<PathBuf> {
    variable("QUELL_RUNTIME_DIR")
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Creates the directory if it does not exist, and checks that other users have no access to it.
fn private_directory(path: PathBuf) -> Result<PathBuf, Refusal> {
    make_private(&path).map_err(|e| {
        Refusal::Cannot(format!(
            "cannot create the runtime directory {}: {e}; set QUELL_RUNTIME_DIR to a directory that you own with mode 700",
            shown(&path)
        ))
    })?;
    match is_private(&path, rustix::process::geteuid().as_raw()) {
        Ok(true) => Ok(path),
        _ => Err(Refusal::Cannot(format!(
            "{} is not a directory that you own with mode 700; set QUELL_RUNTIME_DIR to one",
            shown(&path)
        ))),
    }
}

/// Returns the runtime directory if no variable names one. `run`: a directory in which only root
/// can create entries; `shared`: one in which all users can.
fn shared_directory(uid: u32, run: &Path, shared: &Path) -> Result<PathBuf, Refusal> {
    let numbered = (0..SHARED_DIRECTORIES_MAX).map(|number| match number {
        0 => shared.join(format!("quell-{uid}")),
        number => shared.join(format!("quell-{uid}-{number}")),
    });
    let of_root = (uid == 0).then(|| run.join("quell"));
    let paths: Vec<PathBuf> = of_root.into_iter().chain(numbered).collect();
    if let Some(found) = paths.iter().find(|path| is_private(path, uid).unwrap_or(false)) {
        return Ok(found.clone());
    }
    let mut reason = String::new();
    for path in &paths {
        match make_private(path) {
            // Another process of this user may have created it meanwhile.
            Ok(()) if is_private(path, uid).unwrap_or(false) => return Ok(path.clone()),
            Ok(()) => reason = "is not a directory that you own with mode 700".into(),
            Err(e) => reason = e.to_string(),
        }
    }
    let last = paths.last().expect("there are several");
    Err(Refusal::Cannot(format!(
        "{} and all before it cannot be used ({reason}); set QUELL_RUNTIME_DIR to a directory that you own with mode 700",
        shown(last)
    )))
}

/// Creates a directory with mode 0700. It is no error if the name exists.
pub fn make_private(path: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Returns whether `path` is a directory of the user `uid` that others cannot access. Another user
/// may have created it, or a symbolic link in its place.
pub fn is_private(path: &Path, uid: u32) -> std::io::Result<bool> {
    let found = std::fs::symlink_metadata(path)?;
    Ok(found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_another_user_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let (run, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let uid = rustix::process::geteuid().as_raw();
        let find = |run: &Path| shared_directory(uid, run, shared.path());
        // Stand-ins for entries of another user: a mode that is not private, a symbolic link, a
        // file.
        let name = |number: &str| shared.path().join(format!("quell-{uid}{number}"));
        std::fs::create_dir(name("")).unwrap();
        std::fs::set_permissions(name(""), std::fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(run.path(), name("-1")).unwrap();
        std::fs::write(name("-2"), "").unwrap();
        let none = Path::new("/nonexistent");
        assert_eq!(find(none).unwrap(), name("-3"));
        // An existing directory is found, although one with a lower number could be created now.
        std::fs::remove_file(name("-1")).unwrap();
        assert_eq!(find(none).unwrap(), name("-3"));
        for number in 1..SHARED_DIRECTORIES_MAX {
            let path = name(&format!("-{number}"));
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
            std::fs::write(path, "").unwrap();
        }
        let failure = find(none).unwrap_err().to_string();
        assert!(failure.contains("QUELL_RUNTIME_DIR"), "{failure}");
        let of_root = shared_directory(0, run.path(), shared.path());
        assert_eq!(of_root.is_ok(), uid == 0, "{of_root:?}");
    }
}
