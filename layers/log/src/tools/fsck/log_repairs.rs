//! Decides from the results of `log_check` which problems the logs of one writer have, and which
//! repairs lose no data. Pure functions.

use std::ops::{Range, RangeInclusive};

use crate::format::{Closed, FileOffset, HEAD_BYTES, PayloadOffset, Running};

/// The state of a writer according to the names in `meta`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriterState {
    Open {
        running: Running,
        is_dead: bool,
    },
    Closed(Closed),
    /// There are logs, but no name refers to them.
    Orphan,
}

impl WriterState {
    /// Returns true if no process writes to the logs any more.
    pub fn has_ended(&self) -> bool {
        matches!(self, WriterState::Closed(_) | WriterState::Open { is_dead: true, .. })
    }
}

/// The result of reading a data log from beginning to end, next to its index log.
#[derive(Debug, Clone)]
pub struct FrameScan {
    /// Log offset and payload offset of the end of the frames that are part of the file.
    pub log_offset: u64,
    pub payload_offset: PayloadOffset,
    /// First and last epoch of these frames.
    pub epochs: Option<RangeInclusive<u64>>,
    /// The largest end of their extents in the file.
    pub file_end: FileOffset,
    /// A frame without a batch is incomplete, although other frames follow.
    pub has_damaged_frame: bool,
    /// The index log contradicts the data log.
    pub differs_from_index: bool,
    /// Headers of frames are damaged, and the index log has copies.
    pub has_damaged_header: bool,
    /// The index log describes more frames than the data log has.
    pub ends_before_index: bool,
    /// Frames that were synced are missing.
    pub lacks_synced: bool,
    /// A complete frame follows bytes that are not a frame.
    pub has_frame_after_end: bool,
}

impl Default for FrameScan {
    fn default() -> FrameScan {
        FrameScan {
            log_offset: HEAD_BYTES as u64,
            payload_offset: PayloadOffset::ZERO,
            epochs: None,
            file_end: FileOffset::ZERO,
            has_damaged_frame: false,
            differs_from_index: false,
            has_damaged_header: false,
            ends_before_index: false,
            lacks_synced: false,
            has_frame_after_end: false,
        }
    }
}

/// The state of an index log.
#[derive(Debug, Clone, Copy, Default)]
pub struct IndexScan {
    pub exists: bool,
    pub is_damaged: bool,
    /// The payload offset up to which its batches describe the data log.
    pub payload_offset: PayloadOffset,
}

/// The problems of a writer's logs that concern more than single bytes, and the possible repairs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogRepairs {
    /// Number of bytes after the last complete frame, if they may be removed.
    pub torn_bytes: Option<u64>,
    /// Number of bytes that the data log lacks according to the `closed` name.
    pub missing_bytes: Option<u64>,
    /// The log offsets of bytes that are not frames, although frames follow.
    pub unreadable: Option<Range<u64>>,
    /// The defect of the index log, as text to be appended to its name.
    pub index_defect: Option<&'static str>,
    /// The index log can be created again from the data log.
    pub can_rebuild_index: bool,
    /// The `closed` name can be derived from the data log.
    pub can_close: bool,
    pub closed_name_is_wrong: bool,
}

const DIFFERS: &str = "differs from the data log";

/// Decides which defects the logs of one writer have, and which can be repaired. `data_bytes` is
/// the size of the data log; `is_truncated` is true if the file was truncated at any time.
pub fn decide_repairs(
    state: &WriterState,
    frames: &FrameScan,
    index: &IndexScan,
    data_bytes: u64,
    is_truncated: bool,
) -> LogRepairs {
    let mut repairs = LogRepairs {
        unreadable: frames.has_frame_after_end.then_some(frames.log_offset..data_bytes),
        ..LogRepairs::default()
    };
    if !state.has_ended() {
        // A batch describes complete frames only, also while the writer appends.
        repairs.index_defect = frames.differs_from_index.then_some(DIFFERS);
        return repairs;
    }
    let has_damage_inside = frames.has_damaged_frame || frames.has_frame_after_end;
    let mut is_readable = !has_damage_inside && !frames.has_damaged_header && !frames.lacks_synced;
    if let WriterState::Closed(closed) = state {
        if frames.log_offset < closed.data_bytes {
            repairs.missing_bytes = Some(closed.data_bytes - frames.log_offset);
            is_readable = false;
        } else if is_readable {
            repairs.closed_name_is_wrong = frames.epochs != Some(closed.first_epoch..=closed.last_epoch)
                || closed.data_bytes != frames.log_offset
                // The name may have a larger end than the log, if data was lost before it was
                // synced.
                || !is_truncated && closed.end < frames.file_end;
        }
    }
    (repairs.can_rebuild_index, repairs.can_close) = (is_readable, is_readable);
    let keeps_tail = has_damage_inside || frames.lacks_synced || repairs.missing_bytes.is_some();
    if frames.log_offset < data_bytes && !keeps_tail {
        repairs.torn_bytes = Some(data_bytes - frames.log_offset);
    }
    repairs.index_defect = index_defect(frames, index);
    repairs
}

