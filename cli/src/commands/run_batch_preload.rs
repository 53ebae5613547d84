//! `quell run --via preload --batch`: executes a program with the preload library, which sees the
//! files of a store for batches in a directory. This process has the name space, and serves it to
//! all processes of the program. It publishes the changes when the program has ended.

use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use quell_batch::{OpenBatch, StoreAccess};
use quell_batch_server::LocalNames;
use quell_batch_service::SummaryState;
use quell_mount_spec::{View, ViewBatch};
use quell_supervisor::{BatchMode, BatchPlan, batch_plan, publish_views, runtime_directory};

use crate::arguments::{BatchModeArg, RunArgs};
use crate::commands::batch_store::report_conflicts;
use crate::commands::run_batch::{
    BatchArgument, batch_argument, code_of, interrupted, wait_for_program, watched_signals,
};
use crate::commands::run_preload::{Preload, count, preload, variables};
use crate::failure::Failure;
use crate::inputs::shown;
use crate::output::errln;
use crate::plans;
use crate::views::aliases;

/// How long this process waits until other processes have closed the store.
const OPEN_WAIT: Duration = Duration::from_secs(10);
/// The same for a part, which joins its batch.
const JOIN_WAIT: Duration = Duration::from_secs(60);
/// The same for a commit.
const COMMIT_WAIT: Duration = Duration::from_secs(60);

/// The end of the name of a socket in the runtime directory.
const SOCKET_SUFFIX: &str = ".socket";

/// The end of a batch.
#[derive(Clone, Copy)]
enum BatchEnd {
    Commit,
    CommitLater,
    /// It is a part of a batch, and is committed with the other parts.
    Close,
}

/// The name space that the program uses.
enum NameSpace {
    Batch {
        batch: Arc<OpenBatch>,
        end: BatchEnd,
    },
    /// The directory of the store at this path.
    Synchronous {
        store: StoreAccess,
        subtree: Vec<u8>,
    },
}

/// Runs the program, and returns its exit code.
pub fn run(args: &RunArgs, batch: &str, quiet: bool) -> Result<ExitCode, Failure> {
    let preload = preload(args)?;
    let argument = batch_argument(batch)?;
    let mode = plans::batch_mode(&args.batch_mode, BatchModeArg::Batch)?;
    let plan = batch_plan(argument.store, mode, &argument.directory, &args.cover.trust_owner)?;
    let mut signals = watched_signals()?;
    let runtime = runtime_directory()?;
    remove_ended_sockets(&runtime);
    let socket = runtime.join(format!("batch-{}{SOCKET_SUFFIX}", std::process::id()));
    let names = NameSpace::open(&plan)?;
    let started = names.serve(&socket).and_then(|mut served| {
        let mut view = View {
            batches: vec![names.view(&plan, &argument, &socket)],
            dispatch: preload.dispatch,
            ..View::default()
        };
        let started = match signals.pending().next() {
            Some(signal) => Err(interrupted(signal)),
            None => start(args, &preload, &mut view),
        };
        match started {
            Ok(child) => Ok((served, child, view)),
            Err(failure) => {
                remove_counters(&view);
                served.stop().map_err(Failure::from).and(Err(failure))
            }
        }
    });
    let (mut served, child, view) = match started {
        Ok(started) => started,
        Err(failure) => {
            names.discard()?;
            return Err(failure);
        }
    };
    let status = wait_for_program(child, signals);
    let stopped = served.stop();
    remove_counters(&view);
    let status = match status {
        Ok(status) => status,
        Err(failure) => {
            names.discard()?;
            return Err(failure);
        }
    };
    let ended = names.end(&plan, quiet);
    code_of(status, stopped.map_err(Failure::from).and(ended), args.cover.strict)
}

impl NameSpace {
    /// Opens the store, and begins the batch.
    fn open(plan: &BatchPlan) -> Result<NameSpace, Failure> {
        // Many parts may join at the same time.
        let wait = if let BatchMode::Part { .. } = plan.mode { JOIN_WAIT } else { OPEN_WAIT };
        let store = StoreAccess::open_of(&plan.store, &plan.trust_owners, wait)?;
        match &plan.mode {
            BatchMode::Batch { name, is_atomic, is_lazy } => {
                let batch = OpenBatch::begin(store, subtree(plan), name, *is_atomic)?;
                Ok(NameSpace::of(batch, if *is_lazy { BatchEnd::CommitLater } else { BatchEnd::Commit }))
            }
            BatchMode::Part { batch, name } => {
                let part = OpenBatch::join(store, subtree(plan), *batch, name, JOIN_WAIT)?;
                Ok(NameSpace::of(part, BatchEnd::Close))
            }
            BatchMode::Synchronous => Ok(NameSpace::Synchronous { store, subtree: subtree(plan).to_vec() }),
            BatchMode::Watch { .. } => Err(Failure::wrong_input("a batch can be watched only in a mount")),
        }
    }

