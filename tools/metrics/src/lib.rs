//! Computes rates and percentiles from the counters of a pool's members, formats the counters in
//! the Prometheus text format, and serves the text on a Unix socket or a loopback port.
//!
//! The crate sends no request to a daemon: samples of the counters are passed to it.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod connection;
mod endpoint;
mod prometheus;
mod rates;
mod sample;

pub use address::Address;
pub use connection::METRICS_PATH;
pub use endpoint::Endpoint;
pub use prometheus::prometheus_text;
pub use rates::Rates;
pub use sample::{MemberSample, PoolSample};
