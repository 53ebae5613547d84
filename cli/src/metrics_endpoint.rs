//! Serves the counters of servers for Prometheus, until the command is ended.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quell_metrics::{Address, Endpoint, METRICS_PATH};
use quell_threads::lock;

use crate::failure::Failure;
use crate::output::errln;
use crate::progress::interruption;

/// How long a text is served again: other users of the node can connect to a port, and must not
/// cause more requests to the servers than this permits.
const TEXT_AGE_MAX: Duration = Duration::from_secs(1);

/// Serves the text that `text` returns, which is at most 1 s old.
pub fn serve(
    address: &Address,
    quiet: bool,
    text: &(dyn Fn() -> String + Sync),
) -> Result<ExitCode, Failure> {
    let interrupted = interruption();
    let failed = |e: std::io::Error| Failure::cannot(format!("{address}: {e}"));
    let endpoint = Endpoint::listen(address).map_err(failed)?;
    if !quiet {
        match endpoint.address() {
            Address::Loopback(address) => errln!("quell: the metrics are at http://{address}{METRICS_PATH}"),
            Address::Unix(_) => {
                errln!("quell: the metrics are at {}, path {METRICS_PATH}", endpoint.address())
            }
        }
    }
    let last: Mutex<Option<(Instant, String)>> = Mutex::new(None);
    let text = || {
        // Requests that arrive meanwhile wait for the same answers of the servers.
        let mut last = lock(&last);
        match &*last {
            Some((at, text)) if at.elapsed() < TEXT_AGE_MAX => text.clone(),
            _ => {
                let text = text();
                *last = Some((Instant::now(), text.clone()));
                text
            }
        }
    };
    endpoint.serve(&|| interrupted.load(Ordering::Relaxed), &text).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
