//! The bytes of a boot image, validated before use. Pure: no I/O, no clock, no lock. The format is
//! described in docs/formats/boot.md. No value in the bytes is trusted.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_vfs::{Error, ErrorKind, Result, Time, check_name};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::disk_name::{DISK_FILES_MAX, parse_disk_name};
use crate::format::{
    BLOCK_BYTES, BLOCKS_MAX, ContentId, FILE_BYTES_MAX, FRAME_BLOCKS, FRAME_BYTES_MAX, FRAME_ROW_BYTES,
    HEADER_BYTES, HEADER_CHECKED_FROM, HEADER_CHECKSUM_AT, MAGIC, RUN_ROW_BYTES, VERSION, VERSION_MIN,
    VERSION_WITH_UNREAD, ZERO_FROM, ZEROS, file_row_bytes,
};
use crate::identity::Identity;
use crate::recording::{Recorded, Recording};

/// The reason why bytes are not a valid boot image, and the position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootImageDamage {
    /// `header`, `FILES`, `NAMES`, `RUNS`, `FRAMES` or `frame`.
    pub section: &'static str,
    /// A row of a table, the number of a frame, or an offset in the header.
    pub at: u64,
    /// A description of the damage.
    pub what: String,
}

impl fmt::Display for BootImageDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.section, self.at, self.what)
    }
}

impl std::error::Error for BootImageDamage {}

type Checked<T> = std::result::Result<T, BootImageDamage>;

fn damage<T>(section: &'static str, at: usize, what: impl Into<String>) -> Checked<T> {
    Err(BootImageDamage { section, at: at as u64, what: what.into() })
}

/// The kind of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageKind {
    /// Files of a tree, recorded with the index that has this generation.
    Tree(u128),
    /// Files of a disk's backing chain.
    Disk,
}

/// A file of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootFile<'a> {
    /// The name in the image.
    pub name: &'a [u8],
    /// The size when the file was recorded.
    pub size_bytes: u64,
    /// The modification time when the file was recorded.
    pub modified: Time,
    /// Identifies the file where it was indexed; `None` if the image does not identify it.
    pub identity: Option<Identity>,
    first_run: u32,
    runs: u32,
}

impl BootFile<'_> {
    #[cfg(test)]
    pub(crate) fn for_test(
        name: &[u8],
        size_bytes: u64,
        modified: Time,
        identity: Option<Identity>,
    ) -> BootFile<'_> {
        BootFile { name, size_bytes, modified, identity, first_run: 0, runs: 0 }
    }

    /// Returns the number of blocks of the file.
    pub fn blocks(&self) -> u32 {
        blocks_of(self.size_bytes)
    }
}

/// Consecutive blocks with consecutive contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The number of the first block in its file.
    pub first_block: u32,
    /// The number of blocks.
    pub blocks: u32,
    /// The content of the first block, or `ZEROS`.
    pub content: ContentId,
    /// The number of recordings in which the blocks were read; 0 for unread blocks.
    pub recordings: u32,
}

impl Run {
    /// Returns whether a recording has read the blocks.
    pub fn is_read(&self) -> bool {
        self.recordings > 0
    }

    /// Returns the content of the block at this position in the run.
    pub fn content_at(&self, position: u32) -> ContentId {
        if self.content == ZEROS { ZEROS } else { self.content + position }
    }
}

/// Returns the number of blocks of a file of this size; 2^32 - 1 for a file that is too large for
/// an image.
pub(crate) fn blocks_of(size_bytes: u64) -> u32 {
    u32::try_from(size_bytes.div_ceil(BLOCK_BYTES as u64)).unwrap_or(u32::MAX)
}

/// A complete image, whose frames are still compressed.
pub struct BootImage {
    bytes: Vec<u8>,
    kind: ImageKind,
    recordings: u32,
    contents: u32,
    read_contents: u32,
    files: Range<usize>,
    names: Range<usize>,
    runs: Range<usize>,
    frames: Range<usize>,
}

