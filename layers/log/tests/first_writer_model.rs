//! A model of the protocol of [decision 42](../../../docs/decisions/0042-files-of-one-writer.md),
//! which converts the object of a file's first writer into a container. The model visits all
//! interleavings of the first writer, two nodes that convert the object, and a node that replaces
//! the file, and each process may stop after any step. The protocol is not implemented; the model
//! shows that it keeps its promises, and that it breaks one of them if a rule is left out.

use std::collections::HashSet;

/// The largest number of frames that the first writer appends.
const FRAMES_MAX: u8 = 3;
/// The object of the first writer. Objects that replace the file have larger numbers.
const FIRST: u8 = 0;
/// The number of times that the file is replaced.
const REPLACEMENTS: u8 = 2;
/// The step of a node that does nothing more.
const STOPPED: u8 = u8::MAX;

/// A rule of the protocol that a variant leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Readers count no frames of a first writer that has not published yet.
    OnlyPublishedFramesCount,
    /// The first writer acknowledges frames while it publishes an earlier number.
    AcknowledgesWhilePublishing,
    /// A container without the log of its first writer hides the object.
    ContainerIsFoundFirst,
    /// The node renames the object without comparing the numbers afterwards.
    NoNumberIsCompared,
    /// The object that was renamed by mistake replaces a newer one.
    RenamesBackOverNewerObject,
    /// The truncation covers the frames that are published, and not those in the log.
    TruncationCoversPublishedOnly,
}

/// The store, and the state of all processes. Frames of the first writer are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct State {
    /// The object with the name `NAME.file`.
    file: Option<u8>,
    has_container: bool,
    /// The object in the place of the first writer's log in the container.
    log: Option<u8>,
    /// The number of frames that `open-A` publishes; `None` if the first writer has not published.
    published: Option<u8>,
    /// The number of frames before those that the truncation leaves.
    cut: Option<u8>,

    // The first writer: the number of frames in its log, the number that closes and syncs have
    // acknowledged, and the number that it is about to publish.
    written: u8,
    acknowledged: u8,
    publishing: Option<u8>,
    /// Another node has renamed the file, so the first writer cannot find the container.
    is_renamed: bool,

    /// The next step of each of two nodes that convert the object into a container.
    turning: [u8; 2],
    /// The latest object that replaced the file.
    replacement: u8,
    /// The number of frames that were acknowledged when the truncation began, and written when it
    /// returned.
    before_cut: u8,
    after_cut: Option<u8>,
    /// A node has changed a container that does not have the object of its first writer.
    is_misplaced: bool,
}

/// The result of opening the file: an object, and the frames of the first writer that it has.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    Frames(std::ops::Range<u8>),
    Other(u8),
}

impl State {
    fn seen(&self, fault: Fault) -> Seen {
        let file = self.file.filter(|_| fault != Fault::ContainerIsFoundFirst || !self.has_container);
        match (file, self.log.filter(|_| self.has_container)) {
            (Some(FIRST), _) => Seen::Frames(0..self.written),
            (None, Some(FIRST)) => {
                let unpublished = if fault == Fault::OnlyPublishedFramesCount { 0 } else { self.written };
                Seen::Frames(self.cut.unwrap_or(0)..self.published.unwrap_or(unpublished))
            }
            // A container whose log has another number is the file of that object.
            (Some(other), _) | (None, Some(other)) => Seen::Other(other),
            (None, None) => Seen::Nothing,
        }
    }

