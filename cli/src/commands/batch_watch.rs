//! `quell batch watch`: shows the names and sizes of a running batch.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::HumanBytes;
use quell_batch::{Refreshed, WatchedBatch, WatchedName};
use quell_vfs::{ErrorKind, Kind};
use serde_json::{Value, json};

use crate::arguments::BatchWatchArgs;
use crate::failure::Failure;
use crate::inputs::{shown, shown_bytes, text_of_bytes};
use crate::output::{counted, outln};
use crate::progress::interruption;

/// How long the command waits for the first answer of the process of the batch, which checks for
/// requests every 2 s, and pauses for at most 10 s after an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// Interval at which the command checks for a newer view.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The changes of a batch in one view.
#[derive(Default)]
struct Totals {
    names: u64,
    removed: u64,
    bytes: u64,
}

pub fn run(args: &BatchWatchArgs) -> Result<ExitCode, Failure> {
    let interrupted = interruption();
    let batch = WatchedBatch::open_of(&args.store, &args.trust.trust_owner, args.batch)?;
    if !await_view(&batch, &interrupted, Some(ANSWER_WAIT), args)? {
        return Ok(ExitCode::SUCCESS);
    }
    if args.list {
        list(&batch, args)?;
        return Ok(ExitCode::SUCCESS);
    }
    let pause = Duration::from_secs(args.interval.into());
    loop {
        report(&batch, args)?;
        let next = Instant::now() + pause;
        while Instant::now() < next && !interrupted.load(Ordering::Relaxed) {
            std::thread::sleep(CHECK_INTERVAL);
        }
        if !await_view(&batch, &interrupted, None, args)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Requests a newer view and waits until it is shown. Returns false if the batch has ended, or the
/// command was interrupted.
fn await_view(
    batch: &WatchedBatch,
    interrupted: &AtomicBool,
    limit: Option<Duration>,
    args: &BatchWatchArgs,
) -> Result<bool, Failure> {
    let request = match batch.request() {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(false),
        requested => requested?,
    };
    let began = Instant::now();
    while !interrupted.load(Ordering::Relaxed) {
        match batch.refresh()? {
            Refreshed::Newer if batch.shows_answer(&request) => return Ok(true),
            Refreshed::Ended => return Ok(false),
            // A view that an earlier watch has left may be old.
            Refreshed::Newer | Refreshed::Same => {}
        }
        if limit.is_some_and(|limit| began.elapsed() >= limit) {
            return Err(Failure::cannot(format!(
                "{}: batch {}: no view for {} s: the process of the batch was killed, cannot reach the \
                 store, or is `quell batch import`, which publishes no views",
                shown(&args.store),
                args.batch,
                ANSWER_WAIT.as_secs(),
            )));
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    Ok(false)
}

fn report(batch: &WatchedBatch, args: &BatchWatchArgs) -> Result<(), Failure> {
    let mut totals = Totals::default();
    batch.changed_names(&mut |name| {
        match name.attributes {
            None => totals.removed += 1,
            Some(found) => {
                totals.names += 1;
                totals.bytes += if found.kind == Kind::File { found.size_bytes } else { 0 };
            }
        }
        Ok(())
    })?;
    let Totals { names, removed, bytes } = totals;
    match args.output.json {
        true => outln!("{}", json!({ "names": names, "removed": removed, "bytes": bytes })),
        false => outln!(
            "{}, {}, {} removed",
            counted(names, "new or changed name", "new or changed names"),
            HumanBytes(bytes),
            removed,
        ),
    }
    Ok(())
}

fn list(batch: &WatchedBatch, args: &BatchWatchArgs) -> Result<(), Failure> {
    if args.output.json {
        let mut entries: Vec<Value> = Vec::new();
        batch.changed_names(&mut |name| {
            entries.push(json_of(&name));
            Ok(())
        })?;
        outln!("{:#}", json!({ "entries": entries }));
        return Ok(());
    }
    batch.changed_names(&mut |WatchedName { path, attributes }| {
        let path = shown_bytes(&path);
        match attributes {
            None => outln!("{:>14}  {path}", "removed"),
            Some(found) if found.kind == Kind::Dir => outln!("{:>14}  {path}/", ""),
            Some(found) => outln!("{:>14}  {path}", found.size_bytes),
        }
        Ok(())
    })?;
    Ok(())
}

fn json_of(WatchedName { path, attributes }: &WatchedName) -> Value {
    json!({
        "path": text_of_bytes(path),
        "directory": attributes.is_some_and(|found| found.kind == Kind::Dir),
        "removed": attributes.is_none(),
        "bytes": attributes.map(|found| found.size_bytes),
    })
}
