//! Extents in the files of a directory. docs/formats/blob.md describes the file of an extent.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use lru::LruCache;
use quell_kv::Durability;
use quell_posix::{OpenFile, WritableDir};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{EXTENT_BYTES_MAX, ExtentId, Extents};
use crate::epoch::{epoch_of, number_in_epoch};

/// The bytes before the number of an extent in the footer of its file.
const MAGIC: [u8; 8] = *b"QUELLEX1";
/// The bytes that one checksum protects.
const BLOCK_BYTES: usize = 4096;
/// The length of the footer: magic, number, length of the data, checksum.
const FOOTER_BYTES: usize = 32;
/// The number of files that are kept open.
const OPEN_FILES_MAX: NonZeroUsize = NonZeroUsize::new(128).unwrap();

/// No extent is written if the file system has less free space than this, in bytes: commits that
/// delete blobs need some space.
const RESERVE_BYTES: u64 = 64 << 20;

/// Extents in the files of a directory, one directory for each epoch of the store.
pub struct ExtentDir {
    dir: Arc<dyn WritableDir>,
    /// The directory of the epoch in which an extent was written last.
    epoch: Mutex<Option<(u64, Arc<dyn WritableDir>)>>,
    open: Mutex<LruCache<ExtentId, Arc<OpenExtent>>>,
    /// The failures that a written extent survives.
    durability: Durability,
}

struct OpenExtent {
    file: Box<dyn OpenFile>,
    length_bytes: u64,
    checksums: Vec<u64>,
}

impl ExtentDir {
    /// Returns the extents in a directory.
    pub fn new(dir: Arc<dyn WritableDir>, durability: Durability) -> ExtentDir {
        ExtentDir {
            dir,
            epoch: Mutex::new(None),
            open: Mutex::new(LruCache::new(OPEN_FILES_MAX)),
            durability,
        }
    }

    /// Returns the directory of an epoch, and creates it if it does not exist.
    fn epoch_dir(&self, epoch: u64) -> Result<Arc<dyn WritableDir>> {
        let mut last = lock(&self.epoch);
        if let Some((last, dir)) = &*last
            && *last == epoch
        {
            return Ok(dir.clone());
        }
        let name = epoch_name(epoch);
        match self.dir.make_dir(&name, 0o700) {
            Err(error) if error.kind != ErrorKind::Exists => return Err(error),
            _ => {}
        }
        if self.durability == Durability::Power {
            self.dir.sync()?;
        }
        let dir = self.dir.open_writable_dir(&name)?;
        *last = Some((epoch, dir.clone()));
        Ok(dir)
    }

    fn open(&self, id: ExtentId) -> Result<Arc<OpenExtent>> {
        if let Some(open) = lock(&self.open).get(&id) {
            return Ok(open.clone());
        }
        let dir = self.dir.enter(&epoch_name(epoch_of(id.0))).map_err(|error| missing(error, id))?;
        let file = dir.open_file(&file_name(id)).map_err(|error| missing(error, id))?;
        let open = Arc::new(read_footer(file, id)?);
        lock(&self.open).put(id, open.clone());
        Ok(open)
    }
}

impl fmt::Debug for ExtentDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtentDir").field("durability", &self.durability).finish_non_exhaustive()
    }
}

impl Extents for ExtentDir {
    fn write(&self, id: ExtentId, data: &[u8]) -> Result<()> {
        if self.dir.space()?.available_bytes < RESERVE_BYTES + data.len() as u64 {
            return Err(Error::new(ErrorKind::NoSpace, "write", format!("extent {:x}", id.0)));
        }
        let dir = self.epoch_dir(epoch_of(id.0))?;
        let file = dir.create_file(&file_name(id), 0o600)?;
        file.write_pieces_at(&[data, &footer(id, data)], 0)?;
        if self.durability == Durability::Power {
            file.sync()?;
            dir.sync()?;
        }
        Ok(())
    }

