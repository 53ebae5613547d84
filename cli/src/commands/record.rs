//! `quell record`: runs a program in a recording view, and waits for the boot image.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::fs::Access;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::arguments::RecordArgs;
use crate::commands::disks;
use crate::commands::run::index_of;
use crate::failure::Failure;
use crate::inputs::shown;
use crate::output::{errln, outln};
use crate::plan::{Begun, Recorded, RecordingPlan};
use crate::runtime::Pipe;
use crate::tap::Taps;
use crate::until::Until;
use crate::{progress, tracer};

const POLL: Duration = Duration::from_millis(20);
/// How long the command waits before it prints which processes it waits for.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(args: RecordArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let index = args.index.as_ref().map(|index| index_of(index, quiet)).transpose()?;
    // `quell run` gets the directory that was named, so that it checks that the index belongs to
    // it.
    let index =
        index.map(|(file, directory)| directory.filter(|_| args.source.is_none()).unwrap_or(file.path));
    if let Some(image) = &args.image {
        disks::check(image, args.image_format)?;
    }
    quell_mount_spec::LockedBootFile::check(&args.output, args.force)?;
    let output = output_of(&args.output)?;
    let interrupted = progress::interruption();
    let pipe = Pipe::make("record")?;
    let taps = match &args.until {
        Some(Until::Line(_)) => Some(Taps::make()?),
        _ => None,
    };
    let recording = RecordingPlan {
        output: output.clone(),
        merge: args.merge,
        force: args.force,
        min_runs: args.min_runs,
        budget_mib: args.budget,
        pipe: pipe.path.clone(),
        outputs: taps.as_ref().map(Taps::paths),
    };
    let text = serde_json::to_string(&recording).map_err(|e| Failure::cannot(e.to_string()))?;
    let mut command = Command::new("/proc/self/exe");
    // Opens and reads must be visible to Quell, so only the FUSE view can be used.
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
    for user in &args.trust_owner {
        command.arg("--trust-owner").arg(user.to_string());
    }
    if quiet {
        command.arg("--quiet");
    }
    let child = command
        .arg("--")
        .args(&args.command)
        .spawn()
        .map_err(|e| Failure::cannot(format!("cannot start the program: {e}")))?;
    let (found, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    // Seconds count from the moment when the program can start. Creating the view is not part of
    // the recording, and may take long.
    let is_reached = |since: Instant| match &args.until {
        Some(Until::Time(time)) => since.elapsed() > *time,
        Some(Until::Line(_)) => found.load(Ordering::Acquire),
        None => false,
    };
    let told = std::thread::scope(|scope| {
        if let (Some(taps), Some(Until::Line(pattern))) = (taps, &args.until) {
            scope.spawn(|| taps.pass_on(pattern, &found, &ended));
        }
        let told = wait(child, &pipe, &is_reached, &interrupted);
        ended.store(true, Ordering::Release);
        told
    })?;
    let code = tracer::code_of(told.status);
    if told.begun.is_none() {
        // `quell run` has printed the reason.
        return Ok(ExitCode::from(code));
    }
    let recorded = told.recorded.ok_or_else(|| {
        Failure::cannot("the process that recorded has ended without a result; no boot image was written")
    })?;
    if let Some(failure) = recorded.failure {
        let failure = Failure::cannot(format!("nothing was recorded: {failure}"));
        if recorded.files > 0 || told.status.success() {
            return Err(failure);
        }
        // If the program could not start, or failed at once, its own exit code is more informative.
        errln!("quell: {failure}");
        return Ok(ExitCode::from(code));
    }
    if !quiet && let (Some(until), false) = (&args.until, told.was_enough) {
        let what = match until {
            Until::Time(time) => format!("{} s had passed", time.as_secs_f64()),
            Until::Line(pattern) => format!("a line matched '{pattern}'"),
        };
        errln!("quell: the program ended before {what}; all of it is recorded");
    }
    if args.json {
        outln!("{}", serde_json::to_string(&recorded).map_err(|e| Failure::cannot(e.to_string()))?);
    } else if !quiet {
        errln!(
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

/// Returns the absolute path of the image to write. Errors are reported now rather than after a
/// long run.
fn output_of(path: &Path) -> Result<PathBuf, Failure> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = crate::inputs::real_path(parent)?;
    let name = path.file_name();
    let name = name.ok_or_else(|| Failure::wrong_input(format!("{} names no file", shown(path))))?;
    let output = parent.join(name);
    if output.is_dir() {
        return Err(Failure::wrong_input(format!("{} is a directory; -o names a file", shown(&output))));
    }
    rustix::fs::access(&parent, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| {
        Failure::cannot(format!("{} cannot be written to, where the image is to lie: {e}", shown(&parent)))
    })?;
    Ok(output)
}

/// The end of a program, and the messages of its recording.
struct Told {
    status: ExitStatus,
    begun: Option<Begun>,
    recorded: Option<Recorded>,
    /// Whether `quell record` ended the program because `--until` was reached.
    was_enough: bool,
}

/// Waits until the program has ended and the holder has sent the result of the recording, or has
/// ended without one. When `is_reached` returns true, and at Ctrl-C, all recorded processes are
/// sent SIGTERM, including children that outlive their parents. The time passed to `is_reached` is
/// the program's start.
fn wait(
    mut child: Child,
    pipe: &Pipe,
    is_reached: &dyn Fn(Instant) -> bool,
    interrupted: &AtomicBool,
) -> Result<Told, Failure> {
    let mut heard = Vec::new();
    let (mut status, mut asked, mut told) = (None, 0, HashSet::new());
    // The time since which only remaining processes are waited for.
    let mut since = None;
    let (mut was_said, mut began) = (false, None);
    loop {
        if status.is_none() {
            let failed = |e| Failure::cannot(format!("cannot wait for the program: {e}"));
            status = child.try_wait().map_err(failed)?;
        }
        // Before the program has ended there may be no holder yet, which reads like the holder's
        // end.
        let is_over = hear(pipe, &mut heard)?;
        let mut lines = heard.split_inclusive(|b| *b == b'\n').filter(|line| line.ends_with(b"\n"));
        let begun: Option<Begun> = lines.next().and_then(|line| serde_json::from_slice(line).ok());
        if begun.is_some() {
            began.get_or_insert_with(Instant::now);
        }
        let recorded: Option<Recorded> = lines.next().and_then(|line| serde_json::from_slice(line).ok());
        if let Some(status) = status
            && (is_over || recorded.is_some())
        {
            return Ok(Told { status, begun, recorded, was_enough: asked > 0 });
        }
        let is_interrupted = interrupted.load(Ordering::Relaxed);
        let reasons = u8::from(began.is_some_and(is_reached)) + u8::from(is_interrupted);
        if reasons > asked {
            asked = reasons;
            told.clear();
            (since, was_said) = (None, false);
            if status.is_none() {
                tell(child.id() as i32, &mut told);
            }
            begun.iter().flat_map(members).for_each(|pid| tell(pid, &mut told));
        } else if asked > 0 {
            // Also signals processes that were being created at that moment. Children that a
            // signalled process starts later are its own responsibility.
            let is_left = |pid: &i32, told: &HashSet<i32>| parent_of(*pid).is_none_or(|p| !told.contains(&p));
            for pid in begun.iter().flat_map(members) {
                if is_left(&pid, &told) {
                    tell(pid, &mut told);
                }
            }
        }
        if status.is_some() || asked > 0 {
            let since = since.get_or_insert_with(Instant::now);
            if !was_said && since.elapsed() > PATIENCE {
                was_said = true;
                let left: Vec<String> = begun.iter().flat_map(members).map(|pid| pid.to_string()).collect();
                if !left.is_empty() {
                    let left = left.join(", ");
                    // The second Ctrl-C ends this command.
                    let next = match is_interrupted {
                        false => "Ctrl-C asks them to end",
                        true => {
                            "Ctrl-C again leaves them running, and the image is written when they have ended"
                        }
                    };
                    errln!("quell: still running, and recorded: process {left}; {next}");
                }
            }
        }
        std::thread::sleep(POLL);
    }
}

/// Appends the holder's messages to `heard`. Returns whether the pipe has no writer any more.
fn hear(pipe: &Pipe, heard: &mut Vec<u8>) -> Result<bool, Failure> {
    loop {
        heard.reserve(1 << 12);
        match rustix::io::read(&pipe.end, spare_capacity(heard)) {
            Ok(0) => return Ok(true),
            Err(Errno::AGAIN) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(Failure::cannot(format!("cannot hear of the recording: {e}"))),
        }
    }
}

/// Sends SIGTERM to a process that has not got it yet.
fn tell(pid: i32, told: &mut HashSet<i32>) {
    if told.insert(pid) {
        let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::TERM));
    }
}

fn parent_of(pid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// Returns the recorded processes, without the holder.
fn members(begun: &Begun) -> impl Iterator<Item = i32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let theirs = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/ns/mnt"));
    let in_it =
        move |pid: &u32| *pid != begun.holder && theirs(pid).is_ok_and(|found| found == begun.namespace);
    pids.filter(in_it).map(|pid| pid as i32)
}
