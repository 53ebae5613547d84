//! The arguments of commands that show the counters of servers.

use clap::Args;
use quell_metrics::Address;

/// The intervals and the output of a command that shows rates.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The interval, in seconds, 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// Print the table of one interval.
    #[arg(long)]
    pub once: bool,
    /// Print one line of JSON for each interval.
    #[arg(long)]
    pub json: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "an interval is a number from 0.1 to 3600".into())
}

/// The address of a command that serves counters.
#[derive(Debug, Args)]
pub struct EndpointArg {
    /// Serve the counters by HTTP at ADDRESS: unix:PATH for a Unix socket that only this user can
    /// use, or 127.0.0.1:PORT, to which all users of this node can connect. Port 0 selects a free
    /// port, which is printed.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<Address>,
}