impl fmt::Debug for BootImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootImage")
            .field("kind", &self.kind)
            .field("files", &self.files())
            .finish_non_exhaustive()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn check_header(bytes: &[u8], length: u64) -> Checked<()> {
    if !bytes.iter().zip(&MAGIC).all(|(found, due)| found == due) {
        return damage("header", 0, "this is not a boot image");
    }
    if bytes.len() < HEADER_BYTES {
        return damage("header", bytes.len(), "the file ends within the header");
    }
    let version = u32_at(bytes, 8);
    if !(VERSION_MIN..=VERSION).contains(&version) {
        let known = format!("format version {version}; this program reads {VERSION_MIN} to {VERSION}");
        return damage("header", 8, known);
    }
    if header_checksum(bytes) != u64_at(bytes, HEADER_CHECKSUM_AT) {
        return damage("header", HEADER_CHECKSUM_AT, "the checksum is wrong");
    }
    let file_bytes = u64_at(bytes, 16);
    if file_bytes != length || file_bytes > FILE_BYTES_MAX {
        return damage(
            "header",
            16,
            format!("the header gives a size of {file_bytes} bytes, the file has {length}"),
        );
    }
    Ok(())
}

/// Returns the checksum of the header without the checksum field.
pub(crate) fn header_checksum(header: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&header[..HEADER_CHECKSUM_AT]);
    hash.update(&header[HEADER_CHECKED_FROM..HEADER_BYTES]);
    hash.digest()
}

/// Corrects the checksums of modified bytes, so that tests and fuzz targets reach the other checks.
#[cfg(any(test, feature = "fuzzing"))]
pub fn reseal(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let count = |at: usize| u32_at(bytes, at) as usize;
    let names = usize::try_from(u64_at(bytes, 72)).unwrap_or(usize::MAX).checked_next_multiple_of(8);
    let rows = file_row_bytes(u32_at(bytes, 8)) * count(56)
        + RUN_ROW_BYTES * count(60)
        + FRAME_ROW_BYTES * count(68);
    let end = names.and_then(|names| names.checked_add(HEADER_BYTES + rows));
    let length = bytes.len() as u64;
    bytes[16..24].copy_from_slice(&length.to_le_bytes());
    if let Some(tables) = end.and_then(|end| bytes.get(HEADER_BYTES..end)) {
        let checksum = xxh3_64(tables);
        bytes[32..40].copy_from_slice(&checksum.to_le_bytes());
    }
    let checksum = header_checksum(bytes);
    bytes[HEADER_CHECKSUM_AT..HEADER_CHECKSUM_AT + 8].copy_from_slice(&checksum.to_le_bytes());
}

impl BootImage {
    /// Validates the bytes of a file, except the frames, which are verified when they are decoded,
    /// and takes ownership of the bytes.
    pub fn parse(bytes: Vec<u8>) -> Checked<BootImage> {
        let length = bytes.len() as u64;
        BootImage::parse_tables(bytes, length)
    }

    /// Returns an upper bound of the offset at which the tables end, according to the header of a
    /// file of `length` bytes. The header is validated as far as possible on its own; its values
    /// are still untrusted.
    pub fn tables_end(header: &[u8; HEADER_BYTES], length: u64) -> Checked<u64> {
        check_header(header, length)?;
        let count = |at: usize| u64::from(u32_at(header, at));
        let rows = file_row_bytes(u32_at(header, 8)) as u64 * count(56)
            + RUN_ROW_BYTES as u64 * count(60)
            + FRAME_ROW_BYTES as u64 * count(68);
        Ok(u64_at(header, 72).saturating_add(7 + rows + HEADER_BYTES as u64))
    }

