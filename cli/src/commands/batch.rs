//! `quell batch`: creates stores for batches, lists batches and their conflicts, and ends them.

use std::process::ExitCode;

use quell_batch::BatchStore;
use quell_batch_service::{BatchRecord, BatchState, Conflict};
use serde_json::{Value, json};

use super::batch_store::{WAIT, report_conflicts};
use super::{batch_copy, batch_fsck};
use crate::arguments::{
    BatchAbortArgs, BatchCommand, BatchCommitArgs, BatchConflictsArgs, BatchInitArgs, BatchStatusArgs,
};
use crate::failure::{Failure, NO};
use crate::inputs::{shown, shown_bytes, text_of_bytes};
use crate::output::{counted, outln};
use crate::traces::raise_descriptor_limit;

pub fn run(command: BatchCommand, quiet: bool) -> Result<ExitCode, Failure> {
    // All tables of a store are open at the same time.
    raise_descriptor_limit();
    match command {
        BatchCommand::Init(args) => init(&args),
        BatchCommand::Status(args) => status(&args),
        BatchCommand::Conflicts(args) => conflicts(&args),
        BatchCommand::Commit(args) => commit(&args, quiet),
        BatchCommand::Abort(args) => abort(&args),
        BatchCommand::Fsck(args) => batch_fsck::check(&args, quiet),
        BatchCommand::Gc(args) => batch_fsck::collect(&args, quiet),
        BatchCommand::Export(args) => batch_copy::export(&args, quiet),
        BatchCommand::Import(args) => batch_copy::import(&args, quiet),
    }
}

fn init(args: &BatchInitArgs) -> Result<ExitCode, Failure> {
    BatchStore::create(&args.store)?;
    Ok(ExitCode::SUCCESS)
}

fn status(args: &BatchStatusArgs) -> Result<ExitCode, Failure> {
    let store = BatchStore::open(&args.store, WAIT)?;
    let batches = store.primary().batches()?;
    if args.output.json {
        let lines: Vec<Value> = batches.iter().map(json_of).collect();
        outln!("{:#}", json!({ "batches": lines }));
        return Ok(ExitCode::SUCCESS);
    }
    for batch in &batches {
        let state = match &batch.state {
            BatchState::Open => "open".to_owned(),
            BatchState::Aborted => "aborted".to_owned(),
            BatchState::Committed { entries, conflicts } => format!(
                "committed, {}, {}",
                counted(*entries, "new entry", "new entries"),
                counted(conflicts.len() as u64, "conflict", "conflicts"),
            ),
        };
        outln!("{:>6}  {state}  {}", batch.number, shown(&batch.name));
    }
    Ok(ExitCode::SUCCESS)
}

fn conflicts(args: &BatchConflictsArgs) -> Result<ExitCode, Failure> {
    let store = BatchStore::open(&args.store, WAIT)?;
    let batches = store.primary().batches()?;
    let Some(batch) = batches.iter().find(|batch| batch.number == args.batch) else {
        return Err(Failure::wrong_input(format!(
            "{}: there is no batch {}",
            shown(&args.store),
            args.batch
        )));
    };
    let BatchState::Committed { conflicts, .. } = &batch.state else {
        return Err(Failure::wrong_input(format!("batch {} is not committed", args.batch)));
    };
    let path = |dir: u64, name: &[u8]| -> Vec<u8> {
        // A directory that was removed has no path.
        let dir = store.path_of(dir).unwrap_or_else(|_| format!("(removed directory {dir})").into_bytes());
        [&dir[..], b"/", name].concat()
    };
    let mut lines = Vec::new();
    for Conflict { dir, name, reason, kept_as } in conflicts {
        let (found, kept) = (path(*dir, name), kept_as.as_ref().map(|(dir, name)| path(*dir, name)));
        if args.output.json {
            lines.push(json!({
                "path": text_of_bytes(&found),
                "reason": reason.text(),
                "kept_as": kept.as_deref().map(text_of_bytes),
            }));
            continue;
        }
        let kept = kept.map_or_else(String::new, |kept| format!("; kept as {}", shown_bytes(&kept)));
        outln!("{} {}{kept}", shown_bytes(&found), reason.text());
    }
    if args.output.json {
        outln!("{:#}", json!({ "conflicts": lines }));
    }
    Ok(ExitCode::from(if conflicts.is_empty() { 0 } else { NO }))
}

fn commit(args: &BatchCommitArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let store = BatchStore::open(&args.store, WAIT)?;
    let record = store.commit(args.batch)?;
    report_conflicts(&args.store, &record, quiet);
    Ok(ExitCode::SUCCESS)
}

fn abort(args: &BatchAbortArgs) -> Result<ExitCode, Failure> {
    BatchStore::open(&args.store, WAIT)?.abort(args.batch)?;
    Ok(ExitCode::SUCCESS)
}

fn json_of(batch: &BatchRecord) -> Value {
    let (state, entries, conflicts) = match &batch.state {
        BatchState::Open => ("open", None, None),
        BatchState::Aborted => ("aborted", None, None),
        BatchState::Committed { entries, conflicts } => ("committed", Some(*entries), Some(conflicts.len())),
    };
    json!({
        "number": batch.number,
        "name": batch.name,
        "user": batch.caller.uid,
        "state": state,
        "entries": entries,
        "conflicts": conflicts,
    })
}
