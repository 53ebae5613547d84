//! `quell boot qcow2`: writes the recorded blocks of a disk image as a qcow2 image on top of it,
//! for use with QEMU alone.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use indicatif::HumanBytes;
use quell_boot::{BootImage, Contents, ImageKind, ZEROS, parse_disk_name};
use quell_mount_spec::{ChainFile, DiskFormat, Output, Ownership, QCOW2, Trusted, TrustedUse, disk_chain};
use quell_qcow2::{BLOCK_BYTES, Block, BlockSource, Layer, expand, hot_blocks};
use quell_supervisor::check_trust;
use quell_vfs::ReadAt;

use crate::arguments::BootQcow2Args;
use crate::boot_images::load_whole_from;
use crate::failure::{Failure, YES};
use crate::inputs::{InputFile, shown, shown_bytes};
use crate::output::outln;

pub fn run(args: &BootQcow2Args, quiet: bool) -> Result<ExitCode, Failure> {
    let file = InputFile::open(&args.file)?.file;
    let (image, contents) = load_whole_from(&file, &args.file)?;
    if image.kind() != ImageKind::Disk {
        let message =
            format!("{} holds files of an indexed tree, not blocks of a disk image", shown(&args.file));
        return Err(Failure::wrong_input(message));
    }
    let base = match &args.base {
        Some(base) => base.clone(),
        None => recorded_path(&image).ok_or_else(|| {
            Failure::wrong_input(format!(
                "{} has no block of the disk image itself: name it with --base",
                shown(&args.file)
            ))
        })?,
    };
    let trusted = Trusted::by_caller(&args.trust_owner);
    // The owners are checked only for root: an ordinary user can copy only data that this user may
    // read.
    let owners = rustix::process::geteuid().is_root().then_some(&trusted);
    let chain = disk_chain(&base, args.image_format.map(Into::into), owners)?;
    let owner = Ownership::from(&chain[0].stat);
    check_trust(&trusted, &file, &args.file, TrustedUse::BootImage, Some((&chain[0].path, &owner)))?;
    if let Some(misfit) = misfit(&image, &chain) {
        return Err(Failure::wrong_input(format!("{}: {misfit}", shown(&args.file))));
    }
    if let Some(other) = chain.iter().find(|file| file.format == DiskFormat::Other) {
        return Err(Failure::wrong_input(format!(
            "{} is neither raw nor qcow2, which are the only formats of this command; `quell run --image` and \
             `quell mount --image` serve it",
            shown(&other.path)
        )));
    }
    let output = std::path::absolute(&args.output)
        .map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(&args.output))))?;
    if chain.iter().any(|file| output.canonicalize().is_ok_and(|output| output == file.path)) {
        return Err(Failure::wrong_input(format!("{} is the disk image itself", shown(&output))));
    }
    Output { path: &args.output, format: QCOW2, force: args.force }.check()?;
    let bytes = layer(&image, &contents, &chain)
        .map_err(|damage| Failure::wrong_input(format!("{}: {damage}", shown(&base))))?;
    Output { path: &output, format: QCOW2, force: args.force }.replace(&bytes, |_| Ok(()))?;
    if !quiet {
        outln!("{}: {} on top of {}", shown(&output), HumanBytes(bytes.len() as u64), shown(&chain[0].path));
    }
    Ok(ExitCode::from(YES))
}

/// Returns the path that the disk image had when it was recorded.
fn recorded_path(image: &BootImage) -> Option<PathBuf> {
    let mut positions = (0..image.files()).filter_map(|number| parse_disk_name(image.file(number).name));
    let (_, path) = positions.find(|(position, _)| *position == 0)?;
    Some(std::ffi::OsStr::from_bytes(path).into())
}

fn misfit(image: &BootImage, chain: &[ChainFile]) -> Option<String> {
    (0..image.files()).find_map(|number| {
        let file = image.file(number);
        let (position, path) = parse_disk_name(file.name).expect("checked with the image");
        match chain.get(position) {
            None => {
                Some(format!("the backing chain of the disk image no longer contains {}", shown_bytes(path)))
            }
            Some(now) if (now.stat.size_bytes, now.stat.modified) != (file.size_bytes, file.modified) => {
                Some(format!(
                    "the size or modification time of {} differs from the recorded one",
                    shown(&now.path)
                ))
            }
            Some(_) => None,
        }
    })
}

/// A file of the backing chain, as input for the qcow2 table reader.
struct Tables<'a>(&'a ChainFile);

impl ReadAt for Tables<'_> {
    fn read_at(&self, into: &mut [u8], offset: u64) -> quell_vfs::Result<usize> {
        self.0.file.read_at(into, offset)
    }
}

/// The recorded blocks of each file of the backing chain.
struct Recorded<'a> {
    image: &'a BootImage,
    contents: &'a Contents,
    /// File numbers in the boot image, by position in the backing chain.
    numbers: Vec<Option<u32>>,
}

