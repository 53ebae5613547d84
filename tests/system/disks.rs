//! Disk images of virtual machines: recorded while an unmodified QEMU reads them, and served from
//! memory at their own paths, in a directory, and as a qcow2 layer; and faults of each part. The
//! machine here is a boot sector; machines.rs boots a complete Debian.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Ended, Mounted, Running, Stage, eventually, has, send};
use crate::trees;

const BLOCK: usize = 4096;
const BLOCKS: usize = 2048;

/// Skips the test if QEMU's tools are missing.
macro_rules! need_qemu {
    () => {
        if !has("qemu-img") || !has("qemu-io") {
            skip!("QEMU's package qemu-utils is not installed");
        }
    };
}

/// A raw disk image of 8 MiB, and a machine's own image on top of it.
struct Fixture {
    stage: Stage,
    base: PathBuf,
    own: PathBuf,
    image: PathBuf,
}

/// Returns a qemu-io command with a `-c` for each of `commands`. It ends with exit code 1 if one of
/// them fails.
fn io(own: &Path, options: &[&str], commands: &[&str]) -> Vec<String> {
    let mut words = vec!["qemu-io".to_owned()];
    words.extend(options.iter().map(|word| (*word).to_owned()));
    words.extend(commands.iter().flat_map(|command| ["-c".to_owned(), (*command).to_owned()]));
    words.push(own.to_str().unwrap().to_owned());
    words
}

impl Fixture {
    fn new() -> Fixture {
        let stage = Stage::new();
        let base = stage.file("base.raw", trees::noise(BLOCKS * BLOCK, 1));
        let fixture = Fixture { own: stage.path("own.qcow2"), image: stage.path("vm.boot"), base, stage };
        fixture.layer(&fixture.own, &fixture.base, "raw");
        fixture
    }

    /// Creates a qcow2 image on top of another, whose name is stored as given.
    fn layer(&self, path: &Path, on: &Path, format: &str) {
        let mut command = self.stage.command("qemu-img");
        command.args(["create", "-q", "-f", "qcow2", "-F", format, "-b"]).arg(on).arg(path);
        self.stage.run(&mut command).expect(0);
    }

    fn img(&self, words: &[&str], paths: &[&Path]) -> Ended {
        self.stage.run(self.stage.command("qemu-img").args(words).args(paths))
    }

    fn record(&self, disk: &Path, options: &[&str], command: &[String]) -> Ended {
        let mut quell = self.stage.quell();
        quell.args(["record", "-q"]).args(options).arg("--image").arg(disk).arg("-o").arg(&self.image);
        self.stage.run(quell.arg("--").args(command))
    }

    fn run(&self, disk: &Path, options: &[&str], command: &[String]) -> Ended {
        let mut quell = self.stage.quell();
        quell.arg("run").args(options).arg("--image").arg(disk).arg("-b").arg(&self.image);
        self.stage.run(quell.arg("--").args(command))
    }

    fn try_mount(&self, disk: &Path, options: &[&str]) -> (Ended, PathBuf) {
        let point = self.stage.dir("point");
        let mut quell = self.stage.quell();
        quell.arg("mount").args(options).args(["--image", "-b"]).arg(&self.image).arg(disk).arg(&point);
        (self.stage.run(&mut quell), point)
    }

    fn mount(&self, disk: &Path, options: &[&str]) -> Mounted<'_> {
        let (ended, point) = self.try_mount(disk, options);
        ended.expect(0);
        Mounted::at(&self.stage, point)
    }

    fn boot(&self, words: &[&str]) -> Ended {
        self.stage.run(self.stage.quell().arg("boot").arg(words[0]).arg(&self.image).args(&words[1..]))
    }

    /// Returns the position in the backing chain and the number of blocks of each file in the
    /// image.
    fn recorded(&self) -> Vec<(String, u64)> {
        let shown = self.boot(&["show", "--files", "--json"]).expect(0).json();
        let files = shown["list"].as_array().unwrap().clone();
        let position =
            |f: &serde_json::Value| f["name"].as_str().unwrap().split(' ').next().unwrap().to_owned();
        files.iter().map(|f| (position(f), f["blocks"].as_u64().unwrap())).collect()
    }

    fn stats(&self, path: &Path) -> (u64, u64) {
        let stats = self.stage.run(self.stage.quell().args(["stats", "--json"]).arg(path)).expect(0).json();
        let counters = &stats[0]["trees"][0]["counters"];
        let counter = |name: &str| counters[name].as_u64().unwrap();
        (counter("blocks_from_memory"), counter("blocks_from_source"))
    }

    /// Overwrites all bytes and preserves size and time: a read of the file gives a wrong result.
    fn overwrite_preserving_time(&self, path: &Path, byte: u8) {
        let metadata = fs::metadata(path).unwrap();
        fs::write(path, vec![byte; metadata.len() as usize]).unwrap();
        fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_modified(metadata.modified().unwrap())
            .unwrap();
    }
}

/// The reads of a machine in these tests: one block at 1 MiB, four at 4 MiB.
const READS: [&str; 2] = ["read 1M 4k", "read 4M 16k"];

/// Returns a command that reads the whole disk and checks the blocks of `READS`.
fn checks(fixture: &Fixture) -> Vec<String> {
    let bytes = trees::noise(BLOCKS * BLOCK, 1);
    let mut script = String::from("set -e; qemu-img convert -U -f qcow2 -O raw \"$1\" \"$2\"\n");
    for (offset, length) in [(1usize << 20, 4096usize), (4 << 20, 16384)] {
        let piece = fixture.stage.file(&format!("piece-{offset}"), &bytes[offset..offset + length]);
        script += &format!("cmp -n {length} -i {offset}:0 \"$2\" {}\n", piece.display());
    }
    let (own, copy) = (fixture.own.to_str().unwrap(), fixture.stage.path("copy.raw"));
    ["sh", "-c", &script, "sh", own, copy.to_str().unwrap()].map(str::to_owned).into()
}

