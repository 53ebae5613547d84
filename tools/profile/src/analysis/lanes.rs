//! The operations of single processes over time, for the processes with the most calls.

use std::collections::HashMap;

/// Number of steps into which the duration is divided.
pub const LANE_STEPS: usize = 60;

#[derive(Debug, Default)]
pub struct Lanes {
    by_process: HashMap<u32, Lane>,
    step_us: u64,
}

/// The operations of one process.
#[derive(Debug, Clone, Default)]
pub struct Lane {
    pub operations: u64,
    /// The operations in each step.
    pub steps: Vec<u64>,
}

impl Lanes {
    /// Returns empty lanes. `processes`: the numbers of the processes to record. `duration_us`: the
    /// duration of the trace.
    pub fn new(processes: impl Iterator<Item = u32>, duration_us: u64) -> Lanes {
        let empty = Lane { operations: 0, steps: vec![0; LANE_STEPS] };
        let step_us = duration_us.div_ceil(LANE_STEPS as u64).max(1);
        Lanes { by_process: processes.map(|process| (process, empty.clone())).collect(), step_us }
    }

    /// Adds operations of a process, unless its lane is not recorded. `offset_us`: microseconds
    /// since the first call.
    pub fn add(&mut self, process: u32, offset_us: u64, operations: u32) {
        let Some(lane) = self.by_process.get_mut(&process) else { return };
        lane.operations += u64::from(operations);
        let step = (offset_us / self.step_us).min(LANE_STEPS as u64 - 1) as usize;
        lane.steps[step] += u64::from(operations);
    }

    pub fn lane(&self, process: u32) -> Option<&Lane> {
        self.by_process.get(&process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_recorded_in_their_step_and_only_for_chosen_processes() {
        let mut lanes = Lanes::new([7].into_iter(), 60_000_000);
        for (process, offset_us) in [(7, 0), (7, 999_999), (7, 1_000_000), (8, 0), (7, u64::MAX)] {
            lanes.add(process, offset_us, 2);
        }
        let lane = lanes.lane(7).unwrap();
        assert_eq!((lane.steps[0], lane.steps[1], lane.steps[59], lane.operations), (4, 2, 2, 8));
        assert!(lanes.lane(8).is_none());
    }
}
