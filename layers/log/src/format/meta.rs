//! The names in a container's `meta` directory, which give size and time of a file without reading
//! its logs (the metadir and openhosts of PLFS, figure 1). The format is described in
//! docs/formats/log.md. Pure functions on values, no I/O.

use std::collections::HashMap;

use quell_vfs::Time;
use xxhash_rust::xxh3::xxh3_64;

use crate::format::frames::Order;
use crate::format::offsets::FileOffset;
use crate::format::shares::share_range;

/// The longest node name, in bytes. With it, no name in `meta` exceeds the file system's limit.
const NODE_BYTES_MAX: usize = 112;

/// The process that writes the logs of an open writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The process id.
    pub pid: u32,
    /// The start time of the process in clock ticks after boot, because process ids are reused.
    pub start: u64,
    /// The node's boot id, namespaces and host name, of letters, digits, `.`, `_` and `-`.
    pub node: String,
}

impl Holder {
    /// Converts the node's name to the form in `meta`, so that both can be compared.
    pub fn new(pid: u32, start: u64, node: &str) -> Holder {
        Holder { pid, start, node: node_text(node) }
    }
}

fn node_text(node: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    node.chars().map(plain).take(NODE_BYTES_MAX).collect()
}

/// A writer that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    pub writer: u64,
    pub first_epoch: u64,
    pub holder: Holder,
    /// The state that the writer published last. Readers get it without reading the writer's logs.
    pub published: Option<Published>,
}

impl Running {
    /// Returns true for the first writer of a file that began as an object, until it ends: all its
    /// complete frames are part of the file.
    pub fn counts_all(&self) -> bool {
        self.first_epoch > 0 && self.published.is_none()
    }
}

/// The published state of an open writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    pub last_epoch: u64,
    /// As in `Closed`.
    pub end: FileOffset,
    pub data_bytes: u64,
    pub time: Time,
}

/// A writer that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    pub writer: u64,
    pub first_epoch: u64,
    pub last_epoch: u64,
    /// The end of the writer's last byte in the file, ignoring truncations, because a power failure
    /// may remove a truncation's name.
    pub end: FileOffset,
    pub data_bytes: u64,
    pub time: Time,
    /// All data of the writer survives a power failure.
    pub is_synced: bool,
    /// The boot of the writer's node, as returned by [`boot_of`]. 0 if unknown, or if the log was
    /// synced on another boot.
    pub boot: u64,
}

impl Closed {
    /// Returns true if all data of the writer must be present for a reader on the boot `now`,
    /// because no power failure can have removed it.
    pub fn is_certain(&self, now: u64) -> bool {
        self.boot == now || self.is_synced && self.boot != 0
    }
}

/// Returns a number for the boot id at the front of `node`, which has the form
/// `BOOT-PIDS-TIME.NAME` or `BOOT.NAME`. It is the same in all namespaces of a node until the next
/// boot, and never 0. A boot id is written without hyphens.
pub fn boot_of(node: &str) -> u64 {
    let boot = node.split(['-', '.']).next().unwrap_or_default();
    xxh3_64(boot.as_bytes()).max(1)
}

/// A truncation of the file to `size` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// Its position among the writes.
    pub order: Order,
    /// The size of the file after the truncation, in bytes.
    pub size: u64,
    /// The time of the truncation.
    pub time: Time,
}

/// The part of the data logs of other mounts' open writers that a truncation covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Covers {
    /// The number of the truncation, that is, `writer` of its order.
    pub truncation: u64,
    /// The covered parts of at most [`COVERS_MAX`] data logs.
    pub logs: Vec<CoveredLog>,
}

/// The part of a data log that a truncation covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoveredLog {
    pub writer: u64,
    /// Number of bytes from the beginning of the data log.
    pub bytes: u64,
}

/// The largest number of writers in one `covers` name, such that the name fits for all values.
pub const COVERS_MAX: usize = 6;

/// A name in `meta`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetaName {
    Open(Running),
    Closed(Closed),
    Truncation(Truncation),
    Covers(Covers),
    /// The modification time was set.
    Time(Order, Time),
    /// A sync of this writer's data log failed, and the log has not been rewritten and synced
    /// since.
    Failed(u64),
}

