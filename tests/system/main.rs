//! System tests: the release binary (`$QUELL`), real mounts, real programs. Everything here holds for root and
//! for an ordinary user; what one of them cannot do says `SKIPPED:` with the reason.
//!
//! `Stage` is the place a test works in: it runs programs with a time limit and, when it goes, checks that
//! no process and no mount of the test is left. `trees` makes what is covered, `probe` is the program that looks, `bed`
//! is a real parallel file system, `group` a control group with little memory.

mod bed;
mod group;
mod probe;
mod stage;
mod trees;

mod boot;
mod boot_faults;
mod boot_moosefs;
mod boot_until;
mod command_line;
mod counters;
mod disks;
mod faults;
mod fidelity;
mod formats;
mod freshness;
mod holder;
mod index_command;
mod log;
mod log_faults;
mod log_owners;
mod log_ranks;
mod log_rebalance;
mod log_sharing;
mod log_tools;
mod machines;
mod model;
mod moosefs;
mod outputs;
mod probe_command;
mod process;
mod profile_counts;
mod profile_moosefs;
mod profile_programs;
mod readonly;
mod several;
mod sharing;
mod trust;
mod view_security;
