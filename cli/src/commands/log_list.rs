//! `quell log ls` and `stat`: list the files of stores, and show one file, without a mount.

use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use indicatif::HumanBytes;
use quell_log::{Entry, FileReport, FileSummary, ResolvedPath, StoredDir, Stores, Truncation, WriterReport};
use quell_vfs::{Error, Kind};
use serde_json::{Value, json};

use super::log_stores::{find, open_file, open_stores, store_path};
use super::show::time;
use crate::arguments::{LogLsArgs, LogStatArgs};
use crate::failure::{Failure, NO, YES};
use crate::inputs::{shown, shown_bytes, text_of, text_of_bytes};
use crate::local_time::local_time;
use crate::output::{counted, errln, outln};

/// The output format, and whether an entry could not be read.
struct List {
    json: bool,
    has_failed: bool,
}

/// The columns of an entry that is not a file.
const NO_NUMBERS: [&str; 4] = ["-"; 4];

pub fn list(args: &LogLsArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let stores = open_stores(&args.stores)?;
    let mut list = List { json: args.output.json, has_failed: false };
    let path = args.path.as_deref().unwrap_or(Path::new(""));
    let found = find(&stores, &args.stores, path)?;
    if !args.output.json && !quiet {
        outln!("{}", row(["size", "logs", "open", "in store"], "name"));
    }
    match found {
        ResolvedPath::Entry(dir, entry) => {
            let name = path.as_os_str().as_bytes().to_vec();
            list.print(&dir, &entry, &name);
        }
        ResolvedPath::Dir(dir) => {
            // One directory is open at a time, regardless of the depth of the tree.
            let mut waiting = list.print_dir(&dir, b"", args.recursive)?;
            while let Some(below) = waiting.pop() {
                let full = [path.as_os_str().as_bytes(), b"/", &below].concat();
                match quell_log::find(&stores, &full) {
                    Ok(ResolvedPath::Dir(dir)) => waiting.extend(list.print_dir(&dir, &below, true)?),
                    Ok(ResolvedPath::Entry(..)) => {} // replaced meanwhile
                    Err(error) => list.report_failure(&below, &error),
                }
            }
        }
    }
    Ok(ExitCode::from(if list.has_failed { NO } else { YES }))
}

/// Returns a row of the table.
fn row(columns: [&str; 4], name: &str) -> String {
    let [size, logs, open, stored] = columns;
    format!("{size:>12} {logs:>6} {open:>5} {stored:>12}  {name}")
}

impl List {
    /// Prints the entries of a directory. If `recursive`, returns the directories in it, last
    /// first.
    fn print_dir(&mut self, dir: &StoredDir, path: &[u8], recursive: bool) -> Result<Vec<Vec<u8>>, Failure> {
        let mut below = Vec::new();
        for entry in dir.list()?.entries {
            let name =
                if path.is_empty() { entry.name.clone() } else { [path, b"/", &entry.name[..]].concat() };
            self.print(dir, &entry, &name);
            if recursive && entry.kind == Kind::Dir {
                below.push(name);
            }
        }
        below.reverse();
        Ok(below)
    }

    fn report_failure(&mut self, name: &[u8], error: &Error) {
        self.has_failed = true;
        errln!("quell: {}: {error}", shown_bytes(name));
    }

    fn print(&mut self, dir: &StoredDir, entry: &Entry, name: &[u8]) {
        let shown = if self.json { text_of_bytes(name) } else { shown_bytes(name) };
        match entry.kind {
            Kind::File => match dir.open(entry).and_then(quell_log::summarize_file) {
                Ok(summary) => self.print_file(&summary, &shown),
                Err(error) => self.report_failure(name, &error),
            },
            Kind::Dir if self.json => outln!("{}", json!({ "path": shown, "kind": "d" })),
            Kind::Dir => outln!("{}", row(NO_NUMBERS, &format!("{shown}/"))),
            _ => match dir.link(entry) {
                Ok((target, _)) if self.json => {
                    outln!("{}", json!({ "path": shown, "kind": "l", "target": text_of_bytes(&target) }));
                }
                Ok((target, _)) => {
                    outln!("{}", row(NO_NUMBERS, &format!("{shown} -> {}", shown_bytes(&target))));
                }
                Err(error) => self.report_failure(name, &error),
            },
        }
    }

    fn print_file(&self, summary: &FileSummary, shown: &str) {
        let FileSummary { attributes, writers, open_writers, data_bytes } = summary;
        let size = attributes.size_bytes;
        if self.json {
            outln!(
                "{}",
                json!({ "path": shown, "kind": "-", "size": size, "logs": writers, "open": open_writers,
                    "store_bytes": data_bytes, "mtime": time(attributes.modified) })
            );
        } else {
            let columns = [size, *writers as u64, *open_writers as u64, *data_bytes];
            let columns = columns.map(|number| number.to_string());
            outln!("{}", row(columns.each_ref().map(String::as_str), shown));
        }
    }
}

pub fn stat(args: &LogStatArgs) -> Result<ExitCode, Failure> {
    let stores = open_stores(&args.stores)?;
    let container = open_file(&stores, &args.stores, &args.path)?;
    let report = quell_log::report_file(container, args.threads.count.into())?;
    match args.output.json {
        true => print_report_json(&args.path, &report),
        false => print_report(&args.path, &report, &stores),
    }
    Ok(ExitCode::from(YES))
}

