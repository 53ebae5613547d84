//! `quell blob top` and `quell blob metrics`: the counters of a server.

use std::os::unix::net::UnixStream;

use rustix::process::Signal;

use crate::pool_counters::request;
use crate::stage::{Stage, eventually};

/// Returns the value of a metric of a store, with further labels.
fn metric(text: &str, name: &str, labels: &str) -> u64 {
    let begin = format!("quell_blob_{name}{{store=\"");
    let line = text.lines().find(|line| line.starts_with(&begin) && line.contains(labels));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[test]
fn the_requests_of_a_server_are_counted() {
    let stage = Stage::new();
    let store = stage.path("store");
    let top = |store: &dyn AsRef<std::ffi::OsStr>, options: &[&str]| {
        let mut command = stage.blob_command(&[&"top", store, &"--once", &"--interval", &"0.1"]);
        stage.run(command.args(options))
    };
    let file = stage.file("file", vec![7; 50_000]);
    stage.run(&mut stage.blob_command(&[&"put", &store, &file])).expect(0);
    top(&store, &[]).expect(3).says("no server has it open");
    let (server, line) = stage.serve(&store, &["--listen", "127.0.0.1:0"]);
    for _ in 0..3 {
        stage.run(&mut stage.blob_command(&[&"put", &store, &file])).expect(0);
    }
    stage.run(&mut stage.blob_command(&[&"cat", &store, &"file"])).expect(0);
    stage.run(&mut stage.blob_command(&[&"rm", &store, &"missing"])).expect(2);
    let location = |key: &str| format!("quell://{}?key={key}", line["address"].as_str().unwrap());
    let limited = location(&stage.blob_key(&store, "limited.key", &["--read", "a/"]));
    let admin = location(&stage.blob_key(&store, "admin.key", &["--admin"]));
    top(&limited, &[]).expect(3).says("no right to administer");

    let shown = top(&admin, &["--json"]).expect(0).json();
    let counter = |path: &str| shown["counters"].pointer(path).unwrap().as_u64().unwrap();
    assert_eq!((counter("/requests/commit"), counter("/failed/commit")), (4, 1));
    assert_eq!((counter("/written_bytes"), counter("/read_bytes")), (150_000, 50_000));
    assert_eq!((counter("/extents"), counter("/extent_bytes")), (3, 150_000));
    assert_eq!((counter("/denied"), counter("/conflicts"), counter("/snapshots")), (1, 0, 0));
    assert_eq!(shown["rates"]["requests"]["commit"], 0.0);
    let table = top(&store, &[]).expect(0).text();
    assert!(table.lines().any(|line| line.starts_with("commit ")), "{table}");

    let text = stage.run(&mut stage.blob_command(&[&"metrics", &store])).expect(0).text();
    assert_eq!(metric(&text, "requests_total", "request=\"commit\""), 4);
    assert_eq!(metric(&text, "bytes_total", "operation=\"write\""), 150_000);
    let socket = stage.path("metrics");
    let listen = format!("unix:{}", socket.display());
    let mut serving = stage.start(&mut stage.blob_command(&[&"metrics", &store, &"--listen", &listen]));
    serving.wait_for_error("the metrics are at");
    let answer = || request(UnixStream::connect(&socket).unwrap());
    assert_eq!(metric(&answer(), "requests_failed_total", "request=\"commit\""), 1);
    // The endpoint outlives the server.
    server.signal(Signal::TERM);
    server.wait().expect(0);
    assert!(eventually(|| metric(&answer(), "up", "") == 0));
    serving.signal(Signal::TERM);
    serving.wait().expect(0);
}
