//! Mounts of stores, each with its own chance.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use quell_backing::WritableDir;
use quell_log::{Choices, Holder, Host, LogFs, Scratch, Stores};
use quell_testkit::{MemoryStore, Random};

/// Who makes what is in memory.
pub const MEMORY: (u32, u32) = (1000, 100);

pub fn own() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

// Each test counts for itself, so that a seed replays what happened whatever runs beside it.
thread_local!(static SEED: Cell<u64> = const { Cell::new(1) });

/// The mounts that follow on this thread draw their numbers from here on.
#[allow(dead_code, reason = "each test program takes what it needs")]
pub fn begin_with(seed: u64) {
    SEED.set(seed.wrapping_mul(1000).wrapping_add(1));
}

/// One mount; the processes that it tells of are never known to be gone.
pub fn mount(roots: Vec<Arc<dyn WritableDir>>, owner: (u32, u32), choices: Choices) -> LogFs {
    mount_after(0, roots, owner, choices)
}

/// The same after the node was started again so many times.
pub fn mount_after(
    boots: u64,
    roots: Vec<Arc<dyn WritableDir>>,
    (uid, gid): (u32, u32),
    choices: Choices,
) -> LogFs {
    let seed = SEED.replace(SEED.get() + 1);
    let random = Mutex::new(Random::new(seed));
    // Every other mount keeps next to nothing of an index in memory.
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
    LogFs::new(Stores::open(roots, host, 4).unwrap(), choices)
}
