//! The arguments of `quell blob`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::log::{JsonArg, JsonLinesArg};
use super::top::{EndpointArg, TopArgs};
use crate::blob_load::{SIZE_BYTES_MAX, Work};

/// List, read and change blobs: named byte sequences that programs share through transactions.
///
/// STORE is a directory (dir:PATH, or PATH), which one process at a time can open, its server
/// (unix:PATH, or quell://HOST:PORT?key=FILE), or the server of a store in RADOS
/// (rados://POOL/NAMESPACE?key=FILE).
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  quell blob put ~/results index.bin events/2026.bin
  quell blob ls ~/results
  quell blob get ~/results events/2026.bin copy.bin
  quell blob add ~/results totals 8 21
  quell blob cat ~/results events/2026.bin --offset 4096 --length 512")]
pub enum BlobCommand {
    Ls(BlobLsArgs),
    Stat(BlobStatArgs),
    Cat(BlobCatArgs),
    Put(BlobPutArgs),
    Get(BlobGetArgs),
    Add(BlobAddArgs),
    Rm(BlobRmArgs),
    Fsck(BlobFsckArgs),
    Gc(BlobGcArgs),
    Backup(BlobBackupArgs),
    Bench(BlobBenchArgs),
    Serve(BlobServeArgs),
    Key(BlobKeyArgs),
    Top(BlobTopArgs),
    Metrics(BlobMetricsArgs),
}

/// List blobs, with their sizes and the times of their last change, in the order of their names.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob ls ~/results
  quell blob ls ~/results events/ --json")]
pub struct BlobLsArgs {
    /// The store.
    pub store: String,
    /// List only names that begin with PREFIX.
    #[arg(default_value = "")]
    pub prefix: OsString,
    #[command(flatten)]
    pub output: JsonLinesArg,
}

/// Show the size and the time of the last change of a blob. The exit code is 1 if there is none.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob stat ~/results totals --json")]
pub struct BlobStatArgs {
    /// The store.
    pub store: String,
    /// The blob.
    pub name: OsString,
    #[command(flatten)]
    pub output: JsonArg,
}

/// Write the bytes of a blob to standard output. All bytes are from one state of the blob.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob cat ~/results totals | od -t d8")]
pub struct BlobCatArgs {
    /// The store.
    pub store: String,
    /// The blob.
    pub name: OsString,
    /// The first byte.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub offset: u64,
    /// The number of bytes [default: up to the end].
    #[arg(long, value_name = "BYTES")]
    pub length: Option<u64>,
}

/// Copy a file into a blob, which is created, or replaced if it exists.
///
/// The store is created if it does not exist. A file of up to 256 MiB replaces the blob in one
/// transaction. While a larger file is copied, other programs can see a part of it.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob put ~/results index.bin
  quell blob put ~/results index.bin events/index
  produce | quell blob put ~/results - events/log")]
pub struct BlobPutArgs {
    /// The store.
    pub store: String,
    /// The file, or - for standard input.
    pub file: PathBuf,
    /// The blob [default: the name of the file without its directory].
    pub name: Option<OsString>,
}

/// Copy a blob into a file. The copy is one state of the blob.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob get ~/results events/2026.bin
  quell blob get ~/results events/2026.bin copy.bin")]
pub struct BlobGetArgs {
    /// The store.
    pub store: String,
    /// The blob.
    pub name: OsString,
    /// The file, which must not exist [default: the last component of the name].
    pub file: Option<PathBuf>,
    /// Replace the file if it exists.
    #[arg(long)]
    pub force: bool,
}

/// Add to a number in a blob, and print the sum. The blob is created or extended if needed.
///
/// The number is a 64-bit signed integer, little endian. A sum that is too large is refused.
#[derive(Debug, Args)]
#[command(
    after_help = "\
Example:
  quell blob add ~/results totals 8 21
  quell blob add ~/results totals 8 -21",
    allow_negative_numbers = true
)]
pub struct BlobAddArgs {
    /// The store.
    pub store: String,
    /// The blob.
    pub name: OsString,
    /// The position of the number, in bytes.
    pub offset: u64,
    /// The number that is added.
    pub operand: i64,
}

/// Delete blobs: all of them, or none if one does not exist.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob rm ~/results events/2025.bin events/2026.bin")]
pub struct BlobRmArgs {
    /// The store.
    pub store: String,
    /// The blobs.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<OsString>,
    /// Ignore blobs that do not exist.
    #[arg(short, long)]
    pub force: bool,
}

/// Check a store: its tables, its extents, and their checksums.
///
/// STORE is the directory of a store that no process has open, or rados://POOL/NAMESPACE without a
/// server. The exit code is 1 if problems remain. --repair corrects the problems whose correction
/// loses no data: extents that nothing refers to, wrong numbers of references, content that no blob
/// has, and data after the end of a blob.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob fsck ~/results
  quell blob fsck ~/results --repair --json")]
