//! The files with derived keys that commands create, and the times of expiry of the keys.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use super::blob_copy::with_suffix;
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
    match end.timestamp() {
        end if end > now => Ok(u64::try_from(end.as_second()).unwrap_or(0)),
        _ => Err(refuse("the duration is not positive".into())),
    }
}

/// Writes a file to which only this user has access.
pub fn write_private(path: &Path, content: &[u8], replaces: bool) -> Result<(), Failure> {
    let failed = |e: std::io::Error| {
        let hint = match e.kind() {
            std::io::ErrorKind::AlreadyExists => "; pass --force to replace it",
            _ => "",
        };
        Failure::cannot(format!("{}: {e}{hint}", shown(path)))
    };
    let target = if replaces { with_suffix(path, ".quell-new") } else { path.to_owned() };
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target).map_err(failed)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    let written = written.and_then(|()| if replaces { std::fs::rename(&target, path) } else { Ok(()) });
    written.map_err(|e| {
        // An incomplete file is no key.
        let _ = std::fs::remove_file(&target);
        failed(e)
    })
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
        for duration in ["", "0s", "-1d", "30", "99999y", "soon"] {
            assert!(expiry_at(duration, now).is_err(), "{duration}");
        }
    }
}
