//! `quell blob`: lists, reads and changes blobs.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use quell_blob::{
    BlobStat, Error, NAME_BYTES_MAX, Operation, OperationResult, Overflow, Refusal, Snapshot, Store,
    Transform, TransformKind,
};
use quell_mount_spec::directory_of;
use quell_vfs::{ErrorKind, Time};
use serde_json::{Value, json};

use super::blob_copy::{PIECE_BYTES, Piece, copy_out, each, with_progress};
use super::{blob_backup, blob_bench, blob_fsck, blob_key, blob_metrics, blob_serve, blob_top};
use crate::arguments::{
    BlobAddArgs, BlobCatArgs, BlobCommand, BlobGcArgs, BlobGetArgs, BlobLsArgs, BlobPutArgs, BlobRmArgs,
    BlobStatArgs,
};
use crate::failure::{Failure, NO, of_blob as failure};
use crate::inputs::{shown, shown_bytes, text_of_bytes};
use crate::local_time::local_time;
use crate::output::{errln, outln};

/// The largest file that replaces a blob in one transaction, in bytes. The file is held in memory.
const ATOMIC_BYTES_MAX: usize = 256 << 20;

pub fn run(command: BlobCommand, quiet: bool) -> Result<ExitCode, Failure> {
    match command {
        BlobCommand::Ls(args) => list(&args),
        BlobCommand::Stat(args) => stat(&args),
        BlobCommand::Cat(args) => cat(&args),
        BlobCommand::Put(args) => put(&args, quiet),
        BlobCommand::Get(args) => get(&args, quiet),
        BlobCommand::Add(args) => add(&args),
        BlobCommand::Rm(args) => remove(&args),
        BlobCommand::Fsck(args) => blob_fsck::run(&args, quiet),
        BlobCommand::Gc(args) => collect(&args),
        BlobCommand::Backup(args) => blob_backup::run(&args, quiet),
        BlobCommand::Bench(args) => blob_bench::run(&args, quiet),
        BlobCommand::Key(args) => blob_key::run(&args),
        BlobCommand::Top(args) => blob_top::run(&args),
        BlobCommand::Metrics(args) => blob_metrics::run(&args, quiet),
        BlobCommand::Serve(args) => blob_serve::run(&args, quiet),
    }
}

fn modified(stat: BlobStat) -> Time {
    Time {
        seconds: (stat.modified_ns / 1_000_000_000) as i64,
        nanoseconds: (stat.modified_ns % 1_000_000_000) as u32,
    }
}

fn described(name: &[u8], stat: BlobStat) -> Value {
    json!({ "name": text_of_bytes(name), "size": stat.size_bytes, "modified_ns": stat.modified_ns })
}

