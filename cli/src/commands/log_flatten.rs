//! `quell log flatten`: creates one index of all index logs of a file.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::HumanBytes;
use quell_log::{Container, Flattened, ResolvedPath, StoredDir, Stores};
use quell_vfs::{Error, Kind};
use serde_json::json;

use super::log_stores::{find, open_stores_for_change};
use crate::arguments::LogFlattenArgs;
use crate::failure::{Failure, NO, YES};
use crate::inputs::{shown, shown_bytes, text_of_bytes};
use crate::output::{counted, errln, outln};

pub fn run(args: &LogFlattenArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let stores = open_stores_for_change(&args.stores)?;
    let mut flattening = Flattening { args, quiet, has_failed: false };
    let path = args.path.as_deref().unwrap_or(Path::new(""));
    let name = path.as_os_str().as_bytes();
    match find(&stores, &args.stores, path)? {
        ResolvedPath::Entry(dir, entry) if entry.kind == Kind::File => {
            flattening.flatten(name, dir.open(&entry))
        }
        ResolvedPath::Entry(..) => {
            return Err(Failure::wrong_input(format!("{} is a symbolic link; name a file", shown(path))));
        }
        ResolvedPath::Dir(dir) => flattening.flatten_tree(&stores, dir, name)?,
    }
    Ok(ExitCode::from(if flattening.has_failed { NO } else { YES }))
}

struct Flattening<'a> {
    args: &'a LogFlattenArgs,
    quiet: bool,
    /// Whether a file could not be flattened.
    has_failed: bool,
}

impl Flattening<'_> {
    /// Flattens all files below a directory, with one directory open at a time.
    fn flatten_tree(&mut self, stores: &Arc<Stores>, root: StoredDir, path: &[u8]) -> Result<(), Failure> {
        let mut waiting = vec![(path.to_vec(), Some(root))];
        while let Some((path, known)) = waiting.pop() {
            let dir = match known
                .map_or_else(|| quell_log::find(stores, &path), |dir| Ok(ResolvedPath::Dir(dir)))
            {
                Ok(ResolvedPath::Dir(dir)) => dir,
                Ok(ResolvedPath::Entry(..)) => continue, // replaced meanwhile
                Err(error) => {
                    self.report_failure(&path, &error);
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
                    Kind::File => self.flatten(&name, dir.open(&entry)),
                    Kind::Dir => waiting.push((name, None)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn flatten(&mut self, name: &[u8], container: quell_vfs::Result<Container>) {
        match container.and_then(|container| quell_log::flatten(&container, self.args.threads.count.into())) {
            Ok(Flattened { logs, extents, bytes }) if self.args.output.json => {
                let path = text_of_bytes(name);
                outln!("{}", json!({ "path": path, "logs": logs, "extents": extents, "bytes": bytes }));
            }
            Ok(Flattened { logs, extents, bytes }) if !self.quiet => {
                outln!(
                    "{}: {} of {} in {}",
                    shown_bytes(name),
                    counted(extents, "extent", "extents"),
                    counted(logs, "log", "logs"),
                    HumanBytes(bytes)
                );
            }
            Ok(_) => {}
            Err(error) => self.report_failure(name, &error),
        }
    }

    fn report_failure(&mut self, name: &[u8], error: &Error) {
        self.has_failed = true;
        errln!("quell: {}: {error}", shown_bytes(name));
    }
}