impl MetaName {
    pub fn encode(&self) -> String {
        let time = |time: &Time| format!("{:x}-{:x}", time.seconds as u64, time.nanoseconds);
        match self {
            MetaName::Open(Running {
                writer,
                first_epoch,
                holder: Holder { pid, start, node },
                published,
            }) => {
                let node = node_text(node);
                let published = match published {
                    Some(Published { last_epoch, end: FileOffset(end), data_bytes, time: at }) => {
                        format!("{last_epoch:x}-{end:x}-{data_bytes:x}-{}", time(at))
                    }
                    None => "0-0-0-0-0".to_owned(),
                };
                format!("open-{writer:016x}-{first_epoch:x}-{published}-{pid:x}-{start:x}-{node}")
            }
            MetaName::Closed(closed) => {
                let Closed {
                    writer,
                    first_epoch,
                    last_epoch,
                    end: FileOffset(end),
                    data_bytes,
                    is_synced,
                    boot,
                    ..
                } = closed;
                let (when, synced) = (time(&closed.time), u8::from(*is_synced));
                let boot = if *boot == 0 { String::new() } else { format!("-{boot:x}") };
                format!(
                    "closed-{writer:016x}-{first_epoch:x}-{last_epoch:x}-{end:x}-{data_bytes:x}-{when}-{synced}{boot}"
                )
            }
            MetaName::Truncation(Truncation { order: Order { epoch, sequence, writer }, size, time: at }) => {
                format!("cut-{epoch:x}-{sequence:x}-{writer:016x}-{size:x}-{}", time(at))
            }
            MetaName::Covers(Covers { truncation, logs }) => {
                let logs: String =
                    logs.iter().map(|log| format!("-{:016x}-{:x}", log.writer, log.bytes)).collect();
                format!("covers-{truncation:016x}{logs}")
            }
            MetaName::Time(Order { epoch, sequence, writer }, at) => {
                format!("time-{epoch:x}-{sequence:x}-{writer:016x}-{}", time(at))
            }
            MetaName::Failed(writer) => format!("failed-{writer:016x}"),
        }
    }

    /// Parses a name. Returns `None` if it is not a name that `encode` produces.
    pub fn decode(name: &[u8]) -> Option<MetaName> {
        let name = std::str::from_utf8(name).ok()?;
        let (kind, rest) = name.split_once('-')?;
        let parsed = match kind {
            "open" => {
                // The node name comes last, because it may contain hyphens.
                let (rest, node) = rest.match_indices('-').nth(8).map(|(at, _)| rest.split_at(at))?;
                let [writer, first_epoch, last_epoch, end, data_bytes, s, n, pid, start] = numbers(rest)?;
                let (end, time) = (FileOffset(end), time(s, n)?);
                let published = Published { last_epoch, end, data_bytes, time };
                let holder = Holder { pid: u32::try_from(pid).ok()?, start, node: node[1..].to_owned() };
                // Epochs begin at 1.
                let published = Some(published).filter(|published| published.last_epoch > 0);
                MetaName::Open(Running { writer, first_epoch, holder, published })
            }
            "closed" => {
                // The boot is absent if it is unknown.
                let known = rest.matches('-').count() == 8;
                let rest = if known { rest.to_owned() } else { format!("{rest}-0") };
                let [writer, first_epoch, last_epoch, end, data_bytes, s, n, synced, boot] = numbers(&rest)?;
                let (time, is_synced) = (time(s, n)?, synced == 1);
                MetaName::Closed(Closed {
                    writer,
                    first_epoch,
                    last_epoch,
                    end: FileOffset(end),
                    data_bytes,
                    time,
                    is_synced,
                    boot,
                })
            }
            "cut" => {
                let [epoch, sequence, writer, size, s, n] = numbers(rest)?;
                MetaName::Truncation(Truncation {
                    order: Order { epoch, sequence, writer },
                    size,
                    time: time(s, n)?,
                })
            }
            "covers" => {
                let numbers: Vec<u64> = rest.split('-').map(hex).collect::<Option<_>>()?;
                let (truncation, logs) = numbers.split_first()?;
                let (logs, rest) = logs.as_chunks::<2>();
                if logs.is_empty() || logs.len() > COVERS_MAX || !rest.is_empty() {
                    return None;
                }
                let logs = logs.iter().map(|&[writer, bytes]| CoveredLog { writer, bytes }).collect();
                MetaName::Covers(Covers { truncation: *truncation, logs })
            }
            "time" => {
                let [epoch, sequence, writer, s, n] = numbers(rest)?;
                MetaName::Time(Order { epoch, sequence, writer }, time(s, n)?)
            }
            "failed" => {
                let [writer] = numbers(rest)?;
                MetaName::Failed(writer)
            }
            _ => return None,
        };
        // Only one spelling is accepted, so that the name can be reconstructed from its fields.
        (parsed.encode() == name).then_some(parsed)
    }
}

