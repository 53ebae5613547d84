//! `quell log rebalance`: adds and drains stores, and moves files to their home.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::HumanBytes;
use quell_log::{Rebalanced, Role};
use serde_json::json;

use super::log_list::of_stores;
use super::log_transfer::watched;
use crate::arguments::LogRebalanceArgs;
use crate::failure::{Failure, NO, YES};
use crate::inputs::{real_path, shown, shown_bytes, text_of_bytes};
use crate::output::{errln, outln};

/// Number of paths of one kind that are printed; the rest is only counted.
const PATHS_SHOWN: usize = 20;

pub fn run(args: &LogRebalanceArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let roles = roles(args)?;
    let failed = |error| of_stores(&args.stores, error);
    if args.dry_run {
        let kept: Vec<_> =
            roles.iter().filter(|(_, role)| *role != Role::Add).map(|(path, _)| path).collect();
        let map = quell_mount_spec::plan_stores(&roles).map_err(failed)?;
        // A store that an earlier, interrupted run has added exists already, and must be opened
        // with the others.
        let stores = match quell_mount_spec::open_existing_stores(&kept) {
            Ok(stores) => stores,
            Err(_) => {
                let all: Vec<_> = roles.iter().map(|(path, _)| path).collect();
                quell_mount_spec::open_existing_stores(&all).map_err(failed)?
            }
        };
        let told = quell_log::foretell(&Arc::new(stores), &map).map_err(failed)?;
        return Ok(report(args, &told, quiet));
    }
    let stores = Arc::new(quell_mount_spec::change_stores(&roles).map_err(failed)?);
    let means = "every file is where it was or where it goes; run it again";
    let done = watched("rebalancing", quiet || args.json, means, |tally| {
        Ok(quell_log::rebalance(&stores, args.threads.into(), tally))
    })?;
    Ok(report(args, &done.map_err(failed)?, quiet))
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
                return Err(Failure::wrong_input(format!("{} cannot come and go at once", shown(&path))));
            }
        }
    }
    for (path, _) in &roles {
        if let Some((outer, _)) = roles.iter().find(|(other, _)| other != path && path.starts_with(other)) {
            return Err(Failure::wrong_input(format!("{} lies in {}", shown(path), shown(outer))));
        }
    }
    Ok(roles)
}

fn report(args: &LogRebalanceArgs, told: &Rebalanced, quiet: bool) -> ExitCode {
    let Rebalanced { files, moved, parts, bytes, busy, failed, is_complete } = told;
    if args.json {
        let failed: Vec<_> = (failed.iter())
            .map(|(path, error)| json!({ "path": text_of_bytes(path), "error": error.to_string() }))
            .collect();
        let busy: Vec<_> = busy.iter().map(|path| shown_bytes(path)).collect();
        outln!(
            "{}",
            json!({ "files": files, "moved": moved, "log_directories_moved": parts, "bytes": bytes,
                "being_written": busy, "failed": failed, "complete": is_complete, "dry_run": args.dry_run })
        );
    } else {
        for path in busy.iter().take(PATHS_SHOWN) {
            errln!("quell: {}: is being written; it was left where it is", shown_bytes(path));
        }
        for (path, error) in failed.iter().take(PATHS_SHOWN) {
            errln!("quell: {}: {error}", shown_bytes(path));
        }
        let more = busy.len().saturating_sub(PATHS_SHOWN) + failed.len().saturating_sub(PATHS_SHOWN);
        if more > 0 {
            errln!("quell: and {more} more");
        }
        if !busy.is_empty() {
            errln!("quell: run it again when these files are closed");
        }
        if !quiet {
            let (done, also) = match args.dry_run {
                true => ("would be moved", String::new()),
                false => ("moved", format!(", {parts} log directories")),
            };
            outln!(
                "{}: {done}: {moved} of {files} files{also}, {}",
                shown(&args.stores.stores),
                HumanBytes(*bytes)
            );
            for path in args.drain.iter().filter(|_| *is_complete && !args.dry_run) {
                outln!(
                    "{} is empty and none of the stores any more; delete it when no mount that runs now is left",
                    shown(path)
                );
            }
        }
    }
    ExitCode::from(if busy.is_empty() && failed.is_empty() { YES } else { NO })
}
