//! Several clients of a server perform random operations on a few names, while another server
//! replaces the first one. In half of the histories, directories are divided between the server and
//! partition servers, which are replaced as well. The recorded histories are checked for
//! linearizability.

mod served;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_batch::StoreAccess;
use quell_batch_service::{NameSpace, NewNode};
use quell_testkit::Random;
use quell_testkit::linearizability::{History, Name, NameOperation, NameResult, ROOT};
use quell_vfs::{ErrorKind, Rename, Result};

use served::{LONG, NEW, NOW, Served, partition_server};

const CLIENTS: usize = 3;
const OPERATIONS: usize = 30;
const NAMES: usize = 3;

/// The state that clients share.
struct Shared {
    history: Mutex<History>,
    /// Directories that clients have seen.
    dirs: Mutex<Vec<u64>>,
    done: AtomicUsize,
}

/// Returns the number of histories: the value of the variable `QUELL_HISTORIES`, or 8.
fn histories() -> u64 {
    std::env::var("QUELL_HISTORIES").map_or(8, |text| text.parse().expect("a number"))
}

fn bytes((_, name): &Name) -> [u8; 1] {
    [b'a' + name]
}

fn perform(names: &dyn NameSpace, operation: &NameOperation) -> Result<NameResult> {
    Ok(match operation {
        NameOperation::Lookup(name) => {
            let found = names.lookup(name.0, &bytes(name))?;
            NameResult::Found(found.map(|found| found.inode.number))
        }
        NameOperation::Create { name, is_dir } => {
            let node = if *is_dir { NewNode::Dir } else { NewNode::File };
            NameResult::Created(names.create(name.0, &bytes(name), node, NEW, NOW)?.inode.number)
        }
        NameOperation::Remove { name, is_dir: false } => {
            names.remove(name.0, &bytes(name), NOW)?;
            NameResult::Done
        }
        NameOperation::Remove { name, is_dir: true } => {
            names.remove_dir(name.0, &bytes(name), NOW)?;
            NameResult::Done
        }
        NameOperation::Rename { from, to, mode } => {
            names.rename((from.0, &bytes(from)), (to.0, &bytes(to)), *mode, NOW)?;
            NameResult::Done
        }
    })
}

fn run_client(access: &StoreAccess, shared: &Shared, seed: u64) {
    let names = access.name_space();
    let mut random = Random::new(seed);
    for _ in 0..OPERATIONS {
        let operation = {
            let dirs = shared.dirs.lock().unwrap();
            let mut name = || -> Name { (*random.pick(&dirs), random.below(NAMES) as u8) };
            let (first, second) = (name(), name());
            let is_dir = random.below(2) == 0;
            match random.below(10) {
                0..3 => NameOperation::Lookup(first),
                3..6 => NameOperation::Create { name: first, is_dir },
                6 => NameOperation::Remove { name: first, is_dir },
                choice => {
                    let mode = [Rename::Replace, Rename::Keep, Rename::Exchange][choice - 7];
                    NameOperation::Rename { from: first, to: second, mode }
                }
            }
        };
        let begun = shared.history.lock().unwrap().begin(operation.clone());
        let result = perform(&*names, &operation).unwrap_or_else(|error| {
            assert_ne!(error.kind, ErrorKind::Unavailable, "a server that ends loses no result: {error}");
            NameResult::Failed(error.kind)
        });
        if let (NameOperation::Create { is_dir: true, .. }, NameResult::Created(number)) =
            (&operation, &result)
        {
            shared.dirs.lock().unwrap().push(*number);
        }
        shared.history.lock().unwrap().end(begun, result);
        shared.done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn operations_of_several_clients_are_linearizable_while_the_server_is_replaced() {
    let mut divided = 0;
    for seed in 0..histories() {
        let is_tcp = seed % 2 == 1;
        let is_divided = seed % 4 >= 2;
        let mut served = Served::start_dividing(is_tcp, u64::from(is_divided));
        let start_partitions = || partition_server(&served.path(), is_tcp);
        let mut partitions: Vec<_> =
            (0..if is_divided { 2 } else { 0 }).map(|_| start_partitions()).collect();
        let shared =
            Shared { history: Mutex::default(), dirs: Mutex::new(vec![ROOT]), done: AtomicUsize::new(0) };
        let clients: Vec<_> = (0..CLIENTS).map(|_| served.access()).collect();
        std::thread::scope(|scope| {
            let run = |(number, access)| {
                let shared = &shared;
                scope.spawn(move || run_client(access, shared, seed * 100 + number as u64))
            };
            let running: Vec<_> = clients.iter().enumerate().map(run).collect();
            // A client that fails performs no more operations.
            let is_running = || !running.iter().all(|client| client.is_finished());
            // The server is replaced twice in each history.
            for position in [1, 2] {
                let operations = position * CLIENTS * OPERATIONS / 3;
                while shared.done.load(Ordering::Relaxed) < operations && is_running() {
                    std::thread::yield_now();
                }
                let counters = served.server().store().store().primary().partition_counters();
                divided += counters.divided;
                assert_eq!(counters.failed, 0, "seed {seed}");
                if let Some(ended) = partitions.pop() {
                    ended.stop(LONG).unwrap();
                    partitions.push(partition_server(&served.path(), is_tcp));
                }
                served.restart(is_tcp);
            }
        });
        for server in partitions {
            server.stop(LONG).unwrap();
        }
        let history = shared.history.into_inner().unwrap();
        let text = history.describe();
        assert!(
            history.is_linearizable(),
            "no order of the operations explains the results, seed {seed}:\n{text}"
        );
    }
    assert!(histories() < 4 || divided > 0, "no directory was divided");
}
