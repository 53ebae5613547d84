//! The load of `quell blob bench`: clients that execute one kind of work on blobs of their own.
//!
//! The work follows section 3.3 of the paper of Týr: events of monitored sites are appended to the
//! blob of their site and indexed, and added to an aggregate of the site and to one of all sites;
//! ranges of 800 bytes are read, most of them from few sites.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_blob::{Error, Operation, Result, Retries, Store, Transaction, Transform};

/// The number of sites whose events are stored.
const SITES: usize = 64;
/// The bytes of an event.
const EVENT_BYTES: usize = 200;
/// The bytes of an entry of an index.
const ENTRY_BYTES: usize = 16;
/// The bytes of each site that are read. Longer ranges are read from the blob of the client.
const READ_BYTES: usize = 1 << 20;
/// The size, in bytes, of the part of a client's blob that is written. After its end, writes
/// continue at its beginning.
const WRITE_BYTES: usize = 64 << 20;
/// The repetitions of a transaction that conflicts. A load has no reason to give up early.
const RETRIES: Retries = Retries {
    attempts_max: 1000,
    first_delay: Duration::from_micros(100),
    delay_max: Duration::from_millis(20),
};

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Work {
    /// Append an event to the blob of a site and an entry to its index, and add to the aggregates
    /// of the site and of all sites, in one transaction.
    Events,
    /// As `events`, but the aggregates are read and written.
    EventsByUpdate,
    /// Add to one number, which all clients share.
    Add,
    /// Read and write one number, which all clients share, in one transaction.
    Update,
    /// Write --size bytes of a blob of the client.
    Write,
    /// Read --size bytes of one site each time, most often of the same few sites. More than 1 MiB
    /// are read from a blob of the client.
    Read,
}

impl Work {
    /// Returns whether the work reads the data of the sites.
    fn needs_data(self) -> bool {
        self == Work::Read
    }
}

/// The blobs of a load, below a prefix.
pub struct Blobs {
    prefix: String,
}

impl Blobs {
    /// Creates the blobs, with data for clients that read ranges of `size_bytes`.
    ///
    /// # Errors
    /// The errors of the commits.
    pub fn create(
        store: &Store,
        prefix: String,
        clients: usize,
        (works, size_bytes): (&[Work], usize),
    ) -> Result<Blobs> {
        let blobs = Blobs { prefix };
        let create = |name: String| Operation::Create { name: name.into_bytes(), may_exist: false };
        let mut operations = vec![create(blobs.total())];
        for site in 0..SITES {
            operations.extend([
                create(blobs.events(site)),
                create(blobs.index(site)),
                create(blobs.sum(site)),
            ]);
        }
        operations.extend((0..clients).map(|client| create(blobs.of_client(client))));
        store.commit(operations)?;
        // All aggregates exist before the first addition, as numbers of 0.
        let zeros = (0..SITES).map(|site| blobs.sum(site)).chain([blobs.total()]);
        let resize = |name: String| Operation::Resize { name: name.into_bytes(), size_bytes: 8 };
        store.commit(zeros.map(resize).collect())?;
        if works.iter().any(|work| work.needs_data()) {
            for site in 0..SITES {
                let data: Vec<u8> = (0..READ_BYTES).map(|at| (at / EVENT_BYTES + site) as u8).collect();
                store.append(blobs.events(site), &data)?;
            }
            let large = vec![7; if size_bytes > READ_BYTES { size_bytes } else { 0 }];
            for client in (0..clients).filter(|_| !large.is_empty()) {
                store.append(blobs.of_client(client), &large)?;
            }
        }
        Ok(blobs)
    }

    /// Deletes the blobs.
    ///
    /// # Errors
    /// The errors of the commits.
    pub fn delete(&self, store: &Store) -> Result<()> {
        loop {
            let found = store.snapshot()?.list(&self.prefix, "", 1000)?;
            if found.is_empty() {
                return Ok(());
            }
            let operations = found.into_iter().map(|(name, _)| Operation::Delete { name });
            store.commit(operations.collect())?;
        }
    }

    fn events(&self, site: usize) -> String {
        format!("{}events/{site}", self.prefix)
    }

    fn index(&self, site: usize) -> String {
        format!("{}index/{site}", self.prefix)
    }

    fn sum(&self, site: usize) -> String {
        format!("{}sum/{site}", self.prefix)
    }