#[test]
fn the_blocks_that_a_machine_reads_are_recorded() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    // In addition, the first block, which is recorded of every opened file.
    assert_eq!(fixture.recorded(), [("0".to_owned(), 6)]);
    let disk = fixture.base.to_str().unwrap();
    fixture.boot(&["verify", "--image", disk]).expect(0);
    assert!(fixture.boot(&["show", "--files"]).expect(0).text().contains(&format!("0 {disk}")));
    let out = fixture.stage.path("hot");
    fixture
        .stage
        .run(fixture.stage.quell().args(["boot", "extract"]).arg(&fixture.image).arg(&out))
        .expect(0);
    let (hot, whole) = (fs::read(out.join("0-base.raw")).unwrap(), fs::read(&fixture.base).unwrap());
    assert_eq!(hot.len(), whole.len());
    assert_eq!(hot[4 << 20..(4 << 20) + 4 * BLOCK], whole[4 << 20..(4 << 20) + 4 * BLOCK]);
    assert!(hot[2 << 20..3 << 20].iter().all(|b| *b == 0));
}

#[test]
fn a_boot_from_memory_reads_nothing_of_the_disk() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    fixture.overwrite_preserving_time(&fixture.base, b'x');
    let ended = fixture.run(&fixture.base, &["--strict"], &checks(&fixture)).expect(0);
    assert_eq!(ended.err, "", "success prints nothing");
    // Blocks that were not recorded come from the disk.
    let cold = io(&fixture.own, &[], &["read -P 0x78 2M 64k", "read -P 0x78 7M 1M"]);
    fixture.run(&fixture.base, &["--strict"], &cold).expect(0);
    fixture.boot(&["verify", "--image", fixture.base.to_str().unwrap()]).expect(1);
}

#[test]
fn a_directory_shows_the_disk_too_and_counts() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    let (ended, point) = fixture.try_mount(&fixture.base, &[]);
    assert_eq!((ended.code(), ended.text().as_str(), ended.err.as_str()), (Some(0), "", ""));
    let mounted = Mounted::at(&fixture.stage, point);
    let elsewhere = fixture.stage.path("elsewhere.qcow2");
    fixture.layer(&elsewhere, &mounted.point.join("base.raw"), "raw");
    fixture
        .stage
        .run(fixture.stage.command("sh").args(["-c", "exec \"$@\"", "sh"]).args(io(&elsewhere, &[], &READS)))
        .expect(0);
    let (from_memory, from_source) = fixture.stats(&mounted.point);
    assert!(from_memory >= 5 && from_source == 0, "{from_memory}, {from_source}");
    assert!(fs::read(mounted.point.join("base.raw")).unwrap() == fs::read(&fixture.base).unwrap());
    mounted.umount();
}

#[test]
fn all_modes_in_which_qemu_opens_files_read_the_same() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    let expected = fixture.stage.run(fixture.stage.command("cksum").arg(&fixture.base)).expect(0).out;
    let expected = String::from_utf8(expected).unwrap().split(' ').next().unwrap().to_owned();
    let mut script = String::from("disk=$1 copy=$2\n");
    for direct in ["off", "on"] {
        for aio in ["threads", "native", "io_uring"] {
            // QEMU does not support this combination.
            if aio == "native" && direct == "off" {
                continue;
            }
            script += &format!(
                "if qemu-img dd --image-opts -O raw bs=1M of=\"$copy\" 2>\"$copy.err\" \
                 if=driver=raw,file.driver=file,file.filename=\"$disk\",file.aio={aio},file.locking=on,cache.direct={direct}
                 then test \"$(cksum <\"$copy\" | cut -d' ' -f1)\" = {expected} || exit 1
                 else echo \"{aio}, direct {direct}: $(cat \"$copy.err\")\"; test {aio} = io_uring || exit 2; fi\n"
            );
        }
    }
    let copy = fixture.stage.path("copy");
    let words = ["sh", "-c", &script, "sh", fixture.base.to_str().unwrap(), copy.to_str().unwrap()];
    let ended = fixture.run(&fixture.base, &["-q", "--strict"], &words.map(str::to_owned)).expect(0);
    // io_uring may be disabled by the kernel or a container.
    ended.text().lines().for_each(|line| println!("SKIPPED: {line}"));
}

#[test]
fn the_disk_itself_is_never_written() {
    need_qemu!();
    let fixture = Fixture::new();
    let before = fs::read(&fixture.base).unwrap();
    fixture
        .record(&fixture.base, &[], &io(&fixture.own, &[], &["write -P 7 1M 64k", "read 1M 4k"]))
        .expect(0);
    // The machine's writes go to its own image.
    fixture
        .run(
            &fixture.base,
            &["-q", "--strict"],
            &io(&fixture.own, &[], &["read -P 7 1M 64k", "write -P 8 4M 4k"]),
        )
        .expect(0);
    let refused =
        fixture.run(&fixture.base, &["-q", "--strict"], &io(&fixture.base, &["-f", "raw"], &["write 0 4k"]));
    assert!(refused.err.contains("Read-only file system"), "{}", refused.err);
    let mounted = fixture.mount(&fixture.base, &["-q"]);
    let opened = fs::File::options().write(true).open(mounted.point.join("base.raw"));
    assert!(opened.is_err(), "a writable open");
    mounted.umount();
    assert!(fs::read(&fixture.base).unwrap() == before);
}