pub struct BlobFsckArgs {
    /// The store.
    pub store: String,
    /// Correct the problems whose correction loses no data.
    #[arg(long)]
    pub repair: bool,
    #[command(flatten)]
    pub output: JsonLinesArg,
}

/// Remove the data of deleted and overwritten blobs. Programs that use the store also remove it,
/// after some of it has accumulated.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob gc ~/results")]
pub struct BlobGcArgs {
    /// The store.
    pub store: String,
}

/// Copy one state of a store into a new store.
///
/// Blobs are copied without the parts that were never written. Until the copy is complete, its name
/// ends with .incomplete- and random characters. To restore a backup, use it as the store.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob backup ~/results /backup/results-2026-11-23")]
pub struct BlobBackupArgs {
    /// The store.
    pub store: String,
    /// The new store, which must not exist.
    pub target: String,
}

/// Measure a store with clients that work at the same time, and print operations per second.
///
/// Each client is a thread, with a connection of its own if STORE has a server. The work is done on
/// blobs whose names begin with quell-bench-, which are deleted at the end. The store is created if
/// it does not exist.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob bench ~/results --clients 8
  quell blob bench ~/results --work events --work events-by-update --clients 32
  quell blob bench ~/results --work read --size 800 --clients 28 --beside events --beside-clients 4")]
pub struct BlobBenchArgs {
    /// The store.
    pub store: String,
    /// The work of the clients. Several kinds are measured one after the other.
    #[arg(long, value_name = "WORK", default_values = ["events", "add", "write", "read"])]
    pub work: Vec<Work>,
    /// The number of clients.
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub clients: u16,
    /// The duration of each measurement.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub seconds: u16,
    /// The bytes that an operation of write or read transfers, at most 64 MiB.
    #[arg(long, value_name = "BYTES", default_value_t = 800, value_parser = clap::value_parser!(u32).range(1..=SIZE_BYTES_MAX as i64))]
    pub size: u32,
    /// The largest number of operations of each client in a second [default: no limit].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Option<u32>,
    /// The work of other clients at the same time.
    #[arg(long, value_name = "WORK", requires = "beside_clients")]
    pub beside: Option<Work>,
    /// The number of clients with the work of --beside.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "beside", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub beside_clients: u16,
    #[command(flatten)]
    pub output: JsonLinesArg,
}

/// Share a store between the processes of this machine, and with --listen between machines. Runs
/// until Ctrl-C or SIGTERM; then requests that were begun are answered, and the command ends.
///
/// Programs of the same user open the directory of the store as before, or its socket. The store is
/// created if it does not exist.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob serve ~/results &
  quell blob ls ~/results

For other machines, which need a copy of the file key of the store:
  quell blob serve ~/results --listen 0.0.0.0:7420
  quell blob ls 'quell://server:7420?key=results.key'

A store in RADOS, with two servers of which one waits for the end of the other:
  node1$ quell blob serve ~/server --rados rados://blob/results --listen node1:7420
  node2$ quell blob serve ~/server --rados rados://blob/results --listen node2:7420 --standby
  quell blob ls 'rados://blob/results?key=results.key'

A store in RADOS with four groups, and two servers of which each has two of them:
  node1$ quell blob serve ~/server --rados rados://blob --groups 4 --serve 0,1 --listen node1:7420
  node2$ quell blob serve ~/server --rados rados://blob --groups 4 --serve 2,3 --listen node2:7420")]
pub struct BlobServeArgs {
    /// The directory of the store.
    pub store: String,
    /// Keep the store in a pool of RADOS, as rados://POOL or rados://POOL/NAMESPACE.
    ///
    /// STORE is the directory for the socket and the key only; servers of one store have copies of
    /// one key. $CEPH_CONF names the configuration of the cluster; ?client=NAME after the pool
    /// names the client of the cluster, which is client.admin by default. If another server of the
    /// store lives, this command ends with exit code 3, as it does if another server replaces this
    /// one, or if a write to the store fails.
    #[arg(long, value_name = "POOL")]
    pub rados: Option<String>,
    /// Divide the blobs of a new store in RADOS among NUMBER groups, which different servers can
    /// serve. The number never changes.
    ///
    /// Each group has a log and a server of its own. Programs open rados://POOL as before, and find
    /// the servers of all groups. [default: the number of the store, or 1 for a new one]
    #[arg(long, value_name = "NUMBER", requires = "rados", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub groups: Option<u32>,
    /// Serve these groups of the store, which are counted from 0, and not all of them. Group N uses
    /// the port of --listen plus N.
    #[arg(long, value_name = "GROUP,...", requires = "rados", value_delimiter = ',')]
    pub serve: Vec<u32>,
    /// Wait until the other server of the store in RADOS has ended or is dead, and replace it then:
    /// about two seconds after its death, and the time to read the store.
    #[arg(long, requires = "rados", conflicts_with = "replace")]
    pub standby: bool,
    /// Replace the other server of the store in RADOS, even if it lives.
    #[arg(long, requires = "rados")]
    pub replace: bool,
    /// The host and port that clients with the location rados://POOL use; by default, the
    /// address of --listen.
    #[arg(long, value_name = "HOST:PORT", requires_all = ["rados", "listen"])]
    pub advertise: Option<String>,
    /// Accept TCP connections of clients that have the key. The key is the file `key` in the
    /// directory; it is created if it does not exist. Port 0 lets the system choose a port, which
    /// --json prints.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Encrypt TCP connections; without this option they are authenticated only. Clients add
    /// &encrypt to the location.
    #[arg(long, requires = "listen")]
    pub encrypt: bool,
    /// The largest number of clients at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub clients: u16,
    /// Print the socket and the address as a line of JSON, as soon as clients can connect.
    #[arg(long)]
    pub json: bool,
}

