//! `quell batch conflicts`: lists the conflicts of a batch, and resolves them.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use quell_batch::{Resolution, Resolved, StoreAccess};
use quell_batch_service::Conflict;
use serde_json::json;

use super::batch_store::WAIT;
use crate::arguments::{BatchConflictsArgs, ConflictSide};
use crate::failure::{Failure, NO, YES};
use crate::inputs::{shown_bytes, text_of_bytes};
use crate::output::{counted, errln, outln};

pub fn run(args: &BatchConflictsArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let resolution = match (args.keep, &args.rename) {
        (Some(ConflictSide::Mine), _) => Resolution::Mine,
        (Some(ConflictSide::Theirs), _) => Resolution::Theirs,
        (None, Some(path)) => Resolution::Rename(path.as_os_str().as_bytes().to_vec()),
        (None, None) => return list(args),
    };
    let count_is_right = match &resolution {
        Resolution::Rename(_) => args.paths.len() == 1,
        _ => args.all || !args.paths.is_empty(),
    };
    if !count_is_right {
        let message = match args.rename {
            Some(_) => "name the path of one conflict after --rename NEW",
            None => "name the paths of the conflicts to resolve, or use --all",
        };
        return Err(Failure::wrong_input(message));
    }
    let store = StoreAccess::open_of(&args.store, &args.trust.trust_owner, WAIT)?;
    let paths: Vec<Vec<u8>> = args.paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    let paths = (!args.all).then_some(&paths[..]);
    let Resolved { resolved, not_kept } = store.resolve(args.batch, paths, &resolution)?;
    if args.output.json {
        outln!("{}", json!({ "resolved": resolved, "not_kept": not_kept }));
    } else if not_kept > 0 && !quiet {
        errln!(
            "quell: {} left out, so there is nothing to keep; repeat the changes, or use --keep theirs",
            counted(not_kept, "change of the batch was", "changes of the batch were")
        );
    }
    Ok(ExitCode::from(if not_kept > 0 { NO } else { YES }))
}

fn list(args: &BatchConflictsArgs) -> Result<ExitCode, Failure> {
    let store = StoreAccess::open_of(&args.store, &args.trust.trust_owner, WAIT)?;
    let conflicts = store.conflicts(args.batch)?;
    let mut count = 0_u64;
    if args.output.json {
        outln!("{{\"conflicts\": [");
    }
    for Conflict { dir, name, reason, kept_as } in conflicts {
        let path = store.path_of_name(dir, &name);
        let kept = kept_as.map(|kept| store.path_of_name(kept.dir, &kept.name));
        if args.output.json {
            let line = json!({
                "path": text_of_bytes(&path),
                "reason": reason.text(),
                "kept_as": kept.as_deref().map(text_of_bytes),
            });
            outln!("{}{line}", if count > 0 { "," } else { "" });
        } else {
            let kept = kept.map_or_else(String::new, |kept| format!("; kept as {}", shown_bytes(&kept)));
            outln!("{} {}{kept}", shown_bytes(&path), reason.text());
        }
        count += 1;
    }
    if args.output.json {
        outln!("]}}");
    }
    Ok(ExitCode::from(if count > 0 { NO } else { YES }))
}
