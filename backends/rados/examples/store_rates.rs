//! Measures durable commits of several threads to a key-value store in RADOS. Each commit puts
//! three values of 256 bytes. docs/decisions/0031-blob-on-rados.md compares the rates with etcd's.
//!
//! Usage: `store_rates rados://POOL[/NAMESPACE] [CONFIGURATION]`. The store has the name `rates`;
//! the program removes its objects at its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_kv::{Batch, KeyValue, MemoryStore};
use quell_rados::{LogOptions, Objects, Pool, PoolOptions, RadosStore};
use quell_vfs::Result;

/// Each measurement takes about this time.
const DURATION: Duration = Duration::from_secs(5);
/// Each thread puts this many different keys.
const KEYS: usize = 1000;

fn commits(store: &RadosStore<MemoryStore>, thread: usize) -> Result<Vec<Duration>> {
    let (begin, mut latencies) = (Instant::now(), Vec::new());
    while begin.elapsed() < DURATION {
        let started = Instant::now();
        let mut batch = Batch::new();
        for part in 0..3 {
            let key = format!("{thread}/{part}/{}", latencies.len() % KEYS);
            batch.put(key.as_bytes(), &[7; 256]);
        }
        store.commit(batch)?;
        latencies.push(started.elapsed());
    }
    Ok(latencies)
}

fn measure(store: &RadosStore<MemoryStore>, threads: usize) -> Result<()> {
    let begin = Instant::now();
    let results: Vec<Result<Vec<Duration>>> = std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || commits(store, thread));
        let running: Vec<_> = (0..threads).map(start).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut latencies = results.into_iter().collect::<Result<Vec<_>>>()?.concat();
    latencies.sort();
    let at = |part: usize| latencies[(latencies.len() - 1) * part / 100].as_secs_f64() * 1e3;
    let rate = latencies.len() as f64 / begin.elapsed().as_secs_f64();
    println!(
        "{threads:>3} threads: {rate:>8.0} commits/s, median {:>7.2} ms, 99 % {:>7.2} ms",
        at(50),
        at(99)
    );
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let address = arguments.next().and_then(|address| address.into_string().ok());
    let Some(address) = address else {
        eprintln!("usage: store_rates rados://POOL[/NAMESPACE] [CONFIGURATION]");
        std::process::exit(2);
    };
    let options = PoolOptions { configuration: arguments.next().map(Into::into), ..PoolOptions::default() };
    let pool: Arc<dyn Objects> = Arc::new(Pool::open(&address, &options)?);
    let open = || RadosStore::open(Arc::clone(&pool), "rates", MemoryStore::new(), &LogOptions::default());
    let store = open()?;
    for threads in [1, 8, 32, 128] {
        measure(&store, threads)?;
    }
    let log_bytes = store.log_bytes();
    drop(store);
    let begin = Instant::now();
    let store = open()?;
    println!("an open that replays {} MiB of log: {:?}", log_bytes >> 20, begin.elapsed());
    let begin = Instant::now();
    let summary = store.checkpoint()?;
    println!("a checkpoint of {summary:?}: {:?}", begin.elapsed());
    drop(store);
    let begin = Instant::now();
    drop(open()?);
    println!("an open that reads the checkpoint: {:?}", begin.elapsed());
    let mut names = Vec::new();
    pool.list("rates.", &mut |name| {
        names.push(name.to_owned());
        true
    })?;
    names.iter().try_for_each(|name| pool.remove(name))
}
