//! The commands, one module for each.

pub mod boot;
pub mod doctor;
pub mod generate;
pub mod holder;
pub mod index;
pub mod log;
pub mod log_flatten;
pub mod log_fsck;
pub mod log_list;
pub mod log_map;
pub mod log_rebalance;
mod log_stores;
pub mod log_transfer;
pub mod mount;
pub mod mpi;
pub mod pool;
mod pool_staging;
pub mod probe;
pub mod profile;
pub mod qcow2_layer;
pub mod record;
pub mod run;
pub mod run_preload;
pub mod show;
pub mod stats;
pub mod umount;
pub mod verify;
