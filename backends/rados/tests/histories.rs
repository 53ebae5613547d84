//! Random histories of commits, checkpoints, takeovers, ends of processes, lost results and late
//! writes, on objects in memory: nothing acknowledged is lost, commits are atomic, and a process
//! that was replaced never commits. Each history is determined by its seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_kv::{Batch, KeyRange, KeyValue, MemoryStore};
use quell_rados::{FaultEffect, LogOptions, MemoryObjects, RadosStore};
use quell_testkit::Random;
use quell_vfs::ErrorKind;

/// A planted fault.
#[derive(Clone, Copy, PartialEq)]
enum Planted {
    Nothing,
    /// No write compares its guard.
    NoGuards,
}

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// The known state of a commit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Known {
    Performed,
    NotPerformed,
    /// The result of the commit was lost, and no process has taken the store over since.
    Nothing,
}

struct Issued {
    operations: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    known: Known,
}

/// A process that has the store open.
struct Owner {
    store: RadosStore<MemoryStore>,
    /// The number of the takeover.
    number: usize,
    /// The average number of operations in 16 that a fault affects.
    faults_of_16: Arc<AtomicUsize>,
}

struct History {
    random: Random,
    planted: Planted,
    objects: MemoryObjects,
    owners: Vec<Owner>,
    takeovers: usize,
    issued: Vec<Issued>,
}

fn marker(commit: usize) -> Vec<u8> {
    format!("commit {commit}").into_bytes()
}

impl History {
    fn new(seed: u64, planted: Planted) -> History {
        let (random, objects) = (Random::new(seed), MemoryObjects::new());
        History { random, planted, objects, owners: Vec::new(), takeovers: 0, issued: Vec::new() }
    }

    /// Returns a client with faults, and the variable with their rate.
    fn client(&mut self) -> (MemoryObjects, Arc<AtomicUsize>) {
        let mut random = Random::new(self.random.number());
        let rate = Arc::new(AtomicUsize::new(*self.random.pick(&[0, 1, 1, 12])));
        let (planted, own) = (self.planted, Arc::clone(&rate));
        let faults = self.objects.with_faults(Box::new(move |_, _| {
            if random.below(16) >= own.load(Ordering::Relaxed) {
                return if planted == Planted::NoGuards {
                    FaultEffect::Unguarded
                } else {
                    FaultEffect::Performed
                };
            }
            match random.below(8) {
                0..3 => FaultEffect::ResultLost,
                3..6 => FaultEffect::Late,
                6 => FaultEffect::Refused(ErrorKind::NoSpace),
                _ => FaultEffect::Refused(ErrorKind::Unavailable),
            }
        }));
        (faults, rate)
    }

    fn open(&mut self) -> Result<(), String> {
        let (client, faults_of_16) = self.client();
        let options =
            LogOptions { object_bytes: *self.random.pick(&[300, 600, 5000]), ..LogOptions::default() };
        match RadosStore::open(Arc::new(client), "test", MemoryStore::new(), &options) {
            Ok(store) => {
                self.takeovers += 1;
                self.owners.push(Owner { store, number: self.takeovers, faults_of_16 });
                self.compare()
            }
            Err(error) => match error.kind {
                ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::NoSpace => Ok(()),
                _ => Err(format!("open: {error}")),
            },
        }
    }

    /// Compares the content of the newest store with the commits.
    fn compare(&mut self) -> Result<(), String> {
        let store = &self.owners.last().expect("a store was opened").store;
        let mut found = Content::new();
        let scanned = store.scan(&KeyRange::all(), &mut |key, value| {
            found.insert(key.to_vec(), value.to_vec());
            true
        });
        scanned.map_err(|error| error.to_string())?;
        let mut expected = Content::new();
        for (number, issued) in self.issued.iter_mut().enumerate() {
            if issued.known == Known::Nothing {
                let is_there = found.contains_key(&marker(number));
                issued.known = if is_there { Known::Performed } else { Known::NotPerformed };
            }
            if issued.known == Known::Performed {
                for (key, value) in &issued.operations {
                    match value {
                        Some(value) => expected.insert(key.clone(), value.clone()),
                        None => expected.remove(key),
                    };
                }
            }
        }
        match found == expected {
            true => Ok(()),
            false => {
                let text = |content: &Content, other: &Content| -> Vec<String> {
                    let differs = |(key, value): &(&Vec<u8>, &Vec<u8>)| other.get(*key) != Some(*value);
                    content
                        .iter()
                        .filter(differs)
                        .map(|(key, _)| String::from_utf8_lossy(key).into_owned())
                        .collect()
                };
                let (more, less) = (text(&found, &expected), text(&expected, &found));
                Err(format!("takeover {} found {more:?} instead of {less:?}", self.takeovers))
            }
        }
    }