/// Creates base.raw below mid.qcow2 below top.qcow2, by relative names. The machine's own image
/// lies on top.qcow2.
fn chain() -> (Fixture, PathBuf) {
    let mut fixture = Fixture::new();
    let (mid, top) = (fixture.stage.path("mid.qcow2"), fixture.stage.path("top.qcow2"));
    fixture.layer(&mid, Path::new("base.raw"), "raw");
    fixture.stage.run(fixture.stage.command("qemu-io").args(["-c", "write -P 5 2M 64k"]).arg(&mid)).expect(0);
    fixture.layer(&top, Path::new("mid.qcow2"), "qcow2");
    fixture.stage.run(fixture.stage.command("qemu-io").args(["-c", "write -P 6 3M 64k"]).arg(&top)).expect(0);
    fixture.own = fixture.stage.path("chained.qcow2");
    fixture.layer(&fixture.own, &top, "qcow2");
    (fixture, top)
}

const CHAIN_READS: [&str; 4] = ["read 1M 4k", "read -P 5 2M 8k", "read -P 6 3M 8k", "read 4M 4k"];

#[test]
fn a_whole_chain_of_images_is_recorded_and_served() {
    need_qemu!();
    let (fixture, top) = chain();
    fixture.record(&top, &[], &io(&fixture.own, &[], &CHAIN_READS)).expect(0);
    let recorded = fixture.recorded();
    assert_eq!(recorded.iter().map(|(position, _)| position.as_str()).collect::<Vec<_>>(), ["0", "1", "2"]);
    assert_eq!(recorded[2].1, 3, "the raw one has its first block and what was read of it");
    // The tables of qcow2 are recorded like other blocks, so a machine finds its data with the boot
    // image alone.
    for name in ["base.raw", "mid.qcow2", "top.qcow2"] {
        fixture.overwrite_preserving_time(&fixture.stage.path(name), 0);
    }
    let chained = io(&fixture.own, &[], &CHAIN_READS);
    // The headers are overwritten as well, so the backing chain cannot be read any more.
    fixture.run(&top, &["-q", "--strict"], &chained).expect(2).says("has no such backing file");
    let (fixture, top) = chain();
    fixture.record(&top, &[], &io(&fixture.own, &[], &CHAIN_READS)).expect(0);
    fixture.overwrite_preserving_time(&fixture.base, 0);
    fixture.run(&top, &["-q", "--strict"], &io(&fixture.own, &[], &CHAIN_READS)).expect(0);
    let mounted = fixture.mount(&top, &["-q", "--strict"]);
    let elsewhere = fixture.stage.path("elsewhere.qcow2");
    fixture.layer(&elsewhere, &mounted.point.join("top.qcow2"), "qcow2");
    let words = io(&elsewhere, &[], &CHAIN_READS);
    fixture.stage.run(fixture.stage.command(&words[0]).args(&words[1..])).expect(0);
    let (from_memory, from_source) = fixture.stats(&mounted.point);
    assert!(from_memory > 8 && from_source == 0, "{from_memory}, {from_source}");
    mounted.umount();
}

#[test]
fn a_file_below_that_is_named_elsewhere_is_said_or_refused() {
    need_qemu!();
    let fixture = Fixture::new();
    let apart = fixture.stage.dir("apart").join("top.qcow2");
    for name in [fixture.base.to_str().unwrap(), "../base.raw"] {
        fixture.layer(&apart, Path::new(name), "raw");
        fixture.record(&apart, &[], &io(&apart, &["-r"], &READS)).expect(0);
        assert_eq!(fixture.recorded().len(), 2);
        fixture.run(&apart, &["-q", "--strict"], &io(&apart, &["-r"], &READS)).expect(0);
        let (refused, _) = fixture.try_mount(&apart, &["--strict"]);
        refused.expect(2).says("not below its directory");
        let (ended, point) = fixture.try_mount(&apart, &[]);
        ended.expect(0).says("has the backing file").says("served from memory");
        let mounted = Mounted::at(&fixture.stage, point);
        let names: Vec<_> = fs::read_dir(&mounted.point).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["top.qcow2"]);
        mounted.umount();
    }
}

#[test]
fn an_image_with_an_external_data_file_is_covered_with_it() {
    need_qemu!();
    let fixture = Fixture::new();
    let (disk, data) = (fixture.stage.path("apart.qcow2"), fixture.stage.path("data.raw"));
    let create = |name: &str| {
        let options = format!("data_file={name}");
        let mut command = fixture.stage.command("qemu-img");
        command
            .current_dir(fixture.stage.path(""))
            .args(["create", "-q", "-f", "qcow2", "-o", &options])
            .arg(&disk);
        fixture.stage.run(command.arg("8M")).expect(0);
    };
    create(data.to_str().unwrap());
    fixture
        .stage
        .run(fixture.stage.command("qemu-io").args(["-c", "write -P 9 1M 64k"]).arg(&disk))
        .expect(0);
    let own = fixture.stage.path("own-apart.qcow2");
    fixture.layer(&own, &disk, "qcow2");
    let reads = io(&own, &[], &["read -P 9 1M 8k"]);
    fixture.record(&disk, &[], &reads).expect(0);
    assert_eq!(fixture.recorded()[1].0, "1");
    fixture.overwrite_preserving_time(&data, b'x');
    fixture.run(&disk, &["-q", "--strict"], &reads).expect(0);
    fixture.try_mount(&disk, &[]).0.expect(2).says("has its data in");
    fixture
        .boot(&["qcow2", "-o", fixture.stage.path("no.qcow2").to_str().unwrap()])
        .expect(2)
        .says("in an external file");
    fs::remove_file(&data).unwrap();
    create("data.raw");
    fixture.run(&disk, &["--strict"], &["true".to_owned()]).expect(2).says("which is not an absolute path");
}

