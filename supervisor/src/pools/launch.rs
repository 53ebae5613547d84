//! The start of the daemons of a pool: a launcher program for each, whose standard input and output
//! carry the messages of `quell_wire::pool`.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use quell_wire::pool::{Complete, DaemonId, Listening, PoolDaemon, Ready};
use serde::de::DeserializeOwned;

use crate::display::shown;
use crate::failure::Failure;
use crate::pools::keep::{LaunchedDaemon, StartedPool};
use crate::pools::new_pool::{NewPool, PoolSecret};
use crate::pools::placement::Placement;
use crate::pools::running::{Event, RunningLauncher};

/// How often a start checks whether it was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);

/// Starts the daemons of a pool, and returns them when all of them serve. `is_cancelled`
/// is called at least 20 times each second.
///
/// # Errors
///
/// The failure of the first daemon that cannot be started, which names its node; the time limit;
/// and interruption. The daemons that were started have ended then, unless their nodes do not
/// answer.
pub fn start_pool(new: &NewPool, is_cancelled: &dyn Fn() -> bool) -> Result<StartedPool, Failure> {
    for path in [&new.directory, &new.runtime].into_iter().flatten() {
        if path.to_str().is_none() {
            return Err(Failure::wrong_input(format!("{} is not valid UTF-8", shown(path))));
        }
    }
    let deadline = Instant::now() + Duration::from_millis(new.timeout_ms);
    let (sender, events) = channel();
    let mut launched = StartedPool::new(new.clone(), PoolSecret::random()?, (sender, events));
    let started = new.daemons.iter().try_for_each(|daemon| launched.launch(daemon));
    let started = started.and_then(|()| exchange_settings(&mut launched, new, (deadline, is_cancelled)));
    match started {
        Ok(()) => Ok(launched),
        Err(failure) => {
            launched.end();
            Err(failure)
        }
    }
}

fn exchange_settings(
    launched: &mut StartedPool,
    new: &NewPool,
    limit: (Instant, &dyn Fn() -> bool),
) -> Result<(), Failure> {
    let members = new.new_members();
    for (number, daemon) in (0..).zip(&launched.daemons) {
        let id = DaemonId(number);
        let own = members.iter().filter(|member| member.daemon == id).map(|member| member.id).collect();
        let settings = new.daemon_settings(&launched.secret, &daemon.new, id, (own, id));
        daemon.launcher.send(&settings);
    }
    let mut daemons: Vec<PoolDaemon> = Vec::new();
    receive(launched, limit, &mut |launch, answer| match answer {
        Listening::At(daemon) => {
            daemons.push(daemon);
            Ok(())
        }
        Listening::Failed { code, message } => Err(launch.refused(code, &message)),
    })?;
    daemons.sort_by_key(|daemon| daemon.id);
    if !daemons.iter().map(|daemon| daemon.id.0).eq(0..new.daemons.len() as u16) {
        return Err(Failure::cannot("the answers of the daemons have wrong numbers"));
    }
    let settings = new.pool_settings(daemons.clone(), members.clone(), Vec::new());
    launched.daemons.iter().for_each(|daemon| daemon.launcher.send(&settings));
    receive(launched, limit, &mut |launch, answer| match answer {
        Ready::Serving => Ok(()),
        Ready::Failed { code, message } => Err(launch.refused(code, &message)),
    })?;
    launched.daemons.iter().for_each(|daemon| daemon.launcher.send(&Complete));
    launched.serve(Placement::new(&daemons, &members, new.replicas));
    let (deadline, is_cancelled) = limit;
    // Members get their backups.
    while !launched.is_complete() {
        launched.step(CANCEL_INTERVAL);
        if let Some(ended) = launched.daemons.iter_mut().find(|daemon| daemon.launcher.is_ended) {
            return Err(ended.launcher.ended());
        }
        if is_cancelled() {
            return Err(Failure::interrupted("the start was interrupted"));
        }
        if Instant::now() > deadline {
            return Err(Failure::cannot("the backups were not complete within the time limit"));
        }
    }
    Ok(())
}

