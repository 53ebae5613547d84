//! `quell verify`: what of a tree is not as its index has it.

use std::process::ExitCode;

use quell_index::{BuildOptions, Change, compare};

use crate::arguments::VerifyArgs;
use crate::commands::holder::line_of;
use crate::failure::{Failure, NO, YES};
use crate::inputs::{Reading, image_of, real_path, root_of, shown, shown_bytes};

pub fn run(args: VerifyArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let image = quell_stack::load_index(&args.file)?;
    let directory = match &args.source {
        Some(source) => real_path(source)?,
        None => root_of(&image),
    };
    let tree = Reading {
        directory: &directory,
        root_path: &root_of(&image),
        options: &BuildOptions::of(&image)?,
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
                "path": shown_bytes(&difference.path), "what": what, "attributes": attributes
            }));
        } else {
            println!("{}", line_of(&difference));
        }
        true
    });
    if args.json {
        println!(
            "{}",
            serde_json::json!({ "index": shown(&args.file), "entries": image.entries(), "differences": found })
        );
    } else if !quiet {
        match count {
            0 => println!("{}: {} entries, all as indexed", shown(&directory), image.entries()),
            _ => println!("{}: {count} differences", shown(&directory)),
        }
    }
    Ok(ExitCode::from(if count == 0 { YES } else { NO }))
}
