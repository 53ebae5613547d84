//! A server of a store in the background: `quell batch serve --background`, and the option
//! `--serve` of `quell mount --batch` and `quell run --batch`.
//!
//! The server is a child process with a session of its own. It writes a line to its standard output
//! when clients can connect, and its errors to its standard error. This process reads both until
//! then. If this process ends before, the server cannot write the line, and ends as well.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use quell_batch::StoreAccess;
use quell_supervisor::BatchPlan;
use quell_vfs::ErrorKind;

use crate::arguments::BatchServeArgs;
use crate::failure::{CANNOT, Failure};
use crate::inputs::shown;

/// The time without clients after which a server ends that --serve has started, in seconds.
const IDLE_S: u64 = 60;
/// The largest size of the ready line of a server, and of its error messages, in bytes.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// Starts a server, and waits until clients can connect. Returns the line that the server prints
/// with --json.
pub fn start(args: &BatchServeArgs) -> Result<String, Failure> {
    let store = std::path::absolute(&args.store)
        .map_err(|error| Failure::wrong_input(format!("{}: {error}", shown(&args.store))))?;
    let BatchServeArgs { listen, advertise, encrypt, clients, verification_limit, idle, .. } = args;
    let BatchServeArgs { partitions, divide_after, .. } = args;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("quell").args(["batch", "serve", "--detached"]);
    command.arg(format!("--clients={clients}"));
    match partitions {
        true => command.arg("--partitions"),
        false => command
            .arg(format!("--divide-after={divide_after}"))
            .arg(format!("--verification-limit={verification_limit}")),
    };
    command.args(listen.iter().map(|address| format!("--listen={address}")));
    command.args(advertise.iter().map(|address| format!("--advertise={address}")));
    command.args(encrypt.then_some("--encrypt"));
    command.args(idle.iter().map(|seconds| format!("--idle={seconds}")));
    command.arg("--").arg(store);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |error| Failure::cannot(format!("cannot start the server of the store: {error}"));
    ready_line(command.spawn().map_err(failed)?)
        .map_err(failed)?
        .map_err(|(code, message)| Failure::with_code(code, format!("the server of the store: {message}")))
}

/// Waits for the line that a server writes when clients can connect. If the server ends before,
/// returns its exit code and its message.
fn ready_line(mut server: Child) -> std::io::Result<Result<String, (u8, String)>> {
    let mut line = String::new();
    if let Some(output) = server.stdout.take() {
        BufReader::new(output.take(OUTPUT_BYTES_MAX)).read_line(&mut line)?;
    }
    if line.ends_with('\n') {
        return Ok(Ok(line.trim_end().to_owned()));
    }
    let mut message = Vec::new();
    if let Some(errors) = server.stderr.take() {
        errors.take(OUTPUT_BYTES_MAX).read_to_end(&mut message)?;
    }
    let status = server.wait()?;
    let message = String::from_utf8_lossy(&message);
    let message = message.trim();
    let message = match message.strip_prefix("quell: ").unwrap_or(message) {
        "" => status.to_string(),
        text => text.to_owned(),
    };
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(CANNOT);
    Ok(Err((code, message)))
}

/// Connects to the server of the store of a mount or program, and starts one if there is none. The
/// server does not end as long as the returned value exists.
///
/// # Errors
/// The error of the server that could not be started; for a store of another user without a server,
/// the error of a connection.
pub fn connect_or_start(plan: &BatchPlan) -> Result<StoreAccess, Failure> {
    let connect = || StoreAccess::open_for_batches_of(&plan.store, &plan.trust_owners, Duration::ZERO);
    match connect() {
        Ok(access) if access.is_exclusive() => {} // it is closed, so that the server can open it
        Err(error) if error.kind == ErrorKind::Busy => {}
        connected => return Ok(connected?),
    }
    let started = start(&BatchServeArgs::for_this_node(plan.store.clone(), IDLE_S));
    match (connect(), started) {
        (Ok(access), _) if !access.is_exclusive() => Ok(access),
        // Another process may have started a server at the same time. Without one, this error is
        // the reason.
        (_, Err(failure)) => Err(failure),
        (Err(error), Ok(_)) => Err(error.into()),
        (Ok(_), Ok(_)) => Err(Failure::cannot("the server of the store has ended")),
    }
}

/// Leaves the session of the command that has started this server, so that a terminal sends no
/// signals to the server, and the directory of the command, so that it can be unmounted.
pub fn leave_session() {
    // The process was started as /proc/self/exe and would be named `exe`.
    let _ = rustix::thread::set_name(c"quell");
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
}
