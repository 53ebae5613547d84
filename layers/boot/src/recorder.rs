//! Records the blocks that are read while a file system is served: every read of a program, or of
//! the kernel for the program (mmap, exec). The kernel reads each page only until it is cached,
//! which is sufficient, because a block is recorded once.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use quell_threads::lock;
use quell_vfs::{Attributes, Context, Error, ErrorKind, File, FileSystem, Kind, NodeId, ReadAt, Result};

use crate::format::{BLOCK_BYTES, BLOCKS_MAX};
use crate::image::{BootImage, blocks_of};
use crate::open_override::{OpenOverride, Opener};
use crate::pack::{FrameSink, Packer, ReadBlock};
use crate::recording::{Recorded, Recording};
use crate::subject::Subject;

/// A file of at most this many blocks is stored whole if the budget allows it: it is read with one
/// request, and views serve whole files at less cost.
const SMALL_BLOCKS: u32 = 32;

/// Limits on the unread blocks of an image: this many times the blocks that were read, and this
/// number (128 MiB) in any case. Without a limit, a program that reads the beginnings of many large
/// files would get an image of all of them.
const UNREAD_SHARE: usize = 4;
const UNREAD_BLOCKS: usize = 1 << 15;

/// Selects the blocks of an image.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// An image to merge, for which [`Subject::can_merge`] returns `true`. Blocks of files that
    /// have changed since are dropped.
    pub old: Option<&'a BootImage>,
    /// Whether the recording completes the recordings of `old` and does not increase their number:
    /// its blocks then count as read in all of these recordings.
    pub updates: bool,
    /// Files of `old` that have changed keep their blocks, with the current bytes, if the
    /// tree still has a regular file with the name.
    pub refreshes: bool,
    /// Blocks that were read in fewer recordings are left out.
    pub min_recordings: u32,
    /// The maximum number of blocks. Blocks that were read in most recordings are preferred.
    pub blocks_max: usize,
    /// Files of any size are stored whole if the limit allows it, and not only small ones.
    pub whole: bool,
    /// The other blocks of the files of a tree are stored too, as unread blocks. They are read from
    /// the image when a program needs them, so they do not count for `blocks_max`.
    pub unread: bool,
}

impl Choice<'_> {
    /// All blocks of this recording alone.
    pub const ALL: Choice<'static> = Choice {
        old: None,
        updates: false,
        refreshes: false,
        min_recordings: 1,
        blocks_max: usize::MAX,
        whole: false,
        unread: false,
    };
}

/// The part of a recording that is left out of the image.
#[derive(Debug, Default)]
pub struct LeftOut {
    /// The number of files that were changed or removed after the tree was indexed or the disk was
    /// opened.
    pub changed_files: u64,
    /// The number of blocks of other files that cannot be read.
    pub unreadable_blocks: u64,
    /// The error of the first of these blocks.
    pub first_error: Option<String>,
}

/// A file system that records the blocks that are read. Its `Recorder` has the result.
pub type RecorderFs = OpenOverride<Arc<Recorder>>;

#[derive(Debug, Default)]
struct RecorderState {
    files: HashMap<NodeId, u32>,
    /// Nodes by number.
    nodes: Vec<NodeId>,
    recording: Recording,
}

/// The blocks that were read so far.
#[derive(Default)]
pub struct Recorder {
    state: Mutex<RecorderState>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("files", &self.files()).finish()
    }
}

impl Recorder {
    /// Returns a recorder without recorded reads.
    pub fn new() -> Arc<Recorder> {
        let state = RecorderState { recording: Recording::new(), ..RecorderState::default() };
        Arc::new(Recorder { state: Mutex::new(state) })
    }

    /// Returns a recorder that has read the first `blocks_max` blocks of these files of `fs`, in
    /// this order.
    pub fn of_files(fs: &dyn FileSystem, files: &[NodeId], blocks_max: u64) -> Result<Arc<Recorder>> {
        let recorder = Recorder::new();
        let mut blocks_left = blocks_max.min(BLOCKS_MAX) as u32;
        for node in files {
            let blocks = blocks_of(fs.attributes(&Context::OWN, *node)?.size_bytes).min(blocks_left);
            blocks_left -= blocks;
            let number = recorder.opened(*node);
            recorder.state().recording.add(number, 0..blocks);
        }
        Ok(recorder)
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        lock(&self.state)
    }

    /// Returns the number of different files that were opened.
    pub fn files(&self) -> usize {
        self.state().nodes.len()
    }

    /// Returns the number of different blocks that were read.
    pub fn blocks(&self) -> usize {
        self.state().recording.blocks()
    }

    fn opened(&self, node: NodeId) -> u32 {
        let mut state = self.state();
        let next = state.nodes.len() as u32;
        let number = *state.files.entry(node).or_insert(next);
        if number == next {
            state.nodes.push(node);
        }
        number
    }

    /// Returns an image of the recorded blocks of `fs`, and the part that could not be read
    /// again. `fs` must be the recorded file system.
    pub fn pack(
        &self,
        fs: &dyn FileSystem,
        subject: &Subject,
        choice: &Choice,
        threads: usize,
    ) -> Result<(Vec<u8>, LeftOut)> {
        let mut frames = Vec::new();
        let never = AtomicBool::new(false);
        let (mut image, left_out) = self.pack_to(fs, subject, choice, threads, &never, &mut frames)?;
        image.extend_from_slice(&frames);
        Ok((image, left_out))
    }