fn hex(field: &str) -> Option<u64> {
    u64::from_str_radix(field, 16).ok()
}

fn numbers<const N: usize>(fields: &str) -> Option<[u64; N]> {
    let numbers: Vec<u64> = fields.split('-').map(hex).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

fn time(seconds: u64, nanoseconds: u64) -> Option<Time> {
    let nanoseconds = u32::try_from(nanoseconds).ok().filter(|n| *n < 1_000_000_000)?;
    Some(Time { seconds: seconds as i64, nanoseconds })
}

/// All truncations of a file, and the part of each data log that they cover.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Truncations {
    /// Sorted by order.
    truncations: Vec<Truncation>,
    covers: Vec<Covers>,
    /// For each writer that was open in another mount during a truncation: the order of the
    /// truncation and the covered bytes of the writer's data log. Sorted by order.
    partial: HashMap<u64, Vec<(Order, u64)>>,
}

impl Truncations {
    fn new(mut truncations: Vec<Truncation>, mut covers: Vec<Covers>) -> Truncations {
        truncations.sort_by_key(|truncation| (truncation.order, truncation.size, truncation.time));
        truncations.dedup();
        covers.sort_unstable_by(|a, b| (a.truncation, &a.logs).cmp(&(b.truncation, &b.logs)));
        covers.dedup();
        let mut partial: HashMap<u64, Vec<(Order, u64)>> = HashMap::new();
        for truncation in &truncations {
            for log in covers_of(&covers, truncation.order.writer).iter().flat_map(|covers| &covers.logs) {
                partial.entry(log.writer).or_default().push((truncation.order, log.bytes));
            }
        }
        Truncations { truncations, covers, partial }
    }

    /// Returns the truncations, sorted by order.
    pub fn as_slice(&self) -> &[Truncation] {
        &self.truncations
    }

    pub fn last(&self) -> Option<&Truncation> {
        self.truncations.last()
    }

    /// Returns the order of a frame relative to truncations. A frame whose payload begins at or
    /// after the covered bytes of a truncation was written after this truncation and after all
    /// earlier truncations, regardless of the frame's epoch.
    fn order_of(&self, order: Order, payload_log_offset: u64) -> Order {
        let partial = self.partial.get(&order.writer).map_or(&[][..], |partial| partial);
        let before = partial.iter().rev().find(|(_, bytes)| *bytes <= payload_log_offset);
        before.map_or(order, |(truncation, _)| order.max(*truncation))
    }

    /// Returns the file offset at which truncations end a frame, or `FileOffset::MAX`.
    pub fn limit(&self, order: Order, payload_log_offset: u64) -> FileOffset {
        if self.truncations.is_empty() {
            return FileOffset::MAX;
        }
        let order = self.order_of(order, payload_log_offset);
        self.truncations
            .iter()
            .filter(|truncation| truncation.order > order)
            .map(|truncation| FileOffset(truncation.size))
            .min()
            .unwrap_or(FileOffset::MAX)
    }

    /// Returns the end of data that ended at `end`, after the truncations that are not in `known`.
    /// These truncations must cover all of this data.
    pub fn end_after(&self, end: FileOffset, known: &[u64]) -> FileOffset {
        self.truncations
            .iter()
            .filter(|truncation| !known.contains(&truncation.order.writer))
            .fold(end, |end, truncation| end.min(FileOffset(truncation.size)))
    }

    /// Returns the truncations that are not in `known`, each with the writers whose logs it covers
    /// in part.
    pub fn other_than(
        &self,
        known: &[u64],
    ) -> impl Iterator<Item = (&Truncation, impl Iterator<Item = &CoveredLog>)> {
        let others = self.truncations.iter().filter(|truncation| !known.contains(&truncation.order.writer));
        others.map(|truncation| {
            (
                truncation,
                covers_of(&self.covers, truncation.order.writer).iter().flat_map(|covers| &covers.logs),
            )
        })
    }

    /// Returns the numbers of all truncations.
    pub fn numbers(&self) -> Vec<u64> {
        self.truncations.iter().map(|truncation| truncation.order.writer).collect()
    }

    /// Returns true if the last truncation covers less than the first `bytes` of a writer's data
    /// log.
    fn leaves_some(&self, writer: u64, bytes: u64) -> bool {
        let last = self.partial.get(&writer).and_then(|partial| partial.last());
        last.is_some_and(|(truncation, covered)| {
            *covered < bytes && self.last().is_some_and(|last| last.order == *truncation)
        })
    }