/// Returns the sum of the numbers that `number` returns for all writers.
fn sum(report: &FileReport, number: fn(&WriterReport) -> u64) -> u64 {
    report.writers.iter().map(number).sum()
}

fn print_report_json(path: &Path, report: &FileReport) {
    let a = &report.attributes;
    let flats: Vec<Value> =
        report.flats.iter().map(|flat| json!({ "name": flat.name, "bytes": flat.bytes })).collect();
    let writers: Vec<Value> = report.writers.iter().map(writer_json).collect();
    let truncations: Vec<Value> = report.truncations.iter().map(truncation_json).collect();
    outln!(
        "{}",
        json!({
            "path": text_of(path), "number": format!("{:032x}", report.number), "store": report.store,
            "size": a.size_bytes, "mode": format!("{:04o}", a.permissions), "uid": a.uid, "gid": a.gid,
            "mtime": time(a.modified), "ctime": time(a.changed), "epoch": report.epoch,
            "block_bytes": report.block_bytes, "directories": report.directories,
            "extents": report.extents, "held_bytes": report.held_bytes,
            "data_bytes": sum(report, |writer| writer.data_bytes),
            "index_bytes": sum(report, |writer| writer.index_bytes),
            "writers": writers, "truncations": truncations, "flat": flats,
        })
    );
}

fn print_report(path: &Path, report: &FileReport, stores: &Stores) {
    let a = &report.attributes;
    outln!("file        {}", shown(path));
    outln!("store       {}", store_path(stores, report.store));
    outln!("container   {:032x}", report.number);
    outln!("size        {}, {} of them written", counted(a.size_bytes, "byte", "bytes"), report.held_bytes);
    outln!("mode        {:04o}, user {}, group {}", a.permissions, a.uid, a.gid);
    outln!("modified    {}", local_time(a.modified));
    outln!("epoch       {}", report.epoch);
    outln!("extents     {}", report.extents);
    outln!(
        "in store    {} of data logs, {} of index logs",
        HumanBytes(sum(report, |writer| writer.data_bytes)),
        HumanBytes(sum(report, |writer| writer.index_bytes))
    );
    let directories = counted(report.directories.into(), "log directory", "log directories");
    outln!("format      {directories}, blocks of {} bytes", report.block_bytes);
    for flat in &report.flats {
        outln!("flat index  {} ({})", flat.name, HumanBytes(flat.bytes));
    }
    for cut in &report.truncations {
        outln!("truncated   to {} bytes in epoch {}, {}", cut.size, cut.order.epoch, local_time(cut.time));
    }
    if !report.writers.is_empty() {
        outln!("\n{}", writer_row("writer", ["epochs", "frames", "unindexed", "runs", "data", "index"]));
    }
    for writer in &report.writers {
        print_writer(writer);
    }
}

fn writer_row(writer: &str, columns: [&str; 6]) -> String {
    let [epochs, frames, unindexed, runs, data, index] = columns;
    format!("{writer:<16} {epochs:>9} {frames:>8} {unindexed:>9} {runs:>8} {data:>11} {index:>11}")
}

fn print_writer(writer: &WriterReport) {
    let epochs = match &writer.epochs {
        Some(epochs) if epochs.start() == epochs.end() => epochs.start().to_string(),
        Some(epochs) => format!("{}-{}", epochs.start(), epochs.end()),
        None => "-".to_owned(),
    };
    let numbers = [writer.frames, writer.frames_unindexed, writer.runs].map(|number| number.to_string());
    let sizes = [writer.data_bytes, writer.index_bytes].map(|bytes| HumanBytes(bytes).to_string());
    let [frames, unindexed, runs] = &numbers;
    let [data, index] = &sizes;
    let columns: [&str; 6] = [&epochs, frames, unindexed, runs, data, index];
    outln!("{}", writer_row(&format!("{:016x}", writer.writer), columns));
    if let Some(open) = &writer.open {
        let state = if open.is_dead { ", which has ended" } else { "" };
        outln!("    open by process {}{state}, of the node", open.holder.pid);
        outln!("    {}", open.holder.node);
    }
}

fn writer_json(writer: &WriterReport) -> Value {
    let open = writer.open.as_ref().map(
        |open| json!({ "pid": open.holder.pid, "node": open.holder.node, "start": open.holder.start, "dead": open.is_dead }),
    );
    json!({
        "writer": format!("{:016x}", writer.writer), "open": open,
        "first_epoch": writer.epochs.as_ref().map(RangeInclusive::start),
        "last_epoch": writer.epochs.as_ref().map(RangeInclusive::end),
        "frames": writer.frames, "frames_unindexed": writer.frames_unindexed, "runs": writer.runs,
        "payload_bytes": writer.payload_bytes, "data_bytes": writer.data_bytes, "index_bytes": writer.index_bytes,
    })
}

fn truncation_json(cut: &Truncation) -> Value {
    json!({ "size": cut.size, "epoch": cut.order.epoch, "sequence": cut.order.sequence, "time": time(cut.time) })
}
