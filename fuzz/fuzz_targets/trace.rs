//! Reads whole traces twice, with a mount table that the first byte selects and from files that the
//! lines select. The numbers of the report add up, are finite, and can be displayed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_profile::{
    Capacity, FirstReading, LineSource, Links, LocationRules, MountPoint, UnknownDirectories, variables,
};

/// Symbolic links that form cycles, or lead out of the known directories.
struct Circles(bool);

impl Links for Circles {
    fn target(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        let to: &[u8] = match path {
            b"/apps" => b"/sw/apps",
            b"/usr/lib64" => b"lib",
            b"/a" => b"b",
            b"/b" => b"../a/./b",
            _ => return None,
        };
        self.0.then(|| to.to_vec())
    }
}

fn location_rules(choice: u8) -> LocationRules {
    let mount = |point: &str, kind: &str| MountPoint { point: point.into(), file_system: kind.into() };
    let some =
        |bit: u8, path: &str| if choice & bit != 0 { vec![path.as_bytes().to_vec()] } else { Vec::new() };
    LocationRules {
        mounts: vec![
            mount("/", "ext4"),
            mount("/sw", "lustre"),
            mount("/home", "nfs4"),
            mount("/home/u/tmp", "tmpfs"),
        ],
        shared: [some(1, "/"), some(2, "/usr/lib"), some(4, "/tmp")].concat(),
        temporary: some(8, "/tmp"),
        working: (choice & 16 != 0).then(|| b"/home/u".to_vec()),
        home: (choice & 32 != 0).then(|| b"/home/u".to_vec()),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, trace)) = data.split_first() else { return };
    let environment = [(b"LD_LIBRARY_PATH".as_slice(), b"/sw/lib:/usr/lib".as_slice())];
    let variables = variables(environment.into_iter());
    let location_rules = location_rules(*choice);
    let mut links = Circles(choice & 32 != 0);
    // With several files, the first byte of each line determines the file that the line belongs to.
    let several = choice & 64 != 0;
    let lines: Vec<(LineSource, &[u8])> = trace
        .split(|b| *b == b'\n')
        .map(|line| match line.split_first() {
            Some((file, rest)) if several => {
                let file = u32::from(*file);
                (LineSource { space: file % 3, pid: if file % 2 == 0 { 0 } else { file } }, rest)
            }
            _ => (LineSource { space: 0, pid: 0 }, line),
        })
        .collect();
    let mut first = FirstReading::new(&location_rules, variables, &mut links);
    lines.iter().for_each(|(source, line)| first.line(*source, line, || "trace:1".into()));
    let calls = first.end().calls;
    let mut second = first.choose(if choice & 128 != 0 { 3.5 } else { 1.0 }, &mut UnknownDirectories);
    lines.iter().for_each(|(source, line)| second.line(*source, line));
    let capacity = Capacity { operations_per_s: 32_000.0, from: "fuzz".into() };
    let report = second.report(Some(&capacity));

    let totals = &report.totals;
    let s = &totals.skipped;
    let others = s.other_calls + s.events + s.resumed + s.orphans + s.truncated + s.foreign;
    assert_eq!(totals.calls, calls);
    assert_eq!(totals.lines, lines.len() as u64);
    assert_eq!(totals.lines, calls + others);
    let elsewhere = totals.elsewhere.no_file + totals.elsewhere.unknown + totals.elsewhere.bad;
    assert_eq!(calls, totals.metadata + totals.data + elsewhere);
    assert_eq!(totals.by_call.values().sum::<u64>(), calls);
    assert!(s.unfinished <= calls && totals.missing <= totals.failed && totals.failed <= calls);
    let locations = &report.locations;
    let locations = [&locations.cwd, &locations.tmp, &locations.shared, &locations.local];
    assert_eq!(locations.iter().map(|p| p.metadata).sum::<u64>(), totals.metadata);
    assert_eq!(locations.iter().map(|p| p.data).sum::<u64>(), totals.data);
    assert_eq!(locations.iter().map(|p| p.bytes_read).sum::<u64>(), totals.bytes_read);
    assert_eq!(report.operations.iter().map(|o| o.calls).sum::<u64>(), calls);
    assert_eq!(report.operations.iter().map(|o| o.missing).sum::<u64>(), totals.missing);
    assert!(report.rate.len() <= 600);
    let rates = &report.metadata_rate.scenarios;
    for rate in [rates.direct, rates.index, rates.boot] {
        assert!(rate.average.is_finite() && rate.peak.is_finite() && rate.average >= 0.0);
    }
    for point in &report.rate {
        assert!(point.t.is_finite() && point.metadata.is_finite() && point.index.is_finite());
    }
    for tree in &report.trees {
        assert!(tree.missing <= tree.metadata && tree.metadata <= totals.metadata);
        assert!(tree.remaining.direct.metadata <= report.remaining.direct.metadata);
    }
    let _ = (quell_profile::summary(&report, true), quell_profile::csv(&report));
});
