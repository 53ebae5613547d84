//! The sequencer of an open file: gives each frame of this node its order, and records the ranges
//! that this node's writers have collected and not yet written. Pure functions on values, no I/O;
//! the caller takes epochs in the container and reports them here.

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::{FileOffset, Order, Run, Summary};
use crate::session::collected::Collected;
use crate::session::writer::Writer;

/// A number that no writer has.
const NO_WRITER: u64 = 0;

/// The state of the sequencer when a thread begins to take a later epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EpochRequest {
    /// The largest epoch that this node uses or has seen.
    pub known: u64,
    /// Data of another node has this epoch or a later one.
    is_behind: bool,
    stale_marks: u64,
}

/// A range that a writer collects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    start: FileOffset,
    pub end: FileOffset,
    /// The end of the file before the claim.
    end_before: FileOffset,
}

/// The order of this node's frames, and the data that is not yet in frames.
pub(crate) struct Sequencer {
    /// 0 if no epoch was taken yet.
    epoch: u64,
    sequence: u64,
    /// Data was synced, or newer data was seen: the next write needs a later epoch.
    is_stale: bool,
    /// The number of times that `is_stale` was set.
    stale_marks: u64,
    /// The largest epoch of other nodes' data that was seen. Epochs before `epoch` are not
    /// recorded.
    seen: u64,
    /// The end of the file as this node knows it, and whether it includes the writes of other
    /// nodes.
    end: FileOffset,
    is_end_known: bool,
    /// The last truncation by any node that `end` includes.
    last_truncation: Option<Order>,
    /// The last truncation by this node.
    own_truncation: Option<Order>,
    /// The writers of this node, and whether there were ever several at the same time. While there
    /// is only one, the ranges that it collects are not recorded.
    writers: HashMap<u64, Arc<Writer>>,
    are_several: bool,
    /// The collected ranges.
    collected: Collected,
    /// Writers that may have data that was collected before there were several writers, so that
    /// `collected` lacks the ranges of this data.
    unrecorded: Vec<Arc<Writer>>,
    /// The writers of this node with logs, and the sizes of their data logs.
    own_data_bytes: HashMap<u64, u64>,
}

impl Sequencer {
    /// Creates the sequencer of a file. `epoch` is the epoch that this node has taken, or 0.
    pub fn new(epoch: u64) -> Sequencer {
        Sequencer {
            epoch,
            sequence: 0,
            is_stale: false,
            stale_marks: 0,
            seen: 0,
            end: FileOffset::ZERO,
            is_end_known: false,
            last_truncation: None,
            own_truncation: None,
            writers: HashMap::new(),
            are_several: false,
            collected: Collected::default(),
            unrecorded: Vec::new(),
            own_data_bytes: HashMap::new(),
        }
    }

    // Writers.

    /// Returns the writers of this node.
    pub fn writers(&self) -> Vec<Arc<Writer>> {
        self.writers.values().cloned().collect()
    }

    /// Adds a writer. It must not write before the data of the [`unrecorded`](Self::unrecorded)
    /// writers is in frames.
    pub fn add_writer(&mut self, writer: &Arc<Writer>) {
        // From now on all writers record the ranges that they collect.
        if !self.are_several && !self.writers.is_empty() {
            (self.are_several, self.unrecorded) = (true, self.writers());
        }
        self.writers.insert(writer.id(), Arc::clone(writer));
        self.own_data_bytes.entry(writer.id()).or_default();
    }

    /// Returns the writers, other than `writer`, that may have collected data without a record.
    pub fn unrecorded(&self, writer: u64) -> Vec<Arc<Writer>> {
        self.unrecorded.iter().filter(|other| other.id() != writer).cloned().collect()
    }

    /// Records that all data that `writer` has collected without a record is in frames.
    pub fn mark_recorded(&mut self, writer: u64) {
        self.unrecorded.retain(|other| other.id() != writer);
    }

    /// Removes a writer that has ended.
    pub fn remove_writer(&mut self, writer: u64) {
        self.writers.remove(&writer);
        self.mark_recorded(writer);
        self.collected.forget(writer);
    }

    /// Changes the number of a writer that has collected nothing, because its log has ended.
    pub fn renumber(&mut self, before: u64, after: u64) {
        if let Some(writer) = self.writers.remove(&before) {
            self.writers.insert(after, writer);
        }
        self.collected.forget(before);
        self.own_data_bytes.entry(after).or_default();
    }

    /// Returns true if `collected` has the ranges of all collected data.
    fn is_collected_complete(&self) -> bool {
        self.are_several && self.unrecorded.is_empty()
    }

    /// Returns the number of bytes that a writer of this node has written to its data log, or
    /// `None` for a writer of another node.
    pub fn own_data_bytes(&self, writer: u64) -> Option<u64> {
        self.own_data_bytes.get(&writer).copied()
    }

    fn is_foreign(&self, writer: u64) -> bool {
        !self.own_data_bytes.contains_key(&writer)
    }

    // Epochs.

