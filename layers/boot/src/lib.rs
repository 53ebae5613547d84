//! The boot layer (YOLO, part 1 of the paper): the blocks that a start reads are recorded once,
//! kept in one file that is read from start to end, and served from memory that is not evicted with
//! the page cache.
//!
//! The format of the file is described in docs/formats/boot.md.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod disk_name;
mod disks;
mod file_system;
mod format;
mod identity;
mod image;
#[cfg(test)]
mod image_test;
mod loading;
mod open_override;
mod pack;
mod ranges;
mod recorded_files;
mod recorder;
mod recording;
mod source_file;
mod subject;
mod validity;

pub use disk_name::{DISK_FILES_MAX, disk_name, parse_disk_name};
pub use disks::{DiskFile, DiskSource, Disks, DisksFs, Fit};
pub use file_system::{BootFs, RecordedFilesLayer};
pub use format::{BLOCK_BYTES, BLOCKS_MAX, ContentId, FILE_BYTES_MAX, HEADER_BYTES, MAGIC, ZEROS};
pub use identity::Identity;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use image::reseal;
pub use image::{BootFile, BootImage, BootImageDamage, Contents, ImageKind, Run};
pub use loading::{LoadingContents, ReadFrame};
pub use open_override::{OpenOverride, Opener};
pub use pack::{FrameSink, Packer, ReadBlock};
pub use ranges::{ImageFile, MemoryEstimate};
pub use recorded_files::{RecordedBlocks, RecordedFiles, Served, Write};
pub use recorder::{Choice, LeftOut, Recorder, RecorderFs};
pub use recording::{Recorded, Recording};
pub use source_file::SourceFile;
pub use subject::Subject;
pub use validity::{IndexedTree, Validity};