impl Recorded<'_> {
    fn blocks(&self, position: usize) -> Vec<u32> {
        let Some(number) = self.numbers[position] else { return Vec::new() };
        let file = self.image.file(number);
        let runs = self.image.runs_of(&file);
        runs.flat_map(|run| run.first_block..run.first_block + run.blocks).collect()
    }

    /// Returns the number and the bytes of a block's content, or `None` for zeros.
    fn content(&self, position: usize, block: u32) -> Option<(u32, &[u8])> {
        let file = self.image.file(self.numbers[position]?);
        let content = self.image.content(&file, block).filter(|content| *content != ZEROS)?;
        Some((content, self.contents.block(content)))
    }

    /// Returns bytes of the file. All of them are recorded, except those beyond its end.
    fn bytes(&self, position: usize, offset: u64, length: u64) -> Vec<u8> {
        let (first, end) = (offset / BLOCK_BYTES, (offset + length).div_ceil(BLOCK_BYTES));
        let mut bytes = Vec::with_capacity(((end - first) * BLOCK_BYTES) as usize);
        for block in first..end {
            match u32::try_from(block).ok().and_then(|block| self.content(position, block)) {
                Some((_, content)) => bytes.extend_from_slice(content),
                None => bytes.resize(bytes.len() + BLOCK_BYTES as usize, 0),
            }
        }
        let begin = (offset % BLOCK_BYTES) as usize;
        bytes[begin..begin + length as usize].to_vec()
    }
}

/// The source of a block of the new image.
enum From {
    Zeros,
    /// A content of the boot image, by number.
    Content(u32),
    /// A block of a decompressed cluster, by number.
    Expanded(usize),
}

fn layer(
    image: &BootImage,
    contents: &Contents,
    chain: &[ChainFile],
) -> Result<Vec<u8>, quell_qcow2::Qcow2Error> {
    let mut numbers = vec![None; chain.len()];
    for number in 0..image.files() {
        let (position, _) = parse_disk_name(image.file(number).name).expect("checked with the image");
        numbers[position] = Some(number);
    }
    let recorded = Recorded { image, contents, numbers };
    let hot: Vec<Vec<u32>> = (0..chain.len()).map(|position| recorded.blocks(position)).collect();
    let tables: Vec<Tables<'_>> = chain.iter().map(Tables).collect();
    let layers: Vec<Layer<'_>> = (0..chain.len())
        .map(|position| Layer {
            header: chain[position].header.as_ref(),
            file: &tables[position],
            file_bytes: chain[position].stat.size_bytes,
            hot: &hot[position],
        })
        .collect();
    let found = hot_blocks(&layers)?;
    let mut expanded: Vec<Vec<u8>> = Vec::new();
    // The index of each cluster's first block in `expanded`, so that each cluster is expanded only
    // once: hostile tables may refer to one cluster many times.
    let mut begins = HashMap::new();
    let mut blocks: Vec<(u64, u64, From)> = Vec::new();
    for (number, source) in found {
        let (order, from) = match source {
            BlockSource::Block { layer, block } => match recorded.content(layer, block) {
                Some((content, _)) => (u64::from(content), From::Content(content)),
                None => (0, From::Zeros),
            },
            BlockSource::Compressed { layer, offset, bytes, within } => {
                let begin = match begins.entry((layer, offset)) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        let header = chain[layer].header.as_ref().expect("only they have such clusters");
                        let there = bytes.min(chain[layer].stat.size_bytes.saturating_sub(offset));
                        let cluster = expand(&recorded.bytes(layer, offset, there), header)?;
                        let begin = *new.insert(expanded.len());
                        expanded.extend(cluster.chunks(BLOCK_BYTES as usize).map(<[u8]>::to_vec));
                        begin
                    }
                };
                let at = begin + (within / BLOCK_BYTES) as usize;
                let first = u32::try_from(offset / BLOCK_BYTES).ok();
                let content = first.and_then(|block| recorded.content(layer, block));
                let order = content.map_or(0, |(content, _)| content.into());
                match expanded[at].iter().all(|b| *b == 0) {
                    true => (order, From::Zeros),
                    false => (order, From::Expanded(at)),
                }
            }
        };
        blocks.push((order, number, from));
    }
    // Sorted by first use, like the contents of the boot image.
    blocks.sort_by_key(|(order, number, _)| (*order, *number));
    let blocks: Vec<Block<'_>> = blocks
        .iter()
        .map(|(_, number, from)| Block {
            number: *number,
            content: match from {
                From::Zeros => None,
                From::Content(content) => Some(contents.block(*content)),
                From::Expanded(at) => Some(&expanded[*at]),
            },
        })
        .collect();
    let top = &chain[0];
    let virtual_bytes = top.header.as_ref().map_or(top.stat.size_bytes, |header| header.virtual_bytes);
    let format = match top.format {
        DiskFormat::Qcow2 => "qcow2",
        DiskFormat::Raw | DiskFormat::Other => "raw",
    };
    quell_qcow2::write(virtual_bytes, top.path.as_os_str().as_bytes(), format, &blocks)
}
