//! `quell job`: shows the nodes of jobs that read their files once, and runs launchers of jobs.

use std::path::Path;
use std::process::{Command, ExitCode};

use quell_supervisor::{
    JobNodeReport, JobReport, MeetingServer, Reports, SharedBlocksStatus, job_reports, shown_list,
};

use crate::arguments::{JobCommand, JobRunArgs, JobStatusArgs};
use crate::commands::run_batch::{wait_for_program, watched_signals};
use crate::failure::{Failure, NO};
use crate::inputs::shown;
use crate::output::{errln, outln};
use crate::program::start_code;
use crate::tracer::code_of;

/// The variable through which the nodes of a job find the command `quell job run`.
pub const MEETING_VARIABLE: &str = "QUELL_JOB";

pub fn run(command: JobCommand) -> Result<ExitCode, Failure> {
    match command {
        JobCommand::Run(args) => run_launcher(&args),
        JobCommand::Status(args) => status(&args),
    }
}

/// Runs a launcher, and serves the links of its jobs until it has ended.
fn run_launcher(args: &JobRunArgs) -> Result<ExitCode, Failure> {
    let signals = watched_signals()?;
    let server = MeetingServer::start(args.interface.as_deref())?;
    let (program, arguments) = args.command.split_first().expect("clap requires a command");
    let mut command = Command::new(program);
    command.args(arguments).env(MEETING_VARIABLE, server.text());
    let ended = match command.spawn() {
        Ok(child) => wait_for_program(child, signals).map(code_of),
        Err(error) => {
            errln!("quell: {}: {error}", shown(Path::new(program)));
            Ok(start_code(&error))
        }
    };
    server.stop();
    ended.map(ExitCode::from)
}

fn status(args: &JobStatusArgs) -> Result<ExitCode, Failure> {
    let Reports { reports, unanswered } = job_reports()?;
    for message in unanswered {
        errln!("quell: {message}");
    }
    let jobs: Vec<JobReport> = reports.into_iter().filter_map(|report| report.job).collect();
    if args.json {
        outln!("{}", serde_json::to_string(&jobs).map_err(|e| Failure::cannot(e.to_string()))?);
    } else {
        jobs.iter().for_each(print);
    }
    if jobs.is_empty() {
        errln!("quell: no `quell run --job` of yours is running on this node");
        return Ok(ExitCode::from(NO));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(job: &JobReport) {
    outln!("{} ({}; this is node {})", shown(&job.job), shown_list(&job.files), job.node);
    let own = [JobNodeReport {
        node: job.node,
        parent: job.parent,
        name: "this node".into(),
        received_bytes: job.received_bytes,
        read_bytes: job.read_bytes,
        milliseconds: Some(job.milliseconds),
    }];
    // The reader has ended, or this node is not in a tree.
    let nodes = if job.nodes.is_empty() { &own[..] } else { &job.nodes };
    outln!(
        "  {:>5}  {:>6}  {:>14}  {:>14}  {:>8}  name",
        "node",
        "parent",
        "received (B)",
        "read (B)",
        "seconds"
    );
    for node in nodes {
        let parent = node.parent.map_or("-".into(), |parent| parent.to_string());
        let seconds = node.milliseconds.map_or("-".into(), |time| format!("{:.3}", time as f64 / 1000.0));
        let JobNodeReport { node, received_bytes, read_bytes, name, .. } = node;
        outln!(
            "  {node:>5}  {parent:>6}  {received_bytes:>14}  {read_bytes:>14}  {seconds:>8}  {}",
            shown(name)
        );
    }
    if let Some(blocks) = &job.shared_blocks {
        let SharedBlocksStatus { sent_blocks, sent_bytes, blocks_from_memory, received_bytes, .. } = blocks;
        let SharedBlocksStatus { read_bytes, memory_bytes, memory_bytes_max, .. } = blocks;
        outln!(
            "  shared blocks of this node: {sent_blocks} sent ({sent_bytes} B), {blocks_from_memory} of them from memory; \
             {received_bytes} B received, {read_bytes} B read; {memory_bytes} B in memory, at most {memory_bytes_max}"
        );
    }
}
