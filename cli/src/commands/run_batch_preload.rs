//! `quell run --via preload --batch`: executes a program with the preload library, which sees the
//! files of a store for batches in a directory. This process has the name space, and serves it to
//! all processes of the program. It publishes the changes when the program has ended.

use std::path::Path;
use std::process::{Child, Command, ExitCode};

use quell_batch_server::{LocalNames, directory_of_locks};
use quell_batch_service::SummaryState;
use quell_mount_spec::{View, ViewBatch};
use quell_supervisor::{
    BatchEnd, BatchPlan, BatchSession, COMMIT_WAIT, batch_plan, open_batch_session, publish_views,
    runtime_directory,
};

use crate::arguments::{BatchModeArg, RunArgs};
use crate::commands::batch_background::connect_or_start;
use crate::commands::batch_store::report_conflicts;
use crate::commands::run_batch::{
    BatchArgument, batch_argument, code_of, interrupted, wait_for_program, watched_signals,
};
use crate::commands::run_preload::{Preload, count, preload, variables};
use crate::commands::umount::not_committed;
use crate::failure::Failure;
use crate::inputs::shown;
use crate::output::errln;
use crate::plans;
use crate::program::start_code;
use crate::views::aliases;

/// The end of the name of a socket in the runtime directory.
const SOCKET_SUFFIX: &str = ".socket";

/// The name space that the program uses.
struct NameSpace {
    plan: BatchPlan,
    session: BatchSession,
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
    let connection = args.batch_mode.serve.then(|| connect_or_start(&plan)).transpose()?;
    let names = NameSpace::open(plan)?;
    drop(connection); // the name space has its own
    let started = names.serve(&socket).and_then(|mut served| {
        let mut view = View {
            batches: vec![names.view(&argument, &socket)],
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
    let ended = names.end(quiet);
    code_of(status, stopped.map_err(Failure::from).and(ended), args.cover.strict)
}

impl NameSpace {
    /// Opens the store, and begins the batch.
    fn open(plan: BatchPlan) -> Result<NameSpace, Failure> {
        let session = open_batch_session(&plan)?;
        if let BatchSession::Batch(batch, _) = &session
            && let Err(error) = publish_views(batch)
        {
            errln!("quell: cannot publish views of the batch: cannot start a thread: {error}");
        }
        Ok(NameSpace { plan, session })
    }

    /// Starts the thread that serves the processes of the program.
    fn serve(&self, socket: &Path) -> Result<LocalNames, Failure> {
        let names = match &self.session {
            BatchSession::Batch(batch, _) => batch.shared_names()?,
            BatchSession::Synchronous(store) => {
                store.shared_names(self.plan.subtree.as_os_str().as_encoded_bytes())?
            }
        };
        Ok(LocalNames::start(names, socket)?)
    }

    /// Returns the view of the program.
    fn view(&self, argument: &BatchArgument<'_>, socket: &Path) -> ViewBatch {
        ViewBatch {
            path: argument.directory.clone(),
            aliases: aliases(argument.named, &argument.directory),
            store: self.plan.store.clone(),
            batch: match &self.session {
                BatchSession::Batch(batch, _) => batch.record().number,
                BatchSession::Synchronous(_) => 0,
            },
            socket: socket.to_owned(),
        }
    }

    /// Ends a name space that no program has used.
    fn discard(&self) -> Result<(), Failure> {
        match &self.session {
            BatchSession::Batch(batch, _) => Ok(batch.abort(COMMIT_WAIT).map(drop)?),
            BatchSession::Synchronous(_) => Ok(()),
        }
    }

    /// Publishes the changes, reports conflicts, and returns their number.
    fn end(&self, quiet: bool) -> Result<u64, Failure> {
        let (batch, end) = match &self.session {
            BatchSession::Batch(batch, end) => (batch, *end),
            BatchSession::Synchronous(store) => {
                store.name_space().sync()?;
                return Ok(0);
            }
        };
        let (number, store) = (batch.record().number, shown(&self.plan.store));
        let ended = match end {
            BatchEnd::Commit => batch.commit(COMMIT_WAIT),
            BatchEnd::CommitLater => batch.commit_later(COMMIT_WAIT),
            BatchEnd::Close => {
                // The conflicts of a part are reported with its batch.
                return batch.close().map(|()| 0).map_err(|error| {
                    Failure::cannot(format!(
                        "part {number} was not closed: {error}; its changes are lost; to discard it: quell batch abort \
                         {store} {number}"
                    ))
                });
            }
        };
        let store_and_owners = (&*self.plan.store, &*self.plan.trust_owners);
        let summary =
            ended.map_err(|error| not_committed(store_and_owners, number, &format!(": {error}")))?;
        report_conflicts(&self.plan.store, &summary, quiet);
        match summary.state {
            SummaryState::Committed { conflicts, .. } => Ok(conflicts),
            // The number of conflicts of a batch that is verified later is not known yet.
            _ => Ok(0),
        }
    }
}

/// Removes the sockets and locks of processes that were killed.
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
            // A file that cannot be removed does no harm in the runtime directory.
            let _ = std::fs::remove_dir_all(directory_of_locks(&path));
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Removes the file with the counters of the program, which has ended.
fn remove_counters(view: &View) {
    // A later command removes a file that remains.
    let _ = view.counters.as_deref().map(std::fs::remove_file);
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
    command.spawn().map_err(|error| {
        Failure::with_code(start_code(&error), format!("{}: {error}", shown(Path::new(program))))
    })
}