#[test]
fn chains_that_cannot_be_are_refused_with_the_reason() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    let odd = fixture.stage.path("odd.qcow2");
    let refused = |words: &str| {
        fixture.run(&odd, &["--strict"], &["true".to_owned()]).expect(2).says(words);
        let quell = &mut fixture.stage.quell();
        let quell = quell.args(["record", "--image"]).arg(&odd).arg("-o").arg(fixture.stage.path("new.boot"));
        fixture.stage.run(quell.args(["--", "true"])).expect(2).says(words);
    };
    let rebase = |name: &str| {
        fixture.layer(&odd, &fixture.base, "raw");
        fixture.img(&["rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", name], &[&odd]).expect(0);
    };
    rebase("odd.qcow2");
    refused("it is its own backing file");
    let back = fixture.stage.path("back.qcow2");
    fixture.layer(&back, &fixture.base, "raw");
    rebase("back.qcow2");
    fixture.img(&["rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", "odd.qcow2"], &[&back]).expect(0);
    refused("it is its own backing file");
    rebase("missing.raw");
    refused("missing.raw");
    rebase("nbd:localhost:10809");
    refused("is not a local file");
    rebase("json:{\"driver\":\"raw\"}");
    refused("is not a local file");
    rebase("base.raw");
    refused("does not begin with the qcow2 magic number");
    fs::write(&odd, b"QFI\xfb").unwrap();
    refused("damaged qcow2");
    let mut hostile = fs::read(&fixture.own).unwrap();
    hostile[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    fs::write(&odd, &hostile).unwrap();
    refused("damaged qcow2");
    // With `--image-format raw` the image is valid.
    let quell = &mut fixture.stage.quell();
    let quell = quell.args(["record", "-q", "--image-format", "raw", "--image"]).arg(&odd).arg("-o");
    fixture.stage.run(quell.arg(fixture.stage.path("new.boot")).args(["--", "cat"]).arg(&odd)).expect(0);
}

#[test]
fn two_machines_of_one_base_share_their_blocks() {
    need_qemu!();
    let fixture = Fixture::new();
    let parts = |own: &str, reads: &[&str]| {
        let own = fixture.stage.path(own);
        fixture.layer(&own, &fixture.base, "raw");
        fixture.record(&fixture.base, &[], &io(&own, &[], reads)).expect(0);
        let part = own.with_extension("boot");
        fs::rename(&fixture.image, &part).unwrap();
        part
    };
    let one = parts("one.qcow2", &["read 0 2M", "read 4M 256k"]);
    let two = parts("two.qcow2", &["read 0 2M", "read 6M 256k"]);
    let mut quell = fixture.stage.quell();
    quell.args(["boot", "merge"]).arg(&one).arg(&two).arg("-o").arg(&fixture.image);
    fixture.stage.run(&mut quell).expect(0);
    let bytes = |path: &Path| fs::metadata(path).unwrap().len();
    let (both, sum) = (bytes(&fixture.image), bytes(&one) + bytes(&two));
    assert!(both * 10 < sum * 6, "{both} of {sum}");
    assert_eq!(fixture.recorded(), [("0".to_owned(), 512 + 64 + 64)]);
    fixture.overwrite_preserving_time(&fixture.base, b'x');
    fixture.run(&fixture.base, &["-q", "--strict"], &io(&fixture.own, &[], &["read 0 4k"])).expect(0);
    // A disk image that has changed is treated as another disk.
    fixture.stage.file("base.raw", trees::noise(BLOCKS * BLOCK, 2));
    let three = parts("three.qcow2", &["read 0 4k"]);
    let mut quell = fixture.stage.quell();
    quell.args(["boot", "merge"]).arg(&one).arg(&three).arg("-o").arg(&fixture.image);
    fixture.stage.run(&mut quell).expect(2).says("another state");
    fs::rename(&one, &fixture.image).unwrap();
    fixture
        .record(&fixture.base, &["--merge"], &io(&fixture.own, &[], &READS))
        .expect(2)
        .says("it cannot be merged");
}

#[test]
fn machines_that_are_started_one_by_one_share_one_process_and_its_memory() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    let mut machines: Vec<Running> = (0..3)
        .map(|number| {
            let own = fixture.stage.path(format!("own-{number}.qcow2"));
            fixture.layer(&own, &fixture.base, "raw");
            let mut quell = fixture.stage.quell();
            quell.arg("run").args((number > 0).then_some("-q")).args(["--strict", "--image"]);
            quell.arg(&fixture.base).arg("-b").arg(&fixture.image);
            let script = "qemu-io -c 'read 1M 4k' -c 'read 4M 16k' \"$1\" && echo ready && exec sleep 600";
            fixture.stage.start(quell.args(["--", "sh", "-c", script, "sh"]).arg(&own))
        })
        .collect();
    machines.iter_mut().for_each(|machine| machine.wait_for_output("ready"));
    assert_eq!(fixture.stage.holders().len(), 1);
    let (from_memory, from_source) = fixture.stats(&fixture.base);
    assert!(from_memory >= 15 && from_source == 0, "{from_memory}, {from_source}");
    machines.iter().for_each(|machine| machine.signal(Signal::TERM));
    machines.into_iter().for_each(|machine| _ = machine.wait());
    fixture.stage.expect_nothing_left();
}

