//! `quell batch fsck` and `gc`: check a store, and remove the files that nothing refers to.

use std::process::ExitCode;

use indicatif::HumanBytes;
use quell_batch::{BatchStore, fsck};
use serde_json::json;

use super::batch_store::WAIT;
use crate::arguments::{BatchFsckArgs, BatchGcArgs};
use crate::failure::{Failure, NO, YES};
use crate::inputs::{shown_bytes, text_of_bytes};
use crate::output::{counted, errln, outln};

pub fn check(args: &BatchFsckArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (mut found, mut left) = (0_u64, 0_u64);
    let checked = fsck(&args.store, WAIT, args.repair, &mut |problem| {
        let is_repaired = problem.is_repairable && args.repair;
        found += 1;
        left += u64::from(!is_repaired);
        if args.output.json {
            let line = json!({
                "kind": problem.kind,
                "path": problem.path.as_deref().map(text_of_bytes),
                "detail": problem.detail,
                "repairable": problem.is_repairable,
                "repaired": is_repaired,
            });
            outln!("{line}");
            return;
        }
        let path = problem.path.as_deref().map_or_else(String::new, |path| match path {
            b"" => "/: ".to_owned(),
            path => format!("{}: ", shown_bytes(path)),
        });
        let state = match (is_repaired, problem.is_repairable) {
            (true, _) => " (repaired)",
            (false, true) => " (--repair corrects it)",
            (false, false) => "",
        };
        outln!("{}: {path}{}{state}", problem.kind, problem.detail);
    })?;
    if !quiet && !args.output.json {
        errln!(
            "quell: {}, {}, {}",
            counted(checked.dirs, "directory", "directories"),
            counted(checked.files, "file", "files"),
            counted(found, "problem", "problems"),
        );
    }
    Ok(ExitCode::from(if left > 0 { NO } else { YES }))
}

pub fn collect(args: &BatchGcArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let store = BatchStore::open(&args.store, WAIT)?;
    let (mut files, mut bytes) = (0, 0);
    store.collect_garbage(!args.dry_run, &mut |unused| {
        files += 1;
        bytes += unused.size_bytes;
        if args.output.json {
            outln!("{}", json!({ "path": text_of_bytes(&unused.path), "size_bytes": unused.size_bytes }));
        } else if args.dry_run {
            outln!("{}", shown_bytes(&unused.path));
        }
    })?;
    if !quiet && !args.output.json && files > 0 {
        let verb = if args.dry_run { "would be removed" } else { "removed" };
        errln!("quell: {}, {} {verb}", counted(files, "file", "files"), HumanBytes(bytes));
    }
    Ok(ExitCode::from(YES))
}
