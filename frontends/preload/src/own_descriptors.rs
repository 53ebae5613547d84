//! The descriptors that the library has open for itself, such as those of the stores. They have
//! numbers above those that programs use.

use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The number of descriptors that the library may have open for itself.
const OWN_DESCRIPTORS: u64 = 4096;

/// The largest limit of descriptors that is raised, so that the library's own have numbers above
/// it.
const SMALL_LIMIT: u64 = 2 * OWN_DESCRIPTORS;

/// The limit that is assumed where there is none.
const DEFAULT_LIMIT: u64 = 1 << 16;

/// The lowest number of a descriptor that the library has open for itself; 0: it has none.
static MINIMUM: AtomicI32 = AtomicI32::new(0);

/// Returns the lowest number of a descriptor of the library itself; 0 if it has none.
pub fn minimum() -> c_int {
    MINIMUM.load(Ordering::Relaxed)
}

/// Chooses the numbers of the library's own descriptors, and returns the lowest one: above the
/// limit of the program, which is raised for them, or at the end of the limit if it cannot be
/// raised.
pub fn raise_limit() -> c_int {
    let known = minimum();
    if known > 0 {
        return known;
    }
    let limits = getrlimit(Resource::Nofile);
    let soft = limits.current.unwrap_or(DEFAULT_LIMIT);
    let hard = limits.maximum.unwrap_or(u64::MAX);
    let raised = soft.saturating_add(OWN_DESCRIPTORS).min(hard);
    let minimum = if soft >= SMALL_LIMIT || raised == soft {
        soft - (soft / 2).min(OWN_DESCRIPTORS)
    } else {
        let limits = Rlimit { current: Some(raised), maximum: limits.maximum };
        match setrlimit(Resource::Nofile, limits) {
            Ok(()) => soft,
            Err(_) => soft - soft / 2,
        }
    };
    let minimum = c_int::try_from(minimum.min(DEFAULT_LIMIT)).unwrap_or(c_int::MAX);
    MINIMUM.store(minimum, Ordering::Relaxed);
    minimum
}