/// Returns a base image in each format.
fn formats(fixture: &Fixture) -> Vec<(&'static str, PathBuf)> {
    let converted = |name: &str, options: &[&str]| {
        let path = fixture.stage.path(name);
        let words = [&["convert", "-f", "raw", "-O", "qcow2"], options].concat();
        fixture.img(&words, &[&fixture.base, &path]).expect(0);
        path
    };
    vec![
        ("raw", fixture.base.clone()),
        ("qcow2", converted("plain.qcow2", &[])),
        ("qcow2", converted("old.qcow2", &["-o", "compat=0.10,cluster_size=4k"])),
        ("qcow2", converted("deflate.qcow2", &["-c"])),
        ("qcow2", converted("zstd.qcow2", &["-c", "-o", "compression_type=zstd,cluster_size=2M"])),
    ]
}

#[test]
fn the_hot_blocks_are_an_image_for_qemu_alone() {
    need_qemu!();
    let fixture = Fixture::new();
    // Data that can be compressed, and zeros.
    let mut bytes = trees::noise(BLOCKS * BLOCK, 1);
    bytes.iter_mut().for_each(|b| *b &= 0x0f);
    bytes[4 << 20..(4 << 20) + 2 * BLOCK].fill(0);
    fixture.stage.file("base.raw", &bytes);
    let (mid, top) = (fixture.stage.path("mid.qcow2"), fixture.stage.path("chain.qcow2"));
    let mut bases = formats(&fixture);
    fixture.layer(&mid, &fixture.base, "raw");
    fixture.stage.run(fixture.stage.command("qemu-io").args(["-c", "write -P 5 1M 4k"]).arg(&mid)).expect(0);
    fixture.layer(&top, &mid, "qcow2");
    bases.push(("qcow2", top));
    for (format, base) in bases {
        let hot = fixture.stage.path("hot.qcow2");
        let own = fixture.stage.path("mine.qcow2");
        fixture.layer(&own, &base, format);
        fixture.record(&base, &[], &io(&own, &[], &READS)).expect(0);
        let mut quell = fixture.stage.quell();
        quell.args(["boot", "qcow2", "-q"]).arg(&fixture.image).arg("-o").arg(&hot);
        fixture.stage.run(&mut quell).expect(0);
        let first = fs::read(&hot).unwrap();
        fixture.stage.run(&mut quell).expect(0);
        assert!(fs::read(&hot).unwrap() == first, "the same bytes for the same recording");
        fixture.img(&["check", "-q", "-f", "qcow2"], &[&hot]).expect(0);
        fixture.img(&["compare", "-q", "-f", "qcow2", "-F", format], &[&hot, &base]).expect(0);
        let map = fixture.img(&["map", "--output=json", "-f", "qcow2"], &[&hot]).expect(0).json();
        let own_bytes: u64 = map
            .as_array()
            .unwrap()
            .iter()
            .filter(|piece| piece["depth"] == 0)
            .map(|piece| piece["length"].as_u64().unwrap())
            .sum();
        let name = base.display();
        assert!(own_bytes >= 3 * BLOCK as u64, "{name}: {own_bytes} bytes\n{map}");
        let is_here = |offset: u64| {
            let covers = |piece: &&serde_json::Value| {
                let (start, length) = (piece["start"].as_u64().unwrap(), piece["length"].as_u64().unwrap());
                (start..start + length).contains(&offset)
            };
            map.as_array().unwrap().iter().find(covers).unwrap()["depth"] == 0
        };
        // For zeros that the base's metadata records, nothing is read.
        for offset in [1 << 20, (4 << 20) + 3 * 4096] {
            assert!(is_here(offset), "{name}: nothing at {offset}\n{map}");
        }
        // A machine finds its recorded blocks in the layer, even if the base is gone.
        let mine = fixture.stage.path("on-hot.qcow2");
        fixture.layer(&mine, &hot, "qcow2");
        let info = fixture.img(&["info", "--output=json"], &[&hot]).expect(0).json();
        assert_eq!(info["full-backing-filename"], base.to_str().unwrap());
        assert_eq!(info["backing-filename-format"], format);
        fixture.stage.run(fixture.stage.command("qemu-io").args(["-c", "read 0 8M"]).arg(&mine)).expect(0);
    }
    // No layer is created if the disk has changed.
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    fs::File::options().write(true).open(&fixture.base).unwrap().write_all_at(b"x", 0).unwrap();
    fixture
        .boot(&["qcow2", "-o", fixture.stage.path("no.qcow2").to_str().unwrap()])
        .expect(2)
        .says("size or modification time");
    // The layer must not replace the disk.
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    let whole = fs::read(&fixture.base).unwrap();
    fixture.boot(&["qcow2", "-o", fixture.base.to_str().unwrap()]).expect(2).says("is the disk image itself");
    assert!(fs::read(&fixture.base).unwrap() == whole);
}

