//! `quell batch export` and `import`. Source and destination are chosen here; `quell-staging`
//! copies the files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use quell_batch::{OpenBatch, StoreAccess, split_path};
use quell_batch_service::SummaryState;
use quell_vfs::FileSystem;

use super::batch_store::{WAIT, report_conflicts};
use crate::arguments::{BatchExportArgs, BatchImportArgs};
use crate::failure::{Failure, NO, YES};
use crate::inputs::shown;
use crate::staging::{copy, make_dir, make_dirs, open_sources, run, source_in, sync_file_system};

const EXPORT_INTERRUPTED: &str =
    "every file that has its final name is complete; run the command again to continue";
const IMPORT_INTERRUPTED: &str =
    "every file that is complete was published; run the command again to continue";
/// How long a commit waits until other processes have closed the store.
const COMMIT_WAIT: Duration = Duration::from_secs(600);

pub fn export(args: &BatchExportArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (store, path) = store_and_path(&args.source);
    let store = StoreAccess::open_of(&store, &args.trust.trust_owner, WAIT)?;
    let is_complete = {
        let fs: Arc<dyn FileSystem> = Arc::new(store.file_system(b"")?);
        let source = source_in(&fs, &path, &shown(&args.source).to_string())?;
        let target = make_dir(&args.destination)?;
        let title = format!("copying from {}", shown(&args.source));
        let options = (&args.staging, None);
        run((&title, EXPORT_INTERRUPTED), &[source], &target, options, quiet, || {
            sync_file_system(&args.destination)
        })?
    };
    Ok(ExitCode::from(if is_complete { YES } else { NO }))
}

pub fn import(args: &BatchImportArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (store_path, path) = store_and_path(&args.destination);
    let sources = open_sources(&args.sources)?;
    let store = StoreAccess::open_of(&store_path, &args.trust.trust_owner, WAIT)?;
    let existing = store.existing_part(&path)?;
    let name = format!("import {}", std::process::id());
    let batch = OpenBatch::begin(store, &path[..existing], &name, false)?;
    let number = batch.record().number;
    let copied = {
        let fs: Arc<dyn FileSystem> = batch.file_system();
        make_dirs(&fs, &path[existing..]).and_then(|target| {
            let title = format!("copying to {}", shown(&args.destination));
            let options = (&args.staging, None);
            copy((&title, IMPORT_INTERRUPTED), &sources, &target, options, quiet)
        })
    };
    // The files of an interrupted command are published too, so that the next one continues.
    let committed = batch.commit(COMMIT_WAIT).map_err(|error| {
        Failure::cannot(format!(
            "batch {number} was not committed, so nothing was imported: {error}; try again with: quell batch commit {} \
             {number}; or discard it with: quell batch abort {} {number}",
            shown(&store_path),
            shown(&store_path),
        ))
    })?;
    let copied = copied?;
    let has_conflicts = matches!(committed.state, SummaryState::Committed { conflicts, .. } if conflicts > 0);
    // A file in conflict does not have the name that the manifest states.
    let is_complete = copied.is_complete() && !has_conflicts;
    copied.report(is_complete)?;
    report_conflicts(&store_path, &committed, quiet);
    Ok(ExitCode::from(if is_complete { YES } else { NO }))
}

/// Divides `STORE:/PATH`, or the path of a directory below a store, as `quell mount` accepts it.
fn store_and_path(text: &Path) -> (PathBuf, Vec<u8>) {
    let bytes = text.as_os_str().as_bytes();
    let (store, _) = split_path(text);
    if store.join("format").is_file() {
        // The path in the store keeps its last slash or period, which has a meaning for the copy.
        let is_no_slash = |byte: &u8| *byte != b'/';
        let end = store.as_os_str().as_bytes().iter().rposition(is_no_slash).map_or(0, |last| last + 1);
        return (store.to_owned(), bytes[end..].to_vec());
    }
    match bytes.windows(2).position(|pair| pair == b":/") {
        Some(colon) => (OsStr::from_bytes(&bytes[..colon]).into(), bytes[colon + 1..].to_vec()),
        None => (text.to_owned(), Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_store_follows_a_colon_or_a_slash() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        std::fs::create_dir(&store).unwrap();
        std::fs::write(store.join("format"), "").unwrap();
        for (text, path) in [
            ("store", ""),
            ("store/", "/"),
            ("store:", ""),
            ("store:/", "/"),
            ("store:/a/b/.", "/a/b/."),
            ("store/a/b", "/a/b"),
            ("store/a:/b", "/a:/b"),
        ] {
            let found = store_and_path(&dir.path().join(text));
            let expected = if text == "store:" { dir.path().join("store:") } else { store.clone() };
            assert_eq!(found.0, expected, "{text}");
            assert_eq!(String::from_utf8(found.1).unwrap(), path, "{text}");
        }
    }
}