    /// Requires a later epoch for the next write.
    pub fn mark_stale(&mut self) {
        self.is_stale = true;
        self.stale_marks += 1;
    }

    /// Requires a later epoch for the next write, unless nothing was written yet.
    pub fn mark_opened(&mut self) {
        if self.sequence > 0 {
            self.mark_stale();
        }
    }

    /// Requires later writes to have a later epoch than data of other nodes with this epoch.
    pub fn mark_seen(&mut self, epoch: u64) {
        if epoch >= self.epoch {
            self.seen = self.seen.max(epoch);
            self.mark_stale();
        }
    }

    /// Returns the largest epoch of other nodes' writers in `summary`.
    pub fn foreign_epoch(&self, summary: &Summary) -> u64 {
        summary.epoch_of(&|writer| self.is_foreign(writer))
    }

    /// Returns a request if the next write needs a later epoch. The first epoch is taken with the
    /// first frame.
    pub fn epoch_request(&self) -> Option<EpochRequest> {
        (self.epoch > 0 && self.is_stale).then(|| self.any_epoch_request())
    }

    /// Returns a request for epochs that are later than all others.
    pub fn any_epoch_request(&self) -> EpochRequest {
        EpochRequest {
            known: self.seen.max(self.epoch),
            is_behind: self.seen >= self.epoch,
            stale_marks: self.stale_marks,
        }
    }

    /// Returns true if no other node can have written since the current epoch was taken, so that
    /// the next write needs no later epoch. A node that opened the file later has a larger epoch. A
    /// node that opened it at the same time may have the same epoch, and an open writer may have
    /// synced in this node's epoch.
    pub fn is_alone(&self, request: &EpochRequest, summary: &Summary) -> bool {
        !request.is_behind
            && self.foreign_epoch(summary) < self.epoch
            && !summary.open.iter().any(|running| self.is_foreign(running.writer))
    }

    /// Ends a request: the next write has a later epoch than everything before the request. `taken`
    /// is the new epoch, or `None` if none is needed.
    pub fn end_request(&mut self, request: &EpochRequest, taken: Option<u64>) {
        if let Some(epoch) = taken {
            self.epoch = self.epoch.max(epoch);
            self.is_end_known = false;
        }
        // If the numbers differ, data was synced or seen meanwhile, and the write after this one
        // needs a later epoch.
        if self.stale_marks == request.stale_marks {
            self.is_stale = false;
        }
    }

    /// Ends a request for two epochs, of which `epoch` is the later one. Returns an order that is
    /// later than all frames before the request, and earlier than all later frames. `number` is a
    /// random number for the order.
    pub fn end_request_with_order(&mut self, request: &EpochRequest, epoch: u64, number: u64) -> Order {
        self.end_request(request, Some(epoch));
        self.sequence += 1;
        self.own_data_bytes.entry(number).or_default();
        Order { epoch: epoch - 1, sequence: self.sequence, writer: number }
    }

    /// Returns the epoch of this node, 0 for none, and the largest epoch of others that was seen.
    pub fn known_epochs(&self) -> (u64, u64) {
        (self.epoch, self.seen)
    }