    fn total(&self) -> String {
        format!("{}sum/all", self.prefix)
    }

    fn of_client(&self, client: usize) -> String {
        format!("{}client/{client}", self.prefix)
    }
}

/// A group of clients with the same work.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    pub work: Work,
    pub clients: usize,
}

/// The results of a group.
#[derive(Debug)]
pub struct Measured {
    pub group: Group,
    /// The time for which the clients ran.
    pub elapsed: Duration,
    /// The time of each operation, in ascending order, in microseconds.
    pub latencies_us: Vec<u32>,
    /// The number of attempts that conflicted with another transaction.
    pub conflicts: u64,
}

impl Measured {
    /// Returns the operations of all clients per second.
    pub fn rate(&self) -> f64 {
        self.latencies_us.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the time within which `percent` percent of the operations were done, in
    /// microseconds.
    pub fn latency_us(&self, percent: usize) -> u32 {
        let last = self.latencies_us.len().saturating_sub(1);
        self.latencies_us.get(last * percent / 100).copied().unwrap_or(0)
    }
}

/// The conditions that all clients of a run share.
pub struct Run<'a> {
    pub blobs: &'a Blobs,
    /// The bytes of an operation of `write` and `read`.
    pub size_bytes: usize,
    /// The smallest time between the beginnings of two successive operations of a client.
    pub interval: Duration,
    pub duration: Duration,
    /// Whether to end the run early.
    pub is_stopped: &'a AtomicBool,
    /// The operations so far.
    pub done: &'a AtomicU64,
}

impl Run<'_> {
    /// Runs groups of clients at the same time. `open` is called once for each client.
    ///
    /// # Errors
    /// The first error of a client; it ends the others.
    pub fn measure(&self, groups: &[Group], open: &dyn Fn() -> Result<Store>) -> Result<Vec<Measured>> {
        let clients = groups.iter().flat_map(|group| std::iter::repeat_n(group.work, group.clients));
        let clients: Vec<(Work, Store)> =
            clients.map(|work| Ok((work, open()?))).collect::<Result<Vec<_>>>()?;
        let failure = Mutex::new(None);
        let begun = Instant::now();
        let counts: Vec<ClientCounts> = std::thread::scope(|scope| {
            let failure = &failure;
            let start = |(number, (work, store)): (usize, (Work, Store))| {
                scope.spawn(move || {
                    let mut client = Client::new(self, number, store);
                    if let Err(error) = client.work(work, begun + self.duration) {
                        self.is_stopped.store(true, Ordering::Relaxed);
                        failure.lock().expect("no panic").get_or_insert(error);
                    }
                    client.counts
                })
            };
            let threads: Vec<_> = clients.into_iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect()
        });
        let elapsed = begun.elapsed();
        if let Some(error) = failure.into_inner().expect("no panic") {
            return Err(error);
        }
        let mut counts = counts.into_iter();
        Ok(groups.iter().map(|group| Measured::sum(*group, elapsed, counts.by_ref())).collect())
    }
}

impl Measured {
    fn sum(group: Group, elapsed: Duration, counts: impl Iterator<Item = ClientCounts>) -> Measured {
        let (mut latencies_us, mut conflicts) = (Vec::new(), 0);
        for client in counts.take(group.clients) {
            latencies_us.extend(client.latencies_us);
            conflicts += client.conflicts;
        }
        latencies_us.sort_unstable();
        Measured { group, elapsed, latencies_us, conflicts }
    }
}

#[derive(Default)]
struct ClientCounts {
    latencies_us: Vec<u32>,
    conflicts: u64,
}

/// One client. Its random numbers are the same in each run.
struct Client<'a> {
    run: &'a Run<'a>,
    number: usize,
    store: Store,
    random: u64,
    counts: ClientCounts,
}

