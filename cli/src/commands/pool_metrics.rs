//! `quell pool metrics`: prints or serves the counters of a pool in the Prometheus text format.

use std::process::ExitCode;
use std::time::Duration;

use quell_metrics::{MemberSample, PoolSample, prometheus_text};
use quell_runtime::Pool;
use quell_supervisor::{find_pool, member_counters};

use crate::arguments::PoolMetricsArgs;
use crate::failure::{Failure, NO};
use crate::metrics_endpoint::serve;
use crate::output;

/// How long the command waits for the answer of a daemon, after the connection.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

pub fn run(args: &PoolMetricsArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let pool = find_pool(&args.name)?;
    match &args.endpoint.listen {
        // After the end of the pool, its members are reported as not answering.
        Some(address) => serve(address, quiet, &|| {
            prometheus_text(&sample(&find_pool(&pool.name).unwrap_or_else(|_| pool.clone())))
        }),
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
