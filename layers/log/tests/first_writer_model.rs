//! A model of the protocol of [decision 42](../../../docs/decisions/0042-files-of-one-writer.md),
//! by which the object of a file's first writer gets a container. The model visits all
//! interleavings of the first writer, which ends its object and then continues with logs of its
//! own, and two nodes that create the container, write and truncate; each process may stop after
//! any step. It shows that the protocol keeps its promises, and that it breaks one of them if a
//! rule is left out.

use std::collections::HashSet;

/// The largest number of frames that the first writer appends to the object.
const FRAMES_MAX: u8 = 3;
/// The step of a node that does nothing more.
const STOPPED: u8 = u8::MAX;

/// A rule of the protocol that a variant leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Readers ignore the frames of a first writer whose end is not recorded.
    OnlyRecordedFramesCount,
    /// The first writer appends to an object that shows its end.
    AppendsAfterItsEnd,
    /// A node that has created the container does not read the object again.
    LooksOnlyBefore,
    /// The first writer looks for the container before its object shows the end.
    LooksBeforeItsEnd,
    /// The truncation covers the frames that are recorded, and not those in the object.
    TruncationCoversRecordedOnly,
    /// The second node replaces a container that exists.
    ReplacesTheContainer,
}

/// The name of the first writer in `meta`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Name {
    /// All complete frames are part of the file.
    Open,
    /// This number of frames is part of the file.
    Closed(u8),
}

/// The store, and the state of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct State {
    /// The frames in the object, and whether it shows that its writer has ended.
    written: u8,
    has_ended: bool,
    /// The name of the first writer in the container, if there is a container, and the number of
    /// the container.
    name: Option<Name>,
    container: u8,
    /// The number of frames before those that the truncation leaves, and the container in which it
    /// was recorded.
    cut: Option<(u8, u8)>,

    // The first writer.
    acknowledged: u8,
    /// The first writer has looked for the container and found none.
    found_none: bool,
    /// The first writer has ended, and does not change its object any more.
    is_done: bool,

    /// The next step of each of two nodes, and the state of the object that it has seen.
    step: [u8; 2],
    seen: [Option<u8>; 2],
    /// The number of frames that were acknowledged when the truncation began, and written when it
    /// returned.
    before_cut: u8,
    after_cut: Option<u8>,
}

impl State {
    /// Returns the frames that a reader gets.
    fn visible(&self, fault: Fault) -> std::ops::Range<u8> {
        let counted = match self.name {
            Some(Name::Closed(frames)) => frames,
            Some(Name::Open) if fault == Fault::OnlyRecordedFramesCount => 0,
            Some(Name::Open) | None => self.written,
        };
        self.cut.filter(|(_, container)| *container == self.container).map_or(0, |(cut, _)| cut)..counted
    }

