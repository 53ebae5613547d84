//! One connection: reading frames from its socket, and the bytes that wait to be written.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::AsyncReadExt;
use tokio::sync::Notify;

use super::compression::{Compressor, expand};
use super::frame::{Fields, LENGTH_BYTES, Violation, decode_length};
use super::outgoing::Frame;
use super::seal::{Seal, Segment};
use super::settings::Compression;
use super::stream::{ReadHalf, WriteHalf};

/// Bytes that are read with one call, if the rest of a frame is not larger.
const READ_BYTES: usize = 64 << 10;
/// Slices that are written with one call.
const SLICES_MAX: usize = 64;

/// The writing half of a connection, and its state.
#[derive(Debug)]
pub(super) struct Link {
    half: WriteHalf,
    /// Locked with `try_lock` only: a thread that finds it locked leaves its frames to the owner of
    /// the lock.
    pub writer: Mutex<Writer>,
    /// Wakes the task of the connection to write.
    pub wake: Notify,
    /// Whether the socket's buffer is full.
    pub is_full: AtomicBool,
    /// Whether the reading task is passing on frames. It writes when it has no more of them.
    pub is_reading: AtomicBool,
    /// Complete frames that were received.
    pub frames_received: AtomicU64,
    /// Ends the task of the connection.
    pub close: Notify,
}

/// The bytes to write, in order.
#[derive(Debug)]
pub(super) struct Writer {
    seal: Seal,
    compressor: Compressor,
    segments: VecDeque<Segment>,
    /// Bytes of the first segment that were written.
    written: usize,
    pending: usize,
}

/// The outcome of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    All,
    SocketFull,
}

impl Link {
    pub fn new(half: WriteHalf, seal: Seal, compression: Compression) -> Link {
        let compressor = Compressor::new(compression);
        let writer = Writer { seal, compressor, segments: VecDeque::new(), written: 0, pending: 0 };
        Link {
            half,
            writer: Mutex::new(writer),
            wake: Notify::new(),
            is_full: AtomicBool::new(false),
            is_reading: AtomicBool::new(false),
            frames_received: AtomicU64::new(0),
            close: Notify::new(),
        }
    }

    /// Waits until the socket accepts bytes.
    pub async fn writable(&self) -> io::Result<()> {
        self.half.writable().await
    }

    /// Notes a complete frame.
    pub fn count_frame(&self) {
        self.frames_received.fetch_add(1, Ordering::Relaxed);
    }
}

impl Writer {
    /// Returns the number of bytes that wait.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Compresses and protects frames, and adds them. Returns the number of bytes that compression
    /// has saved.
    pub fn add(&mut self, frames: &[Frame]) -> usize {
        let mut sealed = Vec::new();
        let mut saved = 0;
        for Frame { fields, payload } in frames {
            match self.compressor.compress(fields, payload) {
                Some((fields, compressed)) => {
                    saved += payload.len() - compressed.len();
                    self.seal.seal(&fields, &Arc::new(compressed), &mut sealed);
                }
                None => self.seal.seal(fields, payload, &mut sealed),
            }
        }
        self.pending += sealed.iter().map(|segment| segment.bytes().len()).sum::<usize>();
        self.segments.extend(sealed);
        saved
    }

    /// Writes until all is written or the socket is full. Returns the number of bytes also.
    pub fn write(&mut self, link: &Link) -> io::Result<(Written, usize)> {
        let mut total = 0;
        while !self.segments.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slice, segment) in slices.iter_mut().zip(&self.segments) {
                let from = if count == 0 { self.written } else { 0 };
                *slice = IoSlice::new(&segment.bytes()[from..]);
                count += 1;
            }
            match link.half.try_write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    total += bytes;
                    self.advance(bytes);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok((Written::SocketFull, total)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok((Written::All, total))
    }

    fn advance(&mut self, bytes: usize) {
        self.pending -= bytes;
        self.written += bytes;
        while let Some(first) = self.segments.front().map(|segment| segment.bytes().len())
            && first <= self.written
        {
            self.written -= first;
            self.segments.pop_front();
        }
    }
}

/// The reading half of a connection.
#[derive(Debug)]
pub(super) struct FrameReader {
    half: ReadHalf,
    seal: Seal,
    compression: Compression,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// The reason for which no frame was read.
#[derive(Debug)]
pub(super) enum ReadFailure {
    Closed,
    Io(io::Error),
    Violation(Violation),
}

impl From<Violation> for ReadFailure {
    fn from(violation: Violation) -> ReadFailure {
        ReadFailure::Violation(violation)
    }
}

impl FrameReader {
    pub fn new(half: ReadHalf, seal: Seal, compression: Compression) -> FrameReader {
        FrameReader { half, seal, compression, buffer: vec![0; READ_BYTES], start: 0, end: 0 }
    }

    /// Returns whether `next` would return a frame without waiting.
    pub fn has_frame(&self) -> bool {
        let buffered = &self.buffer[self.start..self.end];
        let Some(length) = buffered.first_chunk() else { return false };
        decode_length(*length).map_or(true, |length| buffered.len() >= LENGTH_BYTES + length)
    }

    /// Reads a frame, checks its protection, and expands its payload. Returns the size of the frame
    /// also.
    pub async fn next(&mut self) -> Result<(Fields, Vec<u8>, usize), ReadFailure> {
        while self.end - self.start < LENGTH_BYTES {
            self.fill().await?;
        }
        let length = self.buffer[self.start..].first_chunk().expect("it was read");
        let length = decode_length(*length)?;
        self.start += LENGTH_BYTES;
        let frame = if length <= READ_BYTES {
            while self.end - self.start < length {
                self.fill().await?;
            }
            let frame = self.buffer[self.start..self.start + length].to_vec();
            self.start += length;
            frame
        } else {
            let mut frame = Vec::with_capacity(length);
            let buffered = (self.end - self.start).min(length);
            frame.extend_from_slice(&self.buffer[self.start..self.start + buffered]);
            self.start += buffered;
            let missing = (length - buffered) as u64;
            (&mut self.half).take(missing).read_to_end(&mut frame).await.map_err(ReadFailure::Io)?;
            if frame.len() < length {
                return Err(ReadFailure::Closed);
            }
            frame
        };
        let (fields, payload) = self.seal.open(frame)?;
        let payload = expand(self.compression, &fields, payload)?;
        Ok((fields, payload, LENGTH_BYTES + length))
    }

    /// Reads more bytes behind those that are buffered.
    async fn fill(&mut self) -> Result<(), ReadFailure> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match self.half.read(&mut self.buffer[self.end..]).await.map_err(ReadFailure::Io)? {
            0 => Err(ReadFailure::Closed),
            bytes => {
                self.end += bytes;
                Ok(())
            }
        }
    }
}