    /// Does the same as `parse`, for the beginning of a file of `length` bytes, which must include
    /// the tables.
    pub fn parse_tables(bytes: Vec<u8>, length: u64) -> Checked<BootImage> {
        check_header(&bytes, length)?;
        let image = BootImage::locate_tables(bytes)?;
        let tables = &image.bytes[HEADER_BYTES..image.frames.end];
        if xxh3_64(tables) != u64_at(&image.bytes, 32) {
            return damage("header", 32, "the checksum of the tables is wrong");
        }
        image.check_files()?;
        let read_contents = image.check_runs()?;
        image.check_frames(length)?;
        Ok(BootImage { read_contents, ..image })
    }

    /// Determines the offsets of the tables.
    fn locate_tables(bytes: Vec<u8>) -> Checked<BootImage> {
        let generation = u128::from_le_bytes(bytes[40..56].try_into().expect("sixteen bytes"));
        let kind = match u32_at(&bytes, 12) {
            0 => ImageKind::Tree(generation),
            1 if generation == 0 => ImageKind::Disk,
            1 => return damage("header", 40, "a disk image belongs to no index"),
            other => return damage("header", 12, format!("kind {other}")),
        };
        if bytes[ZERO_FROM..HEADER_BYTES].iter().any(|b| *b != 0) {
            return damage("header", ZERO_FROM, "not zero");
        }
        let [files, runs, contents, frames] = [56, 60, 64, 68].map(|at| u32_at(&bytes, at));
        let recordings = u32_at(&bytes, 80);
        if recordings == 0 {
            return damage("header", 80, "no recording");
        }
        if contents == ZEROS || frames != contents.div_ceil(FRAME_BLOCKS as u32) {
            return damage("header", 68, format!("{frames} frames for {contents} contents"));
        }
        let mut end = HEADER_BYTES as u64;
        let mut table = |rows: u64, row_bytes: usize, title: &'static str| {
            let begin = end;
            let length = rows.checked_mul(row_bytes as u64).and_then(|l| l.checked_next_multiple_of(8));
            end = length.and_then(|l| begin.checked_add(l)).unwrap_or(u64::MAX);
            match end > bytes.len() as u64 {
                true => damage(title, 0, "the file ends before this table does"),
                false => Ok(begin as usize..end as usize),
            }
        };
        let files = table(files.into(), file_row_bytes(u32_at(&bytes, 8)), "FILES")?;
        let names_bytes = u64_at(&bytes, 72);
        let padded = table(names_bytes, 1, "NAMES")?;
        let runs = table(runs.into(), RUN_ROW_BYTES, "RUNS")?;
        let frames = table(frames.into(), FRAME_ROW_BYTES, "FRAMES")?;
        let names = padded.start..padded.start + names_bytes as usize;
        if bytes[names.end..padded.end].iter().any(|b| *b != 0) {
            return damage("NAMES", names_bytes as usize, "the padding is not zero");
        }
        Ok(BootImage { kind, recordings, contents, read_contents: 0, files, names, runs, frames, bytes })
    }

    fn check_files(&self) -> Checked<()> {
        let names_bytes = self.names.len() as u64;
        let mut next_run = 0u64;
        let mut last: Option<&[u8]> = None;
        let mut positions = [false; DISK_FILES_MAX];
        for number in 0..self.files() {
            let row = self.file_row(number);
            let at = number as usize;
            let (begin, length) = (u32_at(&self.bytes, row + 20), u32_at(&self.bytes, row + 24));
            if u64::from(begin) + u64::from(length) > names_bytes {
                return damage("FILES", at, "its name is not in NAMES");
            }
            let file = self.file(number);
            if file.modified.nanoseconds >= 1_000_000_000 {
                return damage("FILES", at, "the nanoseconds of a time are more than a second");
            }
            self.check_identity(number)?;
            if file.runs == 0 || u64::from(file.first_run) != next_run {
                return damage("FILES", at, "its runs do not follow those of the file before");
            }
            next_run += u64::from(file.runs);
            if last.is_some_and(|last| last >= file.name) {
                return damage("FILES", at, "the names are not in order");
            }
            last = Some(file.name);
            let named = match self.kind {
                ImageKind::Disk => parse_disk_name(file.name)
                    .is_some_and(|(position, _)| !std::mem::replace(&mut positions[position], true)),
                ImageKind::Tree(_) => file.name.split(|b| *b == b'/').all(|name| check_name(name).is_ok()),
            };
            if !named {
                return damage(
                    "FILES",
                    at,
                    "its name is no path below the tree, or no new position in a disk's chain",
                );
            }
        }
        if next_run != u64::from(self.run_count()) {
            return damage("RUNS", next_run as usize, "a run belongs to no file");
        }
        Ok(())
    }

    /// Checks the fields of a file after `runs`.
    fn check_identity(&self, number: u32) -> Checked<()> {
        let (row, at) = (self.file_row(number), number as usize);
        let zero_from = match self.file(number).identity {
            None => 36,
            Some(_) if self.kind == ImageKind::Disk => {
                return damage("FILES", at, "a file of a disk is not identified");
            }
            Some(Identity { changed, .. }) if changed.nanoseconds >= 1_000_000_000 => {
                return damage("FILES", at, "the nanoseconds of a time are more than a second");
            }
            Some(_) => 52,
        };
        let zero_end = if zero_from == 36 { file_row_bytes(self.version()) } else { 56 };
        match self.bytes[row + zero_from..row + zero_end].iter().all(|b| *b == 0) {
            true => Ok(()),
            false => damage("FILES", at, "not zero"),
        }
    }

    /// Checks the runs of all files. Returns the number of contents up to the last content of a
    /// block that was read.
    fn check_runs(&self) -> Checked<u32> {
        let can_be_unread = self.version() >= VERSION_WITH_UNREAD && self.kind != ImageKind::Disk;
        let (mut all, mut read_contents) = (0, 0);
        for number in 0..self.files() {
            let file = self.file(number);
            let blocks = file.size_bytes.div_ceil(BLOCK_BYTES as u64);
            let mut free = 0u64;
            for (at, run) in (file.first_run as usize..).zip(self.runs_of(&file)) {
                let end = u64::from(run.first_block) + u64::from(run.blocks);
                if run.blocks == 0 || u64::from(run.first_block) < free || end > blocks {
                    return damage("RUNS", at, "its blocks are not after the run before, or beyond the file");
                }
                free = end;
                all += u64::from(run.blocks);
                if all > BLOCKS_MAX {
                    return damage("RUNS", at, format!("more than {BLOCKS_MAX} blocks"));
                }
                let last = u64::from(run.content) + u64::from(run.blocks);
                if run.content != ZEROS && last > u64::from(self.contents) {
                    return damage("RUNS", at, "the number of a content is too large");
                }
                if run.recordings > self.recordings || !run.is_read() && !can_be_unread {
                    return damage("RUNS", at, "read in more recordings than there are, or in none");
                }
                if run.is_read() && run.content != ZEROS {
                    read_contents = read_contents.max(run.content + run.blocks);
                }
            }
        }
        Ok(read_contents)
    }

    fn check_frames(&self, file_bytes: u64) -> Checked<()> {
        let mut next = self.frames.end as u64;
        for number in 0..self.frame_count() {
            let row = self.frames.start + number * FRAME_ROW_BYTES;
            let (offset, length) = (u64_at(&self.bytes, row), u32_at(&self.bytes, row + 8));
            if offset != next || length as usize > FRAME_BYTES_MAX || u32_at(&self.bytes, row + 12) != 0 {
                return damage("FRAMES", number, "it does not follow the frame before");
            }
            next += u64::from(length);
            if next > file_bytes {
                return damage("FRAMES", number, "the file ends before this frame does");
            }
        }
        if next != file_bytes {
            return damage("FRAMES", self.frame_count(), "bytes after the last frame");
        }
        Ok(())
    }

    fn version(&self) -> u32 {
        u32_at(&self.bytes, 8)
    }

    /// Returns the offset of a row of FILES.
    fn file_row(&self, number: u32) -> usize {
        self.files.start + number as usize * file_row_bytes(self.version())
    }

    /// Returns the kind of the image.
    pub fn kind(&self) -> ImageKind {
        self.kind
    }

    /// Returns the number of recordings merged in the image.
    pub fn recordings(&self) -> u32 {
        self.recordings
    }

    /// Returns the tables without the frames, which can be read again only from the file.
    pub(crate) fn tables(&self) -> BootImage {
        let bytes = self.bytes[..self.frames.end].to_vec();
        let BootImage { kind, recordings, contents, read_contents, .. } = *self;
        let [files, names, runs, frames] =
            [&self.files, &self.names, &self.runs, &self.frames].map(Clone::clone);
        BootImage { bytes, kind, recordings, contents, read_contents, files, names, runs, frames }
    }

    /// Returns the bytes as they were parsed.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the size of the image file in bytes, including frames that were not read.
    pub fn file_bytes(&self) -> u64 {
        u64_at(&self.bytes, 16)
    }

    /// Returns the memory of the tables, in bytes.
    pub fn tables_bytes(&self) -> u64 {
        self.frames.end as u64
    }

    /// Returns the size of the tables and of the frames with blocks that were read, in bytes: the
    /// part of the file before the unread blocks.
    pub fn read_part_bytes(&self) -> u64 {
        let (offset, length) = match self.frames_of(self.read_contents).checked_sub(1) {
            Some(last) => self.frame_range(last),
            None => (self.frames.end as u64, 0),
        };
        offset + length as u64
    }

    /// Returns whether the frames of the blocks that were read are in memory: the image was not
    /// parsed from its tables alone.
    pub(crate) fn has_frames(&self) -> bool {
        self.bytes.len() as u64 >= self.read_part_bytes()
    }

    /// Returns the number of different blocks.
    pub fn contents(&self) -> u32 {
        self.contents
    }

    /// Returns the number of contents before the contents that only unread blocks have.
    pub fn read_contents(&self) -> u32 {
        self.read_contents
    }

    /// Returns the maximum memory of the blocks that are served from memory: a block that several
    /// files have may be stored several times, and a content that no file has may be stored, too.
    pub fn serving_bytes(&self) -> u64 {
        let runs = (0..self.run_count()).map(|number| self.run(number));
        let in_memory = |run: Run| run.blocks.min(self.read_contents.saturating_sub(run.content));
        let of_files = runs.map(|run| u64::from(in_memory(run))).sum::<u64>() * BLOCK_BYTES as u64;
        of_files.max(self.memory_bytes())
    }

    /// Returns the memory of the contents of blocks that were read, each counted once.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.read_contents) * BLOCK_BYTES as u64
    }

    /// Returns the memory of all contents, in bytes.
    pub fn decoded_bytes(&self) -> u64 {
        u64::from(self.contents) * BLOCK_BYTES as u64
    }

    /// Returns the number of files.
    pub fn files(&self) -> u32 {
        (self.files.len() / file_row_bytes(self.version())) as u32
    }

    fn run_count(&self) -> u32 {
        (self.runs.len() / RUN_ROW_BYTES) as u32
    }

    pub(crate) fn frame_count(&self) -> usize {
        self.frames.len() / FRAME_ROW_BYTES
    }

    /// Returns the number of frames that have the first `contents` contents.
    fn frames_of(&self, contents: u32) -> usize {
        (contents as usize).div_ceil(FRAME_BLOCKS)
    }

    /// Returns a file. `number` must be less than `files()`.
    pub fn file(&self, number: u32) -> BootFile<'_> {
        let row = self.file_row(number);
        let field = |at| u32_at(&self.bytes, row + at);
        let begin = self.names.start + field(20) as usize;
        let is_identified = self.version() > VERSION_MIN && field(36) != 0;
        let identity = is_identified.then(|| Identity {
            nlink: field(36),
            changed: Time { seconds: u64_at(&self.bytes, row + 40).cast_signed(), nanoseconds: field(48) },
            inode: u64_at(&self.bytes, row + 56),
        });
        BootFile {
            name: &self.bytes[begin..begin + field(24) as usize],
            size_bytes: u64_at(&self.bytes, row),
            modified: Time { seconds: u64_at(&self.bytes, row + 8).cast_signed(), nanoseconds: field(16) },
            identity,
            first_run: field(28),
            runs: field(32),
        }
    }

    /// Returns the number of the file with this name.
    pub fn find(&self, name: &[u8]) -> Option<u32> {
        let (mut low, mut high) = (0, self.files());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.file(middle).name.cmp(name) {
                std::cmp::Ordering::Equal => return Some(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    fn run(&self, number: u32) -> Run {
        let row = self.runs.start + number as usize * RUN_ROW_BYTES;
        let [first_block, blocks, content, recordings] =
            [0, 4, 8, 12].map(|at| u32_at(&self.bytes, row + at));
        Run { first_block, blocks, content, recordings }
    }

    /// Returns the runs of a file, in the order of its blocks.
    pub fn runs_of(&self, file: &BootFile) -> impl ExactSizeIterator<Item = Run> {
        (file.first_run..file.first_run + file.runs).map(|number| self.run(number))
    }

    /// Returns the number of blocks of a file that were read.
    pub fn blocks_of(&self, number: u32) -> u64 {
        self.read_blocks(&self.file(number))
    }

    fn read_blocks(&self, file: &BootFile) -> u64 {
        self.runs_of(file).filter(Run::is_read).map(|run| u64::from(run.blocks)).sum()
    }

    /// Returns the number of blocks of all files that were read.
    pub fn blocks(&self) -> u64 {
        (0..self.files()).map(|number| self.blocks_of(number)).sum()
    }

    /// Returns the unread blocks of a file.
    pub fn unread_of(&self, file: &BootFile) -> impl Iterator<Item = u32> {
        let unread = self.runs_of(file).filter(|run| !run.is_read());
        unread.flat_map(|run| run.first_block..run.first_block + run.blocks)
    }

    /// Returns the number of unread blocks of all files.
    pub fn unread_blocks(&self) -> u64 {
        let runs = (0..self.run_count()).map(|number| self.run(number)).filter(|run| !run.is_read());
        runs.map(|run| u64::from(run.blocks)).sum()
    }

    /// Returns whether the recordings have read all blocks of a file.
    pub fn is_whole(&self, file: &BootFile) -> bool {
        self.read_blocks(file) == file.size_bytes.div_ceil(BLOCK_BYTES as u64)
    }

    /// Returns the content of a block of a file, if the image has it.
    pub fn content(&self, file: &BootFile, block: u32) -> Option<ContentId> {
        let (mut low, mut high) = (file.first_run, file.first_run + file.runs);
        while low < high {
            let middle = low + (high - low) / 2;
            let run = self.run(middle);
            if block < run.first_block {
                high = middle;
            } else if block - run.first_block >= run.blocks {
                low = middle + 1;
            } else {
                return Some(run.content_at(block - run.first_block));
            }
        }
        None
    }

    /// Returns the recording with the file numbers of the image: the blocks in the order of their
    /// contents, then the blocks of zeros, without the unread blocks.
    pub fn recording(&self) -> Recording {
        let mut blocks = Vec::new();
        for number in 0..self.files() {
            for run in self.runs_of(&self.file(number)).filter(Run::is_read) {
                for at in 0..run.blocks {
                    let content = run.content_at(at);
                    let recorded =
                        Recorded { file: number, block: run.first_block + at, recordings: run.recordings };
                    blocks.push((content, recorded));
                }
            }
        }
        blocks.sort_by_key(|(content, recorded)| (*content, recorded.file, recorded.block));
        Recording::from_blocks(blocks.into_iter().map(|(_, recorded)| recorded), self.recordings)
    }

    /// Decodes a frame that is in memory.
    pub(crate) fn decode_frame(&self, number: usize, into: &mut [u8]) -> Checked<()> {
        let (begin, length) = self.frame_range(number);
        self.decode_bytes(number, &self.bytes[begin as usize..begin as usize + length], into)
    }

    /// Returns the offset in the file and the compressed size of a frame.
    pub(crate) fn frame_range(&self, number: usize) -> (u64, usize) {
        let row = self.frames.start + number * FRAME_ROW_BYTES;
        (u64_at(&self.bytes, row), u32_at(&self.bytes, row + 8) as usize)
    }

    /// Reads a frame into `compressed`, and decodes it into `bytes`. `read` fills a buffer from an
    /// offset of the file.
    pub(crate) fn read_frame(
        &self,
        number: usize,
        read: &dyn Fn(u64, &mut [u8]) -> Result<()>,
        compressed: &mut Vec<u8>,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let (offset, length) = self.frame_range(number);
        resize(compressed, length);
        read(offset, compressed)?;
        let blocks = (self.contents as usize - number * FRAME_BLOCKS).min(FRAME_BLOCKS);
        resize(bytes, blocks * BLOCK_BYTES);
        self.decode_bytes(number, compressed, bytes).map_err(|damage| Error {
            source: Some(Box::new(damage)),
            ..Error::new(ErrorKind::Damaged, "decode", b"the boot image")
        })
    }

    /// Verifies and decodes the bytes of a frame.
    pub(crate) fn decode_bytes(&self, number: usize, frame: &[u8], into: &mut [u8]) -> Checked<()> {
        let row = self.frames.start + number * FRAME_ROW_BYTES;
        if xxh3_64(frame) != u64_at(&self.bytes, row + 16) {
            return damage("frame", number, "the checksum is wrong");
        }
        match zstd::bulk::decompress_to_buffer(frame, into) {
            Ok(length) if length == into.len() => Ok(()),
            Ok(length) => damage("frame", number, format!("{length} bytes instead of {}", into.len())),
            Err(e) => damage("frame", number, e.to_string()),
        }
    }

    /// Decodes all frames with `threads` threads. Allocates `decoded_bytes`, which the caller must
    /// check before.
    pub fn decode(&self, threads: usize) -> Checked<Contents> {
        let decode = |number: usize, _: &mut Vec<u8>, into: &mut [u8]| self.decode_frame(number, into);
        self.decode_to(self.contents, threads, &decode, &|_| true, &|_, _| Ok(()))
    }

    /// Decodes each frame of the first `contents` contents once, with `threads` threads. `decode`
    /// decodes a frame by its number; it may use the buffer. `take` receives the first content of
    /// the frame and the bytes of all its contents. Contents for which `keep` returns true stay in
    /// memory.
    pub(crate) fn decode_to<E: Send>(
        &self,
        contents: u32,
        threads: usize,
        decode: &DecodeFrame<'_, E>,
        keep: &(dyn Fn(ContentId) -> bool + Sync),
        take: &TakeFrame<'_, E>,
    ) -> std::result::Result<Contents, E> {
        let next = AtomicUsize::new(0);
        let work = || -> std::result::Result<Vec<(usize, KeptBlocks)>, E> {
            let (mut done, mut buffer) = (Vec::new(), Vec::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= self.frames_of(contents) {
                    return Ok(done);
                }
                let first = (number * FRAME_BLOCKS) as ContentId;
                let blocks = (self.contents - first).min(FRAME_BLOCKS as u32);
                let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
                decode(number, &mut buffer, &mut bytes)?;
                take(first, &bytes)?;
                done.push((number, KeptBlocks::new(bytes, |at| keep(first + at))));
            }
        };
        let mut frames: Vec<KeptBlocks> = Vec::new();
        frames.resize_with(self.frame_count(), KeptBlocks::default);
        let results: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> = (1..threads.max(1)).map(|_| scope.spawn(work)).collect();
            let own = work();
            let theirs = workers
                .into_iter()
                .map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            std::iter::once(own).chain(theirs).collect()
        });
        for result in results {
            for (number, kept) in result? {
                frames[number] = kept;
            }
        }
        Ok(Contents { frames })
    }
}

