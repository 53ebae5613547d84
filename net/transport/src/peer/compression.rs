//! The compression of payloads, before their protection: the choice of the payloads that are sent
//! compressed, and the expansion of received payloads. docs/formats/peer-protocol.md has the rules.
//!
//! The other member is not trusted: the length before compression is bounded before memory is
//! allocated, and a payload that does not expand to exactly that length is refused.

use std::cell::RefCell;
use std::fmt;

use super::frame::{Fields, FrameKind, PAYLOAD_BYTES_MAX, Status, Violation};
use super::settings::Compression;

/// Smaller payloads are not compressed: for 1 KiB, Zstandard takes 8 us of processor time.
pub(super) const COMPRESSED_BYTES_MIN: usize = 4 << 10;
/// The level of Zstandard.
const ZSTD_LEVEL: i32 = 1;
/// After a payload whose compression was not worthwhile, this multiple of its length is sent
/// without an attempt. The multiple doubles after each further such payload, up to the maximum.
const SKIPPED_LENGTHS_MIN: usize = 1;
const SKIPPED_LENGTHS_MAX: usize = 16;

/// Returns the largest size of a compressed payload that is worth its expansion: it saves an
/// eighth.
fn worthwhile(bytes: usize) -> usize {
    bytes - bytes.div_ceil(8)
}

thread_local! {
    /// The memory of a thread that compresses or expands. A member has one connection for each
    /// other member, but few threads.
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// The buffers of a thread: at most 1.2 MiB, and 2 MiB of Zstandard.
#[derive(Default)]
struct Workspace {
    output: Vec<u8>,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    decompressor: Option<zstd::bulk::Decompressor<'static>>,
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace").field("output", &self.output.capacity()).finish_non_exhaustive()
    }
}

impl Workspace {
    /// Compresses a payload, and returns `None` if the result is not worthwhile, or if there is no
    /// memory for it.
    fn compress(&mut self, compression: Compression, payload: &[u8]) -> Option<&[u8]> {
        let bytes_max = worthwhile(payload.len());
        let output_bytes = match compression {
            Compression::None => return None,
            Compression::Lz4 => lz4_flex::block::get_maximum_output_size(payload.len()),
            Compression::Zstd => bytes_max,
        };
        if self.output.len() < output_bytes {
            self.output.resize(output_bytes, 0);
        }
        let output = &mut self.output[..output_bytes];
        let bytes = match compression {
            Compression::None => return None,
            Compression::Lz4 => lz4_flex::block::compress_into(payload, output).ok()?,
            Compression::Zstd => {
                if self.compressor.is_none() {
                    self.compressor = Some(zstd::bulk::Compressor::new(ZSTD_LEVEL).ok()?);
                }
                // The most frequent error is that the output is too small.
                self.compressor.as_mut()?.compress_to_buffer(payload, output).ok()?
            }
        };
        (bytes <= bytes_max).then(|| &self.output[..bytes])
    }

    /// Expands a payload to `expanded`. Returns whether it has exactly this length.
    fn expand(&mut self, compression: Compression, payload: &[u8], expanded: &mut [u8]) -> bool {
        let bytes = match compression {
            Compression::None => None,
            Compression::Lz4 => lz4_flex::block::decompress_into(payload, expanded).ok(),
            Compression::Zstd => {
                if self.decompressor.is_none() {
                    self.decompressor = zstd::bulk::Decompressor::new().ok();
                }
                let decompressor = self.decompressor.as_mut();
                decompressor.and_then(|d| d.decompress_to_buffer(payload, expanded).ok())
            }
        };
        bytes == Some(expanded.len())
    }
}

/// Selects the payloads of one direction of a connection that are sent compressed.
#[derive(Debug)]
pub(super) struct Compressor {
    compression: Compression,
    /// Bytes of payloads that are sent before the next attempt.
    skipped_bytes: usize,
    /// The last multiple of a length that was skipped; 0 after a payload whose compression was
    /// worthwhile.
    skipped_lengths: usize,
}