/// Receives one message of each daemon.
fn receive<T: DeserializeOwned>(
    launched: &mut StartedPool,
    (deadline, is_cancelled): (Instant, &dyn Fn() -> bool),
    take: &mut dyn FnMut(&RunningLauncher, T) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let StartedPool { daemons, events, .. } = launched;
    let mut waiting: Vec<bool> = daemons.iter().map(|_| true).collect();
    while waiting.contains(&true) {
        match events.recv_timeout(CANCEL_INTERVAL) {
            Ok(Event::Line(number, line)) if waiting[number] => {
                let launch = &mut daemons[number].launcher;
                match serde_json::from_str(&line) {
                    Ok(message) => take(launch, message)?,
                    Err(error) => return Err(launch.wrong_answer(&line, &error)),
                }
                waiting[number] = false;
            }
            Ok(Event::Line(number, _)) => {
                return Err(daemons[number].launcher.failed("it has sent an unexpected message"));
            }
            Ok(Event::Ended(number)) => return Err(daemons[number].launcher.ended()),
            // Commands are accepted after the start.
            Ok(Event::Command(..)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::cannot("all daemons have ended")),
        }
        if is_cancelled() {
            return Err(Failure::interrupted("the start was interrupted"));
        }
        if Instant::now() > deadline {
            return Err(too_slow(daemons, &waiting));
        }
    }
    Ok(())
}

/// Returns the failure of a start that took too long.
fn too_slow(daemons: &[LaunchedDaemon], waiting: &[bool]) -> Failure {
    let silent: Vec<&RunningLauncher> = daemons
        .iter()
        .zip(waiting)
        .filter(|(_, is_waiting)| **is_waiting)
        .map(|(daemon, _)| &daemon.launcher)
        .collect();
    let hosts: Vec<&str> = silent.iter().map(|launch| launch.host.as_str()).collect();
    let mut message = format!("no answer from the daemons on {} within the time limit", hosts.join(", "));
    message.extend(silent.iter().map(|launch| launch.last_lines()));
    Failure::cannot(message)
}

#[cfg(test)]
mod tests {
    use quell_wire::pool::{Compression, Consistency, Listen};

    use super::*;
    use crate::pools::new_pool::NewDaemon;

    fn new_pool(scripts: &[&str]) -> NewPool {
        let daemon = |(number, script): (usize, &&str)| NewDaemon {
            host: format!("n{number}"),
            command: ["sh", "-c", script].map(str::to_owned).into(),
            listen: Listen::Loopback,
        };
        NewPool {
            name: "p".into(),
            daemons: scripts.iter().enumerate().map(daemon).collect(),
            members: scripts.len() as u16,
            directory: None,
            memory_bytes: None,
            runtime: None,
            chunk_bytes: 4096,
            partitions: 16,
            consistency: Consistency::Synchronous,
            replicas: 1,
            encrypts: false,
            compression: Compression::None,
            is_detached: false,
            timeout_ms: 60_000,
            log_filter: None,
        }
    }

    /// A daemon that never answers, and ends with its input.
    const SILENT: &str = "cat >/dev/null";

    fn failure(new: &NewPool, is_cancelled: &dyn Fn() -> bool) -> String {
        start_pool(new, is_cancelled).expect_err("no daemon answers").to_string()
    }

    #[test]
    fn a_failure_names_the_node_and_has_the_last_messages_of_its_launcher() {
        let refusing = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i >&2; done; exit 7";
        let message = failure(&new_pool(&[SILENT, refusing]), &|| false);
        assert!(
            message.starts_with("cannot start the daemon on n1: sh ended with exit status: 7"),
            "{message}"
        );
        assert!(message.ends_with("line 9") && !message.contains("line 1\n"), "{message}");
        let message =
            failure(&new_pool(&["echo '{\"Failed\":{\"code\":3,\"message\":\"no\"}}'; cat"]), &|| false);
        assert_eq!(message, "the daemon on n0: no");
        let message = failure(&new_pool(&["echo nonsense; cat"]), &|| false);
        assert!(message.contains("n0") && message.contains("nonsense"), "{message}");
        let mut none = new_pool(&[SILENT]);
        none.daemons[0].command = vec!["/nonexistent/ssh".into()];
        assert!(failure(&none, &|| false).contains("/nonexistent/ssh"));
    }

    #[test]
    fn a_start_ends_at_its_time_limit_and_when_it_is_cancelled() {
        let mut new = new_pool(&[SILENT, SILENT]);
        assert!(failure(&new, &|| true).contains("interrupted"));
        new.timeout_ms = 100;
        assert!(failure(&new, &|| false).contains("n0, n1"));
    }
}
