//! `quell log ls` and `stat`: list the files of stores, and show one file, without a mount.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::HumanBytes;
use quell_log::{Brief, Container, Cut, Entry, Found, StoredDir, Stores, WriterReport};
use quell_vfs::{Error, Kind};
use serde_json::{Value, json};

use super::show::time;
use crate::arguments::{LogCommand, LogLsArgs, LogStatArgs, StoresArg};
use crate::failure::{Failure, NO, YES};
use crate::inputs::{shown, shown_bytes, text_of, text_of_bytes};
use crate::output::{errln, outln};

pub fn run(command: LogCommand, quiet: bool) -> Result<ExitCode, Failure> {
    match command {
        LogCommand::Ls(args) => list(&args, quiet),
        LogCommand::Stat(args) => stat(&args),
        LogCommand::Map(args) => super::log_map::map(&args),
        LogCommand::Query(args) => super::log_map::query(&args),
        LogCommand::Flatten(args) => super::log_flatten::run(&args, quiet),
        LogCommand::Fsck(args) => super::log_fsck::run(&args, quiet),
        LogCommand::Export(args) => super::log_transfer::export(&args, quiet),
        LogCommand::Import(args) => super::log_transfer::import(&args, quiet),
        LogCommand::Rebalance(args) => super::log_rebalance::run(&args, quiet),
    }
}

/// Opens existing stores; creates nothing.
pub(super) fn open(stores: &StoresArg) -> Result<Arc<Stores>, Failure> {
    let opened = quell_mount_spec::open_existing_stores(&stores.paths());
    opened.map(Arc::new).map_err(|error| of_stores(stores, error))
}

pub(super) fn of_stores(stores: &StoresArg, error: Error) -> Failure {
    let failure = Failure::from(error);
    Failure::with_code(failure.code(), format!("{}: {failure}", shown(&stores.stores)))
}

pub(super) fn find(stores: &Arc<Stores>, path: &Path) -> Result<Found, Failure> {
    Ok(quell_log::find(stores, path.as_os_str().as_bytes())?)
}

/// Opens the container of the file at `path`.
pub(super) fn container(stores: &Arc<Stores>, path: &Path) -> Result<Container, Failure> {
    match find(stores, path)? {
        Found::Entry(dir, entry) if entry.kind == Kind::File => Ok(dir.open(&entry)?),
        Found::Entry(..) => Err(Failure::wrong_input(format!("{} is a symbolic link", shown(path)))),
        Found::Dir(_) => Err(Failure::wrong_input(format!("{} is a directory", shown(path)))),
    }
}

/// The output format, and whether all entries could be read.
struct List {
    json: bool,
    all: bool,
}

fn list(args: &LogLsArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let stores = open(&args.stores)?;
    let mut list = List { json: args.json, all: true };
    if !args.json && !quiet {
        outln!("{:>12} {:>6} {:>5} {:>12}  name", "size", "logs", "open", "in store");
    }
    let path = args.path.as_deref().unwrap_or(Path::new(""));
    match find(&stores, path)? {
        Found::Entry(dir, entry) => {
            let name = path.as_os_str().as_bytes().to_vec();
            list.print(&dir, &entry, &name)?;
        }
        Found::Dir(dir) => {
            // One directory is open at a time, regardless of the depth of the tree.
            let mut waiting = list.dir(&dir, b"", args.recursive)?;
            while let Some(below) = waiting.pop() {
                let full = [path.as_os_str().as_bytes(), b"/", &below].concat();
                match quell_log::find(&stores, &full) {
                    Ok(Found::Dir(dir)) => waiting.extend(list.dir(&dir, &below, true)?),
                    Ok(Found::Entry(..)) => {} // replaced meanwhile
                    Err(error) => list.failed(&below, &error),
                }
            }
        }
    }
    Ok(ExitCode::from(if list.all { YES } else { NO }))
}

impl List {
    /// Prints the entries of a directory. If `recursive`, returns the directories in it, last
    /// first.
    fn dir(&mut self, dir: &StoredDir, path: &[u8], recursive: bool) -> Result<Vec<Vec<u8>>, Failure> {
        let mut below = Vec::new();
        for entry in dir.list()?.entries {
            let name =
                if path.is_empty() { entry.name.clone() } else { [path, b"/", &entry.name[..]].concat() };
            self.print(dir, &entry, &name)?;
            if recursive && entry.kind == Kind::Dir {
                below.push(name);
            }
        }
        below.reverse();
        Ok(below)
    }

    fn failed(&mut self, name: &[u8], error: &Error) {
        self.all = false;
        errln!("quell: {}: {error}", shown_bytes(name));
    }

    fn print(&mut self, dir: &StoredDir, entry: &Entry, name: &[u8]) -> Result<(), Failure> {
        let shown = if self.json { text_of_bytes(name) } else { shown_bytes(name) };
        match entry.kind {
            Kind::File => match dir.open(entry).and_then(quell_log::brief) {
                Ok(brief) => self.file(&brief, &shown),
                Err(error) => self.failed(name, &error),
            },
            Kind::Dir if self.json => outln!("{}", json!({ "path": shown, "kind": "d" })),
            Kind::Dir => outln!("{:>12} {:>6} {:>5} {:>12}  {shown}/", "-", "-", "-", "-"),
            _ => match dir.link(entry) {
                Ok((target, _)) if self.json => {
                    outln!("{}", json!({ "path": shown, "kind": "l", "target": text_of_bytes(&target) }));
                }
                Ok((target, _)) => {
                    outln!(
                        "{:>12} {:>6} {:>5} {:>12}  {shown} -> {}",
                        "-",
                        "-",
                        "-",
                        "-",
                        shown_bytes(&target)
                    );
                }
                Err(error) => self.failed(name, &error),
            },
        }
        Ok(())
    }

