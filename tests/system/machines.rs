//! A real Debian machine (testbed/debian-vm) in an unmodified QEMU, from its boot loader to the
//! banner of its SSH server: recorded once, then booted from memory in each of the three launches,
//! two as root and one as an ordinary user. The machine writes to an image of its own.
//!
//! Runs without KVM, which many test machines lack; nothing is timed.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Mounted, Running, Stage, checkout, has, is_root};

/// The time limit that detects a hang. An emulated boot on a busy machine takes less.
const PATIENCE: Duration = Duration::from_secs(600);
const BANNER: &[u8] = b"SSH-2.0-OpenSSH";

/// Returns the path of the disk image if this user can read one.
fn debian() -> Result<PathBuf, String> {
    let mut script = Command::new(checkout().join("testbed/debian-vm"));
    if std::env::var_os("QUELL_MACHINES").is_some_and(|path| path.is_empty()) {
        script.env_remove("QUELL_MACHINES");
    }
    let output = script.arg("--have").output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap().trim().into()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
    }
}

/// A running machine.
struct Machine {
    running: Running,
    port: u16,
    serial: PathBuf,
}

/// Starts QEMU with the command, which may be a `quell` command that ends with `--`.
fn start(stage: &Stage, mut command: Command, name: &str, on: &Path, format: &str) -> Machine {
    let own = stage.path(format!("{name}.qcow2"));
    let mut create = stage.command("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-F", format, "-b"]).arg(on).arg(&own);
    stage.run(&mut create).expect(0);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let serial = stage.path(format!("{name}.serial"));
    if command.get_program() != "qemu-system-x86_64" {
        command.arg("qemu-system-x86_64");
    }
    command.args(["-accel", "tcg", "-m", "256", "-display", "none", "-monitor", "none", "-serial"]);
    command.arg(format!("file:{}", serial.display()));
    command.arg("-drive").arg(format!("file={},if=virtio", own.display()));
    command.arg("-nic").arg(format!("user,model=virtio,hostfwd=tcp:127.0.0.1:{port}-:22"));
    Machine { running: stage.start(&mut command), port, serial }
}

impl Machine {
    /// Waits until the SSH server answers.
    #[track_caller]
    fn wait_until_up(&mut self) {
        let begun = Instant::now();
        while !answers(self.port) {
            let serial =
                || String::from_utf8_lossy(&std::fs::read(&self.serial).unwrap_or_default()).into_owned();
            assert!(self.running.is_running(), "QEMU ended: {}\n{}", self.running.err(), serial());
            assert!(begun.elapsed() < PATIENCE, "no SSH server: {}\n{}", self.running.err(), serial());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn end(self) {
        self.running.signal(Signal::TERM);
        self.running.wait();
    }
}

fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut banner = [0; BANNER.len()];
    // QEMU accepts the connection before the machine does.
    stream.read_exact(&mut banner).is_ok() && banner == BANNER
}

fn served(stage: &Stage, path: &Path) -> (u64, u64) {
    let stats = stage.run(stage.quell().args(["stats", "--json"]).arg(path)).expect(0).json();
    let counters = &stats[0]["trees"][0]["counters"];
    let of = |name: &str| counters[name].as_u64().unwrap();
    (of("blocks_from_memory"), of("blocks_from_source"))
}

#[test]
fn a_debian_machine_boots_from_memory() {
    if !has("qemu-system-x86_64") || !has("qemu-img") {
        skip!("QEMU (qemu-system-x86, qemu-utils) is not installed");
    }
    let disk = match debian() {
        Ok(disk) => disk,
        Err(why) => skip!("{why}"),
    };
    let stage = Stage::new();
    let image = stage.path("debian.boot");
    let sum = |path: &Path| stage.run(stage.command("cksum").arg(path)).expect(0).text();
    let before = sum(&disk);

    let mut record = stage.quell();
    record.args(["record", "-q", "--image"]).arg(&disk).arg("-o").arg(&image).arg("--");
    let mut recorded = start(&stage, record, "recorded", &disk, "raw");
    recorded.wait_until_up();
    recorded.end();
    let shown = stage.run(stage.quell().args(["boot", "show", "--json"]).arg(&image)).expect(0).json();
    let blocks = shown["blocks"].as_u64().unwrap();
    let whole = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&disk).unwrap()) * 512;
    assert!(blocks > 2000 && blocks * 4096 * 3 < whole, "{blocks} blocks of {whole} bytes");

    // An emulated boot takes minutes of processor time, so each user does a part of them.
    if is_root() {
        println!(
            "SKIPPED: root boots in a directory and from a qcow2 layer, an ordinary user at the image's path"
        );
        boot_in_a_directory_and_from_a_layer(&stage, &disk, &image, blocks);
    } else {
        println!(
            "SKIPPED: an ordinary user boots at the image's path, root in a directory and from a qcow2 layer"
        );
        boot_at_its_path(&stage, &disk, &image, blocks);
    }
    assert_eq!(sum(&disk), before, "the disk image was written to");
    stage.expect_nothing_left();
}

fn boot_at_its_path(stage: &Stage, disk: &Path, image: &Path, blocks: u64) {
    let mut run = stage.quell();
    run.args(["run", "-q", "--strict", "--image"]).arg(disk).arg("-b").arg(image).arg("--");
    let mut covered = start(stage, run, "covered", disk, "raw");
    covered.wait_until_up();
    expect_most_from_memory(stage, disk, blocks);
    covered.end();
}

/// Boots both machines at the same time.
fn boot_in_a_directory_and_from_a_layer(stage: &Stage, disk: &Path, image: &Path, blocks: u64) {
    let point = stage.dir("point");
    let mut mount = stage.quell();
    mount.args(["mount", "-q", "--strict", "--image", "-b"]).arg(image).arg(disk).arg(&point);
    stage.run(&mut mount).expect(0);
    let mounted = Mounted::at(stage, point);
    let qemu = || stage.command("qemu-system-x86_64");
    let there = mounted.point.join(disk.file_name().unwrap());
    let mut in_directory = start(stage, qemu(), "in-directory", &there, "raw");
    let hot = stage.path("hot.qcow2");
    stage.run(stage.quell().args(["boot", "qcow2", "-q"]).arg(image).arg("-o").arg(&hot)).expect(0);
    let mut check = stage.command("qemu-img");
    stage.run(check.args(["check", "-q"]).arg(&hot)).expect(0);
    let mut compare = stage.command("qemu-img");
    stage.run(compare.args(["compare", "-q", "-f", "qcow2", "-F", "raw"]).arg(&hot).arg(disk)).expect(0);
    let mut layered = start(stage, qemu(), "layered", &hot, "qcow2");
    in_directory.wait_until_up();
    layered.wait_until_up();
    expect_most_from_memory(stage, &mounted.point, blocks);
    in_directory.end();
    layered.end();
    mounted.umount();
}

/// Two boots do not read exactly the same blocks.
#[track_caller]
fn expect_most_from_memory(stage: &Stage, path: &Path, blocks: u64) {
    let (from_memory, from_source) = served(stage, path);
    println!("{}: {from_memory} blocks from memory, {from_source} from the disk image", path.display());
    assert!(from_memory > blocks / 2 && from_source < blocks / 5, "{from_memory}, {from_source} of {blocks}");
}
