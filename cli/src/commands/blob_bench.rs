//! `quell blob bench`: measures a store.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use quell_blob::Store;
use serde_json::{Value, json};

use crate::arguments::BlobBenchArgs;
use crate::blob_load::{Blobs, Group, Measured, Run, Work};
use crate::failure::{Failure, of_blob as failure};
use crate::inputs::random_text;
use crate::output::outln;
use crate::progress::{interruption, watch_line};

pub fn run(args: &BlobBenchArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let interrupted = interruption();
    let store = Store::open(&args.store).map_err(failure)?;
    let clients = usize::from(args.clients) + usize::from(args.beside_clients);
    let works: Vec<Work> = args.work.iter().copied().chain(args.beside).collect();
    let prefix = format!("quell-bench-{}/", random_text()?);
    let blobs = Blobs::create(&store, prefix, clients, (&works, args.size as usize)).map_err(failure)?;
    let measured = measure(args, &store, &blobs, &interrupted, quiet);
    // The blobs are removed also after a failure.
    let deleted = blobs.delete(&store).map_err(failure);
    measured?;
    deleted?;
    match interrupted.load(Ordering::Relaxed) {
        true => {
            Err(Failure::interrupted("interrupted: the blobs of the measurement were removed".to_owned()))
        }
        false => Ok(ExitCode::SUCCESS),
    }
}

/// Measures each kind of work, and prints the results.
fn measure(
    args: &BlobBenchArgs,
    store: &Store,
    blobs: &Blobs,
    interrupted: &AtomicBool,
    quiet: bool,
) -> Result<(), Failure> {
    // The threads of a program that has opened a directory itself share the store. Each client of a
    // server has a connection of its own.
    let open = || match store.is_remote() {
        true => Store::open_existing(&args.store),
        false => Ok(store.clone()),
    };
    for work in &args.work {
        let done = AtomicU64::new(0);
        let run = Run {
            blobs,
            size_bytes: args.size as usize,
            interval: args.rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate),
            duration: Duration::from_secs(args.seconds.into()),
            is_stopped: interrupted,
            done: &done,
        };
        let beside = args.beside.map_or(0, |_| usize::from(args.beside_clients));
        let groups: Vec<Group> = [(Some(*work), usize::from(args.clients)), (args.beside, beside)]
            .into_iter()
            .filter_map(|(work, clients)| work.map(|work| Group { work, clients }))
            .collect();
        let title = name(*work);
        let line = |elapsed: Duration| {
            let rate = done.load(Ordering::Relaxed) as f64 / elapsed.as_secs_f64().max(0.001);
            format!("{title}: {rate:.0} operations/s")
        };
        let measured = watch_line(&line, quiet, &|| {}, || run.measure(&groups, &open)).map_err(failure)?;
        if interrupted.load(Ordering::Relaxed) {
            return Ok(());
        }
        for group in &measured {
            match args.output.json {
                true => outln!("{}", described(args, group)),
                false => outln!("{}", text(group)),
            }
        }
    }
    Ok(())
}

fn name(work: Work) -> String {
    work.to_possible_value().expect("no kind of work is hidden").get_name().to_owned()
}

fn described(args: &BlobBenchArgs, measured: &Measured) -> Value {
    let Measured { group, elapsed, latencies_us, conflicts } = measured;
    json!({
        "work": name(group.work),
        "clients": group.clients,
        "size_bytes": matches!(group.work, Work::Read | Work::Write).then_some(args.size),
        "seconds": elapsed.as_secs_f64(),
        "operations": latencies_us.len(),
        "operations_per_second": measured.rate(),
        "median_us": measured.latency_us(50),
        "percentile_99_us": measured.latency_us(99),
        "conflicts": conflicts,
    })
}

fn text(measured: &Measured) -> String {
    let (work, clients) = (name(measured.group.work), measured.group.clients);
    let [median, slow] = [50, 99].map(|percent| f64::from(measured.latency_us(percent)) / 1e3);
    let conflicts = match measured.conflicts {
        0 => String::new(),
        number => format!(", {number} conflicts"),
    };
    let rate = measured.rate();
    format!(
        "{work:<16} {clients:>4} clients {rate:>10.0}/s  median {median:.2} ms  99 % {slow:.2} ms{conflicts}"
    )
}