    /// Returns the reason why this state breaks a promise.
    fn broken(&self, fault: Fault) -> Option<&'static str> {
        let frames = self.visible(fault);
        // Frames that were written after the truncation had returned, and all if there was none.
        let is_kept = |frame: u8| self.after_cut.map_or(self.cut.is_none(), |first| frame >= first);
        let is_lost = (0..self.acknowledged).any(|frame| is_kept(frame) && !frames.contains(&frame));
        let remains = self.after_cut.is_some() && (0..self.before_cut).any(|frame| frames.contains(&frame));
        // Otherwise the name says forever that the writer is open.
        let is_open = self.is_done && self.name == Some(Name::Open) && self.step.iter().all(|step| *step > 3);
        is_lost
            .then_some("an acknowledged frame is lost")
            .or(remains.then_some("a truncation left a frame"))
            .or(is_open.then_some("the end of the first writer is not recorded"))
    }

    fn first_writer(&self, fault: Fault, next: &mut Vec<State>) {
        if self.written < FRAMES_MAX && (!self.has_ended || fault == Fault::AppendsAfterItsEnd) {
            next.push(State { written: self.written + 1, ..*self });
        }
        // A sync or close returns without looking for a container.
        next.push(State { acknowledged: self.written, ..*self });
        if !self.has_ended && fault != Fault::LooksBeforeItsEnd {
            next.push(State { has_ended: true, ..*self });
        }
        if fault == Fault::LooksBeforeItsEnd {
            match (self.found_none, self.has_ended) {
                (false, false) if self.name.is_none() => next.push(State { found_none: true, ..*self }),
                (true, false) => next.push(State { has_ended: true, is_done: true, ..*self }),
                _ => {}
            }
        } else if self.has_ended && !self.is_done {
            next.push(State { is_done: true, ..self.with_recorded_end() });
        }
    }

    /// Records the end of the first writer, if there is a container that lacks it.
    fn with_recorded_end(&self) -> State {
        match self.name {
            Some(Name::Open) => State { name: Some(Name::Closed(self.written)), ..*self },
            _ => *self,
        }
    }

    /// The next possible step of a node that writes to the file.
    fn other(&self, node: usize, fault: Fault, next: &mut Vec<State>) {
        let mut state = *self;
        state.step[node] = match self.step[node] {
            // The node looks for a container, then reads the object, and creates the container.
            0 if self.name.is_some() && fault != Fault::ReplacesTheContainer => 4,
            0 => 1,
            1 => {
                state.seen[node] = self.has_ended.then_some(self.written);
                2
            }
            2 => {
                if self.name.is_none() || fault == Fault::ReplacesTheContainer {
                    state.name = Some(self.seen[node].map_or(Name::Open, Name::Closed));
                    state.container += 1;
                }
                3
            }
            // The node reads the object again.
            3 => {
                if self.has_ended && fault != Fault::LooksOnlyBefore {
                    state = State { step: state.step, ..state.with_recorded_end() };
                }
                4
            }
            // The first node truncates the file: it records the covered frames, and returns.
            4 if node == 0 => {
                state.before_cut = self.acknowledged;
                let covered = match (self.name, fault) {
                    (Some(Name::Closed(frames)), _) => frames,
                    (_, Fault::TruncationCoversRecordedOnly) => 0,
                    _ => self.written,
                };
                state.cut = Some((covered, self.container));
                5
            }
            5 => {
                state.after_cut = Some(self.written);
                STOPPED
            }
            _ => return,
        };
        next.push(state);
    }

    fn next(&self, fault: Fault) -> Vec<State> {
        let mut next = Vec::new();
        self.first_writer(fault, &mut next);
        (0..self.step.len()).for_each(|node| self.other(node, fault, &mut next));
        next
    }
}

/// Visits all states, and returns their number, or the first that breaks a promise.
fn explore(fault: Fault) -> Result<usize, (&'static str, State)> {
    let begin = State::default();
    let (mut known, mut left) = (HashSet::from([begin]), vec![begin]);
    while let Some(state) = left.pop() {
        if let Some(broken) = state.broken(fault) {
            return Err((broken, state));
        }
        left.extend(state.next(fault).into_iter().filter(|state| known.insert(*state)));
    }
    Ok(known.len())
}

#[test]
fn no_interleaving_and_no_crash_loses_a_frame() {
    let visited = explore(Fault::None).unwrap_or_else(|broken| panic!("{broken:#?}"));
    assert!(visited > 1_000, "{visited} states");
}

#[test]
fn a_protocol_without_one_of_its_rules_breaks_a_promise() {
    for fault in [
        Fault::OnlyRecordedFramesCount,
        Fault::AppendsAfterItsEnd,
        Fault::LooksOnlyBefore,
        Fault::LooksBeforeItsEnd,
        Fault::TruncationCoversRecordedOnly,
        Fault::ReplacesTheContainer,
    ] {
        assert!(explore(fault).is_err(), "{fault:?}");
    }
}
