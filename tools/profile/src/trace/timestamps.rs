//! Continues the times of each source: a line without a time has the time of the previous line, and
//! times of day continue after midnight.

use std::collections::HashMap;

use crate::trace::line::Time;

const HOUR_US: u64 = 3600 * 1_000_000;
const DAY_US: u64 = 24 * HOUR_US;

#[derive(Debug, Default)]
pub struct Timestamps {
    by_space: HashMap<u32, LastTime>,
    pub has_times: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct LastTime {
    time_us: u64,
    days: u64,
}

impl Timestamps {
    /// Returns the time of a line in microseconds.
    pub fn time_us(&mut self, space: u32, time: Time) -> u64 {
        let last = self.by_space.entry(space).or_default();
        self.has_times |= time != Time::None;
        match time {
            Time::None => {}
            Time::Epoch(time_us) => last.time_us = time_us,
            Time::Relative(time_us) => last.time_us = last.time_us.saturating_add(time_us),
            Time::Clock(time_us) => {
                let mut now = last.days.saturating_mul(DAY_US).saturating_add(time_us);
                // A time more than half a day earlier belongs to the next day. Lines may be
                // slightly out of order, also around midnight.
                if now.saturating_add(DAY_US / 2) < last.time_us {
                    last.days = last.days.saturating_add(1);
                    now = now.saturating_add(DAY_US);
                } else if last.days > 0 && now > last.time_us.saturating_add(DAY_US - HOUR_US) {
                    now -= DAY_US;
                }
                last.time_us = now;
            }
        }
        last.time_us
    }
}