    /// Records the epoch of a writer's first frame. `known` is the epoch of this node when the
    /// epoch was looked up.
    pub fn begin_writer(&mut self, epoch: u64, known: u64) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.is_stale &= self.seen >= epoch;
            self.is_end_known &= known == 0;
        }
    }

    /// Returns the order of a frame that is written now.
    pub fn next_order(&mut self, writer: u64) -> Order {
        self.sequence += 1;
        self.own_data_bytes.entry(writer).or_default();
        Order { epoch: self.epoch, sequence: self.sequence, writer }
    }

    /// Records the size of a data log after a frame was written.
    pub fn written(&mut self, writer: u64, data_bytes: u64) {
        self.own_data_bytes.insert(writer, data_bytes);
    }

    // Collected data, and the end of the file.

    /// Marks `start..end` as collected by `writer`.
    ///
    /// # Errors
    ///
    /// The other writers that have collected a part of the range. The caller must flush them first.
    pub fn claim(
        &mut self,
        writer: u64,
        start: FileOffset,
        end: FileOffset,
    ) -> Result<Claim, Vec<Arc<Writer>>> {
        let rivals = self.collected.rivals(writer, start, end);
        if !rivals.is_empty() {
            return Err(self.known_writers(&rivals));
        }
        let claim = Claim { start, end, end_before: self.end };
        self.end = self.end.max(end);
        if self.are_several {
            self.collected.add(writer, start, end);
        }
        Ok(claim)
    }

    /// Withdraws a claim after the data could not be collected. `written_end` is the end of the
    /// writer's other data. Ranges outside of the claim stay.
    ///
    /// Only a write that needs a frame of its own, or the first one in a buffer, can fail, so the
    /// claim contains no data of an earlier write.
    pub fn withdraw_claim(&mut self, writer: u64, claim: &Claim, written_end: FileOffset) {
        self.collected.remove_range(writer, claim.start, claim.end);
        // The next append begins at the end of the file without this write, unless another write
        // came later.
        if self.end == claim.end {
            self.end = claim.end_before.max(written_end);
        }
    }

    /// Removes the ranges of a frame that was written.
    pub fn flushed(&mut self, writer: u64, runs: &[Run]) {
        self.collected.remove(writer, runs);
    }

    /// Returns the writers that may have collected a part of `start..end`.
    pub fn writers_with(&self, start: FileOffset, end: FileOffset) -> Vec<Arc<Writer>> {
        match self.is_collected_complete() {
            true => self.known_writers(&self.collected.rivals(NO_WRITER, start, end)),
            false => self.writers(),
        }
    }

    fn known_writers(&self, numbers: &[u64]) -> Vec<Arc<Writer>> {
        numbers.iter().filter_map(|number| self.writers.get(number).cloned()).collect()
    }

    /// Returns the end of the collected data, or `None` if only the writers know it.
    pub fn collected_end(&self) -> Option<FileOffset> {
        self.is_collected_complete().then(|| self.collected.end())
    }

    /// Returns true if the end of the file includes the writes of other nodes.
    pub fn is_end_known(&self) -> bool {
        self.is_end_known
    }

    /// Sets the end of the file from the names in `meta`. The end includes concurrent appends of
    /// this node, unless another node has truncated the file.
    pub fn set_end(&mut self, size: u64, last_truncation: Option<Order>) {
        let own_end = if last_truncation == self.last_truncation { self.end } else { FileOffset::ZERO };
        self.end = own_end.max(FileOffset(size));
        (self.is_end_known, self.last_truncation) = (true, last_truncation);
    }

    /// Returns the end of the file, at which an append begins.
    pub fn end(&self) -> FileOffset {
        self.end
    }

    /// Moves the end of the file from `before` to `after`, unless another write has moved it.
    pub fn move_end(&mut self, before: FileOffset, after: FileOffset) {
        if self.end == before {
            self.end = after;
        }
    }

    /// Returns the last truncation by this node.
    pub fn own_truncation(&self) -> Option<Order> {
        self.own_truncation
    }

    /// Records a truncation by this node, and the end of the file after it.
    pub fn truncated(&mut self, order: Order, end: FileOffset) {
        (self.end, self.is_end_known) = (end, false);
        (self.own_truncation, self.last_truncation) = (Some(order), Some(order));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(sequencer: &Sequencer, names: &[&str]) -> bool {
        let summary = Summary::from_names(names.iter().map(|name| name.as_bytes().to_vec()));
        sequencer.is_alone(&sequencer.any_epoch_request(), &summary)
    }

    #[test]
    fn frames_are_numbered_within_an_epoch() {
        let mut sequencer = Sequencer::new(1);
        let (first, second) = (sequencer.next_order(7), sequencer.next_order(8));
        assert!(first < second);
        assert_eq!((first.epoch, second.epoch), (1, 1));
    }

    #[test]
    fn data_that_was_seen_or_synced_requires_a_later_epoch() {
        let mut sequencer = Sequencer::new(3);
        sequencer.mark_opened();
        assert!(sequencer.epoch_request().is_none(), "nothing was written");
        sequencer.mark_seen(2);
        assert!(sequencer.epoch_request().is_none(), "the data is earlier");
        sequencer.mark_seen(5);
        let request = sequencer.epoch_request().unwrap();
        assert_eq!(request.known, 5);
        sequencer.end_request(&request, Some(6));
        assert!(sequencer.epoch_request().is_none());
        assert_eq!(sequencer.next_order(7).epoch, 6);
    }

    #[test]
    fn a_mark_during_a_request_is_kept_for_the_next_write() {
        let mut sequencer = Sequencer::new(3);
        sequencer.mark_stale();
        let request = sequencer.epoch_request().unwrap();
        sequencer.mark_seen(9);
        sequencer.end_request(&request, Some(4));
        assert_eq!(sequencer.epoch_request().unwrap().known, 9);
    }

    #[test]
    fn an_order_for_a_truncation_is_between_earlier_and_later_frames() {
        let mut sequencer = Sequencer::new(3);
        let before = sequencer.next_order(7);
        let request = sequencer.any_epoch_request();
        let order = sequencer.end_request_with_order(&request, request.known + 2, 1);
        assert!(before < order && order < sequencer.next_order(7));
    }

    #[test]
    fn a_node_is_alone_if_no_other_node_can_have_written_in_its_epoch() {
        let mut sequencer = Sequencer::new(3);
        let closed = |writer, epoch: u64| format!("closed-{writer:016x}-{epoch:x}-{epoch:x}-a-a-1-0-1");
        sequencer.next_order(7);
        assert!(alone(&sequencer, &[]));
        assert!(alone(&sequencer, &[&closed(7, 3), &closed(9, 2)]));
        assert!(!alone(&sequencer, &[&closed(9, 3)]), "a writer of the same epoch");
        assert!(!alone(&sequencer, &["open-0000000000000009-1-0-0-0-0-0-1-1-node"]), "an open writer");
        sequencer.mark_seen(3);
        assert!(!alone(&sequencer, &[]), "data of the same epoch was seen");
    }
}