/// Decodes the frame with a number to the last argument; the second one is a buffer.
pub(crate) type DecodeFrame<'a, E> =
    dyn Fn(usize, &mut Vec<u8>, &mut [u8]) -> std::result::Result<(), E> + Sync + 'a;

/// Receives the first content of a frame and the bytes of all contents in it.
pub(crate) type TakeFrame<'a, E> = dyn Fn(ContentId, &[u8]) -> std::result::Result<(), E> + Sync + 'a;

/// Gives a buffer, whose content is not needed any more, a length. Its capacity does not become
/// larger than that.
fn resize(buffer: &mut Vec<u8>, length: usize) {
    if buffer.capacity() < length {
        *buffer = Vec::new();
        buffer.reserve_exact(length);
    }
    buffer.resize(length, 0);
}

/// The blocks of one frame that stay in memory.
#[derive(Default)]
struct KeptBlocks {
    bytes: Vec<u8>,
    /// The position of each block of the frame in `bytes`, in blocks. Empty if all blocks are in
    /// `bytes`, in order.
    positions: Vec<u8>,
}

impl KeptBlocks {
    fn new(mut bytes: Vec<u8>, keep: impl Fn(u32) -> bool) -> KeptBlocks {
        let blocks = bytes.len() / BLOCK_BYTES;
        let mut positions = vec![0; blocks];
        let mut kept = 0;
        for (at, position) in positions.iter_mut().enumerate() {
            if keep(at as u32) {
                bytes.copy_within(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES, kept * BLOCK_BYTES);
                *position = kept as u8;
                kept += 1;
            }
        }
        if kept == blocks {
            return KeptBlocks { bytes, positions: Vec::new() };
        }
        bytes.truncate(kept * BLOCK_BYTES);
        bytes.shrink_to_fit();
        KeptBlocks { bytes, positions }
    }
}