fn index_defect(frames: &FrameScan, index: &IndexScan) -> Option<&'static str> {
    if frames.differs_from_index {
        Some(DIFFERS)
    } else if !index.exists {
        (frames.payload_offset > PayloadOffset::ZERO).then_some("is missing")
    } else if index.is_damaged {
        Some("is damaged")
    } else if index.payload_offset < frames.payload_offset {
        Some("ends before the data log, so that readers must read its frames")
    } else if index.payload_offset > frames.payload_offset && !frames.lacks_synced {
        Some("describes more than the data log has")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use quell_vfs::Time;

    use super::*;
    use crate::format::Holder;

    const CLOSED: Closed = Closed {
        writer: 1,
        first_epoch: 2,
        last_epoch: 3,
        end: FileOffset(900),
        data_bytes: 1000,
        time: Time { seconds: 0, nanoseconds: 0 },
        is_synced: true,
        boot: 7,
    };

    fn dead() -> WriterState {
        let holder = Holder { pid: 1, start: 1, node: "boot.node".to_owned() };
        let running = Running { writer: 1, first_epoch: 2, holder, published: None };
        WriterState::Open { running, is_dead: true }
    }

    fn frames() -> FrameScan {
        FrameScan {
            log_offset: 1000,
            payload_offset: PayloadOffset(800),
            epochs: Some(2..=3),
            file_end: FileOffset(900),
            ..FrameScan::default()
        }
    }

    const INDEX: IndexScan =
        IndexScan { exists: true, is_damaged: false, payload_offset: PayloadOffset(800) };
    const SOUND: LogRepairs = LogRepairs {
        torn_bytes: None,
        missing_bytes: None,
        unreadable: None,
        index_defect: None,
        can_rebuild_index: true,
        can_close: true,
        closed_name_is_wrong: false,
    };
    const UNREPAIRABLE: LogRepairs = LogRepairs { can_rebuild_index: false, can_close: false, ..SOUND };

    #[test]
    fn sound_logs_have_no_problem() {
        for state in [WriterState::Closed(CLOSED), dead()] {
            assert_eq!(decide_repairs(&state, &frames(), &INDEX, 1000, false), SOUND);
        }
    }

    #[test]
    fn only_the_logs_of_ended_writers_are_repaired() {
        let WriterState::Open { running, .. } = dead() else { unreachable!() };
        let alive = WriterState::Open { running, is_dead: false };
        let behind = IndexScan { payload_offset: PayloadOffset(100), ..INDEX };
        assert_eq!(decide_repairs(&alive, &frames(), &behind, 2000, false), LogRepairs::default());
        let different = FrameScan { differs_from_index: true, ..frames() };
        let repairs = decide_repairs(&alive, &different, &INDEX, 1000, false);
        assert_eq!((repairs.index_defect, repairs.can_rebuild_index), (Some(DIFFERS), false));
    }

    #[test]
    fn each_defect_of_an_index_log_is_named() {
        let state = WriterState::Closed(CLOSED);
        for (index, defect) in [
            (IndexScan { exists: false, is_damaged: false, payload_offset: PayloadOffset(0) }, "is missing"),
            (IndexScan { is_damaged: true, ..INDEX }, "is damaged"),
            (IndexScan { payload_offset: PayloadOffset(700), ..INDEX }, "ends before"),
            (IndexScan { payload_offset: PayloadOffset(801), ..INDEX }, "describes more"),
        ] {
            let repairs = decide_repairs(&state, &frames(), &index, 1000, false);
            assert!(repairs.index_defect.is_some_and(|text| text.starts_with(defect)), "{repairs:?}");
            assert!(repairs.can_rebuild_index);
        }
        // A writer without frames needs no index log.
        let empty = FrameScan { epochs: None, ..FrameScan::default() };
        let repairs = decide_repairs(&dead(), &empty, &IndexScan::default(), HEAD_BYTES as u64, false);
        assert_eq!(repairs, SOUND);
    }

    #[test]
    fn bytes_after_the_last_frame_are_removed_only_if_nothing_else_is_missing() {
        let torn = decide_repairs(&dead(), &frames(), &INDEX, 1100, false);
        assert_eq!(torn, LogRepairs { torn_bytes: Some(100), ..SOUND });
        for frames in [
            FrameScan { has_damaged_frame: true, ..frames() },
            FrameScan { has_frame_after_end: true, ..frames() },
            FrameScan { lacks_synced: true, ..frames() },
        ] {
            let unreadable = frames.has_frame_after_end.then_some(1000..1100);
            let repairs = decide_repairs(&dead(), &frames, &INDEX, 1100, false);
            assert_eq!(repairs, LogRepairs { unreadable, ..UNREPAIRABLE }, "{frames:?}");
        }
        let header = FrameScan { has_damaged_header: true, ..frames() };
        let repairs = decide_repairs(&dead(), &header, &INDEX, 1100, false);
        assert_eq!(repairs, LogRepairs { torn_bytes: Some(100), ..UNREPAIRABLE });
    }

    #[test]
    fn a_closed_name_is_compared_with_the_frames() {
        let decide = |closed, is_truncated| {
            decide_repairs(&WriterState::Closed(closed), &frames(), &INDEX, 1000, is_truncated)
        };
        let short = decide(Closed { data_bytes: 1010, ..CLOSED }, false);
        assert_eq!(short, LogRepairs { missing_bytes: Some(10), ..UNREPAIRABLE });
        for wrong in [
            Closed { first_epoch: 1, ..CLOSED },
            Closed { last_epoch: 4, ..CLOSED },
            Closed { data_bytes: 990, ..CLOSED },
            Closed { end: FileOffset(899), ..CLOSED },
        ] {
            let repairs = decide(wrong, false);
            assert_eq!(repairs, LogRepairs { closed_name_is_wrong: true, ..SOUND }, "{wrong:?}");
        }
        assert_eq!(decide(Closed { end: FileOffset(901), ..CLOSED }, false), SOUND);
        assert_eq!(decide(Closed { end: FileOffset(899), ..CLOSED }, true), SOUND);
    }
}
