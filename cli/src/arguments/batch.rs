//! The arguments of `quell batch`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::log::JsonArg;
use super::pool::StagingArgs;
use crate::{sizes, users};

/// Run the operations of a job in a private name space, then verify and publish all of them at
/// once.
///
/// STORE is a directory on the shared file system, with the names and the data. Only its owner can
/// use it, unless it was created with --group.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  quell batch init /shared/results
  mkdir -p ~/out
  quell mount --batch /shared/results --mode batch ~/out
  tar -xf sources.tar -C ~/out
  # publishes all files at once
  quell umount ~/out
  quell batch status /shared/results")]
pub enum BatchCommand {
    Init(BatchInitArgs),
    Serve(BatchServeArgs),
    Key(BatchKeyArgs),
    Verify(BatchVerifyArgs),
    Begin(BatchBeginArgs),
    Status(BatchStatusArgs),
    Snapshots(BatchSnapshotsArgs),
    Quota(BatchQuotaArgs),
    Watch(BatchWatchArgs),
    Conflicts(BatchConflictsArgs),
    Commit(BatchCommitArgs),
    Abort(BatchAbortArgs),
    Fsck(BatchFsckArgs),
    Gc(BatchGcArgs),
    Export(BatchExportArgs),
    Import(BatchImportArgs),
}

/// The owners of stores that are used.
#[derive(Debug, Clone, Args)]
pub struct TrustArgs {
    /// Also use a store for a group that belongs to this user (a name or a number; can be
    /// repeated). Its owner decides which files your programs see.
    #[arg(long, value_name = "USER", value_parser = users::parse)]
    pub trust_owner: Vec<u32>,
}

/// Create a store in a directory that does not exist or is empty. Its name space is empty, or has
/// the entries of an existing directory.
///
/// With --adopt, the files stay where they are: the store has their names and attributes, and reads
/// their bytes there. Nothing is ever changed in TREE. A file that is changed in TREE afterwards
/// cannot be opened in the store any more (ESTALE). A file that is written in the store is first
/// copied into it.
///
/// Each entry that cannot be adopted is listed, and the exit code is 1. After Ctrl-C, nothing of
/// the store remains.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch init /shared/results
  # a store for the members of a group
  quell batch init /shared/project/results --group project
  # the same, but each member reads only what the permissions of the entries allow
  quell batch init /shared/project/private --group project --private
  # a store that begins with the files of an existing directory
  quell batch init /shared/work --adopt /shared/project")]
pub struct BatchInitArgs {
    /// The directory.
    pub store: PathBuf,
    /// Let the members of this group (a name or a number) use the store through its server, `quell
    /// batch serve`. Without --private, all of them can read all names and contents. The
    /// permissions of the entries determine the users that can change them.
    #[arg(long, value_name = "GROUP", value_parser = users::parse_group, conflicts_with = "adopt")]
    pub group: Option<u32>,
    /// Let each member of the group read only the names and contents that the permissions of the
    /// entries allow. The file system of the store needs POSIX access control lists.
    #[arg(long, requires = "group")]
    pub private: bool,
    /// Begin with the entries of this directory, which keeps the bytes of its files.
    #[arg(long, value_name = "TREE")]
    pub adopt: Option<PathBuf>,
    /// Number of directories of TREE that are read at the same time.
    #[arg(short = 'j', long, value_name = "N", requires = "adopt", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Print the entries of TREE that were not adopted, and the numbers of those that were, as
    /// lines of JSON.
    #[arg(long, requires = "adopt")]
    pub json: bool,
}

/// Let several processes use a store at the same time, and with --listen several nodes. Runs until
/// Ctrl-C or SIGTERM; then it answers the requests that it has begun, and ends.
///
/// Mounts and commands find the server in the directory of the store, so they need no other options
/// than without a server. They read and write the data of files larger than 64 KiB themselves.
/// Users of a store for a group need the option --trust-owner, except for its owner.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch serve /shared/results --listen node1:7430 &
  quell mount --batch /shared/results ~/results
  # and the same on other nodes

  # in a script: continue when clients can connect, and end the server
  quell batch serve /shared/results --background
  quell batch serve /shared/results --stop

  # two further servers for the names of large directories, on other nodes
  node2$ quell batch serve /shared/results --partitions --listen node2:7431 &
  node3$ quell batch serve /shared/results --partitions --listen node3:7431 &")]
