//! `quell pool top`: shows the rates of a pool's operations by member, and repeats it.

use std::process::ExitCode;
use std::time::Duration;

use quell_metrics::Rates;
use quell_supervisor::{CountedMember, find_pool, member_counters};
use quell_wire::pool::MemberCounters;

use crate::arguments::PoolTopArgs;
use crate::failure::Failure;
use crate::pool_table::{MemberRates, PoolRates};
use crate::top;

/// How long the command waits for the answer of a member, after the connection.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

pub fn run(args: &PoolTopArgs) -> Result<ExitCode, Failure> {
    // A wrong name is an error before the screen is changed.
    find_pool(&args.name)?;
    let name = args.name.clone();
    let sample = move || find_pool(&name).map(|pool| member_counters(&pool, ANSWER_LIMIT));
    let rates = |earlier: &Vec<CountedMember>, later: &Vec<CountedMember>| PoolRates {
        pool: args.name.clone(),
        interval_seconds: args.top.interval,
        members: later.iter().map(|member| rates_since(earlier, member)).collect(),
    };
    top::run(&args.top, &format!("pool {}", args.name), sample, rates)
}

fn rates_since(earlier: &[CountedMember], later: &CountedMember) -> MemberRates {
    let before = earlier.iter().find(|member| member.member.id == later.member.id);
    let before = before.and_then(|before| Some((before.counters.as_ref().ok()?, before.at)));
    let rates = |counters: &MemberCounters| {
        before.map(|(before, at)| Rates::between(before, counters, later.at - at))
    };
    MemberRates {
        number: later.member.id.0,
        host: later.host.clone(),
        rates: later.counters.as_ref().ok().and_then(rates),
        counters: later.counters.as_ref().map(Clone::clone).map_err(ToString::to_string),
    }
}
