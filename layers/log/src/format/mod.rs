//! Formats of the log layer (docs/formats/log.md): pure functions from bytes to values and back.

mod bytes;
mod damage;
mod extents;
mod file_names;
mod flat;
mod frame_head;
mod frames;
mod heads;
mod index_log;
mod meta;
mod naming;
mod object;
mod offsets;
mod placement;
mod runs;
mod shares;
mod store_map;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use bytes::{u32_at, u64_at};
pub use damage::LogDamage;
pub use extents::{Extent, Extents, Orders, Piece, resolve};
pub(crate) use file_names::{
    ACCESS, CLOSED_NEW_DIR, CONTAINER_RECORD, EPOCH_PREFIX, FLAT_PREFIX, GIVEN_AWAY, META, MOVED, NEW_DIR,
    PARTS_DIR, STORE_RECORD, TRASH_DIR, data_name, epoch_name, index_name, is_defined_name,
    is_name_of_container, is_number_name, logs_name, number_name,
};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use flat::reseal_flat;
pub use flat::{Builder, FlatLog, FlatTables, FlatTail, TAIL_BYTES};
pub use frame_head::{FrameHead, decode_frame_head, decode_frame_runs, encode_frame_head};
pub use frames::{
    FRAME_HEAD_BYTES, Frame, FrameKind, Frames, Order, PAYLOAD_BYTES_MAX, SUM_BYTES, widen_epochs,
};
pub use heads::{
    BLOCK_BYTES, CONTAINER_VERSION, HEAD_BYTES, Head, HeadKind, OBJECT_VERSION, ObjectProcess, STORE_VERSION,
};
pub use index_log::{BATCH_HEAD_BYTES, BODY_BYTES_MAX, Batch, decode_batch, encode_batch};
pub use meta::{
    COVERS_MAX, Closed, CoveredLog, Covers, Holder, MetaName, Published, Running, Summary, Truncation,
    Truncations, boot_of,
};
pub use naming::{OWN, Stored, container_name, file_name_bytes_max, is_own, joined, other_name, shown};
pub use object::{
    OBJECT_END, OBJECT_FRAME_BYTES, OBJECT_FRAME_HEAD_BYTES, ObjectRest, ObjectSize,
    decode_object_frame_head, encode_object_frame_head, is_frame_boundary,
};
pub use offsets::{FileOffset, LogPosition, PayloadOffset, PayloadRange};
pub use placement::choose_store;
pub use runs::{FILE_END_MAX, Run, Runs, visit_payload_range};
pub use shares::share_range;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use store_map::MAP_SUM_BYTES;
pub use store_map::{MAP_BYTES_MAX, Member, StoreMap};
