//! Mounts of stores, each with its own random numbers.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_log::{Choices, Holder, Host, LogFs, Scratch, Stores};
use quell_posix::WritableDir;
use quell_testkit::{MemoryStore, Random};

/// Owner of files in memory.
pub const MEMORY: (u32, u32) = (1000, 100);

pub fn own() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

// Each test has its own counter, so that a seed gives the same run regardless of the tests that run
// in parallel.
thread_local!(static SEED: Cell<u64> = const { Cell::new(1) });

/// Sets the seed of the next mounts on this thread.
#[allow(dead_code, reason = "each test program takes what it needs")]
pub fn begin_with(seed: u64) {
    SEED.set(seed.wrapping_mul(1000).wrapping_add(1));
}

/// Returns a mount. The processes in its `meta` names are never known to be dead.
pub fn mount(roots: Vec<Arc<dyn WritableDir>>, owner: (u32, u32), choices: Choices) -> LogFs {
    mount_after(0, roots, owner, choices)
}

/// Makes the mount the only user of its store for longer than a test lasts. Returns false if
/// another mount uses the store.
#[allow(dead_code, reason = "each test program uses a part of it")]
pub fn be_only_user(fs: &LogFs) -> bool {
    fs.be_only_user(Instant::now() + Duration::from_secs(100_000)).unwrap()
}

/// Returns a mount after `boots` reboots of the node.
pub fn mount_after(
    boots: u64,
    roots: Vec<Arc<dyn WritableDir>>,
    (uid, gid): (u32, u32),
    choices: Choices,
) -> LogFs {
    let seed = SEED.replace(SEED.get() + 1);
    let random = Mutex::new(Random::new(seed));
    // Every other mount keeps almost no extents of an index in memory.
    let mut scratch = Scratch::new(|| MemoryStore::new().root().create_file(b"scratch", 0o600));
    if seed % 2 == 1 {
        scratch.extents_max = 10;
    }
    let host = Host {
        holder: Holder { pid: 1, start: 1, node: format!("{boots}.test") },
        uid,
        gid,
        random: Box::new(move || random.lock().unwrap().number()),
        is_gone: Box::new(|_| false),
        scratch,
    };
    LogFs::new(Stores::open(roots, host, 4).unwrap().begin_use(&mut || false).unwrap(), choices)
}
