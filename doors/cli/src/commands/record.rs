//! `quell record`: runs a program covered, in a view that records, and waits for the boot image.

use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::arguments::RecordArgs;
use crate::commands::disks;
use crate::commands::run::index_of;
use crate::failure::Failure;
use crate::inputs::shown;
use crate::plan::{Recorded, RecordingPlan};
use crate::runtime::Pipe;
use crate::{progress, tracer};

pub fn run(args: RecordArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let index = args.index.as_ref().map(|index| index_of(index, quiet)).transpose()?;
    let index = index.map(|index| index.path);
    if let Some(image) = &args.image {
        disks::check(image, args.image_format)?;
    }
    let parent = args.output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = crate::inputs::real_path(parent)?;
    let name = args.output.file_name();
    let name = name.ok_or_else(|| Failure::wrong_input(format!("{} names no file", shown(&args.output))))?;
    let output = parent.join(name);
    if output.is_dir() {
        return Err(Failure::wrong_input(format!("{} is a directory; -o names a file", shown(&output))));
    }
    if args.until.is_some_and(|s| !s.is_finite() || s <= 0.0) {
        return Err(Failure::wrong_input("--until takes a number of seconds above 0"));
    }
    let interrupted = progress::interruption();
    let pipe = Pipe::make("record")?;
    let recording = RecordingPlan {
        output: output.clone(),
        merge: args.merge,
        min_runs: args.min_runs,
        budget_mib: args.budget,
        pipe: pipe.path.clone(),
    };
    let text = serde_json::to_string(&recording).map_err(|e| Failure::cannot(e.to_string()))?;
    let mut command = Command::new("/proc/self/exe");
    // Opens and reads must come by: only a view of ours sees them.
    command.args(["run", "--strict", "--view", "fuse", "--recording", &text]);
    if let Some(index) = &index {
        command.arg("-i").arg(index);
    }
    if let Some(image) = &args.image {
        command.arg("--image").arg(image);
        command.args(args.image_format.words());
    }
    if let Some(source) = &args.source {
        command.arg("--source").arg(source);
    }
    if quiet {
        command.arg("--quiet");
    }
    let child = command
        .arg("--")
        .args(&args.command)
        .spawn()
        .map_err(|e| Failure::cannot(format!("cannot start the program: {e}")))?;
    let until = args.until.map(Duration::from_secs_f64);
    let status = tracer::wait_until(child, &interrupted, until)?;
    let code = tracer::code_of(status);
    let recorded = result(pipe)?;
    if let Some(failure) = recorded.failure {
        return Err(Failure::cannot(format!("nothing was recorded: {failure}")));
    }
    if args.json {
        println!("{}", serde_json::to_string(&recorded).map_err(|e| Failure::cannot(e.to_string()))?);
    } else if !quiet {
        eprintln!(
            "quell: {}: {} of {} files in {}, {} ({} read in this one)",
            shown(&output),
            indicatif::HumanBytes(recorded.image_contents * quell_boot::BLOCK_BYTES as u64),
            recorded.image_files,
            indicatif::HumanBytes(recorded.image_bytes),
            if recorded.recordings == 1 {
                "1 recording".into()
            } else {
                format!("{} recordings", recorded.recordings)
            },
            indicatif::HumanBytes(recorded.blocks * quell_boot::BLOCK_BYTES as u64),
        );
    }
    Ok(ExitCode::from(code))
}

/// What the holder says became of the recording. Its end without a word is the holder's end.
fn result(pipe: Pipe) -> Result<Recorded, Failure> {
    let failed = |e: std::io::Error| Failure::cannot(format!("cannot hear of the recording: {e}"));
    rustix::io::ioctl_fionbio(&pipe.end, false).map_err(|e| failed(e.into()))?;
    let mut text = String::new();
    (&pipe.end).read_to_string(&mut text).map_err(failed)?;
    serde_json::from_str(&text).map_err(|_| {
        Failure::cannot("the process that recorded has ended without a result; no boot image was written")
    })
}
