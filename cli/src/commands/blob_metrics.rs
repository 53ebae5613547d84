//! `quell blob metrics`: prints or serves the counters of a store's server in the Prometheus text
//! format.

use std::process::ExitCode;
use std::time::Duration;

use quell_blob::Store;
use quell_metrics::store_prometheus_text;

use crate::arguments::BlobMetricsArgs;
use crate::failure::{Failure, of_blob as failure};
use crate::metrics_endpoint::serve;
use crate::output;

/// How long the command waits for the answer of the server.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

pub fn run(args: &BlobMetricsArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let store = Store::open_existing(&args.store).map_err(failure)?;
    let counters = store.server_counters(ANSWER_LIMIT).map_err(failure)?;
    // The label of the store omits the file name of the key.
    let label = args.store.split_once('?').map_or(&*args.store, |(label, _)| label);
    match &args.endpoint.listen {
        Some(address) => serve(address, quiet, &|| {
            store_prometheus_text(label, store.server_counters(ANSWER_LIMIT).ok().as_ref())
        }),
        None => {
            output::print(format_args!("{}", store_prometheus_text(label, Some(&counters))));
            Ok(ExitCode::SUCCESS)
        }
    }
}
