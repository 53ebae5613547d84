//! Calls and operations per second: averages, peaks, and the series for charts. All rates are
//! converted to rates without the tracer; the series of the readings have the times of the trace.

use crate::analysis::measured::Measured;
use crate::analysis::series::{SECOND_US, Series};
use crate::report::{MetadataRates, Rate, RatePoint, Remaining, Scenarios};

/// Number of points in a chart.
const POINTS_MAX: usize = 600;

/// Returns the points of a chart, and the averages and peaks; nothing for a trace without times.
pub fn rates(measured: &Measured, remaining: &Scenarios<Remaining>) -> (Vec<RatePoint>, MetadataRates) {
    let traced_us = measured.traced_us;
    if traced_us == 0 {
        return Default::default();
    }
    let (counts, replayed) = (measured.counts, &measured.replay.series);
    let all = [
        &counts.metadata,
        &counts.data,
        &counts.metadata_not_shared,
        &replayed.direct,
        &replayed.index,
        &replayed.boot,
    ];
    let step_us = all.iter().map(|series| series.step_us()).max().unwrap_or(1);
    let [metadata, data, elsewhere, direct, index, boot] = all.map(|series| series.coarsened(step_us));
    // A second without the tracer, in the time of the trace.
    let second_us = SECOND_US as f64 * measured.slow_down;
    let rate = |series: &Series, operations: u64| {
        let average = operations as f64 * second_us / traced_us as f64;
        let peak = series.peak(traced_us, second_us as u64);
        Rate {
            average,
            // In a run of less than two seconds each second can be less busy than the average,
            // because it leaves out the beginning or the end.
            peak: (peak.count as f64 * second_us / peak.window_us as f64).max(average),
            peak_at_s: peak.at_us as f64 / second_us,
        }
    };
    let steps = (traced_us / step_us + 1) as usize;
    let steps_per_point = steps.div_ceil(POINTS_MAX);
    let step_s = (step_us * steps_per_point as u64) as f64 / second_us;
    let point = |number: usize| {
        let rate = |series: &Series| series.sum(number * steps_per_point, steps_per_point) as f64 / step_s;
        RatePoint {
            t: number as f64 * step_s,
            metadata: rate(&metadata),
            data: rate(&data),
            direct: rate(&direct),
            index: rate(&index),
            boot: rate(&boot),
            elsewhere: rate(&elsewhere),
        }
    };
    let points = (0..steps.div_ceil(steps_per_point)).map(point).collect();
    let rates = MetadataRates {
        step_s,
        window_s: metadata.peak(traced_us, second_us as u64).window_us as f64 / second_us,
        calls: rate(&metadata, counts.shared.metadata),
        scenarios: Scenarios {
            direct: rate(&direct, remaining.direct.metadata),
            index: rate(&index, remaining.index.metadata),
            boot: rate(&boot, remaining.boot.metadata),
        },
    };
    (points, rates)
}
