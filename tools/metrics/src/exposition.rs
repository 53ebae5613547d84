//! The Prometheus text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::{Display, Write};

use quell_wire::{BUCKETS, Histogram};

/// A text with families of metrics, whose names begin with the same prefix.
pub(crate) struct Exposition {
    text: String,
    prefix: &'static str,
}

impl Exposition {
    pub(crate) fn new(prefix: &'static str) -> Exposition {
        Exposition { text: String::new(), prefix }
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Begins a family. Its samples follow.
    pub(crate) fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
    }

    /// Adds a sample. `labels` has at least one label, with commas between them.
    pub(crate) fn add(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.text, "{}{name}{{{labels}}} {value}", self.prefix);
    }

    /// Adds the samples of a histogram of times in seconds.
    pub(crate) fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let bucket_name = format!("{name}_bucket");
        let mut count = 0_u64;
        for bucket in 0..BUCKETS {
            count = count.saturating_add(histogram.counts[bucket]);
            let bound = match Histogram::bound_us(bucket) {
                Some(microseconds) => (microseconds as f64 / 1e6).to_string(),
                None => "+Inf".to_owned(),
            };
            self.add(&bucket_name, &format!("{labels},le=\"{bound}\""), count);
        }
        self.add(&format!("{name}_sum"), labels, histogram.total_ns as f64 / 1e9);
        self.add(&format!("{name}_count"), labels, count);
    }
}

/// Returns the value of a label with the escapes of the format.
pub(crate) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
