//! The clock and the identity of the node.

use std::time::{Duration, Instant, SystemTime};

use quell_pool_service::Clock;
use quell_wire::pool::Stamp;

use crate::failure::Failure;

/// The clocks of the system.
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// Returns the clocks of the system. The monotonic one begins now.
    pub fn new() -> SystemClock {
        SystemClock { started: Instant::now() }
    }

    /// Returns the time of the monotonic clock at an instant, or 0 before its beginning.
    pub fn time_at(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.started)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Stamp {
        // A clock before 1970 is set to a wrong time; the beginning of 1970 is used instead.
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Stamp { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() }
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Returns a number that the processes of one boot of one machine have in common: a part of the
/// kernel's random boot id.
pub fn machine() -> Result<u64, Failure> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).map_err(|e| Failure::cannot(format!("{path}: {e}")))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).map_err(|e| Failure::cannot(format!("{path}: {e}")))
}
