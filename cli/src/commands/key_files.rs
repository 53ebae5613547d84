//! The files with derived keys that commands create, and the times of expiry of the keys.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use quell_mount_spec::directory_of;

use crate::failure::Failure;
use crate::inputs::shown;

/// Returns the time after a duration from now, such as `12h` or `30d`, in seconds since 1970. Days
/// have 24 hours.
pub fn expiry(duration: &str) -> Result<u64, Failure> {
    expiry_at(duration, Timestamp::now())
}

fn expiry_at(duration: &str, now: Timestamp) -> Result<u64, Failure> {
    let refuse = |reason: String| Failure::wrong_input(format!("--expires {}: {reason}", shown(duration)));
    let span: Span = duration.parse().map_err(|e: jiff::Error| refuse(e.to_string()))?;
    let end = now.to_zoned(TimeZone::UTC).checked_add(span).map_err(|e| refuse(e.to_string()))?;
    let end = end.timestamp();
    if end.as_nanosecond() - now.as_nanosecond() < 1_000_000_000 {
        return Err(refuse("it must be at least one second".into()));
    }
    // Rounded up, so that the key is valid for at least this time.
    let seconds = end.as_second() + i64::from(end.subsec_nanosecond() > 0);
    Ok(u64::try_from(seconds).unwrap_or(0))
}

/// Writes a file to which only this user has access. It gets its name when it is complete. With
/// `replaces`, it replaces an existing file.
pub fn write_private(path: &Path, content: &[u8], replaces: bool) -> Result<(), Failure> {
    let failed = |e: std::io::Error| {
        let hint = match e.kind() {
            std::io::ErrorKind::AlreadyExists => "; pass --force to replace it",
            _ => "",
        };
        Failure::cannot(format!("{}: {e}{hint}", shown(path)))
    };
    let mut file = tempfile::Builder::new()
        .prefix(".quell-key-")
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(directory_of(path))
        .map_err(failed)?;
    file.write_all(content).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    let named = if replaces { file.persist(path) } else { file.persist_noclobber(path) };
    named.map(drop).map_err(|refused| failed(refused.error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_added_to_the_time() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        for (duration, seconds) in [("90s", 90), ("12h", 43_200), ("30d", 2_592_000), ("1w 1d", 691_200)] {
            assert_eq!(expiry_at(duration, now).unwrap(), 1_800_000_000 + seconds, "{duration}");
        }
        // The end of a second is near.
        let late = Timestamp::new(1_800_000_000, 999_500_000).unwrap();
        assert!(expiry_at("1ms", late).is_err());
        assert_eq!(expiry_at("1s", late).unwrap(), 1_800_000_002);
        for duration in ["", "0s", "1ms", "-1d", "30", "99999y", "soon"] {
            assert!(expiry_at(duration, now).is_err(), "{duration}");
        }
    }

    #[test]
    fn a_file_replaces_another_one_only_if_it_may() {
        let temp = tempfile::tempdir().unwrap();
        let (path, other) = (temp.path().join("bob.key"), temp.path().join("other"));
        std::fs::write(&other, "not a key").unwrap();
        write_private(&path, b"first", false).unwrap();
        assert!(write_private(&path, b"second", false).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        let is_private = || {
            let found = std::fs::symlink_metadata(&path).unwrap();
            found.is_file() && found.permissions().mode() & 0o7777 == 0o600
        };
        assert!(is_private());
        write_private(&path, b"second", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        // A symbolic link is replaced, and its target stays as it is.
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        write_private(&path, b"third", true).unwrap();
        assert!(is_private());
        assert_eq!(std::fs::read(&path).unwrap(), b"third");
        assert_eq!(std::fs::read(&other).unwrap(), b"not a key");
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 2);
    }
}