    fn read(&self, id: ExtentId, offset: u64, into: &mut [u8]) -> Result<()> {
        let open = self.open(id)?;
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= open.length_bytes);
        let end = end.ok_or_else(|| damaged(id, "a blob refers to bytes after its end"))?;
        if into.is_empty() {
            return Ok(());
        }
        let first_block = offset / BLOCK_BYTES as u64;
        let start = first_block * BLOCK_BYTES as u64;
        let blocks_end = end.next_multiple_of(BLOCK_BYTES as u64).min(open.length_bytes);
        if start == offset && blocks_end == end {
            read_exact(&*open.file, into, start, id)?;
            return check_blocks(&open, id, into, first_block);
        }
        let mut blocks = vec![0; (blocks_end - start) as usize];
        read_exact(&*open.file, &mut blocks, start, id)?;
        check_blocks(&open, id, &blocks, first_block)?;
        let skip = (offset - start) as usize;
        into.copy_from_slice(&blocks[skip..skip + into.len()]);
        Ok(())
    }

    fn remove(&self, id: ExtentId) -> Result<()> {
        lock(&self.open).pop(&id);
        let removed = self
            .dir
            .open_writable_dir(&epoch_name(epoch_of(id.0)))
            .and_then(|dir| dir.remove(&file_name(id)));
        match removed {
            Err(error) if error.kind != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn list(&self, first: ExtentId, visit: &mut dyn FnMut(ExtentId)) -> Result<()> {
        for name in self.dir.names()? {
            let Some(epoch) = number(&name).filter(|epoch| *epoch >= epoch_of(first.0)) else { continue };
            let dir = self.dir.open_dir(&name)?;
            dir.visit(&mut |name, _| {
                if let Some(number) = number(name)
                    && let Some(id) = ExtentId::new(epoch, number).filter(|id| *id >= first)
                {
                    visit(id);
                }
                true
            })?;
        }
        Ok(())
    }
}

fn epoch_name(epoch: u64) -> Vec<u8> {
    format!("{epoch:x}").into_bytes()
}

fn file_name(id: ExtentId) -> Vec<u8> {
    format!("{:x}", number_in_epoch(id.0)).into_bytes()
}

/// Returns the number that the name of a directory or file represents.
fn number(name: &[u8]) -> Option<u64> {
    let number = u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()?;
    (format!("{number:x}").as_bytes() == name).then_some(number)
}

/// Returns the bytes after the data of an extent: checksums and footer.
fn footer(id: ExtentId, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data.len() / BLOCK_BYTES * 8 + 8 + FOOTER_BYTES);
    for block in data.chunks(BLOCK_BYTES) {
        bytes.extend_from_slice(&xxh3_64_with_seed(block, id.0).to_le_bytes());
    }
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&id.0.to_le_bytes());
    bytes.extend_from_slice(&(data.len() as u64).to_le_bytes());
    let checksum = xxh3_64_with_seed(&bytes, id.0);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn read_footer(file: Box<dyn OpenFile>, id: ExtentId) -> Result<OpenExtent> {
    let size_bytes = file.stat()?.size_bytes;
    let mut end = [0; FOOTER_BYTES];
    let footer_start =
        size_bytes.checked_sub(FOOTER_BYTES as u64).ok_or_else(|| damaged(id, "it is too short"))?;
    read_exact(&*file, &mut end, footer_start, id)?;
    let field = |index: usize| u64::from_le_bytes(end.as_chunks::<8>().0[index]);
    let length_bytes = field(2);
    let blocks = length_bytes.div_ceil(BLOCK_BYTES as u64);
    let is_valid = end[..8] == MAGIC
        && field(1) == id.0
        && length_bytes <= EXTENT_BYTES_MAX as u64
        && size_bytes == length_bytes + blocks * 8 + FOOTER_BYTES as u64;
    if !is_valid {
        return Err(damaged(id, "the footer belongs to another extent"));
    }
    let mut bytes = vec![0; (blocks * 8) as usize + FOOTER_BYTES];
    read_exact(&*file, &mut bytes, length_bytes, id)?;
    let (protected, checksum) = bytes.split_at(bytes.len() - 8);
    if xxh3_64_with_seed(protected, id.0).to_le_bytes() != *checksum {
        return Err(damaged(id, "its checksums are damaged"));
    }
    let checksums = protected.as_chunks::<8>().0[..blocks as usize].iter().map(|c| u64::from_le_bytes(*c));
    Ok(OpenExtent { file, length_bytes, checksums: checksums.collect() })
}

/// Compares blocks with their checksums. All blocks are complete, except the last block of the
/// extent.
fn check_blocks(open: &OpenExtent, id: ExtentId, blocks: &[u8], first: u64) -> Result<()> {
    for (index, block) in blocks.chunks(BLOCK_BYTES).enumerate() {
        let number = first as usize + index;
        if open.checksums.get(number) != Some(&xxh3_64_with_seed(block, id.0)) {
            return Err(damaged(id, &format!("the checksum of its block {number} is wrong")));
        }
    }
    Ok(())
}

fn read_exact(file: &dyn OpenFile, into: &mut [u8], offset: u64, id: ExtentId) -> Result<()> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], offset + done as u64)? {
            0 => return Err(damaged(id, "it is too short")),
            length => done += length,
        }
    }
    Ok(())
}

fn missing(error: Error, id: ExtentId) -> Error {
    match error.kind {
        ErrorKind::NotFound => damaged(id, "it is missing"),
        _ => error,
    }
}

fn damaged(id: ExtentId, reason: &str) -> Error {
    let subject = [epoch_name(epoch_of(id.0)), b"/".to_vec(), file_name(id)].concat();
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::Damaged, "read the extent", subject) }
}
