//! Measures the operations on objects that logs and extents need: guarded appends, writes and reads
//! of 4 MiB and 800 bytes, and extents beside the same data in plain objects.
//!
//! Usage: `rados_rates rados://POOL[/NAMESPACE] [CONFIGURATION]`. The objects that the program
//! creates begin with `rates.`, and it removes them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_rados::{ObjectExtents, Objects, PendingWrite, Pool, PoolOptions, Write};
use quell_vfs::Result;

const ATTRIBUTE: &str = "guard";
/// Each measurement takes about this time.
const DURATION: Duration = Duration::from_secs(4);

/// The times of one kind of operation.
#[derive(Default)]
struct Times {
    latencies: Vec<Duration>,
    elapsed: Duration,
}

impl Times {
    fn report(mut self, operation: &str, bytes: usize, in_flight: usize) {
        self.latencies.sort();
        let at = |part: usize| self.latencies[(self.latencies.len() - 1) * part / 100].as_secs_f64() * 1e3;
        let rate = self.latencies.len() as f64 / self.elapsed.as_secs_f64();
        println!(
            "{operation:<16} {bytes:>8} bytes, {in_flight:>2} in flight: {rate:>8.0}/s {:>8.1} MiB/s, median {:>7.2} ms, 99 % {:>7.2} ms",
            rate * bytes as f64 / (1 << 20) as f64,
            at(50),
            at(99),
        );
    }
}

/// Starts operations for [`DURATION`], with at most `in_flight` not yet complete, and waits for
/// them in their order.
fn run<T>(
    in_flight: usize,
    mut start: impl FnMut(u64) -> T,
    mut wait: impl FnMut(T) -> Result<()>,
) -> Result<Times> {
    let (begin, mut times, mut pending) = (Instant::now(), Times::default(), VecDeque::new());
    let mut number = 0;
    while begin.elapsed() < DURATION || !pending.is_empty() {
        while begin.elapsed() < DURATION && pending.len() < in_flight {
            pending.push_back((Instant::now(), start(number)));
            number += 1;
        }
        if let Some((started, operation)) = pending.pop_front() {
            wait(operation)?;
            times.latencies.push(started.elapsed());
        }
    }
    times.elapsed = begin.elapsed();
    Ok(times)
}

fn guard(position: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = 1;
    bytes[8..].copy_from_slice(&position.to_le_bytes());
    bytes
}

/// Appends records to objects of 64 MiB. Each append compares the epoch and the position.
fn appends(pool: &Pool, bytes: usize, in_flight: usize) -> Result<()> {
    let payload = vec![7; bytes];
    let per_object = ((64 << 20) / bytes) as u64;
    let mut created = 0;
    let start = |number: u64| {
        let object = format!("rates.log.{}", number / per_object);
        let position = number % per_object * bytes as u64;
        if position == 0 {
            let first = guard(0);
            pool.write(&object, &Write::new().create_exclusive().set_attribute(ATTRIBUTE, &first))
                .expect("the object is created");
            created += 1;
        }
        let (old, new) = (guard(position), guard(position + bytes as u64));
        let write = Write::new()
            .compare_attribute(ATTRIBUTE, &old)
            .write_at(position, &payload)
            .set_attribute(ATTRIBUTE, &new);
        pool.start_write(&object, &write)
    };
    run(in_flight, start, |pending| pending.wait())?.report("guarded append", bytes, in_flight);
    (0..created).try_for_each(|number| pool.remove(&format!("rates.log.{number}")))
}

fn bulk(pool: &Pool, bytes: usize, in_flight: usize) -> Result<()> {
    let payload = vec![7; bytes];
    let object = |number: u64| format!("rates.data.{}", number % 64);
    let write = |number| pool.start_write(&object(number), &Write::new().write_full(&payload));
    run(in_flight, write, |pending| pending.wait())?.report("write", bytes, in_flight);
    (0..64).try_for_each(|number| pool.write(&object(number), &Write::new().write_full(&payload)))?;
    let read = |number| pool.start_read(&object(number), 0, bytes);
    run(in_flight, read, |pending| pending.wait().map(drop))?.report("read", bytes, in_flight);
    (0..64).try_for_each(|number| pool.remove(&object(number)))
}

/// Writes and reads 64 MiB as an extent, and as plain objects of 4 MiB, 8 of which are in flight,
/// alternately.
fn extents(pool: &Arc<dyn Objects>) -> Result<()> {
    const BYTES: usize = 64 << 20;
    let extents = ObjectExtents::new(Arc::clone(pool), "rates", 0)?;
    let (payload, mut into) = (vec![7; BYTES], vec![0; BYTES]);
    let object = |part: usize| format!("rates.data.{part}");
    let parts = || payload.chunks(4 << 20).enumerate();
    let write_objects = || {
        let mut writes = VecDeque::new();
        for (part, data) in parts() {
            if writes.len() == 8 {
                writes.pop_front().map_or(Ok(()), |write: Box<dyn PendingWrite>| write.wait())?;
            }
            writes.push_back(pool.start_write(&object(part), &Write::new().write_full(data)));
        }
        writes.into_iter().try_for_each(|write| write.wait())
    };
    let read_objects = |into: &mut [u8]| -> Result<()> {
        let reads: Vec<_> =
            parts().map(|(part, data)| pool.start_read(&object(part), 0, data.len())).collect();
        for (part, read) in into.chunks_mut(4 << 20).zip(reads) {
            part.copy_from_slice(&read.wait()?);
        }
        Ok(())
    };
    let (mut elapsed, rounds) = ([Duration::ZERO; 4], 16);
    for number in 0..rounds {
        // Each kind is the first one in half of the rounds.
        let order = if number % 2 == 0 { [0, 1, 2, 3] } else { [1, 0, 3, 2] };
        for kind in order {
            let begin = Instant::now();
            match kind {
                0 => extents.write(number, &payload)?,
                1 => write_objects()?,
                2 => extents.read(number, 0, &mut into)?,
                _ => read_objects(&mut into)?,
            }
            elapsed[kind] += begin.elapsed();
        }
        extents.remove(&[(number, payload.len() as u64)])?;
    }
    parts().try_for_each(|(part, _)| pool.remove(&object(part)))?;
    let names = ["extent, write", "objects, write", "extent, read", "objects, read"];
    for (name, elapsed) in names.iter().zip(elapsed) {
        println!("{name:<16} {BYTES:>8} bytes: {:>8.1} MiB/s", (rounds * 64) as f64 / elapsed.as_secs_f64());
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let address = arguments.next().and_then(|address| address.into_string().ok());
    let Some(address) = address else {
        eprintln!("usage: rados_rates rados://POOL[/NAMESPACE] [CONFIGURATION]");
        std::process::exit(2);
    };
    let options = PoolOptions { configuration: arguments.next().map(Into::into), ..PoolOptions::default() };
    let pool = Arc::new(Pool::open(&address, &options)?);
    let objects: Arc<dyn Objects> = pool.clone();
    extents(&objects)?;
    for bytes in [256, 4 << 10, 64 << 10, 256 << 10] {
        for in_flight in [1, 8] {
            appends(&pool, bytes, in_flight)?;
        }
    }
    for in_flight in [1, 8] {
        bulk(&pool, 4 << 20, in_flight)?;
        bulk(&pool, 800, in_flight)?;
    }
    bulk(&pool, 800, 32)
}
