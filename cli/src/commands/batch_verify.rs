//! `quell batch verify`: verifies batches for the server of a store, until it is ended.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use quell_batch::{AuxiliaryEvent, AuxiliaryServer};
use quell_vfs::ErrorKind;
use serde_json::json;

use crate::arguments::BatchVerifyArgs;
use crate::failure::Failure;
use crate::inputs::{shown, text_of_bytes};
use crate::output::{self, errln, outln};
use crate::plans::own_batch_name;
use crate::progress::interruption;

pub fn run(args: &BatchVerifyArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let interrupted = interruption();
    let path = std::path::absolute(&args.store).unwrap_or_else(|_| args.store.clone());
    let server = AuxiliaryServer::open(&args.store, &own_batch_name())?;
    server.run(&interrupted, &mut |event| match args.json {
        true => report_json(&path, &event),
        false => report(&path, &event, quiet),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn report(path: &std::path::Path, event: &AuxiliaryEvent, quiet: bool) {
    match event {
        AuxiliaryEvent::Connected if !quiet && output::is_terminal() => {
            errln!("quell: verifying batches of {}", shown(path));
        }
        AuxiliaryEvent::NoServer(error) if !quiet => {
            errln!("quell: waiting for the server of {}: {error}", shown(path));
        }
        // The process that commits the batch gets the reason for which it is refused.
        AuxiliaryEvent::Ended { batch, result: Err(error) } if error.kind != ErrorKind::InvalidInput => {
            errln!("quell: batch {batch} was not verified by this process: {error}");
        }
        _ => {}
    }
}

fn report_json(path: &std::path::Path, event: &AuxiliaryEvent) {
    let line = match event {
        AuxiliaryEvent::Connected => {
            json!({ "event": "connected", "store": text_of_bytes(path.as_os_str().as_bytes()) })
        }
        AuxiliaryEvent::NoServer(error) => json!({ "event": "waiting", "error": error.to_string() }),
        AuxiliaryEvent::Begun { batch } => json!({ "event": "begun", "batch": batch }),
        AuxiliaryEvent::Ended { batch, result: Ok((entries, conflicts)) } => {
            json!({ "event": "verified", "batch": batch, "entries": entries, "conflicts": conflicts })
        }
        AuxiliaryEvent::Ended { batch, result: Err(error) } => {
            json!({ "event": "failed", "batch": batch, "error": error.to_string() })
        }
    };
    outln!("{line}");
}
