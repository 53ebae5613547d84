//! Measures the load of this node's processors. If they are busy, they limit the measured rate, and
//! not the file system.

use std::fs;

/// Clock ticks of all processors since the node started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    busy: u64,
    all: u64,
}

impl Ticks {
    /// Reads the kernel's counters; `None` if they are not available.
    pub fn now() -> Option<Ticks> {
        Ticks::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses the first line: `cpu user nice system idle iowait irq softirq steal ...`. `user`
    /// includes the time of guests.
    fn parse(stat: &str) -> Option<Ticks> {
        let mut words = stat.lines().next()?.split_ascii_whitespace();
        words.next().filter(|word| *word == "cpu")?;
        let ticks = words.take(8).map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        let all = ticks.iter().sum();
        Some(Ticks { busy: all - idle, all })
    }

    /// Returns the share of the time since `before` that the processors were busy; `None` if that
    /// was less than a tick.
    pub fn busy_since(self, before: Ticks) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(self.busy.saturating_sub(before.busy) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_waiting_for_a_disk_is_not_busy_time() {
        let ticks = |text| Ticks::parse(text).unwrap();
        let before = ticks("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3\n");
        let after = ticks("cpu  150 0 120 810 10 5 5 0 7 0\n");
        assert_eq!(after.busy_since(before), Some(0.8));
        assert_eq!(before.busy_since(before), None);
        assert_eq!(before.busy_since(after), None);
        for text in ["", "cpu", "cpu 1 2 3", "cpu 1 2 3 4 x", "intr 1 2 3 4 5 6 7 8"] {
            assert_eq!(Ticks::parse(text), None, "{text:?}");
        }
        assert!(Ticks::now().is_some());
    }
}