/// In other formats, the blocks of the image file are not the blocks of the disk, so no layer can
/// be created.
#[test]
fn of_a_disk_in_another_format_no_layer_is_made() {
    need_qemu!();
    let fixture = Fixture::new();
    let out = fixture.stage.path("no.qcow2");
    for format in ["vmdk", "vdi", "vpc"] {
        let other = fixture.stage.path(format!("base.{format}"));
        fixture.img(&["convert", "-f", "raw", "-O", format], &[&fixture.base, &other]).expect(0);
        let own = fixture.stage.path(format!("on-{format}.qcow2"));
        fixture.layer(&own, &other, format);
        for disk in [&own, &other] {
            // Recording and serving work as with other formats.
            let reads = io(&own, &["-r"], &READS);
            fixture.record(disk, &[], &reads).expect(0);
            fixture.run(disk, &["-q", "--strict"], &reads).expect(0);
            let ended = fixture.boot(&["qcow2", "-o", out.to_str().unwrap()]).expect(2);
            ended.says("neither raw nor qcow2").says(other.to_str().unwrap());
            assert!(!out.exists());
        }
    }
}

#[test]
fn a_disk_that_is_raw_whatever_it_begins_with_is_said_to_be() {
    need_qemu!();
    let fixture = Fixture::new();
    // A machine wrote a qcow2 header without a backing file to its raw disk.
    fixture.layer(&fixture.base, &fixture.stage.file("below.raw", vec![0; BLOCKS * BLOCK]), "raw");
    fixture.img(&["rebase", "-u", "-b", ""], &[&fixture.base]).expect(0);
    let reads = io(&fixture.base, &["-r", "-f", "raw"], &["read 0 4k"]);
    fixture.record(&fixture.base, &["--image-format", "raw"], &reads).expect(0);
    let hot = fixture.stage.path("hot.qcow2");
    fixture.boot(&["qcow2", "-q", "--image-format", "raw", "-o", hot.to_str().unwrap()]).expect(0);
    let info = fixture.img(&["info", "--output=json"], &[&hot]).expect(0).json();
    assert_eq!(info["backing-filename-format"], "raw");
}

#[test]
fn a_layer_of_recorded_blocks_hides_changes_of_the_base() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    let hot = fixture.stage.path("hot.qcow2");
    fixture.boot(&["qcow2", "-q", "-o", hot.to_str().unwrap()]).expect(0);
    fixture.overwrite_preserving_time(&fixture.base, b'x');
    let moved = Fixture { own: fixture.stage.path("on-hot.qcow2"), ..fixture };
    moved.layer(&moved.own, &hot, "qcow2");
    let words = checks(&moved);
    moved.stage.run(moved.stage.command(&words[0]).args(&words[1..])).expect(0);
    let cold = io(&moved.own, &[], &["read -P 0x78 2M 64k"]);
    moved.stage.run(moved.stage.command(&cold[0]).args(&cold[1..])).expect(0);
}

#[test]
fn a_disk_that_changed_is_served_as_it_is_and_reported() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    fs::write(&fixture.base, vec![b'n'; BLOCKS * BLOCK]).unwrap();
    let now = io(&fixture.own, &[], &["read -P 0x6e 0 8M"]);
    fixture.run(&fixture.base, &["-q"], &now).expect(0).says("has changed since").says("record it again");
    fixture.run(&fixture.base, &["--strict"], &now).expect(2).says("has changed since");
    let (refused, _) = fixture.try_mount(&fixture.base, &["--strict"]);
    refused.expect(2).says("has changed since");
}

#[test]
fn a_disk_that_changes_while_it_is_served_is_served_as_it_is_and_reported() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    let mut quell = fixture.stage.quell();
    quell
        .args(["run", "-q", "--strict", "--recheck", "100", "--image"])
        .arg(&fixture.base)
        .arg("-b")
        .arg(&fixture.image);
    let script = "qemu-io -c 'read 1M 4k' \"$1\" && echo ready && while ! test -e \"$2\"; do sleep 0.05; done; \
                  qemu-io -c 'read -P 0x6e 1M 4k' \"$1\"";
    let go = fixture.stage.path("go");
    let mut running =
        fixture.stage.start(quell.args(["--", "sh", "-c", script, "sh"]).arg(&fixture.own).arg(&go));
    running.wait_for_output("ready");
    let disk = fs::File::options().write(true).open(&fixture.base).unwrap();
    disk.write_all_at(&vec![b'n'; BLOCKS * BLOCK], 0).unwrap();
    running.wait_for_error("has changed while it is served");
    fs::write(&go, "").unwrap();
    running.wait().expect(0);
}

#[test]
fn a_disk_that_is_cut_short_is_an_error_and_never_zeros() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    let mounted = fixture.mount(&fixture.base, &["-q", "--recheck", "0"]);
    fs::File::options().write(true).open(&fixture.base).unwrap().set_len(1 << 20).unwrap();
    let file = fs::File::open(mounted.point.join("base.raw")).unwrap();
    let mut block = [0; BLOCK];
    file.read_exact_at(&mut block, 4 << 20).unwrap();
    assert_eq!(block[..], trees::noise(BLOCKS * BLOCK, 1)[4 << 20..(4 << 20) + BLOCK]);
    assert!(file.read_at(&mut block, 6 << 20).is_err());
    drop(file);
    mounted.umount();
}

#[test]
fn a_disk_that_changes_while_it_is_recorded_is_not_recorded() {
    need_qemu!();
    let fixture = Fixture::new();
    let own = io(&fixture.own, &[], &READS).join("' '");
    let hole = fixture.stage.path("link");
    fs::hard_link(&fixture.base, &hole).unwrap();
    // By its other name, which is not covered.
    let script = format!("'{own}' && printf x | dd of='{}' conv=notrunc status=none", hole.display());
    let ended = fixture.record(&fixture.base, &[], &["sh".to_owned(), "-c".to_owned(), script]);
    ended.expect(3).says("has changed during the recording");
    assert!(!fixture.image.exists());
}