    /// Does the same as `pack`, and passes the frames to `sink`. Returns the part of the image
    /// before the frames. Ends with the error `Interrupted` soon after `is_interrupted` is set.
    pub fn pack_to(
        &self,
        fs: &dyn FileSystem,
        subject: &Subject,
        choice: &Choice,
        threads: usize,
        is_interrupted: &AtomicBool,
        sink: &mut dyn FrameSink,
    ) -> Result<(Vec<u8>, LeftOut)> {
        let state = self.state();
        let mut packer = Packer::default();
        let mut recording = state.recording.clone();
        let mut nodes = state.nodes.clone();
        for (number, node) in (0..).zip(&state.nodes) {
            let attributes = fs.attributes(&Context::OWN, *node)?;
            let identity = subject.identity(&attributes);
            packer.add(&subject.name(fs, *node)?, attributes.size_bytes, attributes.modified, identity);
            // Adds the first block of a file that was opened and not read: with this block in the
            // image, the open needs no other source.
            recording.add(number, 0..1);
        }
        if let Some(old) = choice.old {
            let theirs: Vec<Option<u32>> = (0..old.files())
                .map(|number| {
                    let changed =
                        || subject.find(fs, old.file(number).name).filter(|now| now.kind == Kind::File);
                    let valid = subject.valid_file(fs, old, number);
                    let now = if choice.refreshes { valid.or_else(changed) } else { valid }?;
                    if let Some(known) = state.files.get(&now.node) {
                        return Some(*known);
                    }
                    let name = subject.name(fs, now.node).ok()?;
                    nodes.push(now.node);
                    Some(packer.add(&name, now.size_bytes, now.modified, subject.identity(&now)))
                })
                .collect();
            let theirs = |file: u32| theirs[file as usize];
            match choice.updates {
                false => recording.merge(&old.recording(), theirs),
                true => recording.complete_older(&old.recording(), theirs),
            }
        }
        let mut recording = recording.chosen(choice.min_recordings, choice.blocks_max);
        if let Subject::Tree(_) = subject {
            let blocks = |node: &NodeId| Ok(blocks_of(fs.attributes(&Context::OWN, *node)?.size_bytes));
            let files: Vec<(u32, u32)> =
                (0..).zip(nodes.iter().map(blocks).collect::<Result<Vec<_>>>()?).collect();
            for (number, blocks) in &files {
                if choice.whole || *blocks <= SMALL_BLOCKS {
                    recording.complete(*number, *blocks, choice.blocks_max.min(BLOCKS_MAX as usize));
                }
            }
            if choice.unread {
                let read = recording.blocks();
                let limit = (UNREAD_SHARE * read).max(UNREAD_BLOCKS);
                recording.complete_unread(
                    files.into_iter(),
                    limit.min((BLOCKS_MAX as usize).saturating_sub(read)),
                );
            }
        }
        let mut source =
            BlockReader { fs, nodes: &nodes, open: None, is_interrupted, left_out: LeftOut::default() };
        let bytes = packer.pack_to(subject.kind(), &recording, &mut source, threads, sink)?;
        Ok((bytes, source.left_out))
    }
}

impl Opener for Arc<Recorder> {
    fn open(
        &self,
        context: &Context<'_>,
        inner: &Arc<dyn FileSystem>,
        node: NodeId,
    ) -> Result<Box<dyn File>> {
        let file = inner.open(context, node)?;
        Ok(Box::new(RecordedFile { file, number: self.opened(node), recorder: self.clone() }))
    }
}

struct RecordedFile {
    file: Box<dyn File>,
    number: u32,
    recorder: Arc<Recorder>,
}

impl File for RecordedFile {
    fn attributes(&self) -> Result<Attributes> {
        self.file.attributes()
    }
}

impl ReadAt for RecordedFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let length = self.file.read_at(into, offset)?;
        let block = BLOCK_BYTES as u64;
        let (first, end) = (offset / block, (offset + length as u64).div_ceil(block));
        // Blocks at offsets of 16 TiB and more are not recorded, because an image cannot describe
        // them.
        if let (Ok(first), Ok(end), 1..) = (u32::try_from(first), u32::try_from(end), length) {
            self.recorder.state().recording.add(self.number, first..end);
        }
        Ok(length)
    }
}

/// Reads blocks of a file system's files, one file after another.
struct BlockReader<'a> {
    fs: &'a dyn FileSystem,
    nodes: &'a [NodeId],
    open: Option<(u32, Box<dyn File>)>,
    is_interrupted: &'a AtomicBool,
    left_out: LeftOut,
}

impl ReadBlock for BlockReader<'_> {
    fn read(&mut self, recorded: &Recorded, into: &mut [u8; BLOCK_BYTES]) -> Result<bool> {
        if self.is_interrupted.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Interrupted, "write", "the boot image"));
        }
        match self.try_read(recorded.file, recorded.block, into) {
            Ok(()) => Ok(true),
            Err(e) if e.kind == ErrorKind::Stale => {
                // No further block of the file is read.
                self.left_out.changed_files += 1;
                Ok(false)
            }
            // No recording has read such a block, so the error is not counted.
            Err(e) if recorded.recordings == 0 => Err(e),
            Err(e) => {
                self.left_out.unreadable_blocks += 1;
                self.left_out.first_error.get_or_insert_with(|| e.to_string());
                Err(e)
            }
        }
    }
}

impl BlockReader<'_> {
    fn try_read(&mut self, number: u32, block: u32, into: &mut [u8; BLOCK_BYTES]) -> Result<()> {
        let file = match &mut self.open {
            Some((open, file)) if *open == number => file,
            other => &mut other.insert((number, self.fs.open(&Context::OWN, self.nodes[number as usize])?)).1,
        };
        let length = file.read_at(into, u64::from(block) * BLOCK_BYTES as u64)?;
        into[length..].fill(0);
        Ok(())
    }
}
