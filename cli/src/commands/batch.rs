//! `quell batch`: creates stores for batches, lists batches and their conflicts, and ends them.

use std::process::ExitCode;

use indicatif::HumanBytes;
use quell_batch::{BatchStore, StoreAccess};
use quell_batch_service::{BatchSummary, SnapshotSummary, SummaryState};
use serde_json::{Value, json};

use super::batch_store::{WAIT, report_conflicts};
use super::{batch_conflicts, batch_copy, batch_fsck, batch_serve, batch_watch};
use crate::arguments::{
    BatchAbortArgs, BatchCommand, BatchCommitArgs, BatchInitArgs, BatchSnapshotsArgs, BatchStatusArgs,
};
use crate::failure::Failure;
use crate::inputs::shown;
use crate::local_time::local_time;
use crate::output::{counted, outln};
use crate::traces::raise_descriptor_limit;

pub fn run(command: BatchCommand, quiet: bool) -> Result<ExitCode, Failure> {
    // All tables of a store are open at the same time.
    raise_descriptor_limit();
    match command {
        BatchCommand::Init(args) => init(&args),
        BatchCommand::Serve(args) => batch_serve::run(&args, quiet),
        BatchCommand::Status(args) => status(&args),
        BatchCommand::Snapshots(args) => snapshots(&args),
        BatchCommand::Watch(args) => batch_watch::run(&args),
        BatchCommand::Conflicts(args) => batch_conflicts::run(&args, quiet),
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
    let store = StoreAccess::open(&args.store, WAIT)?;
    let batches = store.batches()?;
    if args.output.json {
        let lines: Vec<Value> = batches.iter().map(json_of).collect();
        outln!("{:#}", json!({ "batches": lines }));
        return Ok(ExitCode::SUCCESS);
    }
    for batch in &batches {
        let state = match batch.state {
            SummaryState::Open => "open".to_owned(),
            SummaryState::Aborted => "aborted".to_owned(),
            SummaryState::Committed { entries, conflicts } => format!(
                "committed, {}, {}",
                counted(entries, "new entry", "new entries"),
                counted(conflicts, "conflict", "conflicts"),
            ),
        };
        outln!("{:>6}  {state}  {}", batch.number, shown(&batch.name));
    }
    Ok(ExitCode::SUCCESS)
}

fn snapshots(args: &BatchSnapshotsArgs) -> Result<ExitCode, Failure> {
    let snapshots = StoreAccess::open(&args.store, WAIT)?.snapshots()?;
    if args.output.json {
        let lines: Vec<Value> = snapshots.iter().map(json_of_snapshot).collect();
        outln!("{:#}", json!({ "snapshots": lines }));
        return Ok(ExitCode::SUCCESS);
    }
    for snapshot in &snapshots {
        outln!(
            "{:>6}  {}  {} ({} shared), {}, {}, {} of this snapshot only  {}",
            snapshot.batch,
            local_time(snapshot.written.into()),
            counted(snapshot.tables, "table", "tables"),
            snapshot.shared_tables,
            counted(snapshot.entries, "entry", "entries"),
            HumanBytes(snapshot.bytes),
            HumanBytes(snapshot.own_bytes),
            shown(&snapshot.name),
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn commit(args: &BatchCommitArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let store = StoreAccess::open(&args.store, WAIT)?;
    let batch = store.commit(args.batch)?;
    report_conflicts(&args.store, &batch, quiet);
    Ok(ExitCode::SUCCESS)
}

fn abort(args: &BatchAbortArgs) -> Result<ExitCode, Failure> {
    StoreAccess::open(&args.store, WAIT)?.abort(args.batch)?;
    Ok(ExitCode::SUCCESS)
}

fn json_of_snapshot(snapshot: &SnapshotSummary) -> Value {
    json!({
        "batch": snapshot.batch,
        "name": snapshot.name,
        "user": snapshot.uid,
        "time": snapshot.written.0,
        "tables": snapshot.tables,
        "shared_tables": snapshot.shared_tables,
        "entries": snapshot.entries,
        "bytes": snapshot.bytes,
        "own_bytes": snapshot.own_bytes,
    })
}

fn json_of(batch: &BatchSummary) -> Value {
    let (state, entries, conflicts) = match batch.state {
        SummaryState::Open => ("open", None, None),
        SummaryState::Aborted => ("aborted", None, None),
        SummaryState::Committed { entries, conflicts } => ("committed", Some(entries), Some(conflicts)),
    };
    json!({
        "number": batch.number,
        "name": batch.name,
        "user": batch.uid,
        "state": state,
        "entries": entries,
        "conflicts": conflicts,
    })
}