    /// Returns true if a truncation to size 0 covers everything that an ended writer wrote.
    fn empties(&self, closed: &Closed) -> bool {
        let partial = self.partial.get(&closed.writer).map_or(&[][..], |partial| partial);
        self.truncations.iter().any(|truncation| {
            truncation.size == 0
                && closed.last_epoch < truncation.order.epoch
                && partial
                    .iter()
                    .all(|(order, bytes)| *order < truncation.order || *bytes >= closed.data_bytes)
        })
    }

    /// Returns true if the last truncation covers everything that an ended writer wrote.
    pub fn last_covers(&self, closed: &Closed) -> bool {
        self.last().is_some_and(|last| closed.last_epoch < last.order.epoch)
            && !self.leaves_some(closed.writer, closed.data_bytes)
    }
}

/// Returns the entries of one truncation in a sorted list.
fn covers_of(covers: &[Covers], truncation: u64) -> &[Covers] {
    let from = covers.partition_point(|covers| covers.truncation < truncation);
    let to = covers.partition_point(|covers| covers.truncation <= truncation);
    &covers[from..to]
}

/// The information in all names of a container's `meta`.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Writers that have not ended.
    pub open: Vec<Running>,
    pub closed: Vec<Closed>,
    pub truncations: Truncations,
    set_time: Option<(Order, Time)>,
    /// All modification times that were set, by order.
    set_times: Vec<(Order, Time)>,
    /// Writers whose data log had a failed sync, sorted.
    failed: Vec<u64>,
}

impl Summary {
    /// Summarizes the names. Invalid names are ignored, because `quell log fsck` reports them. A
    /// name may be given twice.
    pub fn from_names(names: impl IntoIterator<Item = Vec<u8>>) -> Summary {
        let mut summary = Summary::default();
        let (mut truncations, mut covers) = (Vec::new(), Vec::new());
        for name in names {
            match MetaName::decode(&name) {
                Some(MetaName::Open(running)) => summary.open.push(running),
                Some(MetaName::Closed(closed)) => summary.closed.push(closed),
                Some(MetaName::Truncation(truncation)) => truncations.push(truncation),
                Some(MetaName::Covers(covered)) => covers.push(covered),
                Some(MetaName::Time(order, time)) => {
                    summary.set_time = summary.set_time.max(Some((order, time)));
                    summary.set_times.push((order, time));
                }
                Some(MetaName::Failed(writer)) => summary.failed.push(writer),
                None => {}
            }
        }
        // If a name was changed while the directory was read, both the old and the new name may be
        // present. The new name gives more bytes, or is synced.
        summary.truncations = Truncations::new(truncations, covers);
        let Summary { open, closed, set_times, .. } = &mut summary;
        open.sort_by_key(|running| {
            (running.writer, std::cmp::Reverse(running.published.map(|published| published.data_bytes)))
        });
        open.dedup_by_key(|running| running.writer);
        closed.sort_by_key(|ended| (ended.writer, !ended.is_synced));
        closed.dedup_by_key(|ended| ended.writer);
        open.retain(|running| closed.binary_search_by_key(&running.writer, |ended| ended.writer).is_err());
        set_times.sort_unstable();
        set_times.dedup();
        summary.failed.sort_unstable();
        summary.failed.dedup();
        summary
    }

    /// Returns true if a sync of `writer`'s data log failed, and the log has not been rewritten and
    /// synced since.
    pub fn has_failed(&self, writer: u64) -> bool {
        self.failed.binary_search(&writer).is_ok()
    }

    /// Returns true if the file was truncated to size 0 after all writes of an ended writer: its
    /// logs hold no data of the file.
    pub fn is_dead(&self, closed: &Closed) -> bool {
        self.truncations.empties(closed)
    }

    /// Restricts the summary to the writers in share `number` of `shares`. Truncations and times
    /// are kept.
    pub fn part(mut self, number: usize, shares: usize) -> Summary {
        let closed = self.closed.iter().map(|closed| closed.writer);
        let mut writers: Vec<u64> = closed.chain(self.open.iter().map(|open| open.writer)).collect();
        writers.sort_unstable();
        let part = &writers[share_range(writers.len(), number, shares)];
        self.closed.retain(|closed| part.binary_search(&closed.writer).is_ok());
        self.open.retain(|open| part.binary_search(&open.writer).is_ok());
        self
    }

