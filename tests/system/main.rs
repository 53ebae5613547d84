//! System tests: the release binary (`$QUELL`), real mounts, real programs. All tests run as root
//! and as an ordinary user; a test that one of them cannot run prints `SKIPPED:` with the reason.
//!
//! `Stage` is the environment of a test: it runs programs with a time limit and, on drop, checks
//! that no process and no mount of the test remains. `trees` creates trees to cover, `probe` is the
//! program that examines views, `testbed` is a real parallel file system, and `group` is a control
//! group with little memory.

mod group;
mod probe;
mod stage;
mod testbed;
mod trees;

mod applications;
mod batch;
mod batch_adopt;
mod batch_blobs;
mod batch_copy;
mod batch_parts;
mod batch_preload;
mod batch_run;
mod batch_serve;
mod batch_users;
mod batch_verify;
mod blob;
mod blob_files;
mod blob_histories;
mod blob_java;
mod blob_keys;
mod blob_languages;
mod blob_rados;
mod blob_serve;
mod blob_top;
mod boot;
mod boot_faults;
mod boot_files;
mod boot_moosefs;
mod boot_until;
mod boot_upgrades;
mod command_line;
mod copies_above;
mod counters;
mod disks;
mod documents;
mod faults;
mod fidelity;
mod formats;
mod freshness;
mod hidden_mounts;
mod holder;
mod index_command;
mod job;
mod log;
mod log_cache;
mod log_faults;
mod log_locks;
mod log_objects;
mod log_owners;
mod log_ranks;
mod log_rebalance;
mod log_sharing;
mod log_tools;
mod machines;
mod model;
mod moosefs;
mod mpi_libraries;
mod mpiio;
mod old_systems;
mod outputs;
mod pool;
mod pool_change;
mod pool_counters;
mod pool_faults;
mod pool_nodes;
mod pool_reconnect;
mod pool_replicas;
mod pool_staging;
mod preload_calls;
mod preload_functions;
mod preload_libraries;
mod preload_programs;
mod preload_trees;
mod probe_command;
mod process;
mod profile_advice;
mod profile_counts;
mod profile_moosefs;
mod profile_programs;
mod readonly;
mod several;
mod shared_blocks;
mod sharing;
mod slurm;
mod trace;
mod trust;
mod unresponsive;
mod view_security;
