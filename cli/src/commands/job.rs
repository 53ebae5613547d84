//! `quell job`: shows the nodes of jobs that read their files once.

use std::process::ExitCode;

use quell_supervisor::{JobNodeReport, JobReport, Reports, job_reports, shown_list};

use crate::arguments::{JobCommand, JobStatusArgs};
use crate::failure::{Failure, NO};
use crate::inputs::shown;
use crate::output::{errln, outln};

pub fn run(command: JobCommand) -> Result<ExitCode, Failure> {
    match command {
        JobCommand::Status(args) => status(&args),
    }
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
}
