//! `quell batch`: creates stores for batches, lists batches and their conflicts, and ends them.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount};
use quell_batch::{
    Adoption, AdoptionProgress, BatchStore, PartProgress, PartitionServerSummary, StoreAccess, split_path,
};
use quell_batch_service::{AuxiliarySummary, BatchSummary, PartState, SnapshotSummary, SummaryState};
use quell_vfs::{Error, ErrorKind};
use serde_json::{Map, Value, json};

use super::batch_blobs::BlobTransaction;
use super::batch_store::{WAIT, report_conflicts};
use super::{
    batch_blobs, batch_conflicts, batch_copy, batch_fsck, batch_key, batch_quota, batch_serve, batch_verify,
    batch_watch,
};
use crate::arguments::{
    BatchAbortArgs, BatchBeginArgs, BatchCommand, BatchCommitArgs, BatchInitArgs, BatchSnapshotsArgs,
    BatchStatusArgs,
};
use crate::failure::{Failure, NO, YES};
use crate::inputs::{shown, shown_bytes, text_of_bytes};
use crate::local_time::local_time;
use crate::output::{self, counted, errln, outln};
use crate::plans::own_batch_name;
use crate::progress::{interruption, watch_line};
use crate::traces::raise_descriptor_limit;

pub fn run(command: BatchCommand, quiet: bool) -> Result<ExitCode, Failure> {
    // All tables of a store are open at the same time.
    raise_descriptor_limit();
    match command {
        BatchCommand::Init(args) => init(&args, quiet),
        BatchCommand::Serve(args) => batch_serve::run(&args, quiet),
        BatchCommand::Key(args) => batch_key::run(&args),
        BatchCommand::Verify(args) => batch_verify::run(&args, quiet),
        BatchCommand::Begin(args) => begin(&args),
        BatchCommand::Status(args) => status(&args),
        BatchCommand::Snapshots(args) => snapshots(&args),
        BatchCommand::Quota(args) => batch_quota::run(&args),
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

fn init(args: &BatchInitArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let Some(tree) = &args.adopt else {
        match args.group {
            Some(group) if args.private => BatchStore::create_private(&args.store, group)?,
            Some(group) => BatchStore::create_for_group(&args.store, group)?,
            None => BatchStore::create(&args.store)?,
        }
        return Ok(ExitCode::SUCCESS);
    };
    let progress = AdoptionProgress::default();
    let report = |path: &[u8], error: &Error| {
        match args.json {
            true => outln!("{}", json!({ "path": text_of_bytes(path), "error": error.to_string() })),
            false => errln!("quell: {}: {error}", shown_bytes(path)),
        }
        if output::has_failed() {
            progress.stop();
        }
    };
    let adoption = Adoption { threads: args.threads.into(), progress: &progress, report: &report };
    let is_interrupted = interruption();
    let stop_if_interrupted = || {
        if is_interrupted.load(Ordering::Relaxed) {
            progress.stop();
        }
    };
    let line = |elapsed: Duration| {
        let entries = progress.dirs() + progress.files() + progress.links();
        let rate = entries as f64 / elapsed.as_secs_f64().max(0.001);
        format!(
            "adopting {}: {}, {}/s",
            shown(tree),
            counted(entries, "entry", "entries"),
            HumanCount(rate as u64)
        )
    };
    let adopted = watch_line(&line, quiet || args.json, &stop_if_interrupted, || {
        BatchStore::adopt(&args.store, tree, &adoption)
    });
    match adopted {
        Err(error) if error.kind == ErrorKind::Interrupted && is_interrupted.load(Ordering::Relaxed) => {
            let left = error.source.map(|left| format!("; {left}")).unwrap_or_default();
            return Err(Failure::interrupted(format!("interrupted: no store was created{left}")));
        }
        Err(error) if error.kind == ErrorKind::Interrupted && output::has_failed() => {
            output::finish()?;
            return Err(error.into());
        }
        adopted => adopted?,
    }
    let left_out = progress.left_out();
    if args.json {
        outln!(
            "{}",
            json!({ "directories": progress.dirs(), "files": progress.files(), "links": progress.links(),
                "left_out": left_out })
        );
    } else if left_out > 0 && !quiet {
        let left_out = counted(left_out, "entry was", "entries were");
        errln!("quell: the store was created; {left_out} not adopted, or not completely");
    }
    Ok(ExitCode::from(if left_out > 0 { NO } else { YES }))
}

fn begin(args: &BatchBeginArgs) -> Result<ExitCode, Failure> {
    let (path, subtree) = split_path(&args.store);
    let store = StoreAccess::open(path, WAIT)?;
    let name = args.name.clone().unwrap_or_else(own_batch_name);
    let batch = store.begin_for_parts(subtree.as_os_str().as_bytes(), &name, args.atomic)?;
    outln!("{}", batch.number);
    Ok(ExitCode::SUCCESS)
}

fn status(args: &BatchStatusArgs) -> Result<ExitCode, Failure> {
    let store = StoreAccess::open_for_batches_of(&args.store, &args.trust.trust_owner, WAIT)?;
    let batches = store.batches()?;
    let auxiliary = if store.is_own() { store.auxiliary_servers()? } else { Vec::new() };
    let partitions = if store.is_own() { store.partition_servers()? } else { Vec::new() };
    if args.output.json {
        let lines = batches.iter().map(|batch| json_of(batch, &store)).collect::<Result<Vec<_>, _>>()?;
        let auxiliary: Vec<Value> = auxiliary.iter().map(json_of_auxiliary).collect();
        let partitions: Vec<Value> = partitions.iter().map(json_of_partition_server).collect();
        outln!(
            "{:#}",
            json!({ "batches": lines, "auxiliary_servers": auxiliary, "partition_servers": partitions })
        );
        return Ok(ExitCode::SUCCESS);
    }
    for batch in &batches {
        let state = match &batch.state {
            SummaryState::Open => "open".to_owned(),
            SummaryState::Aborted => "aborted".to_owned(),
            SummaryState::Committed { entries, conflicts } => format!(
                "committed, {}, {}",
                counted(*entries, "new entry", "new entries"),
                counted(*conflicts, "conflict", "conflicts"),
            ),
            SummaryState::Submitted => "submitted, not verified yet".to_owned(),
            SummaryState::Refused { reason } => format!("refused: {}", shown(reason)),
            SummaryState::OpenForParts => "open for parts".to_owned(),
            SummaryState::Prepared { marker } => {
                format!("prepared, with blobs in {}", shown(&marker.location))
            }
            SummaryState::Part { of, state: PartState::Committed { entries } } => {
                format!("part of {of}, committed, {}", counted(*entries, "new entry", "new entries"))
            }
            SummaryState::Part { of, state } => {
                format!("part of {of}, {}", state_of_part(*state, batch.number, &store)?)
            }
        };
        outln!("{:>6}  {state}  {}", batch.number, shown(&batch.name));
    }
    for server in &auxiliary {
        let state = server.batch.map_or_else(|| "idle".to_owned(), |batch| format!("verifies {batch}"));
        let verified = counted(server.verified, "batch verified", "batches verified");
        let failed = match server.failed {
            0 => String::new(),
            failed => format!(", {failed} not completed"),
        };
        outln!("auxiliary server {}: {state}, {verified}{failed}", shown(&server.name));
    }
    for server in &partitions {
        let number = server.number;
        match &server.counters {
            None => outln!("partition server {number}: not running, or not reachable"),
            Some(counters) => {
                let value = |name: &str| {
                    let found = counters.iter().find(|(counter, _)| counter == name);
                    found.map_or(0, |(_, value)| *value)
                };
                let assigned = counted(value("assignments"), "directory", "directories");
                let requests = counted(value("requests"), "request", "requests");
                outln!("partition server {number}: partitions of {assigned}, {requests}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn snapshots(args: &BatchSnapshotsArgs) -> Result<ExitCode, Failure> {
    let snapshots = StoreAccess::open_of(&args.store, &args.trust.trust_owner, WAIT)?.snapshots()?;
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
    let blobs = args.blobs.as_deref().map(BlobTransaction::read).transpose()?;
    let store = StoreAccess::open_for_batches_of(&args.store, &args.trust.trust_owner, WAIT)?;
    match batch_blobs::resolve(&store, args.batch)? {
        Some(true) => return report_earlier_transaction(args),
        Some(false) if blobs.is_none() => {
            let reason = "its transaction of blobs was not committed, so the batch is open again; repeat the \
                          command with --blobs, or without it to commit the files only";
            return Err(Failure::cannot(format!("batch {}: {reason}", args.batch)));
        }
        Some(false) | None => {}
    }
    if args.without_lost_parts {
        for part in store.abort_lost_parts(args.batch)? {
            if !quiet {
                errln!("quell: part {part} is lost, and was discarded");
            }
        }
    }
    if args.lazy {
        store.submit(args.batch)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(blobs) = &blobs {
        batch_blobs::commit(&store, args.batch, blobs)?;
        return Ok(ExitCode::SUCCESS);
    }
    let batch = store.commit(args.batch)?;
    report_conflicts(&args.store, &batch, quiet);
    Ok(ExitCode::SUCCESS)
}

/// The end of a command that has published a prepared batch. It is not known whether the file of
/// `--blobs` has the transaction that is committed.
fn report_earlier_transaction(args: &BatchCommitArgs) -> Result<ExitCode, Failure> {
    let Some(file) = &args.blobs else { return Ok(ExitCode::SUCCESS) };
    let message = format!(
        "batch {} was committed with an earlier transaction of blobs; {} was not executed",
        args.batch,
        shown(file)
    );
    Err(Failure::with_code(NO, message))
}

fn abort(args: &BatchAbortArgs) -> Result<ExitCode, Failure> {
    let store = StoreAccess::open_for_batches_of(&args.store, &args.trust.trust_owner, WAIT)?;
    let is_published = match args.ignore_blobs {
        true => store.roll_back_without_blobs(args.batch)?.map(|_| false),
        false => batch_blobs::resolve(&store, args.batch)?,
    };
    if is_published == Some(true) {
        let reason = "its transaction of blobs is committed, so its files were published";
        return Err(Failure::cannot(format!("batch {} was not aborted: {reason}", args.batch)));
    }
    store.abort(args.batch)?;
    Ok(ExitCode::SUCCESS)
}

fn json_of_auxiliary(server: &AuxiliarySummary) -> Value {
    json!({
        "name": server.name,
        "batch": server.batch,
        "verified": server.verified,
        "failed": server.failed,
    })
}

fn json_of_partition_server(server: &PartitionServerSummary) -> Value {
    let counters = server.counters.iter().flatten();
    let counters: Map<String, Value> = counters.map(|(name, value)| (name.clone(), json!(value))).collect();
    json!({ "number": server.number, "is_reachable": server.counters.is_some(), "counters": counters })
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

/// Returns the state of a part, as users see it.
fn state_of_part(state: PartState, number: u64, store: &StoreAccess) -> Result<&'static str, Failure> {
    Ok(match state {
        PartState::Committed { .. } => "committed",
        PartState::Aborted => "aborted",
        PartState::Open => match store.progress_of_part(number)? {
            PartProgress::Open => "open",
            PartProgress::Closed => "closed",
            PartProgress::Lost => "lost",
        },
    })
}

fn json_of(batch: &BatchSummary, store: &StoreAccess) -> Result<Value, Failure> {
    let (state, entries, conflicts, reason) = match &batch.state {
        SummaryState::Open => ("open", None, None, None),
        SummaryState::Aborted => ("aborted", None, None, None),
        SummaryState::Committed { entries, conflicts } => ("committed", Some(entries), Some(conflicts), None),
        SummaryState::Submitted => ("submitted", None, None, None),
        SummaryState::Refused { reason } => ("refused", None, None, Some(reason)),
        SummaryState::OpenForParts => ("open", None, None, None),
        SummaryState::Prepared { .. } => ("prepared", None, None, None),
        SummaryState::Part { state, .. } => {
            let entries = if let PartState::Committed { entries } = state { Some(entries) } else { None };
            (state_of_part(*state, batch.number, store)?, entries, None, None)
        }
    };
    let blob_store = match &batch.state {
        SummaryState::Prepared { marker } => Some(&marker.location),
        _ => None,
    };
    let part_of = if let SummaryState::Part { of, .. } = batch.state { Some(of) } else { None };
    Ok(json!({
        "number": batch.number,
        "name": batch.name,
        "user": batch.uid,
        "state": state,
        "entries": entries,
        "conflicts": conflicts,
        "reason": reason,
        "part_of": part_of,
        "blob_store": blob_store,
    }))
}
