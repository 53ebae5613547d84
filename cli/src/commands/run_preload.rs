//! `quell run --via preload`: executes the program with the preload library, which serves the
//! directories in the program's own process.

use std::ffi::OsString;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use quell_mount_spec::{VIEW_VARIABLE, View, ViewTree, create_process_counters};
use quell_supervisor::{LogOptions, root_of, runtime_directory};

use crate::arguments::{RunArgs, ViewArg};
use crate::config::{Config, LogConfig};
use crate::failure::Failure;
use crate::indexes::{Creation, RequestedIndex, open_indexes};
use crate::inputs::{real_path, shown};
use crate::installed::{self, PRELOAD_LIBRARY};
use crate::output::errln;
use crate::program::become_program;
use crate::program_kind::{ALTERNATIVE, program_kind};
use crate::views::{aliases, log_of_argument, log_of_paths};

/// The lowest number of the descriptor with the lock of the counters.
const LOCK_DESCRIPTOR_MINIMUM: i32 = 500;

/// The variable by which the dynamic linker loads libraries before all others.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

pub fn run(args: &RunArgs, quiet: bool) -> Result<ExitCode, Failure> {
    refuse_other_options(args)?;
    let library = installed::library(PRELOAD_LIBRARY, "install the library with `make install`")?;
    let kind = program_kind(&args.command[0])?;
    if let Some(refusal) = kind.refusal {
        let reason = refusal.reason();
        return Err(Failure::cannot(format!("{} {reason}; {ALTERNATIVE}", shown(&kind.file))));
    }
    let (trees, logs) = match &args.config {
        Some(file) => Config::read_both(file, &args.cover.trust_owner)?,
        None => (Vec::new(), Vec::new()),
    };
    let mut view = View { trees: view_trees(args, trees, quiet)?, ..View::default() };
    for text in &args.logs {
        view.logs.push(log_of_argument(text, LogOptions::default())?);
    }
    for LogConfig { path, stores, index, .. } in &logs {
        let options = LogOptions { index: index.map(Into::into), ..LogOptions::default() };
        view.logs.push(log_of_paths(stores, path, options)?);
    }
    // A program's working directory can only be an existing directory.
    if let Some(log) = view.logs.iter().find(|log| !log.path.is_dir()) {
        let path = shown(&log.path);
        return Err(Failure::wrong_input(format!("{path} does not exist; create it: mkdir {path}")));
    }
    if view.logs.is_empty() && view.trees.is_empty() {
        if args.index.is_empty() && args.config.is_some() {
            return Err(Failure::wrong_input("the configuration file has no [[tree]] and no [[log]]"));
        }
        // The reasons have been printed.
        return become_program(&args.command, None, &[]);
    }
    View::parse(view.to_json()?.as_bytes())?;
    count(&mut view, args.cover.verbose);
    let value = view.to_json()?;
    if args.cover.verbose {
        for tree in &view.trees {
            errln!("quell: {} served from {} by {}", shown(&tree.path), shown(&tree.index), shown(&library));
        }
        for log in &view.logs {
            errln!("quell: {} served by {}", shown(&log.path), shown(&library));
        }
    }
    let variables = [(VIEW_VARIABLE, value.into()), (PRELOAD_VARIABLE, preloaded(&library))];
    become_program(&args.command, None, &variables)
}

/// Creates the file with counters for `quell stats`. Without it the program runs all the same. The
/// descriptor with the lock remains open in the program and its children, with a number that
/// programs do not use.
fn count(view: &mut View, verbose: bool) {
    let created = runtime_directory().and_then(|runtime| Ok(create_process_counters(&runtime, view)?));
    let inherited = created.and_then(|file| {
        let failed = |error: rustix::io::Errno| Failure::cannot(format!("counters: {error}"));
        let lock = rustix::io::fcntl_dupfd_cloexec(&file, LOCK_DESCRIPTOR_MINIMUM).map_err(failed)?;
        rustix::io::fcntl_setfd(&lock, rustix::io::FdFlags::empty()).map_err(failed)?;
        Ok(lock)
    });
    match inherited {
        Ok(lock) => {
            let _inherited = lock.into_raw_fd();
        }
        Err(failure) => {
            if verbose {
                errln!("quell: {failure}; operations are not counted");
            }
            view.counters = None;
        }
    }
}

/// Returns the value of LD_PRELOAD with the library before the user's own.
fn preloaded(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(known) = std::env::var_os(PRELOAD_VARIABLE).filter(|known| !known.is_empty()) {
        value.push(":");
        value.push(known);
    }
    value
}

/// Refuses options that need a view of the kernel.
fn refuse_other_options(args: &RunArgs) -> Result<(), Failure> {
    let cover = &args.cover;
    let options = [
        ("--image", args.image.is_some()),
        ("-b", !args.boot.boot.is_empty()),
        ("--source", cover.source.is_some()),
        ("--at", cover.at.is_some()),
        ("--scratch", cover.scratch),
        ("--writable", cover.writable.is_some()),
        ("--view", !matches!(cover.view, ViewArg::Auto)),
        ("--suid", cover.suid),
        ("--dev", cover.dev),
    ];
    match options.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((option, _)) => {
            Err(Failure::wrong_input(format!("{option} needs a view, and cannot be used with --via preload")))
        }
    }
}

/// Opens the indexes, and creates missing ones of directories.
fn view_trees(
    args: &RunArgs,
    trees: Vec<crate::config::TreeConfig>,
    quiet: bool,
) -> Result<Vec<ViewTree>, Failure> {
    let mut requested = Vec::new();
    for tree in trees {
        let path = real_path(&tree.path).unwrap_or(tree.path);
        requested.push(RequestedIndex::Tree { path, index: tree.index });
    }
    let mut named: Vec<Option<PathBuf>> = vec![None; requested.len()];
    for path in &args.index {
        requested.push(RequestedIndex::open(path)?);
        named.push(path.is_dir().then(|| path.clone()));
    }
    let creation = Creation { is_reported: args.cover.verbose, quiet };
    let mut view = Vec::new();
    for ((file, directory), named) in open_indexes(requested, creation)?.into_iter().zip(named) {
        let path: PathBuf = match directory {
            Some(directory) => directory,
            None => root_of(&file.index()?),
        };
        let aliases = named.map(|named| aliases(&named, &path)).unwrap_or_default();
        let tree = ViewTree { path, aliases, index: file.path.clone() };
        let checked = tree.load().and_then(|index| tree.open(&index));
        match checked {
            Ok(_) => view.push(tree),
            Err(error) if args.cover.strict => return Err(error.into()),
            Err(error) => errln!("quell: {error}: {} is not served from its index", shown(&tree.path)),
        }
    }
    Ok(view)
}
