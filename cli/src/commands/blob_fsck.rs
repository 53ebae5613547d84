//! `quell blob fsck`: checks a store of blobs.

use std::process::ExitCode;

use indicatif::HumanBytes;
use serde_json::json;

use crate::arguments::BlobFsckArgs;
use crate::failure::{Failure, NO, of_blob};
use crate::inputs::{shown_bytes, text_of_bytes};
use crate::output::{counted, errln, outln};

pub fn run(args: &BlobFsckArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let mut found = 0_u64;
    let mut left = 0_u64;
    let checked = quell_blob::check(&args.store, args.repair, &mut |problem| {
        let is_repaired = problem.is_repairable && args.repair;
        found += 1;
        left += u64::from(!is_repaired);
        let kind = problem.kind.identifier();
        if args.output.json {
            let line = json!({
                "kind": kind,
                "name": problem.name.as_deref().map(text_of_bytes),
                "detail": problem.detail,
                "repairable": problem.is_repairable,
                "repaired": is_repaired,
            });
            outln!("{line}");
            return;
        }
        let name = problem.name.map_or_else(String::new, |name| format!("{}: ", shown_bytes(&name)));
        let state = match (is_repaired, problem.is_repairable) {
            (true, _) => " (repaired)",
            (false, true) => " (--repair corrects it)",
            (false, false) => "",
        };
        outln!("{kind}: {name}{}{state}", problem.detail);
    })
    .map_err(of_blob)?;
    if !quiet && !args.output.json {
        errln!(
            "quell: {}, {} in {} of extents, {}",
            counted(checked.blobs, "blob", "blobs"),
            HumanBytes(checked.size_bytes),
            HumanBytes(checked.extent_bytes),
            counted(found, "problem", "problems"),
        );
    }
    Ok(ExitCode::from(if left > 0 { NO } else { 0 }))
}
