//! `quell pool metrics`: prints or serves the counters of a pool in the Prometheus text format.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quell_metrics::{Address, Endpoint, METRICS_PATH, MemberSample, PoolSample, prometheus_text};
use quell_runtime::Pool;
use quell_supervisor::{find_pool, member_counters};
use quell_threads::lock;

use crate::arguments::PoolMetricsArgs;
use crate::failure::{Failure, NO};
use crate::output::{self, errln};
use crate::progress::interruption;

/// How long the answer of a daemon is waited for, after the connection.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// How long a text is served again: other users of the node can connect to a port, and must not
/// cause more requests to the daemons than this permits.
const TEXT_AGE_MAX: Duration = Duration::from_secs(1);

pub fn run(args: &PoolMetricsArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let pool = find_pool(&args.name)?;
    match &args.listen {
        Some(address) => serve(pool, address, quiet),
        None => {
            let sample = sample(&pool);
            output::print(format_args!("{}", prometheus_text(&sample)));
            let is_complete = sample.members.iter().all(|member| member.counters.is_some());
            Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::from(NO) })
        }
    }
}

fn sample(pool: &Pool) -> PoolSample {
    let counted = member_counters(pool, ANSWER_LIMIT).into_iter().map(|counted| MemberSample {
        member: counted.member.id.0,
        machine: counted.host,
        counters: counted.counters.ok(),
    });
    PoolSample { pool: pool.name.clone(), members: counted.collect() }
}

fn serve(pool: Pool, address: &Address, quiet: bool) -> Result<ExitCode, Failure> {
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
        // Requests that arrive meanwhile wait for the same answers of the daemons.
        let mut last = lock(&last);
        match &*last {
            Some((at, text)) if at.elapsed() < TEXT_AGE_MAX => text.clone(),
            _ => {
                // After the end of the pool, its members are reported as not answering.
                let text = prometheus_text(&sample(&find_pool(&pool.name).unwrap_or_else(|_| pool.clone())));
                *last = Some((Instant::now(), text.clone()));
                text
            }
        }
    };
    endpoint.serve(&|| interrupted.load(Ordering::Relaxed), &text).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