    pub fn last_truncation(&self) -> Option<&Truncation> {
        self.truncations.last()
    }

    /// Returns the size according to the names, and the writers whose index logs must be read to
    /// determine it.
    pub fn size(&self) -> (u64, Vec<u64>) {
        let mut unknown = Vec::new();
        let truncation_epoch = self.last_truncation().map_or(0, |truncation| truncation.order.epoch);
        let mut size = self.last_truncation().map_or(0, |truncation| truncation.size);
        let closed = self.closed.iter().map(|closed| {
            let Closed { writer, first_epoch, last_epoch, end, data_bytes, .. } = *closed;
            (writer, first_epoch, last_epoch, end, data_bytes)
        });
        let open = self.open.iter().filter_map(|running| {
            let Running { writer, first_epoch, published, .. } = *running;
            published.map(|published| {
                (writer, first_epoch, published.last_epoch, published.end, published.data_bytes)
            })
        });
        unknown.extend(self.open.iter().filter(|open| open.counts_all()).map(|open| open.writer));
        for (writer, first_epoch, last_epoch, end, data_bytes) in closed.chain(open) {
            if first_epoch > truncation_epoch {
                size = size.max(end.0);
            } else if last_epoch >= truncation_epoch || self.truncations.leaves_some(writer, data_bytes) {
                unknown.push(writer);
            }
        }
        (size, unknown)
    }

    /// Returns the modification time according to the names: the time that was set, unless a later
    /// epoch has written.
    pub fn modified(&self) -> Option<Time> {
        self.written().or(self.set_time.map(|(_, time)| time))
    }

    /// Returns the time of the last write in an epoch later than the epoch in which a modification
    /// time was last set.
    pub fn written(&self) -> Option<Time> {
        let set_epoch = self.set_time.map_or(0, |(order, _)| order.epoch);
        let closed = self.closed.iter().filter(|closed| closed.last_epoch > set_epoch);
        let published = self.open.iter().filter_map(|running| running.published);
        let published = published.filter(|published| published.last_epoch > set_epoch);
        let truncations =
            self.truncations.as_slice().iter().filter(|truncation| truncation.order.epoch > set_epoch);
        let written = closed.map(|closed| closed.time).chain(published.map(|published| published.time));
        written.chain(truncations.map(|truncation| truncation.time)).max()
    }

    /// Returns the names that have no effect any more once `new` exists.
    ///
    /// Of the times that were set, only the latest has an effect. An earlier truncation to at least
    /// the size of `new` removes only data that `new` removes, too: a frame that is earlier than
    /// this truncation is also earlier than `new`, and `limit` is the smallest of the sizes that
    /// apply. The earlier truncation does not affect the file's size, which depends on the last
    /// truncation, or the time of the last write, because `new` is later. A truncation with
    /// `covers` names stays as long as there is an earlier truncation, because data that it does
    /// not cover is later than the earlier truncation, too.
    pub fn superseded(&self, new: &MetaName) -> Vec<MetaName> {
        match new {
            MetaName::Time(order, _) => {
                let earlier = self.set_times.iter().filter(|(earlier, _)| earlier < order);
                earlier.map(|(order, time)| MetaName::Time(*order, *time)).collect()
            }
            MetaName::Truncation(new) => {
                let (mut names, mut is_any_left) = (Vec::new(), false);
                for truncation in
                    self.truncations.as_slice().iter().filter(|truncation| truncation.order < new.order)
                {
                    let covers = covers_of(&self.truncations.covers, truncation.order.writer);
                    if truncation.size < new.size || is_any_left && !covers.is_empty() {
                        is_any_left = true;
                        continue;
                    }
                    // The `cut` name comes first: without its `covers` names it would remove more
                    // than intended.
                    names.push(MetaName::Truncation(*truncation));
                    names.extend(covers.iter().cloned().map(MetaName::Covers));
                }
                names
            }
            MetaName::Open(_) | MetaName::Closed(_) | MetaName::Covers(_) | MetaName::Failed(_) => Vec::new(),
        }
    }

    /// Returns true if a writer is open that is not known to be dead.
    pub fn is_being_written(&self, is_gone: impl Fn(&Holder) -> bool) -> bool {
        self.open.iter().any(|running| !is_gone(&running.holder))
    }

    pub fn has_set_time(&self) -> bool {
        self.set_time.is_some()
    }

