//! `quell log rebalance`: adds and drains stores, and moves files to their home.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::HumanBytes;
use quell_log::{RebalanceResult, Role};
use serde_json::json;

use super::log_stores::stores_failure;
use super::log_transfer::run_with_progress;
use crate::arguments::LogRebalanceArgs;
use crate::failure::{Failure, NO, YES};
use crate::inputs::{real_path, shown, shown_bytes, text_of_bytes};
use crate::output::{counted, errln, outln};

/// Number of paths of one kind that are printed; the rest is only counted.
const PATHS_SHOWN: usize = 20;
const INTERRUPTED: &str =
    "every file is complete, in its old or its new store; run the command again to continue";

pub fn run(args: &LogRebalanceArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let roles = roles(args)?;
    let failed = |error| stores_failure(&args.stores, error);
    if args.dry_run {
        let result = preview(&roles).map_err(failed)?;
        return Ok(report(args, &result, quiet));
    }
    let stores = Arc::new(quell_mount_spec::change_stores(&roles).map_err(failed)?);
    let result = run_with_progress("rebalancing", quiet || args.output.json, INTERRUPTED, |progress| {
        Ok(quell_log::rebalance(&stores, args.threads.count.into(), progress))
    })?;
    Ok(report(args, &result.map_err(failed)?, quiet))
}

fn preview(roles: &[(PathBuf, Role)]) -> quell_vfs::Result<RebalanceResult> {
    let kept: Vec<_> = roles.iter().filter(|(_, role)| *role != Role::Add).map(|(path, _)| path).collect();
    let map = quell_mount_spec::plan_stores(roles)?;
    // A store that an earlier, interrupted run has added exists already, and must be opened with
    // the others.
    let stores = match quell_mount_spec::open_existing_stores(&kept) {
        Ok(stores) => stores,
        Err(_) => {
            let all: Vec<_> = roles.iter().map(|(path, _)| path).collect();
            quell_mount_spec::open_existing_stores(&all)?
        }
    };
    quell_log::preview_rebalance(&Arc::new(stores), &map)
}

/// Returns every named store once, with its role.
fn roles(args: &LogRebalanceArgs) -> Result<Vec<(PathBuf, Role)>, Failure> {
    let mut roles: Vec<(PathBuf, Role)> = Vec::new();
    let named = args.stores.paths().into_iter().map(|path| (path, Role::Keep));
    let named = named.chain(args.add.iter().map(|path| (path.clone(), Role::Add)));
    for (path, role) in named.chain(args.drain.iter().map(|path| (path.clone(), Role::Drain))) {
        let path = real_path(&path)?;
        match roles.iter_mut().find(|(known, _)| *known == path) {
            None => roles.push((path, role)),
            Some((_, known)) if *known == Role::Keep => *known = role,
            Some((_, known)) if *known == role => {}
            Some(_) => {
                let path = shown(&path);
                return Err(Failure::wrong_input(format!(
                    "{path} is named by --add and by --drain; name one"
                )));
            }
        }
    }
    for (path, _) in &roles {
        if let Some((outer, _)) = roles.iter().find(|(other, _)| other != path && path.starts_with(other)) {
            return Err(Failure::wrong_input(format!(
                "the store {} lies in the store {}; no store may contain another",
                shown(path),
                shown(outer)
            )));
        }
    }
    Ok(roles)
}

fn report(args: &LogRebalanceArgs, result: &RebalanceResult, quiet: bool) -> ExitCode {
    match args.output.json {
        true => print_json(args, result),
        false => print_text(args, result, quiet),
    }
    ExitCode::from(if result.busy.is_empty() && result.failed.is_empty() { YES } else { NO })
}

fn print_json(args: &LogRebalanceArgs, result: &RebalanceResult) {
    let RebalanceResult { files, moved, moved_log_dirs, bytes, busy, failed, is_complete } = result;
    let failed: Vec<_> = (failed.iter())
        .map(|(path, error)| json!({ "path": text_of_bytes(path), "error": error.to_string() }))
        .collect();
    let busy: Vec<_> = busy.iter().map(|path| text_of_bytes(path)).collect();
    outln!(
        "{}",
        json!({ "files": files, "moved": moved, "log_directories_moved": moved_log_dirs, "bytes": bytes,
            "being_written": busy, "failed": failed, "complete": is_complete, "dry_run": args.dry_run })
    );
}

fn print_text(args: &LogRebalanceArgs, result: &RebalanceResult, quiet: bool) {
    let RebalanceResult { files, moved, moved_log_dirs, bytes, busy, failed, is_complete } = result;
    for path in busy.iter().take(PATHS_SHOWN) {
        errln!("quell: {} is being written and was not moved", shown_bytes(path));
    }
    for (path, error) in failed.iter().take(PATHS_SHOWN) {
        errln!("quell: {}: {error}", shown_bytes(path));
    }
    let more = busy.len().saturating_sub(PATHS_SHOWN) + failed.len().saturating_sub(PATHS_SHOWN);
    if more > 0 {
        errln!("quell: {} not listed", counted(more as u64, "more file is", "more files are"));
    }
    if !busy.is_empty() {
        errln!("quell: run the command again when these files are closed");
    }
    if quiet {
        return;
    }
    let files = counted(*files, "file", "files");
    let (verb, log_dirs) = match args.dry_run {
        true => ("would move", String::new()),
        false => ("moved", format!(", {}", counted(*moved_log_dirs, "log directory", "log directories"))),
    };
    let stores = shown(&args.stores.stores);
    outln!("{stores}: {verb} {moved} of {files}{log_dirs}, {}", HumanBytes(*bytes));
    for path in args.drain.iter().filter(|_| *is_complete && !args.dry_run) {
        outln!(
            "{} is empty and no longer a store; delete it after all mounts that run now have ended",
            shown(path)
        );
    }
}
