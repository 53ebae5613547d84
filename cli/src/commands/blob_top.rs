//! `quell blob top`: shows the rates of the requests of a store's server, and repeats it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use quell_blob::{Store, StoreCounters};
use quell_metrics::StoreRates;

use crate::arguments::BlobTopArgs;
use crate::failure::{Failure, of_blob as failure};
use crate::inputs::shown;
use crate::store_table::ServerRates;
use crate::top;

/// How long the command waits for the answer of the server.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The answer of the server, and its time.
struct Sample {
    counters: Result<StoreCounters, String>,
    at: Instant,
}

pub fn run(args: &BlobTopArgs) -> Result<ExitCode, Failure> {
    let store = Store::open_existing(&args.store).map_err(failure)?;
    // A store without a server, and a key without the right, are errors before the screen is
    // changed.
    store.server_counters(ANSWER_LIMIT).map_err(failure)?;
    let sample = move || {
        let counters = store.server_counters(ANSWER_LIMIT).map_err(|error| error.to_string());
        Ok(Sample { counters, at: Instant::now() })
    };
    let rates = |earlier: &Sample, later: &Sample| {
        let elapsed = later.at - earlier.at;
        let both = earlier.counters.as_ref().ok().zip(later.counters.as_ref().ok());
        ServerRates {
            store: args.store.clone(),
            interval_seconds: args.top.interval,
            rates: both.map(|(earlier, later)| StoreRates::between(earlier, later, elapsed)),
            counters: later.counters.clone(),
        }
    };
    top::run(&args.top, &format!("store {}", shown(&args.store)), sample, rates)
}