pub struct BatchServeArgs {
    /// The store.
    pub store: PathBuf,
    /// Accept TCP connections of other nodes.
    ///
    /// They find the address in the directory of the store, and prove that they can read its file
    /// `key`, which is created if it does not exist. The users of a store for a group need a key on
    /// other nodes: see `quell batch key`. Port 0 lets the system choose a port.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// The host and port that other nodes use [default: the address of --listen].
    #[arg(long, value_name = "HOST:PORT", requires = "listen")]
    pub advertise: Option<String>,
    /// Encrypt TCP connections; without this option they are authenticated only.
    #[arg(long, requires = "listen")]
    pub encrypt: bool,
    /// The largest number of clients at a time. From each user other than the owner and root, at
    /// most a quarter of this number is accepted.
    #[arg(long, value_name = "NUMBER", default_value_t = CLIENTS, value_parser = clap::value_parser!(u16).range(1..))]
    pub clients: u16,
    /// Wait this time until a process of `quell batch verify` is idle, and then for its result;
    /// after this time, the server verifies the batch itself.
    #[arg(long, conflicts_with = "partitions", value_name = "SECONDS", default_value_t = VERIFICATION_LIMIT_S, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub verification_limit: u64,
    /// Run a partition server: it executes operations on the names of large directories together
    /// with the server of the store, which must run as well. A store can have at most 255 partition
    /// servers.
    ///
    /// Clients and the server of the store find it in the directory of the store. If it ends, the
    /// server of the store executes the operations on these names again. Directories are divided
    /// only in a store that is not a store for a group and has no limits (`quell batch quota`).
    #[arg(long, conflicts_with = "idle")]
    pub partitions: bool,
    /// Distribute the names of a directory over the server and the partition servers after this
    /// number of creations in the directory; 0: never.
    #[arg(long, value_name = "CREATIONS", default_value_t = DIVIDE_AFTER, conflicts_with = "partitions")]
    pub divide_after: u64,
    /// Return as soon as clients can connect, and let the server run in the background. Fails if
    /// the store has a server already. With --partitions, the store can have further partition
    /// servers.
    #[arg(long)]
    pub background: bool,
    /// End the server when it has had no client for this time.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub idle: Option<u64>,
    /// End the server of the store on this node, or with --partitions all partition servers of the
    /// store on this node, and wait until they have ended. A server answers the requests and
    /// completes the commits that it has begun.
    #[arg(long, conflicts_with_all = ["listen", "background", "idle", "json"])]
    pub stop: bool,
    /// Print the store and the address as a line of JSON, as soon as clients can connect.
    #[arg(long)]
    pub json: bool,
    /// The process that --background has started.
    #[arg(long, hide = true, conflicts_with = "background")]
    pub detached: bool,
}

/// The default of `--clients`.
const CLIENTS: u16 = 256;
/// The default of `--divide-after`.
const DIVIDE_AFTER: u64 = 8192;
/// The default of `--verification-limit`.
const VERIFICATION_LIMIT_S: u64 = 600;

impl BatchServeArgs {
    /// Returns the arguments of a server in the background that only this node can use, and that
    /// ends when it has had no client for `idle` seconds.
    pub fn for_this_node(store: PathBuf, idle: u64) -> BatchServeArgs {
        BatchServeArgs {
            store,
            listen: None,
            advertise: None,
            encrypt: false,
            clients: CLIENTS,
            verification_limit: VERIFICATION_LIMIT_S,
            partitions: false,
            divide_after: DIVIDE_AFTER,
            background: true,
            idle: Some(idle),
            stop: false,
            json: false,
            detached: false,
        }
    }
}

