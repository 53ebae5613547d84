//! Computes rates and percentiles from the counters of a pool's members, and of the server of a
//! store of blobs, formats the counters in the Prometheus text format, and serves the text on a
//! Unix socket or a loopback port.
//!
//! The crate sends no request to a server: samples of the counters are passed to it.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod connection;
mod endpoint;
mod exposition;
mod prometheus;
mod rates;
mod sample;
mod store;

pub use address::Address;
pub use connection::METRICS_PATH;
pub use endpoint::Endpoint;
pub use prometheus::prometheus_text;
pub use rates::Rates;
pub use sample::{MemberSample, PoolSample};
pub use store::{StoreRates, store_prometheus_text};