    /// Returns the reason why this state breaks a promise.
    fn broken(&self, fault: Fault) -> Option<&'static str> {
        if self.is_misplaced {
            return Some("a change of the file is lost");
        }
        match self.seen(fault) {
            Seen::Other(other) if other == self.replacement => None,
            Seen::Other(_) => Some("an object is shown that was replaced"),
            _ if self.replacement != FIRST => Some("the object that replaced the file is lost or hidden"),
            Seen::Nothing => Some("the file is missing"),
            Seen::Frames(frames) => {
                // Frames that were written after the truncation had returned, and all if there was
                // none.
                let is_kept =
                    |frame: u8| self.cut.is_none() || self.after_cut.is_some_and(|first| frame >= first);
                let is_lost = (0..self.acknowledged).any(|frame| is_kept(frame) && !frames.contains(&frame));
                let remains =
                    self.after_cut.is_some() && (0..self.before_cut).any(|frame| frames.contains(&frame));
                is_lost
                    .then_some("an acknowledged frame is lost")
                    .or(remains.then_some("a truncation left a frame"))
            }
        }
    }

    /// The steps that the first writer can take.
    fn first_writer(&self, fault: Fault, next: &mut Vec<State>) {
        if self.written < FRAMES_MAX {
            next.push(State { written: self.written + 1, ..*self });
        }
        let is_in_container = self.file != Some(FIRST) && self.has_container && self.log == Some(FIRST);
        match self.publishing {
            // The name in `meta` is changed; then the call returns.
            Some(count) => next.push(State {
                published: Some(count),
                acknowledged: self.acknowledged.max(count),
                publishing: None,
                ..*self
            }),
            None if is_in_container && !self.is_renamed => {
                next.push(State { publishing: Some(self.written), ..*self });
            }
            None => {}
        }
        // A close returns without publishing if the container was not found, or not looked for yet.
        let may_return = self.publishing.is_none() || fault == Fault::AcknowledgesWhilePublishing;
        if self.published.is_none() && may_return {
            next.push(State { acknowledged: self.written, ..*self });
        }
    }

    /// The next possible step of a node that converts the object into a container.
    fn turn(&self, node: usize, fault: Fault, next: &mut Vec<State>) {
        let mut state = *self;
        state.turning[node] = match self.turning[node] {
            // A lookup, and the number in the header.
            0 if self.file == Some(FIRST) => 1,
            0 if self.has_container && self.log == Some(FIRST) => 5,
            1 => {
                state.has_container = true;
                2
            }
            // The number is compared, then the object is renamed, whichever it is by then. The
            // other node has renamed it if the place is in use.
            2 if self.file == Some(FIRST) => 3,
            2 => 0,
            3 => {
                if self.log.is_none() && self.file.is_some() {
                    (state.log, state.file) = (self.file, None);
                }
                4
            }
            4 if self.log.is_none() => 0,
            4 if self.log != Some(FIRST) && fault != Fault::NoNumberIsCompared => {
                if self.file.is_none() || fault == Fault::RenamesBackOverNewerObject {
                    state.file = self.log;
                }
                state.log = None;
                STOPPED
            }
            4 => 5,
            // The first node truncates the file: it notes what is covered, and returns.
            5 if node == 0 => {
                state.is_misplaced = self.log != Some(FIRST);
                state.before_cut = self.acknowledged;
                let in_log = if fault == Fault::TruncationCoversPublishedOnly { 0 } else { self.written };
                state.cut = Some(self.published.unwrap_or(0).max(in_log));
                6
            }
            6 => {
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
        (0..self.turning.len()).for_each(|node| self.turn(node, fault, &mut next));
        // Objects are renamed over the file while it is an object, or while it is in a container by
        // mistake. A file that is a container is replaced as every container.
        if self.replacement < REPLACEMENTS && self.log != Some(FIRST) {
            let replacement = self.replacement + 1;
            next.push(State { file: Some(replacement), replacement, ..*self });
        }
        if !self.is_renamed {
            next.push(State { is_renamed: true, ..*self });
        }
        next
    }
}

/// Visits all states, and returns their number, or the first that breaks a promise.
fn explore(fault: Fault) -> Result<usize, (&'static str, State)> {
    let begin = State { file: Some(FIRST), ..State::default() };
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
fn no_interleaving_and_no_crash_loses_a_frame_or_a_file() {
    let visited = explore(Fault::None).unwrap_or_else(|broken| panic!("{broken:#?}"));
    assert!(visited > 10_000, "{visited} states");
}

#[test]
fn a_protocol_without_one_of_its_rules_breaks_a_promise() {
    for fault in [
        Fault::OnlyPublishedFramesCount,
        Fault::AcknowledgesWhilePublishing,
        Fault::ContainerIsFoundFirst,
        Fault::NoNumberIsCompared,
        Fault::RenamesBackOverNewerObject,
        Fault::TruncationCoversPublishedOnly,
    ] {
        assert!(explore(fault).is_err(), "{fault:?}");
    }
}