#[test]
fn a_removed_disk_is_still_served() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    let whole = fs::read(&fixture.base).unwrap();
    let mounted = fixture.mount(&fixture.base, &["-q"]);
    fs::remove_file(&fixture.base).unwrap();
    assert!(fs::read(mounted.point.join("base.raw")).unwrap() == whole);
    mounted.umount();
}

/// The disk lies on a file system that fails: a Quell view whose process is killed.
#[test]
fn without_the_disks_file_system_hot_blocks_are_served_and_others_are_errors() {
    need_qemu!();
    let fixture = Fixture::new();
    let tree = fixture.stage.dir("tree");
    fs::copy(&fixture.base, tree.join("base.raw")).unwrap();
    let index = fixture.stage.index(&tree);
    let below = fixture.stage.mount(&index, "fuse", &["-q"]);
    let failing = fixture.stage.holder();
    let disk = below.point.join("base.raw");
    let own = fixture.stage.path("far.qcow2");
    fixture.layer(&own, &disk, "raw");
    fixture.record(&disk, &[], &io(&own, &[], &READS)).expect(0);
    assert!(eventually(|| fixture.stage.holders().len() == 1));
    let mounted = fixture.mount(&disk, &["-q"]);
    let file = fs::File::open(mounted.point.join("base.raw")).unwrap();
    send(failing, Signal::KILL);
    assert!(eventually(|| !fixture.stage.holders().contains(&failing)));
    let mut blocks = vec![0; 4 * BLOCK];
    file.read_exact_at(&mut blocks, 4 << 20).unwrap();
    assert_eq!(blocks, trees::noise(BLOCKS * BLOCK, 1)[4 << 20..(4 << 20) + 4 * BLOCK]);
    assert!(file.read_at(&mut blocks, 6 << 20).is_err(), "a block that nobody has");
    drop(file);
    mounted.umount();
}

#[test]
fn a_damaged_image_or_one_of_something_else_is_refused_and_the_machine_runs() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    let whole = fs::read(&fixture.image).unwrap();
    let damage = |bytes: &[u8], words: &str| {
        fs::write(&fixture.image, bytes).unwrap();
        // The image's frames are read while the machine is already running.
        let mut script = checks(&fixture);
        script[2] += "read line || echo checked\n";
        let mut quell = fixture.stage.quell();
        quell
            .args(["run", "--image"])
            .arg(&fixture.base)
            .arg("-b")
            .arg(&fixture.image)
            .arg("--")
            .args(script);
        let mut running = fixture.stage.start(quell.stdin(std::process::Stdio::piped()));
        running.wait_for_error(words);
        drop(running.stdin());
        assert!(running.wait().expect(0).text().ends_with("checked\n"));
        fixture.run(&fixture.base, &["--strict"], &["true".to_owned()]).expect(2).says(words);
        fixture
            .boot(&["qcow2", "-o", fixture.stage.path("no.qcow2").to_str().unwrap()])
            .expect(2)
            .says(words);
    };
    damage(&whole[..whole.len() - 1], "header at 16");
    damage(&whole[..50], "the file ends within the header");
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    damage(&flipped, "frame at 0: the checksum is wrong");
    flipped = whole.clone();
    flipped[130] ^= 1;
    damage(&flipped, "the checksum of the tables is wrong");
    fs::write(&fixture.image, &whole).unwrap();

    // An image of another disk, and one of a chain with more files.
    let other = fixture.stage.file("other.raw", trees::noise(BLOCKS * BLOCK, 1));
    let ended = fixture.run(&other, &["-q"], &["true".to_owned()]).expect(0);
    ended.says("was recorded from").says("it is another disk image");
    fixture.record(&fixture.own, &[], &io(&fixture.own, &["-r"], &READS)).expect(0);
    fixture.run(&fixture.base, &["--strict"], &["true".to_owned()]).expect(2);

    // An image of a tree for a disk, and the reverse.
    let tree = fixture.stage.dir("tree");
    fs::write(tree.join("file"), "text").unwrap();
    let index = fixture.stage.index(&tree);
    let of_tree = fixture.stage.path("tree.boot");
    let mut quell = fixture.stage.quell();
    quell.args(["record", "-q", "-i"]).arg(&index).arg("-o").arg(&of_tree);
    fixture.stage.run(quell.args(["--", "cat"]).arg(tree.join("file"))).expect(0);
    let mut quell = fixture.stage.quell();
    quell.args(["run", "--strict", "-i"]).arg(&index).arg("-b").arg(&fixture.image);
    fixture.stage.run(quell.args(["--", "true"])).expect(2).says("use it with --image");
    fs::rename(&of_tree, &fixture.image).unwrap();
    fixture.run(&fixture.base, &["--strict"], &["true".to_owned()]).expect(2).says("use it with -i");
}

#[test]
fn less_memory_than_the_image_takes_means_none() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &["read 0 2M"])).expect(0);
    fixture.run(&fixture.base, &["--budget", "1"], &checks(&fixture)).expect(0).says("takes 2 MiB of memory");
    fixture
        .run(&fixture.base, &["--budget", "1", "--strict"], &["true".to_owned()])
        .expect(3)
        .says("takes 2 MiB");
}

#[test]
fn options_that_are_for_trees_are_refused() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    for option in [&["--scratch"][..], &["--at", "/tmp"], &["--view", "overlay"], &["-i", "/tmp"]] {
        let ended = fixture.run(&fixture.base, &[option, &["--strict"]].concat(), &["true".to_owned()]);
        assert_eq!(ended.code(), Some(2), "{option:?}: {}", ended.err);
    }
    let mut quell = fixture.stage.quell();
    quell.args(["run", "--strict", "--image"]).arg(&fixture.base).args(["--", "true"]);
    fixture.stage.run(&mut quell).expect(2).says("--image needs -b");
}

