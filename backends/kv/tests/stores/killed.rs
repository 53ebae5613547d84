//! A process that is killed loses no commit, and no commit is stored in part.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use quell_kv::{Batch, KeyRange, KeyValue};
use quell_testkit::Random;

use crate::{entries, get, open};

/// Selects the child's part, and names the directory of its store.
const DIRECTORY: &str = "QUELL_KV_TEST_DIRECTORY";
const ROUNDS: u64 = 8;

/// Returns the batch with a number. It stores the number as the count, adds one entry, and removes
/// an older one.
fn numbered(number: u64) -> Batch {
    let mut batch = Batch::new();
    batch.put(b"count", &number.to_be_bytes());
    // Some batches are longer than the engine's write buffer of 8 KiB.
    let bytes = if number.is_multiple_of(50) { 30_000 } else { 300 };
    batch.put(&entry_key(number), &vec![number as u8; bytes]);
    if let Some(old) = number.checked_sub(500) {
        batch.delete(&entry_key(old));
    }
    batch
}

fn entry_key(number: u64) -> Vec<u8> {
    [b"entry", &number.to_be_bytes()[..]].concat()
}

fn count(store: &dyn KeyValue) -> u64 {
    get(store, b"count").map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()))
}

/// Not a test of its own: the process that the next test kills.
#[test]
fn child_commits_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let store = open(Path::new(&directory));
    let mut output = std::io::stdout();
    for number in count(&store) + 1.. {
        store.commit(numbered(number)).unwrap();
        // A line of the test harness may begin the first line of this output.
        writeln!(output, "\ncommitted {number}").unwrap();
    }
}

#[test]
fn commits_survive_the_death_of_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random::new(1);
    let mut last = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::child_commits_until_it_is_killed", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let enough = last + 1 + random.below(3_000) as u64;
        let mut line = String::new();
        while last < enough {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "round {round}: the child ended");
            last = line.trim().strip_prefix("committed ").map_or(last, |number| number.parse().unwrap());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        let whole_lines = rest.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let mut numbers = whole_lines.filter_map(|line| line.strip_prefix("committed "));
        last = numbers.next_back().map_or(last, |number| number.parse().unwrap());

        let store = open(directory.path());
        let found = count(&store);
        assert!(found == last || found == last + 1, "round {round}: {last} was committed, {found} was found");
        let first = found.saturating_sub(499).max(1);
        let expected: Vec<_> = (first..=found).map(entry_key).collect();
        let stored = entries(&store, &KeyRange::prefix(b"entry"));
        let bytes = |number: u64| if number.is_multiple_of(50) { 30_000 } else { 300 };
        for ((key, value), number) in stored.iter().zip(first..) {
            assert!(*value == vec![number as u8; bytes(number)], "round {round}: the value of {key:?}");
        }
        assert!(stored.into_iter().map(|(key, _)| key).eq(expected), "round {round}: {found} was found");
        last = found;
    }
}
