//! `quell stats`: prints how many requests views absorbed and passed on, as counted by their
//! holders.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use quell_mount_spec::{Output, OutputFormat};
use quell_supervisor::{HolderReport, LogReport, Reports, reports_of, shown_list};

use crate::arguments::StatsArgs;
use crate::failure::{Failure, NO};
use crate::inputs::shown;
use crate::output;
use crate::output::{errln, outln};

pub fn run(args: StatsArgs) -> Result<ExitCode, Failure> {
    let Reports { reports, unanswered } = reports_of(&args.path)?;
    for message in unanswered {
        errln!("quell: {message}");
    }
    if let Some(file) = &args.prometheus {
        let text = prometheus(&reports);
        if file == Path::new("-") {
            output::print(format_args!("{text}"));
        } else {
            // The exporter runs as another user, and must never read an incomplete file.
            let readable_by_all = Permissions::from_mode(0o644);
            let format = OutputFormat {
                name: "a file of counters that `quell stats` wrote",
                begins: |bytes| bytes.starts_with(b"# TYPE quell_"),
            };
            let output = Output { path: file, format, force: args.force };
            output.replace(text.as_bytes(), |f| f.set_permissions(readable_by_all))?;
        }
    } else if args.json {
        outln!("{}", serde_json::to_string(&reports).map_err(|e| Failure::cannot(e.to_string()))?);
    } else {
        for report in &reports {
            print(report);
        }
    }
    if reports.is_empty() {
        errln!("quell: no view of {} is served by a process of yours on this node", shown(&args.path));
        return Ok(ExitCode::from(NO));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &HolderReport) {
    if let Some(log) = &report.log {
        print_log(log, report.pid);
    }
    if let Some(pool) = &report.pool {
        outln!("{} (pool {}, process {})", shown(&pool.path), pool.name, report.pid);
        print_counters(&pool.counters);
    }
    if let Some(blob) = &report.blob {
        outln!("{} (blobs of {}, process {})", shown(&blob.path), blob.store, report.pid);
        outln!("  prefix              {}", blob.prefix);
        print_counters(&blob.counters);
    }
    if let Some(batch) = &report.batch {
        outln!("{} (store {}, process {})", shown(&batch.path), shown(&batch.store), report.pid);
        if let Some(number) = batch.batch {
            outln!("  batch               {number}");
        }
        print_counters(&batch.counters);
    }
    for tree in &report.trees {
        outln!("{} ({} of {}, process {})", shown(&tree.path), tree.view, shown(&tree.index), report.pid);
        outln!("  reason for view     {}", tree.reason);
        // The preload library reads the index in each process, and compares single files.
        if tree.entries > 0 {
            outln!("  entries             {}", tree.entries);
            outln!("  entries compared    {} ({} changed)", tree.looks, tree.changes);
        }
        match &tree.counters {
            None => outln!("  requests            not counted: the kernel answers them"),
            Some(counters) => print_counters(counters),
        }
    }
    if let Some(messages) = &report.messages {
        outln!("  messages            {}", shown(messages));
    }
}

fn print_log(log: &LogReport, pid: u32) {
    outln!("{} (log of {}, process {pid})", shown(&log.path), shown_list(&log.stores));
    outln!("  buffer bytes        {}", log.buffer_bytes);
    outln!("  index               {}", log.index.name());
    outln!("  locks               {}", log.locks.name());
    outln!("  only user of store  {}", if log.only_user { "yes" } else { "no" });
    print_counters(&log.counters);
}

fn print_counters(counters: &BTreeMap<String, u64>) {
    for (name, value) in counters {
        outln!("  {:<20}{value}", name.replace('_', " "));
    }
}

/// Formats the counters in the Prometheus text format.
fn prometheus(reports: &[HolderReport]) -> String {
    let mut samples: BTreeMap<String, Vec<String>> = Default::default();
    let escape = |text: String| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    for report in reports {
        if let Some(log) = &report.log {
            let (path, stores) = (escape(shown(&log.path)), escape(shown_list(&log.stores)));
            let labels = format!("path=\"{path}\",stores=\"{stores}\",view=\"log\",pid=\"{}\"", report.pid);
            for (name, value) in &log.counters {
                samples
                    .entry(format!("quell_{name}_total"))
                    .or_default()
                    .push(format!("{{{labels}}} {value}"));
            }
        }
        if let Some(pool) = &report.pool {
            let (path, name) = (escape(shown(&pool.path)), escape(pool.name.clone()));
            let labels = format!("path=\"{path}\",pool=\"{name}\",view=\"pool\",pid=\"{}\"", report.pid);
            for (name, value) in &pool.counters {
                let samples = samples.entry(format!("quell_{name}_total")).or_default();
                samples.push(format!("{{{labels}}} {value}"));
            }
        }
        if let Some(blob) = &report.blob {
            let (path, store) = (escape(shown(&blob.path)), escape(blob.store.clone()));
            let labels = format!("path=\"{path}\",store=\"{store}\",view=\"blob\",pid=\"{}\"", report.pid);
            for (name, value) in &blob.counters {
                let samples = samples.entry(format!("quell_{name}_total")).or_default();
                samples.push(format!("{{{labels}}} {value}"));
            }
        }
        if let Some(batch) = &report.batch {
            let (path, store) = (escape(shown(&batch.path)), escape(shown(&batch.store)));
            let labels = format!("path=\"{path}\",store=\"{store}\",view=\"batch\",pid=\"{}\"", report.pid);
            for (name, value) in &batch.counters {
                let samples = samples.entry(format!("quell_{name}_total")).or_default();
                samples.push(format!("{{{labels}}} {value}"));
            }
        }
        for tree in &report.trees {
            let labels = format!(
                "path=\"{}\",index=\"{}\",view=\"{}\",pid=\"{}\"",
                escape(shown(&tree.path)),
                escape(shown(&tree.index)),
                tree.view,
                report.pid
            );
            let fixed = [("looks", tree.looks), ("changes", tree.changes)].map(|(n, v)| (n.to_owned(), v));
            let counted = tree.counters.iter().flatten().map(|(name, value)| (name.clone(), *value));
            for (name, value) in fixed.into_iter().chain(counted) {
                samples
                    .entry(format!("quell_{name}_total"))
                    .or_default()
                    .push(format!("{{{labels}}} {value}"));
            }
            samples.entry("quell_entries".into()).or_default().push(format!("{{{labels}}} {}", tree.entries));
        }
    }
    let mut text = String::new();
    for (name, lines) in samples {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let _ = writeln!(text, "# TYPE {name} {kind}");
        for line in lines {
            let _ = writeln!(text, "{name}{line}");
        }
    }
    text
}
