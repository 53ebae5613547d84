//! `quell log flatten`: creates one index of all index logs of a file.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::HumanBytes;
use quell_log::{Container, Flattened, Found, StoredDir, Stores};
use quell_vfs::{Error, Kind};
use serde_json::json;

use super::log_list::{find, open};
use crate::arguments::LogFlattenArgs;
use crate::failure::{Failure, NO, YES};
use crate::inputs::{shown_bytes, text_of_bytes};
use crate::output::{errln, outln};

pub fn run(args: &LogFlattenArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let stores = open(&args.stores)?;
    let mut work = Work { args, quiet, all: true };
    let path = args.path.as_deref().unwrap_or(Path::new("")).as_os_str().as_bytes();
    match find(&stores, Path::new(std::ffi::OsStr::from_bytes(path)))? {
        Found::Entry(dir, entry) if entry.kind == Kind::File => work.file(path, dir.open(&entry)),
        Found::Entry(..) => return Err(Failure::wrong_input("a symbolic link has no index: name the file")),
        Found::Dir(dir) => work.tree(&stores, dir, path)?,
    }
    Ok(ExitCode::from(if work.all { YES } else { NO }))
}

struct Work<'a> {
    args: &'a LogFlattenArgs,
    quiet: bool,
    /// Whether all files were flattened.
    all: bool,
}

impl Work<'_> {
    /// Flattens all files below a directory, with one directory open at a time.
    fn tree(&mut self, stores: &Arc<Stores>, root: StoredDir, path: &[u8]) -> Result<(), Failure> {
        let mut waiting = vec![(path.to_vec(), Some(root))];
        while let Some((path, known)) = waiting.pop() {
            let dir = match known.map_or_else(|| quell_log::find(stores, &path), |dir| Ok(Found::Dir(dir))) {
                Ok(Found::Dir(dir)) => dir,
                Ok(Found::Entry(..)) => continue, // replaced meanwhile
                Err(error) => {
                    self.failed(&path, &error);
                    continue;
                }
            };
            for entry in dir.list()?.entries {
                let name = if path.is_empty() {
                    entry.name.clone()
                } else {
                    [&path, &b"/"[..], &entry.name].concat()
                };
                match entry.kind {
                    Kind::File => self.file(&name, dir.open(&entry)),
                    Kind::Dir => waiting.push((name, None)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, name: &[u8], container: quell_vfs::Result<Container>) {
        match container.and_then(|container| quell_log::flatten(&container, self.args.threads.into())) {
            Ok(Flattened { logs, extents, bytes }) if self.args.json => {
                let path = text_of_bytes(name);
                outln!("{}", json!({ "path": path, "logs": logs, "extents": extents, "bytes": bytes }));
            }
            Ok(Flattened { logs, extents, bytes }) if !self.quiet => {
                outln!("{}: {extents} extents of {logs} logs in {}", shown_bytes(name), HumanBytes(bytes));
            }
            Ok(_) => {}
            Err(error) => self.failed(name, &error),
        }
    }

    fn failed(&mut self, name: &[u8], error: &Error) {
        self.all = false;
        errln!("quell: {}: {error}", shown_bytes(name));
    }
}