/// The decoded contents of an image that are in memory.
pub struct Contents {
    frames: Vec<KeptBlocks>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("bytes", &self.bytes()).finish()
    }
}

pub(crate) const BLOCK_OF_ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

impl Contents {
    /// Returns the memory that the contents use.
    pub fn bytes(&self) -> u64 {
        self.frames.iter().map(|frame| frame.bytes.len() as u64).sum()
    }

    /// Returns the bytes of a content, which must belong to the same image and must have been kept.
    pub fn block(&self, content: ContentId) -> &[u8] {
        self.consecutive(content, 1)
    }

    /// Returns the bytes of at most `blocks` consecutive contents, which must belong to the same
    /// image and must have been kept: as many as are adjacent in memory, and at least one.
    pub(crate) fn consecutive(&self, content: ContentId, blocks: u32) -> &[u8] {
        if content == ZEROS {
            return &BLOCK_OF_ZEROS;
        }
        let (frame, at) = (content as usize / FRAME_BLOCKS, content as usize % FRAME_BLOCKS);
        let KeptBlocks { bytes, positions } = &self.frames[frame];
        let (first, length) = match positions.get(at) {
            None => (at, bytes.len() / BLOCK_BYTES - at),
            Some(first) => {
                let wanted = positions[at..].iter().take(blocks as usize).enumerate();
                let adjacent = wanted
                    .take_while(|(step, position)| usize::from(**position) == usize::from(*first) + step);
                (usize::from(*first), adjacent.count())
            }
        };
        let length = length.min(blocks as usize);
        &bytes[first * BLOCK_BYTES..(first + length) * BLOCK_BYTES]
    }
}
