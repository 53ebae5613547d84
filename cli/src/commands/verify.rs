//! `quell verify`: compares a tree with its index and prints the differences.

use std::process::ExitCode;

use quell_index::{BuildOptions, Change, compare};
use quell_supervisor::{difference_line, load_index_at};

use crate::arguments::VerifyArgs;
use crate::failure::{Failure, NO, YES};
use crate::inputs::{Reading, image_of, index_file, real_path, root_of, shown, text_of, text_of_bytes};
use crate::output;
use crate::output::{counted, outln};

pub fn run(args: VerifyArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let image = load_index_at(&index_file(&args.file)?)?;
    let directory = match &args.source {
        Some(source) => real_path(source)?,
        None => root_of(&image),
    };
    let tree = Reading {
        directory: &directory,
        root_path: &root_of(&image),
        options: &BuildOptions::from_image(&image)?,
        threads: args.threads,
        trust: None,
        expected: Some(image.entries().into()),
        quiet: quiet || args.json,
    }
    .read()?;
    let now = image_of(&tree)?;
    let mut count = 0u64;
    let mut found = Vec::new();
    compare(&image, &now, &mut |difference| {
        count += 1;
        if args.json {
            let (what, attributes) = match &difference.what {
                Change::Added => ("added", Vec::new()),
                Change::Removed => ("removed", Vec::new()),
                Change::Changed(attributes) => ("changed", attributes.clone()),
            };
            found.push(serde_json::json!({
                "path": text_of_bytes(&difference.path), "what": what, "attributes": attributes
            }));
        } else {
            outln!("{}", difference_line(&difference));
        }
        !output::has_failed()
    });
    if args.json {
        outln!(
            "{}",
            serde_json::json!({ "index": text_of(&args.file), "entries": image.entries(), "differences": found })
        );
    } else if !quiet {
        match count {
            0 => {
                let entries = counted(image.entries().into(), "entry", "entries");
                outln!("{}: {entries}, all as indexed", shown(&directory));
            }
            _ => outln!("{}: {}", shown(&directory), counted(count, "difference", "differences")),
        }
    }
    Ok(ExitCode::from(if count == 0 { YES } else { NO }))
}