    fn commit(&mut self) -> Result<(), String> {
        let number = self.issued.len();
        let mut operations = vec![(marker(number), Some(Vec::new()))];
        for _ in 0..self.random.below(4) {
            let key = format!("key {}", self.random.below(6)).into_bytes();
            let length = self.random.below(150);
            let value = (!self.random.one_in(4)).then(|| vec![number as u8; length]);
            operations.push((key, value));
        }
        let mut batch = Batch::new();
        for (key, value) in &operations {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        let owner = self.random.pick(&self.owners);
        let known = match owner.store.commit(batch) {
            Ok(()) if owner.number < self.takeovers => {
                return Err(format!("takeover {} committed after {}", owner.number, self.takeovers));
            }
            Ok(()) => Known::Performed,
            Err(error) if error.kind == ErrorKind::NoSpace => Known::NotPerformed,
            Err(error) if matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Unavailable) => {
                Known::Nothing
            }
            Err(error) => return Err(format!("commit: {error}")),
        };
        self.issued.push(Issued { operations, known });
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), String> {
        let owner = self.random.pick(&self.owners);
        match owner.store.checkpoint() {
            Ok(Some(_)) if owner.number < self.takeovers => {
                Err(format!("takeover {} published a checkpoint after {}", owner.number, self.takeovers))
            }
            Err(error) if error.kind == ErrorKind::Damaged => Err(format!("checkpoint: {error}")),
            _ => Ok(()),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let count = self.owners.len();
        match self.random.below(32) {
            _ if count == 0 => self.open(),
            0 => self.open(),
            1 => {
                let index = self.random.below(count);
                drop(self.owners.swap_remove(index));
                // The newest is last.
                self.owners.sort_by_key(|owner| owner.number);
                Ok(())
            }
            2 | 3 => self.checkpoint(),
            4 => {
                let owner = self.random.pick(&self.owners);
                let _may_fail = owner.store.remove_orphans();
                Ok(())
            }
            5..8 => {
                let late = self.objects.late();
                if late > 0 {
                    self.objects.perform_late(self.random.below(late));
                }
                Ok(())
            }
            8 => {
                let rate = *self.random.pick(&[0, 0, 1, 12]);
                self.random.pick(&self.owners).faults_of_16.store(rate, Ordering::Relaxed);
                Ok(())
            }
            _ => self.commit(),
        }
    }

    fn run(mut self, steps: usize) -> Result<usize, String> {
        for _ in 0..steps {
            self.step()?;
        }
        // A process without faults can open the store after every history.
        let takeovers = self.takeovers;
        for _ in 0..64 {
            if self.takeovers == takeovers {
                self.open()?;
            }
        }
        match self.takeovers == takeovers {
            true => Err("the store cannot be opened any more".to_owned()),
            false => Ok(self.issued.iter().filter(|issued| issued.known == Known::Performed).count()),
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_no_replaced_process_commits() {
    let mut performed = 0_usize;
    let variable =
        |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (first, count) = (variable("QUELL_SEED", 0), variable("QUELL_HISTORIES", 600));
    for seed in first..first + count {
        performed += History::new(seed, Planted::Nothing)
            .run(150)
            .unwrap_or_else(|error| panic!("{error}\nrepeat it with QUELL_SEED={seed} QUELL_HISTORIES=1"));
    }
    assert!(performed as u64 > count * 20 || count < 50, "only {performed} commits were performed");
}

#[test]
fn the_histories_find_missing_guards() {
    let found = (0..50).filter(|seed| History::new(*seed, Planted::NoGuards).run(150).is_err());
    assert!(found.count() > 25, "the planted fault was found in too few histories");
}