/// Let a user of a store for a group use it on other nodes than that of its server: the owner of
/// the store derives a key for the user, and the user stores it.
///
/// With --user, write a key to FILE. Only the owner of the store can do this, after a server has
/// first accepted connections of other nodes (`quell batch serve --listen`). The server need not
/// run. Pass the file to the user so that no one else can read it. With the key, the user has the
/// same rights as on the node of the server: the server reads the groups of the user from the
/// databases of its node.
///
/// With --install, store the key in FILE in the directory of the store. Mounts and commands of this
/// user find it there on all nodes; only this user can read it.
///
/// The server keeps no list of keys. A key can be withdrawn only together with all others, by a new
/// key of the store, so give it a time of expiry.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  # the owner of the store, alice
  quell batch serve /shared/project/results --listen node1:7430 &
  quell batch key /shared/project/results --user bob --expires 30d --file bob.key
  # bob, with a copy of the file
  quell batch key /shared/project/results --trust-owner alice --install bob.key
  quell mount --batch /shared/project/results --trust-owner alice ~/results")]
pub struct BatchKeyArgs {
    /// The store.
    pub store: PathBuf,
    /// Derive a key for this user (a name or a number).
    #[arg(long, value_name = "USER", value_parser = users::parse, requires = "file", required_unless_present = "install")]
    pub user: Option<u32>,
    /// The file for the key. It must not exist, unless --force is passed. Only you get access to
    /// it.
    #[arg(long, value_name = "FILE", requires = "user")]
    pub file: Option<PathBuf>,
    /// The time from now until the server refuses the key, such as 12h, 30d or "1w 2d" [default: no
    /// limit].
    #[arg(long, value_name = "DURATION", requires = "user")]
    pub expires: Option<String>,
    /// Replace an existing FILE.
    #[arg(long, requires = "user")]
    pub force: bool,
    /// Store the key in this file for your mounts and commands, in place of an earlier one.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["user", "json"])]
    pub install: Option<PathBuf>,
    #[command(flatten)]
    pub output: JsonArg,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// Verify batches for the server of a store, so that the server does not need processor time for
/// each file of a batch: run this command on a node of a job, or as a service of each node. Runs
/// until Ctrl-C or SIGTERM; then it completes the verification that it has begun, and ends.
///
/// Only the owner of the store can run it. It finds the server in the directory of the store, waits
/// for it if there is none, and proves that it can read the file `commit-key`, which `quell batch
/// init` and `quell batch serve` create. It verifies one batch at a time; several processes verify
/// several batches. If it is killed, the server has the batch verified by another one, or verifies
/// it itself. `quell batch status` lists the connected processes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch serve /shared/results --listen node1:7430 &
  # on another node
  quell batch verify /shared/results")]
pub struct BatchVerifyArgs {
    /// The store.
    pub store: PathBuf,
    /// Print each event as a line of JSON: `connected`, `waiting` for a server, `begun`, and
    /// `verified` or `failed` with the number of the batch or of the part.
    #[arg(long)]
    pub json: bool,
}

/// Begin a batch of several parts, and print its number. Each mount and each `quell run` with
/// `--join NUMBER`, on this node and on others, has a part of the batch. All parts are published at
/// once by `quell batch commit`.
///
/// Each part sees the files of the store as they were when the batch began, and its own changes. A
/// directory that several parts create becomes one directory. A file that several parts create is a
/// conflict: the file of the part that joined first keeps the name.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  batch=$(quell batch begin /shared/results)
  mpirun quell run --batch /shared/results=$HOME/out --join $batch -- ./program
  quell batch commit /shared/results $batch")]
pub struct BatchBeginArgs {
    /// The store, and a directory in it, to which the changes are limited.
    #[arg(value_name = "STORE[/PATH]")]
    pub store: PathBuf,
    /// The name of the batch in `quell batch status` [default: the name of the host and the number
    /// of the process].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Publish the batch only if no change of others, and of no other part, is in conflict with it.
    #[arg(long)]
    pub atomic: bool,
}

/// List the batches of a store, and their parts: number, state, new entries, conflicts, name. The
/// auxiliary servers that are connected to the server of the store follow, and then its partition
/// servers.
///
/// A part is open while a process changes it, closed when its changes are complete, and lost if its
/// process ended before it closed the part.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch status /shared/results
  quell batch status /shared/results --json")]
pub struct BatchStatusArgs {
    /// The store.
    pub store: PathBuf,
    #[command(flatten)]
    pub output: JsonArg,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// List the snapshots of a store: each open batch has one.
///
/// The columns are: the number of the batch; the time of the last change in the snapshot; the
/// number of tables, and of those that the image or another snapshot also uses (shared); the number
/// of entries in the tables; the size of the tables; the size of the tables that only this snapshot
/// uses, which are removed after the batch ends; and the name of the batch.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch snapshots /shared/results
  quell batch snapshots /shared/results --json")]
pub struct BatchSnapshotsArgs {
    /// The store.
    pub store: PathBuf,
    #[command(flatten)]
    pub output: JsonArg,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// List the use of a store by each user, and its limits; or set a limit.
///
/// The use of a user is the number of files, directories and links that belong to the user, and the
/// size of the regular files as ls(1) shows it, so the holes of files count. A file with several
/// names counts once. The changes of open batches do not count. Users other than the owner of the
/// store see their own use.
///
/// An operation that would increase a number above its limit fails with "Disk quota exceeded", and
/// so does the commit of a batch, which stays open. A limit below the present use is permitted. The
/// limits of users do not apply to files that belong to root. df(1) shows the limit of the whole
/// store.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("subject").requires("numbers").conflicts_with("json")),
    group(ArgGroup::new("numbers").multiple(true).requires("subject")),
    after_help = "\
Examples:
  quell batch quota /shared/results
  # at most 1,000,000 files and 500 GiB for each user, but 2 TiB for alice
  quell batch quota /shared/results --each-user --files 1000000 --bytes 500G
  quell batch quota /shared/results --user alice --bytes 2T
  # the limit for each user applies to alice again
  quell batch quota /shared/results --user alice --bytes default"
)]
pub struct BatchQuotaArgs {
    /// The store.
    pub store: PathBuf,
    /// Set the limit of this user (a name or a number).
    #[arg(long, value_name = "USER", value_parser = users::parse, group = "subject")]
    pub user: Option<u32>,
    /// Set the limit of each user without a limit of their own.
    #[arg(long, group = "subject")]
    pub each_user: bool,
    /// Set the limit of all users together.
    #[arg(long, group = "subject")]
    pub whole_store: bool,
    /// The largest number of files, directories and links; `none` for any number; `default` with
    /// `--user` for the limit for each user.
    #[arg(long, value_name = "NUMBER", value_parser = files_limit, group = "numbers")]
    pub files: Option<NumberLimit>,
    /// The largest total size of the regular files, in bytes or with the unit K, M, G, T or P (2^10
    /// to 2^50 bytes); `none` for any size; `default` with `--user` for the limit for each user.
    #[arg(long, value_name = "SIZE", value_parser = bytes_limit, group = "numbers")]
    pub bytes: Option<NumberLimit>,
    #[command(flatten)]
    pub output: JsonArg,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// One number of a limit, as an option states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberLimit {
    AtMost(u64),
    /// Any number is permitted.
    None,
    /// The limit for each user applies.
    Default,
}

fn files_limit(text: &str) -> Result<NumberLimit, String> {
    number_limit(text, |text| text.parse().map_err(|_| "a limit is a number, `none` or `default`".into()))
}

fn bytes_limit(text: &str) -> Result<NumberLimit, String> {
    number_limit(text, |text| {
        sizes::parse(text).map_err(|reason| format!("{reason}; or `none` or `default`"))
    })
}

fn number_limit(text: &str, parse: impl Fn(&str) -> Result<u64, String>) -> Result<NumberLimit, String> {
    match text {
        "none" => Ok(NumberLimit::None),
        "default" => Ok(NumberLimit::Default),
        number => parse(number).map(NumberLimit::AtMost),
    }
}

/// Print how many names a running batch has created, changed and removed, and the total size of its
/// files, every few seconds until the batch ends or the command is interrupted.
///
/// The command requests a view of the batch. The process of the batch writes it to the store within
/// a few seconds, and does not wait for the command. A later line never shows an earlier state.
/// `quell mount --batch STORE --watch BATCH` shows the files themselves.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch status /shared/results
  quell batch watch /shared/results 7
  # the sizes and paths of all new and changed files
  quell batch watch /shared/results 7 --list")]
pub struct BatchWatchArgs {
    /// The store.
    pub store: PathBuf,
    /// The number of the batch, or of a part.
    pub batch: u64,
    /// List the names with their sizes once, and exit.
    #[arg(long)]
    pub list: bool,
    /// The time between two lines, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub interval: u16,
    #[command(flatten)]
    pub output: JsonArg,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// List the changes of a batch that were in conflict with changes of others, with the reasons and
/// the names under which new entries and contents were kept. The exit code is 1 if there are any.
///
/// With --keep or --rename, resolve them and remove them from the list.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch conflicts /shared/results 7
  # the file of the batch replaces the one of others
  quell batch conflicts /shared/results 7 --keep mine /run/log
  # the file of the batch gets another name
  quell batch conflicts /shared/results 7 --rename /run/log.mine /run/log
  # all others are removed
  quell batch conflicts /shared/results 7 --keep theirs --all")]
pub struct BatchConflictsArgs {
    /// The store.
    pub store: PathBuf,
    /// The number of the batch.
    pub batch: u64,
    /// The paths of the conflicts to resolve, as they are listed.
    #[arg(value_name = "PATH", requires = "resolution")]
    pub paths: Vec<PathBuf>,
    /// `mine`: replace the entry of others at PATH by the entry of the batch. `theirs`: keep the
    /// entry of others, and remove the entry of the batch.
    #[arg(long, value_name = "SIDE", value_enum, group = "resolution")]
    pub keep: Option<ConflictSide>,
    /// Give the entry of the batch the path NEW in the store. Only for one PATH.
    #[arg(long, value_name = "NEW", group = "resolution", conflicts_with = "all")]
    pub rename: Option<PathBuf>,
    /// Resolve all conflicts of the batch.
    #[arg(long, requires = "keep", conflicts_with = "paths")]
    pub all: bool,
    #[command(flatten)]
    pub output: JsonArg,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// The entry that is kept after a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConflictSide {
    /// Keep the entry of the batch.
    Mine,
    /// Keep the entry that others committed.
    Theirs,
}

/// Publish a batch of several parts, or a batch whose process ended after it had written its
/// changes and before it had committed them. Other batches are published by `quell umount`, or at
/// the end of `quell run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch commit /shared/results 7
  # after the failure of a node
  quell batch commit --without-lost-parts /shared/results 7
  # together with a transaction of blobs
  quell batch commit --blobs blobs.json /shared/results 7")]
pub struct BatchCommitArgs {
    /// The store.
    pub store: PathBuf,
    /// The number of the batch.
    pub batch: u64,
    /// Do not wait for the verification: the batch is verified when the store is used the next
    /// time, before its changes are shown.
    #[arg(long)]
    pub lazy: bool,
    /// Discard the parts whose processes ended before they had closed them, for example with their
    /// nodes, and publish the others. Without this option, such a batch is not committed.
    #[arg(long)]
    pub without_lost_parts: bool,
    /// Also commit the transaction of blobs in this JSON file: both are committed, or neither. The
    /// batch is not committed if it has conflicts.
    ///
    /// The file has an object with these fields: `store`, the location of the store of blobs;
    /// `operations`, a list; `conditions`, a list, which can be left out; and `marker_prefix`, the
    /// beginning of the names of blobs that the commit itself uses, which can be left out.
    ///
    /// Each operation has the fields `operation` and `blob`. `create` can have `may_exist` (true or
    /// false), `delete` has no further field, `write` has `offset` and the data, `append` has the
    /// data, `resize` has `size`, `rename` has `to`, and `add` has `offset` and `number`. The data
    /// is either `text`, or `file`, the path of a file.
    ///
    /// Each condition has the field `blob`, and either `exists` (true or false), or `size`, or
    /// `offset` and the data. Nothing is committed unless all conditions hold.
    #[arg(long, value_name = "FILE", conflicts_with = "lazy")]
    pub blobs: Option<PathBuf>,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// Discard the changes of a batch that no process uses any more, or of one part of it. If it is
/// prepared and its transaction of blobs is committed, it is published, and the command fails. If
/// the batch is already aborted, the command removes its remaining files.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch abort /shared/results 7")]
pub struct BatchAbortArgs {
    /// The store.
    pub store: PathBuf,
    /// The number of the batch or of the part.
    pub batch: u64,
    /// Discard a prepared batch without access to its store of blobs, for example because that
    /// store is lost. If the transaction of blobs is committed, its changes of the blobs remain.
    #[arg(long)]
    pub ignore_blobs: bool,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// Copy a file or directory out of a store, as plain files. PATH is copied into DIR under its last
/// component; for the whole store, and if PATH ends in `/.`, the entries are copied into DIR. Each
/// copy is read back and verified before it gets its name in DIR. A file that exists in DIR with
/// the size and the modification time of the source is not copied again, so an interrupted command
/// is continued by running it again. Each entry that was not copied is printed on standard error,
/// and the exit code is then 1. If the store has no server, other processes wait for it meanwhile,
/// except running batches.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch export /shared/results /shared/me/everything
  quell batch export /shared/results:/run7 /shared/me --manifest run7.jsonl")]
pub struct BatchExportArgs {
    /// The store, and a path in it. STORE/PATH is accepted, too.
    #[arg(value_name = "STORE[:/PATH]")]
    pub source: PathBuf,
    /// A directory, which is created if it does not exist.
    #[arg(value_name = "DIR")]
    pub destination: PathBuf,
    #[command(flatten)]
    pub staging: StagingArgs,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// Copy files and directories into a store, as a batch: they are published together at the end.
/// Each SRC is copied into PATH under its last component; if SRC ends in `/.`, its entries are
/// copied into PATH. After Ctrl-C, the files that are complete are published, and the same command
/// continues. Each entry that was not copied is printed on standard error, and the exit code is
/// then 1, as it is if others have created files of the same names meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch import /shared/me/input /shared/results
  quell batch import /shared/me/input/. /shared/results:/input")]
pub struct BatchImportArgs {
    /// Files and directories to copy.
    #[arg(value_name = "SRC", required = true, num_args = 1..)]
    pub sources: Vec<PathBuf>,
    /// The store, and a directory in it, which is created if it does not exist. STORE/PATH is
    /// accepted, too.
    #[arg(value_name = "STORE[:/PATH]")]
    pub destination: PathBuf,
    #[command(flatten)]
    pub staging: StagingArgs,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// Check a store: its tables, the tree of its names, its data files, and the changes of batches
/// that are not committed. Each problem is printed with the identifier of its kind. The exit code
/// is 1 if problems are left. Other processes wait for the store meanwhile, except running batches.
/// End the server of the store first.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch fsck /shared/results
  quell batch fsck /shared/results --repair

--repair removes no file and no directory: those without a name get one in the
directory /quell-found of the store. If the key-value store of the image is lost,
the image is rebuilt from its tables; the changes of the synchronous mode since
the last table are lost then.")]
pub struct BatchFsckArgs {
    /// The store.
    pub store: PathBuf,
    /// Correct the problems that can be corrected.
    #[arg(long)]
    pub repair: bool,
    #[command(flatten)]
    pub output: JsonArg,
}

/// Remove the files of a store that nothing refers to: tables, data files, and directories of
/// batches that have ended. Files that Quell has not created are never removed. Running batches
/// continue, and other processes wait for the store. End the server of the store first.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch gc /shared/results --dry-run
  quell batch gc /shared/results")]
pub struct BatchGcArgs {
    /// The store.
    pub store: PathBuf,
    /// List the files, and remove none.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: JsonArg,
}