#[test]
fn a_reader_whose_server_is_killed_gets_an_error_and_does_not_hang() {
    need_qemu!();
    let fixture = Fixture::new();
    fixture.record(&fixture.base, &[], &io(&fixture.own, &[], &READS)).expect(0);
    let (ended, point) = fixture.try_mount(&fixture.base, &["-q"]);
    ended.expect(0);
    let script = "exec 3<\"$1\"; while dd bs=4096 count=1 skip=0 <&3 >/dev/null 2>&1 && cat <\"$1\" >/dev/null; do echo read; done; echo over";
    let mut running = fixture
        .stage
        .start(fixture.stage.command("sh").args(["-c", script, "sh"]).arg(point.join("base.raw")));
    running.wait_for_output("read");
    send(fixture.stage.holder(), Signal::KILL);
    assert!(running.wait().expect(0).text().ends_with("over\n"));
    fixture.stage.run(fixture.stage.quell().args(["umount", "--force"]).arg(&point)).expect(0);
}

/// A machine that reads its disk block by block, and writes `.` to its serial port for each block
/// and `E` for each error:
///
/// ```text
///          xor  ax, ax            ; ds = es = ss = 0
///          mov  ds, ax
///          mov  es, ax
///          mov  ss, ax
///          mov  sp, 0x7c00
///          mov  [drive], dl
/// again:   mov  si, packet
///          mov  ah, 0x42          ; read as the packet says
///          mov  dl, [drive]
///          int  0x13
///          mov  al, '.'
///          jnc  say
///          mov  al, 'E'
/// say:     mov  dx, 0x3f8
///          out  dx, al
///          add  dword [block], 8
///          mov  ah, 0x86          ; 20 ms
///          xor  cx, cx
///          mov  dx, 20000
///          int  0x15
///          jmp  again
/// packet:  db 16, 0               ; eight sectors to 0x8000
///          dw 8, 0x8000, 0
/// block:   dd 8, 0
/// drive:   db 0
/// ```
const BOOT_SECTOR: [u8; 0x48] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x88, 0x16, 0x48, 0x7c, 0xbe, 0x38,
    0x7c, 0xb4, 0x42, 0x8a, 0x16, 0x48, 0x7c, 0xcd, 0x13, 0xb0, 0x2e, 0x73, 0x02, 0xb0, 0x45, 0xba, 0xf8,
    0x03, 0xee, 0x66, 0x83, 0x06, 0x40, 0x7c, 0x08, 0xb4, 0x86, 0x31, 0xc9, 0xba, 0x20, 0x4e, 0xcd, 0x15,
    0xeb, 0xda, 0x8d, 0x74, 0x00, 0x10, 0x00, 0x08, 0x00, 0x00, 0x80, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00,
];

#[test]
fn a_machine_whose_server_is_killed_gets_errors_and_does_not_hang() {
    need_qemu!();
    if !has("qemu-system-x86_64") {
        skip!("QEMU (qemu-system-x86) is not installed");
    }
    let mut fixture = Fixture::new();
    fixture.base = fixture.stage.path("large.raw");
    let disk = fs::File::create(&fixture.base).unwrap();
    disk.set_len(64 << 20).unwrap();
    disk.write_all_at(&BOOT_SECTOR, 0).unwrap();
    disk.write_all_at(&[0x55, 0xaa], 510).unwrap();
    drop(disk);
    let machine = |command: &mut std::process::Command, number: usize| {
        let own = fixture.stage.path(format!("machine-{number}.qcow2"));
        fixture.layer(&own, &fixture.base, "raw");
        let serial = fixture.stage.path(format!("serial-{number}"));
        command.args(["--", "qemu-system-x86_64", "-accel", "tcg", "-m", "32", "-display", "none"]);
        command
            .args(["-monitor", "none", "-net", "none", "-serial"])
            .arg(format!("file:{}", serial.display()));
        command.arg("-drive").arg(format!("file={},if=virtio,rerror=report", own.display()));
        (fixture.stage.start(command), serial)
    };
    let lines = |serial: &Path| fs::read_to_string(serial).unwrap_or_default();
    let mut quell = fixture.stage.quell();
    quell.args(["record", "-q", "--image"]).arg(&fixture.base).arg("-o").arg(&fixture.image);
    let (recorder, serial) = machine(&mut quell, 0);
    assert!(eventually(|| lines(&serial).len() >= 20), "the machine does not start: {}", recorder.err());
    recorder.signal(Signal::TERM);
    recorder.wait();
    let blocks = fixture.recorded()[0].1;
    assert!(blocks >= 20, "{blocks}");
    let running: Vec<(Running, PathBuf)> = (1..3)
        .map(|number| {
            let mut quell = fixture.stage.quell();
            quell.args(["run", "-q", "--strict", "--image"]).arg(&fixture.base).arg("-b").arg(&fixture.image);
            machine(&mut quell, number)
        })
        .collect();
    assert!(running.iter().all(|(_, serial)| eventually(|| lines(serial).len() >= 20)));
    assert!(running.iter().all(|(_, serial)| !lines(serial).contains('E')));
    send(fixture.stage.holder(), Signal::KILL);
    for (machine, serial) in running {
        assert!(eventually(|| lines(&serial).contains('E')), "no error came: {}", lines(&serial));
        machine.signal(Signal::TERM);
        machine.wait();
    }
}
