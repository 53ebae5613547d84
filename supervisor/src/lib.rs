//! The processes that hold a view or a mount: the plan, the start, the choice of a view, the checks
//! of trees, and the end. Also the pools: the start and the end of their daemons, and the finding
//! of pools by name.
//!
//! A command makes a [`Plan`] and calls [`enter_view`] or [`mount`]. These start a holder, which is
//! another process of the same program and calls [`run_holder`]. Nothing here parses arguments or
//! prints: functions return values and errors, and a holder prints through a [`Console`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod batch_plan;
mod batch_session;
mod blob_plan;
mod bound_mount;
mod console;
mod disk_plan;
mod display;
mod enter;
mod failure;
mod freshness;
mod hang_up;
mod holder;
mod id_map;
mod inputs;
mod log_plan;
mod mount;
mod mount_point;
mod mount_table;
mod pools;
mod protocol;
mod record;
mod reports;
mod resources;
mod runtime;
mod socket;
mod start;
mod trust;
mod user_databases;
mod view;
mod waiting;
mod working_directory;

pub use batch_plan::batch_plan;
pub use batch_session::{BatchEnd, BatchSession, COMMIT_WAIT, open_batch_session};
pub use blob_plan::blob_plan;
pub use bound_mount::enter_mount;
pub use console::{Console, ProgressTask};
pub use disk_plan::{check_disk_image, disk_plan};
pub use display::{counted, shown, shown_bytes, shown_list};
pub use enter::{JobInputs, NotEntered, SharedTrees, enter_view, job_inputs, share_trees};
pub use failure::Failure;
pub use freshness::results::state_directory;
pub use freshness::stale::{difference_line, with_consequence};
pub use hang_up::is_hang_up_ignored;
pub use holder::batch::publish_views;
pub use holder::privileges::needs_user_namespace;
pub use holder::process::run_holder;
pub use inputs::{InputFile, Origin, real_path, root_of};
pub use log_plan::{LogOptions, log_plan};
pub use mount::{mount, mount_target};
pub use mount_point::{END_TIMEOUT, discard_changes, is_quell_mount, mount_point_path, unmount_and_wait};
pub use mount_table::{MOUNT_TABLE, MountTableEntry, file_system_of, mount_table, parse_mount_table};
pub use pools::{
    CommandProgress, Compression, Consistency, CountedMember, DaemonId, JobNodes, KeeperCommand, Launcher,
    Listen, MemberState, NODES_MAX, NewDaemon, NewPool, Node, find_pool, host_of, member_counters,
    member_states, nodes_of_file, nodes_of_job, pools, run_pool_keeper, send_command, start_kept_pool,
    stop_pool,
};
pub use protocol::answer::RecordingResult;
pub use protocol::job_files::JobInput;
pub use protocol::plan::{
    BatchMode, BatchPlan, BlobPlan, BootPlan, ChangePolicy, CheckMode, DiskPlan, ImageFormat, ImagePlan,
    JobCheck, JobPlan, KernelCaching, LocksMode, LogPlan, Plan, PlanSource, PoolPlan, RecordingPlan,
    SampleResult, SharedBlocksPlan, Target, TreePlan, TreesPlan, ViewChoice, Writes,
};
pub use protocol::report::{
    BatchReport, BlobReport, HolderReport, JobNodeReport, JobReport, LogReport, PoolReport, TreeReport,
};
pub use quell_job::{MeetingPoint, MeetingServer, SharedBlocksStatus};
pub use record::files::{FileSelection, SelectedFiles};
pub use record::image::waiting_for_recording;
pub use record::output_copy::OutputCopy;
pub use record::stop::StopCondition;
pub use record::wait::{RecordingEnd, wait_for_recording};
pub use reports::{Reports, job_reports, reports_of};
pub use resources::{check_available, load_boot_at, load_index, load_index_at, processors};
pub use runtime::directory::runtime_directory;
pub use runtime::end_record::{EndRecord, end_record_of, forget_end_record};
pub use runtime::fifo::{Fifo, open_fifo};
pub use runtime::job::current_job;
pub use runtime::notices::is_first_notice;
pub use start::{LOG_FILE_VARIABLE, detach_holder};
pub use trust::check_trust;
pub use user_databases::{UserGroups, group_id, groups_of_user, user_id};
pub use view::selection::{View, refuses_overlay};
pub use waiting::Waiting;
