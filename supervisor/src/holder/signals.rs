//! The signals that request the end of a holder.
//!
//! SIGTERM, SIGINT and SIGHUP request the end. A view at a mount point is unmounted. If programs
//! use it, it is detached, which removes its name, and is served until the last of them has ended.
//! A view of `quell run` is served until the last program has ended; if the kernel alone serves it,
//! the holder ends at once. A writable view remains in place while programs use it, because its
//! process holds the lock of the writable layer. A second SIGTERM or SIGINT ends any of these views
//! at once.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;
use crate::socket::server::Holder;

/// Counts the requests to end this process.
#[derive(Debug)]
pub struct Signals {
    /// Receives a byte for each SIGTERM and SIGINT.
    ends: UnixStream,
    /// Receives a byte for each SIGHUP. SIGHUP counts once: systemd sends it together with SIGTERM.
    hang_ups: UnixStream,
    requests: u32,
}

impl Signals {
    /// Installs the handlers. From now on these signals do not end the process by themselves.
    pub fn listen() -> Result<Signals, Failure> {
        let cannot = |e: std::io::Error| Failure::cannot(format!("cannot wait for signals: {e}"));
        let pipe = |signals: &[i32]| {
            let (reader, writer) = UnixStream::pair()?;
            for signal in signals {
                signal_hook::low_level::pipe::register(*signal, writer.try_clone()?)?;
            }
            reader.set_nonblocking(true)?;
            Ok(reader)
        };
        let (ends, hang_ups) = (pipe(&[SIGTERM, SIGINT]).map_err(cannot)?, pipe(&[SIGHUP]).map_err(cannot)?);
        Ok(Signals { ends, hang_ups, requests: 0 })
    }

    /// Makes the holder check for requests as soon as a signal arrives.
    pub fn wake(&self, holder: &mut Holder) -> Result<(), Failure> {
        for stream in [&self.ends, &self.hang_ups] {
            let stream =
                stream.try_clone().map_err(|e| Failure::cannot(format!("cannot wait for signals: {e}")))?;
            holder.wake_on(OwnedFd::from(stream), PollFlags::IN);
        }
        Ok(())
    }

    /// Returns the number of requests so far. Several that arrived since the last call count as
    /// one.
    pub fn requests(&mut self) -> u32 {
        let received = |mut stream: &UnixStream| {
            let mut any = false;
            while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {
                any = true;
            }
            any
        };
        let (ends, hang_ups) = (received(&self.ends), received(&self.hang_ups));
        if ends || hang_ups && self.requests == 0 {
            self.requests += 1;
        }
        self.requests
    }
}
