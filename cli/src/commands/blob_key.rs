//! `quell blob key`: derives a key with some of the rights for a store.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use quell_blob::{Access, Grant, KeyDescription, Location, Right, derive_key};
use serde_json::json;

use super::blob_copy::with_suffix;
use crate::arguments::BlobKeyArgs;
use crate::failure::Failure;
use crate::inputs::{shown, text_of_bytes};
use crate::output::outln;

pub fn run(args: &BlobKeyArgs) -> Result<ExitCode, Failure> {
    let grants = |right, prefixes: &[OsString]| -> Vec<Grant> {
        prefixes.iter().map(|prefix| Grant { right, prefix: prefix.as_bytes().to_vec() }).collect()
    };
    let access = match args.admin {
        true => Access::Admin,
        false => {
            Access::Grants([grants(Right::Read, &args.read), grants(Right::Write, &args.write)].concat())
        }
    };
    let expires_s = args.expires.as_deref().map(|duration| expiry(duration, Timestamp::now())).transpose()?;
    let location: Location = args.store.parse()?;
    let Some(store_key) = location.key_file() else {
        return Err(Failure::wrong_input(format!(
            "{}: add key=FILE with the key of the store",
            shown(&args.store)
        )));
    };
    let content = derive_key(&store_key, &KeyDescription { access, expires_s })?;
    write_private(&args.file, &content, args.force)?;
    if args.output.json {
        let texts = |prefixes: &[OsString]| -> Vec<_> {
            prefixes.iter().map(|prefix| text_of_bytes(prefix.as_bytes())).collect()
        };
        let file = text_of_bytes(args.file.as_os_str().as_bytes());
        let (read, write) = (texts(&args.read), texts(&args.write));
        let line = json!({
            "file": file, "admin": args.admin, "read": read, "write": write, "expires_s": expires_s,
        });
        outln!("{line:#}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the time after a duration such as `12h` or `30d`, in seconds since 1970. Days have 24
/// hours.
fn expiry(duration: &str, now: Timestamp) -> Result<u64, Failure> {
    let refuse = |reason: String| Failure::wrong_input(format!("--expires {}: {reason}", shown(duration)));
    let span: Span = duration.parse().map_err(|e: jiff::Error| refuse(e.to_string()))?;
    let end = now.to_zoned(TimeZone::UTC).checked_add(span).map_err(|e| refuse(e.to_string()))?;
    match end.timestamp() {
        end if end > now => Ok(u64::try_from(end.as_second()).unwrap_or(0)),
        _ => Err(refuse("the duration is not positive".into())),
    }
}

/// Writes a file to which only this user has access.
fn write_private(path: &Path, content: &[u8], replaces: bool) -> Result<(), Failure> {
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
            assert_eq!(expiry(duration, now).unwrap(), 1_800_000_000 + seconds, "{duration}");
        }
        for duration in ["", "0s", "-1d", "30", "99999y", "soon"] {
            assert!(expiry(duration, now).is_err(), "{duration}");
        }
    }
}