/// Derive a key with some of the rights for a store, for programs on other machines.
///
/// A program uses it as the key of the store: quell://HOST:PORT?key=FILE. PREFIX is the beginning
/// of names, byte by byte: events/2026 also matches events/2026-old. A key has at most 16
/// prefixes.
/// The server keeps no list of keys: it computes the rights from the key. A key can be withdrawn
/// only together with all others, by a new key of the store, so give it a time of expiry.
#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("rights").required(true).multiple(true).args(["read", "write", "admin"]),
    after_help = "\
Example:
  quell blob serve ~/results --listen 0.0.0.0:7420 &
  quell blob key ~/results sensor.key --write events/geneva/ --expires 30d
  quell blob key ~/results analysis.key --read events/ --read totals

On the other machine:
  quell blob put 'quell://server:7420?key=sensor.key' today.log events/geneva/today"
)]
pub struct BlobKeyArgs {
    /// The store: the directory of its server, or a location with key=FILE, which names a copy of
    /// the key of the store. The server need not run.
    pub store: String,
    /// The file for the key, which must not exist. Only this user gets access to it.
    pub file: PathBuf,
    /// Allow to read and list blobs whose names begin with PREFIX; '' for all blobs.
    #[arg(long, value_name = "PREFIX")]
    pub read: Vec<OsString>,
    /// Allow to create, change, rename and delete blobs whose names begin with PREFIX; '' for all
    /// blobs. To rename a blob, and to use the previous numbers of a transform, a program needs the
    /// right to read as well.
    #[arg(long, value_name = "PREFIX")]
    pub write: Vec<OsString>,
    /// Allow everything, as the key of the store does, for example quell blob gc.
    #[arg(long, conflicts_with_all = ["read", "write"])]
    pub admin: bool,
    /// The time from now until the server refuses the key, such as 12h, 30d or "1w 2d" [default: no
    /// limit].
    #[arg(long, value_name = "DURATION")]
    pub expires: Option<String>,
    /// Replace the file if it exists.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: JsonArg,
}

/// Show the rates of requests and bytes, the latencies, conflicts, snapshots, memory and extents of
/// the server of a store, and update them until q or Ctrl-C is pressed.
///
/// On a terminal, the table fills the screen. Otherwise it is printed again after each interval. It
/// has a row for each kind of request: requests in one second, those that have failed or were
/// refused, bytes of blobs in one second, and the time that half and 99 % of the requests did not
/// exceed, rounded up to a power of 2 in microseconds; the row of reads includes stat and list.
/// With --once, the exit code is 1 if the server does not answer. A client over TCP needs a key
/// with all rights.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob top ~/results
  # one line of JSON every ten seconds, with the rates and all counters
  quell blob top ~/results --interval 10 --json >> top.jsonl")]
pub struct BlobTopArgs {
    /// The store, which has a server.
    pub store: String,
    #[command(flatten)]
    pub top: TopArgs,
}

/// Print the counters of the server of a store in the Prometheus text format, or serve them for
/// Prometheus.
///
/// With --listen, the command runs until SIGINT or SIGTERM, and answers `GET /metrics` with
/// counters that are at most 1 s old. A client over TCP needs a key with all rights.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell blob metrics ~/results
  quell blob metrics ~/results --listen unix:$XDG_RUNTIME_DIR/results.metrics &
  curl --unix-socket $XDG_RUNTIME_DIR/results.metrics http://localhost/metrics")]
pub struct BlobMetricsArgs {
    /// The store, which has a server.
    pub store: String,
    #[command(flatten)]
    pub endpoint: EndpointArg,
}
