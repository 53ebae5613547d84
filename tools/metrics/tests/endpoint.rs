//! The endpoint with valid, invalid, long, slow and many requests, on both kinds of sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quell_metrics::{Address, Endpoint};

const TEXT: &str = "quell_pool_up{member=\"0\"} 1\n";

/// Calls `test` while an endpoint serves `TEXT`, or the text that a function returns.
fn with_endpoint(address: &Address, test: impl FnOnce(&Address)) {
    with_endpoint_of(address, &|| TEXT.to_owned(), test);
}

fn with_endpoint_of(address: &Address, text: &(dyn Fn() -> String + Sync), test: impl FnOnce(&Address)) {
    let endpoint = Endpoint::listen(address).unwrap();
    let address = endpoint.address().clone();
    let is_stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            endpoint.serve(&|| is_stopped.load(Ordering::Relaxed), text).unwrap();
        });
        let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&address)));
        is_stopped.store(true, Ordering::Relaxed);
        served.join().unwrap();
        if let Err(panic) = tested {
            std::panic::resume_unwind(panic);
        }
    });
}

fn with_port(test: impl FnOnce(SocketAddr)) {
    with_endpoint(&"127.0.0.1:0".parse().unwrap(), |address| match address {
        Address::Loopback(address) => test(*address),
        Address::Unix(_) => unreachable!("it is a port"),
    });
}

/// Sends bytes, and returns all bytes of the answer.
fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn status(answer: &str) -> &str {
    answer.lines().next().unwrap_or_default()
}

#[test]
fn a_request_gets_the_text() {
    with_port(|address| {
        for request in [
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n",
            "GET /metrics?x=1 HTTP/1.0\r\n\r\n",
        ] {
            let answer = ask(address, request.as_bytes());
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert_eq!((status(head), body), ("HTTP/1.1 200 OK", TEXT));
            assert!(
                head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
                "{head}"
            );
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", TEXT.len())), "{head}");
            assert!(head.contains("\r\nConnection: close"), "{head}");
        }
    });
}

#[test]
fn other_requests_get_errors() {
    with_port(|address| {
        let ask = |request: &str| status(&ask(address, request.as_bytes())).to_owned();
        assert_eq!(ask("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(ask("POST /metrics HTTP/1.1\r\n\r\nbody"), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(ask("\0\u{1}\r\n\r\n"), "HTTP/1.1 400 Bad Request");
        assert_eq!(ask("GET /metrics SMTP/1.1\r\n\r\n"), "HTTP/1.1 400 Bad Request");
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(20_000));
        assert_eq!(ask(&long), "HTTP/1.1 431 Request Header Fields Too Large");
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: 1\r\n".repeat(100));
        assert_eq!(ask(&many), "HTTP/1.1 431 Request Header Fields Too Large");
    });
}

#[test]
fn a_request_may_arrive_in_parts_and_an_incomplete_one_gets_nothing() {
    with_port(|address| {
        let mut stream = TcpStream::connect(address).unwrap();
        for part in ["GET /met", "rics HTTP/1.1\r", "\nHost: x\r\n", "\r\n"] {
            stream.write_all(part.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with(TEXT), "{answer}");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty());
    });
}

#[test]
fn clients_that_send_nothing_are_disconnected_and_others_are_served_then() {
    with_port(|address| {
        // More than the endpoint serves at a time.
        let mut silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        let answer = ask(address, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.ends_with(TEXT), "{answer}");
        let read = silent[0].read(&mut [0; 10]);
        assert!(matches!(&read, Ok(0)) || read.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset));
    });
}

#[test]
fn a_unix_socket_belongs_to_its_user_and_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    // The socket of an endpoint that was killed.
    drop(UnixListener::bind(&path).unwrap());
    let address = Address::Unix(path.clone());
    with_endpoint(&address, |_| {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with(TEXT), "{answer}");
        assert_eq!(Endpoint::listen(&address).unwrap_err().kind(), ErrorKind::AddrInUse);
    });
    assert!(!path.exists());
    std::fs::write(&path, "kept").unwrap();
    assert_eq!(Endpoint::listen(&address).unwrap_err().kind(), ErrorKind::AddrInUse);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
}

#[test]
fn a_text_that_takes_longer_than_a_client_may_is_sent() {
    let slow = || {
        std::thread::sleep(Duration::from_millis(5500));
        TEXT.to_owned()
    };
    with_endpoint_of(&"127.0.0.1:0".parse().unwrap(), &slow, |address| {
        let Address::Loopback(address) = address else { unreachable!("it is a port") };
        assert!(ask(*address, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with(TEXT));
    });
}