fn list(args: &BlobLsArgs) -> Result<ExitCode, Failure> {
    let store = Store::open_existing(&args.store).map_err(failure)?;
    let snapshot = store.snapshot().map_err(failure)?;
    each(&snapshot, args.prefix.as_bytes(), |name, stat| {
        match args.output.json {
            true => outln!("{}", described(name, stat)),
            false => {
                outln!("{:>14}  {}  {}", stat.size_bytes, local_time(modified(stat)), shown_bytes(name));
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn stat(args: &BlobStatArgs) -> Result<ExitCode, Failure> {
    let store = Store::open_existing(&args.store).map_err(failure)?;
    let name = args.name.as_bytes();
    let Some(stat) = store.stat(name).map_err(failure)? else {
        errln!("quell: {}: there is no such blob in {}", shown(&args.name), shown(&args.store));
        return Ok(ExitCode::from(NO));
    };
    match args.output.json {
        true => outln!("{:#}", described(name, stat)),
        false => {
            outln!("size      {} bytes", stat.size_bytes);
            outln!("modified  {}", local_time(modified(stat)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn existing(snapshot: &Snapshot, store: &str, name: &OsStr) -> Result<BlobStat, Failure> {
    let stat = snapshot.stat(name.as_bytes()).map_err(failure)?;
    stat.ok_or_else(|| {
        Failure::wrong_input(format!("{}: there is no such blob in {}", shown(name), shown(store)))
    })
}

fn cat(args: &BlobCatArgs) -> Result<ExitCode, Failure> {
    let store = Store::open_existing(&args.store).map_err(failure)?;
    let snapshot = store.snapshot().map_err(failure)?;
    let size = existing(&snapshot, &args.store, &args.name)?.size_bytes;
    let end = args.length.map_or(size, |length| args.offset.saturating_add(length).min(size));
    let mut output = io::stdout().lock();
    let failed = |e: io::Error| Failure::cannot(format!("cannot write to standard output: {e}"));
    let range = (args.offset.min(end), end);
    copy_out(&snapshot, args.name.as_bytes(), range, &mut |piece| match piece {
        Piece::Data(_, data) => output.write_all(data).map_err(failed),
        Piece::Zeros(length) => {
            io::copy(&mut io::repeat(0).take(length), &mut output).map(|_| ()).map_err(failed)
        }
    })?;
    output.flush().map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn put(args: &BlobPutArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let is_stdin = args.file.as_os_str() == "-";
    let name = match &args.name {
        Some(name) => name.clone(),
        None if is_stdin => {
            return Err(Failure::wrong_input("standard input has no name: give NAME as well"));
        }
        None => file_name(&args.file)?,
    };
    if name.len() > NAME_BYTES_MAX || name.is_empty() {
        return Err(Failure::wrong_input(format!("the name of a blob has 1 to {NAME_BYTES_MAX} bytes")));
    }
    let mut input: Box<dyn Read + Send> = match is_stdin {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(&args.file).map_err(|e| cannot_read(&args.file, &e))?),
    };
    let store = Store::open(&args.store).map_err(failure)?;
    let title = format!("copying into {}", shown(&name));
    let name = name.into_vec();
    with_progress(&title, quiet, move |bytes, check| {
        // The first commit replaces the blob; the others append to it.
        let mut operations = vec![
            Operation::Create { name: name.clone(), may_exist: true },
            Operation::Resize { name: name.clone(), size_bytes: 0 },
        ];
        let mut held = 0;
        loop {
            check()?;
            let mut data = Vec::new();
            let part = (&mut input).take(PIECE_BYTES as u64).read_to_end(&mut data);
            let length = part.map_err(|e| cannot_read(&args.file, &e))?;
            let is_last = length == 0;
            if !is_last {
                operations.push(Operation::Append { name: name.clone(), data });
            }
            held += length;
            bytes.fetch_add(length as u64, Ordering::Relaxed);
            if is_last || held >= ATOMIC_BYTES_MAX {
                store.commit(std::mem::take(&mut operations)).map_err(failure)?;
                held = 0;
            }
            if is_last {
                return Ok(ExitCode::SUCCESS);
            }
        }
    })
}

fn file_name(path: &Path) -> Result<OsString, Failure> {
    let name = path.file_name().map(OsStr::to_os_string);
    name.ok_or_else(|| Failure::wrong_input(format!("{} is not the name of a file", shown(path))))
}

fn cannot_read(path: &Path, error: &io::Error) -> Failure {
    Failure::wrong_input(format!("cannot read {}: {error}", shown(path)))
}

fn get(args: &BlobGetArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let path: PathBuf = match &args.file {
        Some(path) => path.clone(),
        None => file_name(Path::new(&args.name))?.into(),
    };
    let store = Store::open_existing(&args.store).map_err(failure)?;
    let snapshot = store.snapshot().map_err(failure)?;
    let size = existing(&snapshot, &args.store, &args.name)?.size_bytes;
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::wrong_input(format!("{} exists; pass --force to replace it", shown(&path)))
        }
        _ => Failure::cannot(format!("cannot write {}: {e}", shown(&path))),
    };
    match path.symlink_metadata() {
        Ok(_) if !args.force => return Err(failed(io::ErrorKind::AlreadyExists.into())),
        Ok(found) if !found.is_file() => {
            return Err(Failure::wrong_input(format!("{} is not a regular file", shown(&path))));
        }
        _ => {}
    }
    // The file gets its name when it is complete. Its mode is that of a new file with this umask.
    let copy = tempfile::Builder::new()
        .prefix(".quell-blob-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory_of(&path))
        .map_err(failed)?;
    let file = copy.as_file();
    let title = format!("copying {}", shown(&args.name));
    with_progress(&title, quiet, |bytes, check| {
        copy_out(&snapshot, args.name.as_bytes(), (0, size), &mut |piece| {
            check()?;
            if let Piece::Data(offset, data) = piece {
                file.write_all_at(data, offset).map_err(failed)?;
                bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
            }
            Ok(())
        })?;
        file.set_len(size).and_then(|()| file.sync_data()).map_err(failed)
    })?;
    let named = if args.force { copy.persist(&path) } else { copy.persist_noclobber(&path) };
    named.map(|_| ExitCode::SUCCESS).map_err(|refused| failed(refused.error))
}

fn add(args: &BlobAddArgs) -> Result<ExitCode, Failure> {
    let store = Store::open(&args.store).map_err(failure)?;
    let name = args.name.as_bytes().to_vec();
    let transform = Transform {
        kind: TransformKind::Add,
        overflow: Overflow::Check,
        returns_before: true,
        ..Transform::add_i64(args.operand)
    };
    let create = Operation::Create { name: name.clone(), may_exist: true };
    let add = Operation::Transform { name, offset: args.offset, transform };
    let committed = match store.commit(vec![create, add]) {
        Err(Error::Refused(Refusal::Overflow { .. })) => {
            return Err(Failure::wrong_input("the sum does not fit into 64 bits; the number is unchanged"));
        }
        committed => committed.map_err(failure)?,
    };
    if let Some(OperationResult::Before(before)) = committed.results.get(1)
        && let Some(before) = before.first_chunk()
    {
        outln!("{}", i64::from_le_bytes(*before) + args.operand);
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(args: &BlobRmArgs) -> Result<ExitCode, Failure> {
    let store = Store::open_existing(&args.store).map_err(failure)?;
    let mut names: Vec<&OsString> = args.names.iter().collect();
    if args.force {
        let snapshot = store.snapshot().map_err(failure)?;
        let mut existing = Vec::new();
        for name in names {
            if snapshot.stat(name.as_bytes()).map_err(failure)?.is_some() {
                existing.push(name);
            }
        }
        names = existing;
    }
    let operations = names.iter().map(|name| Operation::Delete { name: name.as_bytes().to_vec() }).collect();
    match store.commit(operations) {
        Err(Error::Refused(Refusal::Failed { operation: Some(position), failure }))
            if failure.kind() == ErrorKind::NotFound =>
        {
            let name = names.get(position as usize).map_or_else(String::new, shown);
            Err(Failure::wrong_input(format!("{name}: there is no such blob; nothing was deleted")))
        }
        removed => removed.map(|_| ExitCode::SUCCESS).map_err(failure),
    }
}

fn collect(args: &BlobGcArgs) -> Result<ExitCode, Failure> {
    let store = Store::open_existing(&args.store).map_err(failure)?;
    store.collect().map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}