    fn of(batch: OpenBatch, end: BatchEnd) -> NameSpace {
        let batch = Arc::new(batch);
        if let Err(error) = publish_views(&batch) {
            errln!("quell: cannot publish views of the batch: cannot start a thread: {error}");
        }
        NameSpace::Batch { batch, end }
    }

    /// Starts the thread that serves the processes of the program.
    fn serve(&self, socket: &Path) -> Result<LocalNames, Failure> {
        let names = match self {
            NameSpace::Batch { batch, .. } => batch.shared_names()?,
            NameSpace::Synchronous { store, subtree } => store.shared_names(subtree)?,
        };
        Ok(LocalNames::start(names, socket)?)
    }

    /// Returns the view of the program.
    fn view(&self, plan: &BatchPlan, argument: &BatchArgument<'_>, socket: &Path) -> ViewBatch {
        ViewBatch {
            path: argument.directory.clone(),
            aliases: aliases(argument.named, &argument.directory),
            store: plan.store.clone(),
            batch: match self {
                NameSpace::Batch { batch, .. } => batch.record().number,
                NameSpace::Synchronous { .. } => 0,
            },
            socket: socket.to_owned(),
        }
    }

    /// Ends a name space that no program has used.
    fn discard(&self) -> Result<(), Failure> {
        match self {
            NameSpace::Batch { batch, .. } => Ok(batch.abort(COMMIT_WAIT).map(drop)?),
            NameSpace::Synchronous { .. } => Ok(()),
        }
    }

    /// Publishes the changes, reports conflicts, and returns their number.
    fn end(&self, plan: &BatchPlan, quiet: bool) -> Result<u64, Failure> {
        let (batch, end) = match self {
            NameSpace::Batch { batch, end } => (batch, *end),
            NameSpace::Synchronous { store, .. } => {
                store.name_space().sync()?;
                return Ok(0);
            }
        };
        let (number, store) = (batch.record().number, shown(&plan.store));
        let ended = match end {
            BatchEnd::Commit => batch.commit(COMMIT_WAIT),
            BatchEnd::CommitLater => batch.commit_later(COMMIT_WAIT),
            BatchEnd::Close => {
                // The conflicts of a part are those of its batch.
                return batch.close().map(|()| 0).map_err(|error| {
                    Failure::cannot(format!(
                        "part {number} was not closed: {error}; its changes are lost; to discard it: quell batch abort \
                         {store} {number}"
                    ))
                });
            }
        };
        let summary = ended.map_err(|error| {
            Failure::cannot(format!(
                "batch {number} was not committed: {error}; to commit it: quell batch commit {store} {number}; to \
                 discard it: quell batch abort {store} {number}"
            ))
        })?;
        report_conflicts(&plan.store, &summary, quiet);
        match summary.state {
            SummaryState::Committed { conflicts, .. } => Ok(conflicts),
            // The number of conflicts of a batch that is verified later is not known yet.
            _ => Ok(0),
        }
    }
}

/// Removes the sockets of processes that were killed.
fn remove_ended_sockets(runtime: &Path) {
    let entries = std::fs::read_dir(runtime).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let is_ours = name.starts_with(b"batch-") && name.ends_with(SOCKET_SUFFIX.as_bytes());
        let is_refused = || {
            let connected = std::os::unix::net::UnixStream::connect(&path);
            connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        };
        if is_ours && is_refused() {
            // A socket that cannot be removed is only a file in the runtime directory.
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Removes the file with the counters of the program, which has ended.
fn remove_counters(view: &View) {
    // A later command removes a file that remains.
    let _ = view.counters.as_deref().map(std::fs::remove_file);
}

fn subtree(plan: &BatchPlan) -> &[u8] {
    plan.subtree.as_os_str().as_encoded_bytes()
}

/// Starts the program.
fn start(args: &RunArgs, preload: &Preload, view: &mut View) -> Result<Child, Failure> {
    View::parse(view.to_json()?.as_bytes())?;
    count(view, args.cover.verbose);
    if args.cover.verbose {
        errln!("quell: {} served by {}", shown(&view.batches[0].path), shown(&preload.library));
    }
    let (program, arguments) = args.command.split_first().expect("clap asks for one");
    let mut command = Command::new(program);
    command.args(arguments).envs(variables(view, &preload.library)?);
    // The codes of shells and env(1): 127 if the program was not found, 126 if it could not be
    // started.
    command.spawn().map_err(|error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
        Failure::with_code(code, format!("{}: {error}", shown(Path::new(program))))
    })
}
