//! The release of a member, with messages of the keeper in an order that a busy machine produces.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use quell_wire::pool::{
    Complete, Compression, Configuration, Consistency, DaemonId, DaemonReport, DaemonSettings, KeeperMessage,
    Listen, Listening, MemberId, PoolDaemon, PoolMember, PoolSettings, Ready,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A daemon whose keeper is the test.
struct Daemon {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Daemon {
    fn send(&mut self, message: &impl Serialize) {
        let mut line = serde_json::to_vec(message).unwrap();
        line.push(b'\n');
        self.input.write_all(&line).unwrap();
    }

    fn receive<T: DeserializeOwned>(&mut self) -> T {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Closes the input, and expects that the daemon removes its files.
    fn end(self) {
        let Daemon { mut process, input, output } = self;
        drop(input);
        let lines: Vec<String> = output.lines().map(Result::unwrap).collect();
        assert_eq!(lines, [r#""Removing""#]);
        assert!(process.wait().unwrap().success());
    }
}

/// Starts a daemon that runs two members, and returns it with its settings.
fn start(directory: &std::path::Path) -> (Daemon, PoolDaemon, Vec<PoolMember>) {
    let command = &mut Command::new(env!("CARGO_BIN_EXE_quelld"));
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (input, output) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
    let mut daemon = Daemon { process, input, output };
    daemon.send(&DaemonSettings {
        name: "p".into(),
        pool: 7,
        key: [1; 32],
        daemon: DaemonId(0),
        members: vec![MemberId(0), MemberId(1)],
        storage: DaemonId(0),
        host: "here".into(),
        directory: Some(directory.to_owned()),
        memory_bytes: None,
        runtime: Some(directory.to_owned()),
        listen: Listen::Loopback,
        encrypts: false,
        compression: Compression::None,
        log_filter: None,
    });
    let own = match daemon.receive() {
        Listening::At(own) => own,
        failed @ Listening::Failed { .. } => panic!("{failed:?}"),
    };
    let member = |id: u16| PoolMember {
        id: MemberId(id),
        daemon: DaemonId(0),
        backups: Vec::new(),
        serves_clients: id == 0,
    };
    let members: Vec<PoolMember> = (0..2).map(member).collect();
    daemon.send(&PoolSettings {
        daemons: vec![own.clone()],
        members: members.clone(),
        ended: Vec::new(),
        is_complete: true,
        partitions: 2,
        replicas: 1,
        chunk_bytes: 65536,
        consistency: Consistency::Synchronous,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    });
    assert_eq!(daemon.receive::<Ready>(), Ready::Serving);
    daemon.send(&Complete);
    (daemon, own, members)
}

#[test]
fn a_released_member_is_not_started_by_an_earlier_configuration() {
    let private = std::fs::Permissions::from_mode(0o700);
    let directory = tempfile::Builder::new().permissions(private).tempdir().unwrap();
    let (mut daemon, own, members) = start(directory.path());
    let socket = own.socket(MemberId(1));
    assert!(socket.exists());
    let configuration = |number, releasing| {
        KeeperMessage::Configuration(Configuration {
            number,
            daemons: vec![own.clone()],
            members: members.clone(),
            releasing,
            ended: Vec::new(),
            is_complete: true,
        })
    };
    daemon.send(&KeeperMessage::Release(MemberId(1)));
    assert_eq!(daemon.receive::<DaemonReport>(), DaemonReport::Released(MemberId(1)));
    // The keeper sent this one before it received the report, because another member has moved.
    daemon.send(&configuration(1, vec![MemberId(1)]));
    assert_eq!(daemon.receive::<DaemonReport>(), DaemonReport::Configured(1));
    assert!(!socket.exists(), "the member runs again, and its new backups replace the complete one");
    // The move has failed.
    daemon.send(&configuration(2, Vec::new()));
    assert_eq!(daemon.receive::<DaemonReport>(), DaemonReport::Configured(2));
    assert!(socket.exists());
    daemon.end();
}