    fn file(&self, brief: &Brief, shown: &str) {
        let Brief { attributes, writers, open, data_bytes } = brief;
        let size = attributes.size_bytes;
        if self.json {
            outln!(
                "{}",
                json!({ "path": shown, "kind": "-", "size": size, "logs": writers, "open": open,
                    "store_bytes": data_bytes, "mtime": time(attributes.modified) })
            );
        } else {
            outln!("{size:>12} {writers:>6} {open:>5} {data_bytes:>12}  {shown}");
        }
    }
}

fn stat(args: &LogStatArgs) -> Result<ExitCode, Failure> {
    let stores = open(&args.stores)?;
    let report = quell_log::of_file(container(&stores, &args.path)?, args.threads.into())?;
    let a = &report.attributes;
    let sum = |of: fn(&WriterReport) -> u64| report.writers.iter().map(of).sum::<u64>();
    let (data, index) = (sum(|writer| writer.data_bytes), sum(|writer| writer.index_bytes));
    if args.json {
        let flats: Vec<Value> =
            report.flats.iter().map(|flat| json!({ "name": flat.name, "bytes": flat.bytes })).collect();
        let writers: Vec<Value> = report.writers.iter().map(writer_value).collect();
        let cuts: Vec<Value> = report.cuts.iter().map(cut_value).collect();
        outln!(
            "{}",
            json!({
                "path": text_of(&args.path), "number": format!("{:032x}", report.number), "store": report.store,
                "size": a.size_bytes, "mode": format!("{:04o}", a.permissions), "uid": a.uid, "gid": a.gid,
                "mtime": time(a.modified), "ctime": time(a.changed), "epoch": report.epoch,
                "block_bytes": report.block_bytes, "directories": report.directories,
                "extents": report.extents, "held_bytes": report.held_bytes, "data_bytes": data,
                "index_bytes": index, "writers": writers, "cuts": cuts, "flat": flats,
            })
        );
        return Ok(ExitCode::from(YES));
    }
    outln!("file        {}", shown(&args.path));
    outln!("number      {:032x}, in store {}", report.number, report.store);
    outln!("size        {} bytes, {} of them written, the rest holes", a.size_bytes, report.held_bytes);
    outln!("mode        {:04o}, user {}, group {}", a.permissions, a.uid, a.gid);
    outln!("modified    {}", time(a.modified));
    outln!("epoch       {}", report.epoch);
    outln!("extents     {} as readers see it", report.extents);
    outln!("in store    {} of data, {} of index", HumanBytes(data), HumanBytes(index));
    outln!("made with   {} directories of logs, blocks of {} bytes", report.directories, report.block_bytes);
    for flat in &report.flats {
        outln!("flat index  {} ({})", flat.name, HumanBytes(flat.bytes));
    }
    for cut in &report.cuts {
        outln!("cut         to {} bytes in epoch {}, {}", cut.size, cut.order.epoch, time(cut.time));
    }
    for writer in &report.writers {
        let (frames, runs) = (writer.frames, writer.runs);
        let epochs = match writer.epochs {
            Some((first, last)) => format!("epochs {first} to {last}"),
            None => "nothing written yet".to_owned(),
        };
        outln!(
            "writer      {:016x}: {epochs}, {frames} frames ({} not in the index), {runs} runs, {} bytes of data, {} of index{}",
            writer.writer,
            writer.frames_unindexed,
            writer.data_bytes,
            writer.index_bytes,
            holder_text(writer),
        );
    }
    Ok(ExitCode::from(YES))
}

fn holder_text(writer: &WriterReport) -> String {
    match &writer.open {
        None => String::new(),
        Some(open) => {
            let gone = if open.is_gone { ", which is gone" } else { "" };
            format!("; open: process {} of {}{gone}", open.holder.pid, open.holder.node)
        }
    }
}

fn writer_value(writer: &WriterReport) -> Value {
    let open = writer.open.as_ref().map(
        |open| json!({ "pid": open.holder.pid, "node": open.holder.node, "start": open.holder.start, "gone": open.is_gone }),
    );
    json!({
        "writer": format!("{:016x}", writer.writer), "open": open,
        "first_epoch": writer.epochs.map(|epochs| epochs.0), "last_epoch": writer.epochs.map(|epochs| epochs.1),
        "frames": writer.frames, "frames_unindexed": writer.frames_unindexed, "runs": writer.runs,
        "payload_bytes": writer.payload_bytes, "data_bytes": writer.data_bytes, "index_bytes": writer.index_bytes,
    })
}

fn cut_value(cut: &Cut) -> Value {
    json!({ "size": cut.size, "epoch": cut.order.epoch, "sequence": cut.order.sequence, "time": time(cut.time) })
}
