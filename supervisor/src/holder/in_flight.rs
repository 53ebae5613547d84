//! Prints the requests in flight of a mount when the holder receives SIGUSR1, so that a user can
//! find out why the mount does not answer.
//!
//! A separate thread waits for the signal, because the thread that serves the holder's socket may
//! be waiting for the same file system.

use std::cmp::Reverse;
use std::io::Read;
use std::os::unix::net::UnixStream;

use quell_fuse::{RequestInFlight, RequestsInFlight};
use quell_vfs::printable;
use signal_hook::consts::SIGUSR1;

use crate::failure::Failure;
use crate::holder::messages::Messages;

/// Number of requests that one report lists.
const LISTED_MAX: usize = 20;

/// Installs the handler of SIGUSR1 and starts the thread, which runs as long as the process.
pub fn report_on_signal(requests: Vec<RequestsInFlight>, messages: &Messages) -> Result<(), Failure> {
    let cannot = |e: std::io::Error| Failure::cannot(format!("cannot wait for SIGUSR1: {e}"));
    let (mut signalled, handler) = UnixStream::pair().map_err(cannot)?;
    signal_hook::low_level::pipe::register(SIGUSR1, handler).map_err(cannot)?;
    let messages = messages.clone();
    let report = move || {
        // Several signals that arrive together request one report.
        while signalled.read(&mut [0; 64]).is_ok_and(|count| count > 0) {
            for line in report(&requests) {
                messages.print(&line);
            }
        }
    };
    std::thread::Builder::new().name("quell-report".into()).spawn(report).map_err(cannot)?;
    Ok(())
}

fn report(requests: &[RequestsInFlight]) -> Vec<String> {
    if requests.is_empty() {
        return vec!["the kernel alone serves this view: no request reaches this process".into()];
    }
    let mut in_flight: Vec<(RequestInFlight, Option<Vec<u8>>)> = Vec::new();
    for session in requests {
        in_flight.extend(session.list().into_iter().map(|request| (request, session.path(request.node))));
    }
    in_flight.sort_by_key(|(request, _)| Reverse(request.duration));
    let mut lines = vec![match in_flight.len() {
        0 => "no request is in flight".into(),
        1 => "1 request is in flight:".into(),
        count => format!("{count} requests are in flight, the longest first:"),
    }];
    lines.extend(in_flight.iter().take(LISTED_MAX).map(|(request, path)| line(request, path.as_deref())));
    if let Some(rest @ 1..) = in_flight.len().checked_sub(LISTED_MAX) {
        lines.push(format!("  and {rest} more"));
    }
    lines
}

fn line(request: &RequestInFlight, path: Option<&[u8]>) -> String {
    let RequestInFlight { operation, node, duration } = request;
    let path = match path {
        Some(b"") => "the root of the mount".into(),
        Some(path) => printable(path).to_string(),
        None => format!("node {}", node.0),
    };
    format!("  {operation} of {path}, for {:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quell_vfs::NodeId;

    use super::*;

    #[test]
    fn a_line_names_the_operation_the_path_and_the_duration() {
        let request =
            RequestInFlight { operation: "read", node: NodeId(7), duration: Duration::from_millis(1_250) };
        assert_eq!(line(&request, Some(b"lib/a.py")), "  read of lib/a.py, for 1.2 s");
        assert_eq!(line(&request, Some(b"")), "  read of the root of the mount, for 1.2 s");
        assert_eq!(line(&request, None), "  read of node 7, for 1.2 s");
    }

    #[test]
    fn a_view_without_sessions_says_that_the_kernel_serves_it() {
        assert_eq!(report(&[]).len(), 1);
    }
}