impl Compressor {
    pub fn new(compression: Compression) -> Compressor {
        Compressor { compression, skipped_bytes: 0, skipped_lengths: 0 }
    }

    /// Returns the fields and the payload to send instead of these, if the payload is worth being
    /// compressed.
    ///
    /// Data that cannot be compressed is often followed by more of it, so that only a part of it is
    /// tried.
    pub fn compress(&mut self, fields: &Fields, payload: &[u8]) -> Option<(Fields, Vec<u8>)> {
        let has_payload = matches!(fields.kind, FrameKind::Request | FrameKind::Reply);
        if self.compression == Compression::None || !has_payload || payload.len() < COMPRESSED_BYTES_MIN {
            return None;
        }
        if self.skipped_bytes > 0 {
            self.skipped_bytes = self.skipped_bytes.saturating_sub(payload.len());
            return None;
        }
        let compressed = WORKSPACE
            .with_borrow_mut(|workspace| workspace.compress(self.compression, payload).map(<[u8]>::to_vec));
        match compressed {
            Some(compressed) => {
                self.skipped_lengths = 0;
                Some((Fields { expanded_bytes: payload.len() as u32, ..*fields }, compressed))
            }
            None => {
                let lengths = (2 * self.skipped_lengths).clamp(SKIPPED_LENGTHS_MIN, SKIPPED_LENGTHS_MAX);
                self.skipped_lengths = lengths;
                self.skipped_bytes = lengths * payload.len();
                None
            }
        }
    }
}