    /// Returns true if a modification time was set that takes precedence over writes in `epoch`.
    pub fn set_after(&self, epoch: u64) -> bool {
        self.set_time.is_some_and(|(order, _)| order.epoch >= epoch)
    }

    /// Returns the size of the data logs of all ended writers.
    pub fn data_bytes(&self) -> u64 {
        self.closed.iter().fold(0, |sum, closed| sum.saturating_add(closed.data_bytes))
    }

    /// Returns the largest epoch in the names.
    pub fn epoch(&self) -> u64 {
        self.epoch_of(&|_| true)
    }

    /// Returns the largest epoch of the writers for which `counts` is true, and of truncations and
    /// times.
    pub fn epoch_of(&self, counts: &dyn Fn(u64) -> bool) -> u64 {
        let open = self.open.iter().filter(|running| counts(running.writer));
        let open = open
            .map(|running| running.published.map_or(running.first_epoch, |published| published.last_epoch));
        let closed =
            self.closed.iter().filter(|closed| counts(closed.writer)).map(|closed| closed.last_epoch);
        let truncations = self.truncations.as_slice().iter().map(|truncation| truncation.order.epoch);
        let set = self.set_time.iter().map(|(order, _)| order.epoch);
        open.chain(closed).chain(truncations).chain(set).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Time = Time { seconds: -5, nanoseconds: 999_999_999 };

    fn order(epoch: u64, sequence: u64) -> Order {
        Order { epoch, sequence, writer: 7 }
    }

    fn closed(writer: u64, first_epoch: u64, last_epoch: u64, end: u64, seconds: i64) -> MetaName {
        let time = Time { seconds, nanoseconds: 0 };
        MetaName::Closed(Closed { first_epoch, last_epoch, time, ..closed_of(writer, end) })
    }

    fn closed_of(writer: u64, end: u64) -> Closed {
        let (first_epoch, last_epoch, time) = (1, 1, TIME);
        let is_synced = writer.is_multiple_of(2);
        let boot = if writer > 2 { u64::MAX } else { 0 };
        Closed {
            writer,
            first_epoch,
            last_epoch,
            end: FileOffset(end),
            data_bytes: 10,
            time,
            is_synced,
            boot,
        }
    }

    #[test]
    fn the_boot_of_a_node_does_not_depend_on_namespaces() {
        let boot = boot_of("0123456789abcdef0123456789abcdef-f0000001-0.node-1");
        for same in ["-f0000002-7.node-1", ".node-1", "-0-0.other.net", ""] {
            assert_eq!(boot_of(&format!("0123456789abcdef0123456789abcdef{same}")), boot, "{same}");
        }
        assert_ne!(boot_of("1123456789abcdef0123456789abcdef-f0000001-0.node-1"), boot);
    }

    fn summary(names: &[MetaName]) -> Summary {
        Summary::from_names(names.iter().map(|name| name.encode().into_bytes()))
    }

    #[test]
    fn names_round_trip() {
        let node = "b0-_.oot-node-7".to_owned();
        let holder = Holder { pid: 4321, start: 99, node };
        let published =
            Published { last_epoch: u64::MAX, end: FileOffset::MAX, data_bytes: u64::MAX, time: TIME };
        let running = Running { writer: u64::MAX, first_epoch: 3, holder, published: None };
        let long = Holder { pid: u32::MAX, start: u64::MAX, node: "n".repeat(NODE_BYTES_MAX) };
        let covered = |writer, bytes| CoveredLog { writer, bytes };
        for name in [
            MetaName::Open(Running {
                first_epoch: u64::MAX,
                holder: long,
                published: Some(published),
                ..running.clone()
            }),
            MetaName::Open(running),
            closed(17, 1, 2, u64::MAX, 12),
            closed(2, 1, 2, u64::MAX, 12),
            MetaName::Failed(u64::MAX),
            MetaName::Truncation(Truncation { order: order(4, 5), size: 0, time: TIME }),
            MetaName::Covers(Covers { truncation: 9, logs: vec![covered(3, 0), covered(u64::MAX, 64)] }),
            MetaName::Covers(Covers {
                truncation: u64::MAX,
                logs: vec![covered(u64::MAX, u64::MAX); COVERS_MAX],
            }),
            MetaName::Time(order(1, 2), TIME),
        ] {
            let encoded = name.encode();
            assert!(encoded.len() <= 255, "{}", encoded.len());
            assert_eq!(MetaName::decode(encoded.as_bytes()), Some(name), "{encoded}");
        }
    }

    #[test]
    fn unknown_names_are_ignored() {
        for bad in [
            "",
            "open",
            "cut-1-2",
            "time-1-2-0000000000000007-0-3b9aca00",
            "time-01-2-0000000000000007-0-0",
            "time-+1-2-0000000000000007-0-0",
            "cut-1-2-7-0-0-0",
            "covers-0000000000000007",
            "covers-0000000000000007-0000000000000001",
            "covers-7-0000000000000001-40",
            "open-0000000000000007-1-0-5-0-0-0-1-1-node",
            "open-0000000000000007-1-1-5-0-0-0-1-1",
            "closed-0000000000000007-1-1-5-0-0-0",
            "closed-0000000000000007-1-1-5-0-0-0-1-0",
            "closed-0000000000000007-1-1-5-0-0-0-1-5-5",
            "failed-7",
        ] {
            assert_eq!(MetaName::decode(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn the_size_is_that_of_the_last_truncation_and_of_later_writes() {
        let truncation =
            |epoch, size| MetaName::Truncation(Truncation { order: order(epoch, 0), size, time: TIME });
        assert_eq!(summary(&[closed(1, 1, 1, 50, 0), closed(2, 1, 1, 70, 0)]).size(), (70, vec![]));
        assert_eq!(summary(&[closed(1, 1, 1, 50, 0), truncation(2, 10)]).size(), (10, vec![]));
        assert_eq!(
            summary(&[closed(1, 1, 1, 50, 0), truncation(2, 10), closed(2, 3, 3, 20, 0)]).size(),
            (20, vec![])
        );
        // The name does not show whether the write came before or after the truncation.
        assert_eq!(summary(&[closed(1, 1, 2, 50, 0), truncation(2, 10)]).size(), (10, vec![1]));
        assert_eq!(summary(&[truncation(2, 10), truncation(3, 5)]).size(), (5, vec![]));
    }

    #[test]
    fn a_truncation_keeps_later_data_of_writers_of_other_mounts() {
        let truncation = |epoch, writer, size| {
            MetaName::Truncation(Truncation { order: Order { epoch, sequence: 1, writer }, size, time: TIME })
        };
        let covers = |truncation, writer, bytes| {
            MetaName::Covers(Covers { truncation, logs: vec![CoveredLog { writer, bytes }] })
        };
        // The first truncation read the log's size after the second one did: data written between
        // the two reads is later than both truncations.
        let names = [
            truncation(10, 1, 0),
            covers(1, 7, 900),
            truncation(12, 2, 50),
            covers(2, 7, 500),
            covers(3, 7, 0),
        ];
        let truncations = summary(&names).truncations;
        let frame = |epoch, log_offset| truncations.limit(order(epoch, 0), log_offset);
        assert_eq!((frame(3, 100), frame(3, 499)), (FileOffset(0), FileOffset(0)));
        assert_eq!((frame(3, 500), frame(3, 950)), (FileOffset::MAX, FileOffset::MAX));
        assert_eq!((frame(11, 100), frame(13, 100)), (FileOffset(50), FileOffset::MAX));
        let of_another = Order { writer: 8, ..order(3, 0) };
        assert_eq!(truncations.limit(of_another, 950), FileOffset(0));
        // Without its own `covers` names a truncation has the same effect, as long as the later one
        // exists.
        let lost = summary(&[truncation(10, 1, 0), truncation(12, 2, 50), covers(2, 7, 500)]).truncations;
        assert_eq!(
            (lost.limit(order(3, 0), 499), lost.limit(order(3, 0), 500)),
            (FileOffset(0), FileOffset::MAX)
        );
    }

    #[test]
    fn the_size_depends_on_the_logs_of_writers_that_wrote_after_a_truncation() {
        let truncation = MetaName::Truncation(Truncation {
            order: Order { epoch: 9, sequence: 0, writer: 1 },
            size: 0,
            time: TIME,
        });
        let covers =
            |bytes| MetaName::Covers(Covers { truncation: 1, logs: vec![CoveredLog { writer: 4, bytes }] });
        let ended = Closed { data_bytes: 500, ..closed_of(4, 70) };
        for (bytes, unknown) in [(499, vec![4]), (500, vec![])] {
            let all = summary(&[MetaName::Closed(ended), truncation.clone(), covers(bytes)]);
            assert_eq!(all.truncations.last_covers(&ended), unknown.is_empty());
            assert_eq!(all.size(), (0, unknown));
        }
    }

    #[test]
    fn a_truncation_with_covers_names_is_superseded_together_with_them() {
        let truncation = |epoch, writer, size| {
            MetaName::Truncation(Truncation { order: Order { epoch, sequence: 1, writer }, size, time: TIME })
        };
        let covers = |truncation| {
            MetaName::Covers(Covers { truncation, logs: vec![CoveredLog { writer: 7, bytes: 100 }] })
        };
        let all = [
            truncation(2, 1, 10),
            covers(1),
            truncation(4, 2, 20),
            covers(2),
            truncation(6, 3, 15),
            truncation(8, 4, 0),
        ];
        let gone = |new: usize| summary(&all[..=new]).superseded(&all[new]);
        assert_eq!(
            gone(5),
            [truncation(2, 1, 10), covers(1), truncation(4, 2, 20), covers(2), truncation(6, 3, 15)]
        );
        assert_eq!(gone(4), []);
    }

    #[test]
    fn a_writer_with_an_old_and_a_new_name_is_counted_once() {
        let holder = Holder { pid: 1, start: 1, node: "node".to_owned() };
        let begun = Running { writer: 3, first_epoch: 1, holder, published: None };
        let published =
            |end| Some(Published { last_epoch: 1, end: FileOffset(end), data_bytes: end, time: TIME });
        let open = |published| MetaName::Open(Running { published, ..begun.clone() });
        let names = [open(published(70)), open(None), open(published(90)), open(published(90))];
        let all = summary(&names);
        assert_eq!((all.open.len(), all.size()), (1, (90, vec![])));
        let unsynced = Closed { is_synced: false, ..closed_of(2, 50) };
        let ended = [unsynced, closed_of(2, 50), closed_of(3, 95)].map(MetaName::Closed);
        let all = summary(&[&names[..], &ended].concat());
        assert_eq!(
            (all.open.len(), all.closed.len(), all.size(), all.data_bytes()),
            (0, 2, (95, vec![]), 20)
        );
        assert!(all.closed[0].is_synced);
    }

    #[test]
    fn a_modification_time_that_was_set_is_valid_until_the_next_write() {
        let set = MetaName::Time(order(2, 0), TIME);
        assert_eq!(summary(&[closed(1, 1, 1, 1, 50)]).modified().unwrap().seconds, 50);
        assert_eq!(summary(&[closed(1, 1, 2, 1, 50), set.clone()]).modified(), Some(TIME));
        assert_eq!(summary(&[closed(1, 1, 3, 1, 50), set]).modified().unwrap().seconds, 50);
        assert_eq!(summary(&[]).modified(), None);
    }

    #[test]
    fn superseded_names_can_be_removed_without_effect() {
        let mut random = quell_testkit::Random::new(19);
        for _ in 0..300 {
            let mut names = Vec::new();
            let mut sequence = random.below(997) as u64;
            let mut order = || {
                sequence = (sequence + 389) % 997; // a permutation: no value occurs twice
                order(1 + random.below(6) as u64, sequence)
            };
            for _ in 0..6 {
                names.push(MetaName::Time(order(), TIME));
                let at = order();
                names.push(MetaName::Truncation(Truncation { order: at, size: at.sequence % 5, time: TIME }));
            }
            let all = summary(&names);
            for new in names.clone() {
                let gone = all.superseded(&new);
                assert!(!gone.contains(&new));
                names.retain(|name| !gone.contains(name));
            }
            let left = summary(&names);
            assert_eq!(left.set_times.len(), 1);
            assert!(left.truncations.as_slice().is_sorted_by(|a, b| a.size < b.size));
            assert_eq!((left.size(), left.epoch()), (all.size(), all.epoch()));
            assert_eq!((left.modified(), left.written()), (all.modified(), all.written()));
            for epoch in 0..8 {
                for sequence in (0..1000).step_by(7) {
                    let at = Order { epoch, sequence, writer: 7 };
                    assert_eq!(left.truncations.limit(at, 0), all.truncations.limit(at, 0));
                }
            }
        }
    }

    #[test]
    fn frames_before_a_truncation_end_at_its_size() {
        let truncation = |epoch, size| Truncation { order: order(epoch, 0), size, time: TIME };
        let truncations = Truncations::new(vec![truncation(2, 10), truncation(4, 100)], Vec::new());
        assert_eq!(truncations.limit(order(1, 0), 0), FileOffset(10));
        assert_eq!(truncations.limit(order(3, 0), 0), FileOffset(100));
        assert_eq!(truncations.limit(order(5, 0), 0), FileOffset::MAX);
    }
}
