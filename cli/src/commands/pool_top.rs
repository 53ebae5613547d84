//! `quell pool top`: shows the rates of a pool's operations by member, and repeats it.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use quell_metrics::Rates;
use quell_supervisor::{CountedMember, find_pool, member_counters};
use quell_wire::pool::MemberCounters;

use crate::arguments::PoolTopArgs;
use crate::failure::{Failure, NO};
use crate::output::{has_failed, outln};
use crate::pool_table::{MemberRates, PoolRates};
use crate::progress::interruption;
use crate::screen::Screen;

/// How long the answer of a member is waited for, after the connection.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How often the command checks whether it is to end.
const INPUT_INTERVAL: Duration = Duration::from_millis(100);

/// The answers of all members of a pool.
type Answers = Result<Vec<CountedMember>, Failure>;

pub fn run(args: &PoolTopArgs) -> Result<ExitCode, Failure> {
    // A wrong name is an error before the screen is changed.
    find_pool(&args.name)?;
    let interrupted = interruption();
    let interval = Duration::from_secs_f64(args.interval);
    let answers = sample_repeatedly(args.name.clone(), interval);
    let is_screen = !args.once && !args.json && crate::output::is_terminal();
    let screen = if is_screen { Some(Screen::begin()?) } else { None };
    let shown = show(args, &answers, screen.as_ref(), &|| interrupted.load(Ordering::Relaxed));
    if let Some(screen) = screen {
        screen.end();
    }
    shown
}

/// Shows the rates until the user ends the command, or once.
fn show(
    args: &PoolTopArgs,
    answers: &Receiver<Answers>,
    screen: Option<&Screen>,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<ExitCode, Failure> {
    let mut earlier: Vec<CountedMember> = Vec::new();
    loop {
        let Some(later) = next(answers, screen, is_interrupted) else { return Ok(ExitCode::SUCCESS) };
        let later = later?;
        let is_first = earlier.is_empty();
        let rates = PoolRates {
            pool: args.name.clone(),
            interval_seconds: args.interval,
            members: later.iter().map(|member| rates_since(&earlier, member)).collect(),
        };
        earlier = later;
        if is_first {
            if let Some(screen) = screen {
                screen.show(&format!("pool {}: the first interval is measured", args.name));
            }
            continue;
        }
        match (screen, args.json) {
            (Some(screen), _) => {
                let (lines, columns) = screen.size();
                screen.show(&rates.table(lines, columns));
            }
            (None, true) => outln!("{}", rates.json(SystemTime::now())),
            (None, false) => {
                outln!("{}{}", rates.table(usize::MAX, usize::MAX), if args.once { "" } else { "\n" })
            }
        }
        if args.once {
            let is_complete = rates.members.iter().all(|member| member.counters.is_ok());
            return Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::from(NO) });
        }
        if has_failed() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Returns the next answers, or `None` if the user ends the command before.
fn next(
    answers: &Receiver<Answers>,
    screen: Option<&Screen>,
    is_interrupted: &dyn Fn() -> bool,
) -> Option<Answers> {
    loop {
        if is_interrupted() || screen.is_some_and(Screen::is_ended_by_key) {
            return None;
        }
        match answers.recv_timeout(INPUT_INTERVAL) {
            Ok(answers) => return Some(answers),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
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

/// Requests the counters at intervals, on a thread of its own: a member that is stopped may delay
/// the answers for several seconds, in which the command can be ended. The thread ends with the
/// process, or when the receiver was dropped.
fn sample_repeatedly(name: String, interval: Duration) -> Receiver<Answers> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sample_until_closed(&name, interval, &sender));
    receiver
}

fn sample_until_closed(name: &str, interval: Duration, sender: &Sender<Answers>) {
    loop {
        let begun = Instant::now();
        let answers = find_pool(name).map(|pool| member_counters(&pool, ANSWER_LIMIT));
        let is_last = answers.is_err();
        if sender.send(answers).is_err() || is_last {
            return;
        }
        std::thread::sleep(interval.saturating_sub(begun.elapsed()));
    }
}