/// Returns the payload of a frame as it was before compression. [`Fields::decode`] has returned the
/// fields, so the length is in bounds.
pub(super) fn expand(
    compression: Compression,
    fields: &Fields,
    payload: Vec<u8>,
) -> Result<Vec<u8>, Violation> {
    let expanded_bytes = fields.expanded_bytes as usize;
    if expanded_bytes == 0 {
        return Ok(payload);
    }
    debug_assert!(expanded_bytes <= PAYLOAD_BYTES_MAX && fields.status == Status::Done);
    if compression == Compression::None {
        return Err(Violation("a frame is compressed, which the pool does not do"));
    }
    let mut expanded = vec![0; expanded_bytes];
    match WORKSPACE.with_borrow_mut(|workspace| workspace.expand(compression, &payload, &mut expanded)) {
        true => Ok(expanded),
        false => Err(Violation("a compressed payload is damaged or has another length")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALGORITHMS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

    fn text(bytes: usize) -> Vec<u8> {
        let words = ["pool", "member", "chunk", "daemon", "frame", "byte", "name", "reply"];
        let text =
            (0_u32..).flat_map(|i| format!("{} {} ", words[(i as usize).pow(2) % 7], i % 97).into_bytes());
        text.take(bytes).collect()
    }

    /// Returns bytes of SplitMix64, which cannot be compressed.
    fn random(bytes: usize) -> Vec<u8> {
        let mut state = 7_u64;
        let words = std::iter::repeat_with(|| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let value = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            value ^ (value >> 31)
        });
        words.flat_map(u64::to_le_bytes).take(bytes).collect()
    }

    fn compressed(compression: Compression, payload: &[u8]) -> Option<(Fields, Vec<u8>)> {
        Compressor::new(compression).compress(&Fields::new(FrameKind::Request, 1), payload)
    }

    #[test]
    fn compressed_payloads_are_smaller_and_expand_to_what_they_were() {
        for compression in ALGORITHMS {
            for bytes in [COMPRESSED_BYTES_MIN, 8192, 65_535, 65_536, 512 << 10, PAYLOAD_BYTES_MAX] {
                for payload in [text(bytes), vec![0; bytes]] {
                    let (fields, compressed) = compressed(compression, &payload).unwrap();
                    assert_eq!(fields.expanded_bytes as usize, bytes);
                    assert!(compressed.len() < bytes * 3 / 4, "{} of {bytes}", compressed.len());
                    Fields::decode(&fields.encode(), compressed.len()).unwrap();
                    assert!(expand(compression, &fields, compressed).unwrap() == payload);
                }
            }
        }
    }

    #[test]
    fn payloads_that_are_not_worth_it_are_sent_as_they_are() {
        for compression in ALGORITHMS {
            assert!(compressed(compression, &text(COMPRESSED_BYTES_MIN - 1)).is_none());
            for bytes in [COMPRESSED_BYTES_MIN, 65_536, PAYLOAD_BYTES_MAX] {
                assert!(compressed(compression, &random(bytes)).is_none());
            }
            // Lists of ids are read before the payloads of the service.
            let ids = Compressor::new(compression).compress(&Fields::new(FrameKind::Resume, 0), &text(4096));
            assert!(ids.is_none());
        }
        assert!(compressed(Compression::None, &text(4096)).is_none());
    }

    #[test]
    fn few_payloads_that_cannot_be_compressed_are_tried_and_others_soon_after_them() {
        for compression in ALGORITHMS {
            let mut compressor = Compressor::new(compression);
            let fields = Fields::new(FrameKind::Reply, 1);
            let (random, text) = (random(8192), text(8192));
            let mut attempts = 0;
            for _ in 0..(1 + 2 + 4 + 8) + 5 + 17 * 100 {
                attempts += u32::from(compressor.skipped_bytes == 0);
                assert!(compressor.compress(&fields, &random).is_none());
            }
            assert!((100..=106).contains(&attempts), "{attempts}");
            let first = (0..100).position(|_| compressor.compress(&fields, &text).is_some());
            assert!(first.unwrap() <= SKIPPED_LENGTHS_MAX);
            assert!((0..100).all(|_| compressor.compress(&fields, &text).is_some()));
        }
    }

    #[test]
    fn a_payload_of_another_length_or_algorithm_is_refused() {
        let payload = text(10_000);
        for compression in ALGORITHMS {
            let (fields, compressed) = compressed(compression, &payload).unwrap();
            for expanded_bytes in [1, 9_999, 10_001, PAYLOAD_BYTES_MAX as u32] {
                let wrong = Fields { expanded_bytes, ..fields };
                assert!(expand(compression, &wrong, compressed.clone()).is_err(), "{expanded_bytes}");
            }
            for other in [Compression::None, Compression::Lz4, Compression::Zstd] {
                let is_right = other == compression;
                assert_eq!(expand(other, &fields, compressed.clone()).is_ok(), is_right, "{other:?}");
            }
            let shorter = compressed[..compressed.len() - 1].to_vec();
            assert!(expand(compression, &fields, shorter).is_err());
            let longer = [&compressed[..], &[0]].concat();
            assert!(expand(compression, &fields, longer).is_err());
            assert!(expand(compression, &fields, Vec::new()).is_err());
            assert!(expand(compression, &fields, random(9_000)).is_err());
        }
    }

    #[test]
    fn a_small_payload_cannot_expand_beyond_its_declared_length() {
        for (compression, bomb) in [
            (Compression::Zstd, zstd::bulk::compress(&vec![0; 64 << 20], 19).unwrap()),
            (Compression::Lz4, lz4_flex::block::compress(&vec![0; 64 << 20])),
        ] {
            let fields =
                Fields { expanded_bytes: PAYLOAD_BYTES_MAX as u32, ..Fields::new(FrameKind::Reply, 1) };
            assert!(expand(compression, &fields, bomb).is_err());
        }
    }

    #[test]
    fn changed_bytes_are_refused_or_expand_to_the_declared_length() {
        let payload = text(COMPRESSED_BYTES_MIN);
        for compression in ALGORITHMS {
            let (fields, compressed) = compressed(compression, &payload).unwrap();
            for at in 0..compressed.len() {
                for bit in 0..8 {
                    let mut changed = compressed.clone();
                    changed[at] ^= 1 << bit;
                    if let Ok(expanded) = expand(compression, &fields, changed) {
                        assert_eq!(expanded.len(), payload.len());
                    }
                }
            }
        }
    }
}