impl<'a> Client<'a> {
    fn new(run: &'a Run<'a>, number: usize, store: Store) -> Client<'a> {
        let random = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Client { run, number, store, random, counts: ClientCounts::default() }
    }

    fn work(&mut self, work: Work, end: Instant) -> Result<()> {
        let mut buffer = vec![7; self.run.size_bytes];
        let mut next = Instant::now();
        for call in 0_u64.. {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let begun = Instant::now();
            next = begun + self.run.interval;
            if begun >= end || self.run.is_stopped.load(Ordering::Relaxed) {
                break;
            }
            match work {
                Work::Events => self.add_event()?,
                Work::EventsByUpdate => self.event_by_update()?,
                Work::Add => self.store.transform(self.run.blobs.total(), 0, Transform::add_i64(1))?,
                Work::Update => {
                    let total = self.run.blobs.total();
                    self.transact(|transaction| add_by_update(transaction, &total))?;
                }
                Work::Write => self.write(call, &buffer)?,
                Work::Read => self.read(&mut buffer)?,
            }
            let elapsed_us = begun.elapsed().as_micros().try_into().unwrap_or(u32::MAX);
            self.counts.latencies_us.push(elapsed_us);
            self.run.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns a random number (xorshift).
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Returns a site by a power law: the probability of a site is proportional to the inverse of
    /// its number, counted from 1, within a factor of 1.5.
    fn site(&mut self) -> usize {
        let uniform = (self.random() >> 11) as f64 / (1_u64 << 53) as f64;
        let site = ((SITES + 1) as f64).powf(uniform) as usize;
        site.clamp(1, SITES) - 1
    }

    fn event(&mut self) -> ([u8; EVENT_BYTES], [u8; ENTRY_BYTES]) {
        let (mut event, mut entry) = ([b'e'; EVENT_BYTES], [0; ENTRY_BYTES]);
        event[..8].copy_from_slice(&self.random().to_le_bytes());
        entry[..8].copy_from_slice(&event[..8]);
        entry[8..].copy_from_slice(&(EVENT_BYTES as u64).to_le_bytes());
        (event, entry)
    }

    fn add_event(&mut self) -> Result<()> {
        let (site, (event, entry)) = (self.site(), self.event());
        let blobs = self.run.blobs;
        let append =
            |name: String, data: &[u8]| Operation::Append { name: name.into_bytes(), data: data.to_vec() };
        let add = |name: String| Operation::Transform {
            name: name.into_bytes(),
            offset: 0,
            transform: Transform::add_i64(1),
        };
        let operations = vec![
            append(blobs.events(site), &event),
            append(blobs.index(site), &entry),
            add(blobs.sum(site)),
            add(blobs.total()),
        ];
        self.store.commit(operations).map(drop)
    }

    fn event_by_update(&mut self) -> Result<()> {
        let (site, (event, entry)) = (self.site(), self.event());
        let blobs = self.run.blobs;
        self.transact(|transaction| {
            transaction.append(blobs.events(site), &event)?;
            transaction.append(blobs.index(site), &entry)?;
            add_by_update(transaction, &blobs.sum(site))?;
            add_by_update(transaction, &blobs.total())
        })
    }

    fn transact(&mut self, mut body: impl FnMut(&mut Transaction) -> Result<()>) -> Result<()> {
        let mut attempts = 0;
        let result = self.store.transact(&RETRIES, |transaction| {
            attempts += 1;
            body(transaction)
        });
        self.counts.conflicts += attempts - 1;
        result
    }

    /// Writes at positions that follow each other, and begins again after 1024 writes or 64 MiB.
    fn write(&mut self, call: u64, data: &[u8]) -> Result<()> {
        let offset = call % 1024 * data.len().next_multiple_of(512) as u64 % WRITE_BYTES as u64;
        self.store.write(self.run.blobs.of_client(self.number), offset, data)
    }

    fn read(&mut self, into: &mut [u8]) -> Result<()> {
        let (name, offset) = match READ_BYTES.checked_sub(into.len()) {
            Some(last) => (self.run.blobs.events(self.site()), self.random() % (last + 1) as u64),
            None => (self.run.blobs.of_client(self.number), 0),
        };
        let length = self.store.read(&name, offset, into)?;
        match length == into.len() {
            true => Ok(()),
            false => Err(Error::Store(quell_vfs::Error::new(quell_vfs::ErrorKind::Damaged, "read", name))),
        }
    }
}

/// Adds 1 to the first number of a blob.
fn add_by_update(transaction: &mut Transaction, name: &str) -> Result<()> {
    let mut number = [0; 8];
    transaction.read(name, 0, &mut number)?;
    let next = i64::from_le_bytes(number).wrapping_add(1);
    transaction.write(name, 0, &next.to_le_bytes())
}

/// The largest number of bytes of an operation.
pub const SIZE_BYTES_MAX: usize = 64 << 20;
