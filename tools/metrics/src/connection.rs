//! One connection of an HTTP client: a request is read, answered, and the connection is closed.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

/// The path of the text.
pub const METRICS_PATH: &str = "/metrics";

/// The largest time from the acceptance of a connection to the end of its request, and again from
/// the beginning of the response to the end of the connection.
const TIME_MAX: Duration = Duration::from_secs(5);
/// The largest request, in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The largest number of header lines of a request.
const HEADERS_MAX: usize = 64;

/// A connection, with the time limit of its current step.
pub struct Connection {
    socket: OwnedFd,
    deadline: Instant,
}

/// A response: the status line, a further header line or "", and the body.
struct Response {
    status: &'static str,
    header: &'static str,
    content_type: &'static str,
    body: String,
}

impl Response {
    fn failed(status: &'static str, header: &'static str) -> Response {
        Response { status, header, content_type: "text/plain; charset=utf-8", body: format!("{status}\n") }
    }
}

impl Connection {
    /// Begins the time of a connection. The socket must not block.
    pub fn new(socket: OwnedFd) -> Connection {
        Connection { socket, deadline: Instant::now() + TIME_MAX }
    }

    /// Answers one request with the text for [`METRICS_PATH`]. A client that sends no request, or
    /// does not read the response, is disconnected after 5 s. The time of `text` does not count.
    pub fn serve(mut self, text: &dyn Fn() -> String) {
        // A client that ends or is too slow needs no response.
        if let Ok(request) = self.receive() {
            let response = respond(&request, text);
            self.deadline = Instant::now() + TIME_MAX;
            let Response { status, header, content_type, body } = response;
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\n{header}Content-Type: {content_type}\r\nContent-Length: {length}\r\n\
                 Connection: close\r\n\r\n"
            );
            if self.send(head.as_bytes()).and_then(|()| self.send(body.as_bytes())).is_ok() {
                self.end();
            }
        }
    }

    /// Receives bytes until the request is complete, invalid, or too long.
    fn receive(&self) -> Result<Vec<u8>, Errno> {
        let mut request = vec![0; REQUEST_BYTES_MAX];
        let mut length = 0;
        while length < REQUEST_BYTES_MAX && is_partial(&request[..length]) {
            self.wait(PollFlags::IN)?;
            match rustix::io::read(&self.socket, &mut request[length..]) {
                Ok(0) => return Err(Errno::CONNRESET),
                Ok(read) => length += read,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        request.truncate(length);
        Ok(request)
    }

    fn send(&self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            self.wait(PollFlags::OUT)?;
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the client has read the response and closed its side. If the socket is closed
    /// while bytes of the client are unread, the kernel can discard the response.
    fn end(&self) {
        let mut rest = [0; 1024];
        let mut read = rustix::net::shutdown(&self.socket, Shutdown::Write).map(|()| 1);
        for _ in 0..REQUEST_BYTES_MAX / rest.len() {
            if !matches!(read, Ok(1..) | Err(Errno::INTR | Errno::AGAIN)) {
                break;
            }
            read = self.wait(PollFlags::IN).and_then(|()| rustix::io::read(&self.socket, &mut rest));
        }
    }

    /// Waits for an event of the socket. Errors: `TIMEDOUT` after the time of the connection.
    fn wait(&self, event: PollFlags) -> Result<(), Errno> {
        loop {
            let remaining = self.deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            let timeout = Timespec {
                tv_sec: remaining.as_secs().cast_signed(),
                tv_nsec: remaining.subsec_nanos().into(),
            };
            match rustix::event::poll(&mut [PollFd::new(&self.socket.as_fd(), event)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_partial(request: &[u8]) -> bool {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    matches!(httparse::Request::new(&mut headers).parse(request), Ok(httparse::Status::Partial))
}

fn respond(request: &[u8], text: &dyn Fn() -> String) -> Response {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Response::failed("431 Request Header Fields Too Large", "");
        }
        Err(_) => return Response::failed("400 Bad Request", ""),
    }
    let path = parsed.path.unwrap_or_default().split('?').next();
    match (parsed.method, path) {
        (Some("GET"), Some(METRICS_PATH)) => Response {
            status: "200 OK",
            header: "",
            content_type: "text/plain; version=0.0.4; charset=utf-8",
            body: text(),
        },
        (_, Some(METRICS_PATH)) => Response::failed("405 Method Not Allowed", "Allow: GET\r\n"),
        _ => Response::failed("404 Not Found", ""),
    }
}
