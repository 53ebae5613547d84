//! The clock of the node.

use std::time::SystemTime;

use quell_pool_service::Clock;
use quell_wire::pool::Stamp;

/// The time of day of the system.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Stamp {
        // A clock before 1970 is set to a wrong time; the beginning of 1970 is used instead.
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Stamp { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() }
    }
}
