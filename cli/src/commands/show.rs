//! `quell show`: prints the contents of an index.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use quell_index::{EntryId, Image, ROOT, format};
use quell_supervisor::load_index_at;
use quell_vfs::{Kind, Time};
use serde_json::{Value, json};

use crate::arguments::ShowArgs;
use crate::commands::index::reason;
use crate::failure::Failure;
use crate::inputs::{index_file, shown, shown_bytes, text_of, text_of_bytes};
use crate::local_time::local_time;
use crate::output;
use crate::output::{counted, outln};

pub fn run(args: ShowArgs) -> Result<ExitCode, Failure> {
    let image = load_index_at(&index_file(&args.file)?)?;
    match &args.path {
        None if !args.recursive => summary(&image, &args),
        path => {
            let path = path.as_deref().unwrap_or(Path::new(""));
            let entry = find(&image, path).ok_or_else(|| {
                Failure::wrong_input(format!(
                    "{} is not in the index {}; `quell show -r` lists the entries",
                    shown(path),
                    shown(&args.file)
                ))
            })?;
            if args.recursive { tree(&image, entry, args.json) } else { one(&image, entry, args.json) }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn find(image: &Image, path: &Path) -> Option<EntryId> {
    let bytes = path.as_os_str().as_bytes();
    let relative = match bytes.strip_prefix(image.root_path()) {
        Some(rest) if bytes.starts_with(b"/") && (rest.is_empty() || rest.starts_with(b"/")) => rest,
        _ => bytes,
    };
    let components = relative.split(|b| *b == b'/').filter(|c| !c.is_empty() && *c != b".");
    components.into_iter().try_fold(ROOT, |at, name| image.lookup(at, name))
}

fn flags(image: &Image) -> Vec<&'static str> {
    [
        (format::FLAG_XATTRS, "extended attributes"),
        (format::FLAG_ACLS, "access control lists"),
        (format::FLAG_DEVICES, "devices"),
        (format::FLAG_PRIVILEGED_XATTRS, "file capabilities"),
        (format::FLAG_XATTRS_SKIPPED, "no extended attributes: they were not read"),
    ]
    .into_iter()
    .filter_map(|(flag, name)| image.has_flag(flag).then_some(name))
    .collect()
}

fn summary(image: &Image, args: &ShowArgs) {
    let text = if args.json { text_of_bytes } else { shown_bytes };
    let options: Vec<String> = image.option_lines().map(text).collect();
    let problems: Vec<(String, String)> =
        image.problems().map(|p| (text(&p.path), reason(p.errno))).collect();
    if args.json {
        let sections: serde_json::Map<String, Value> =
            image.section_bytes().map(|(name, bytes)| (name.into(), bytes.into())).collect();
        let problems: Vec<Value> =
            problems.iter().map(|(path, error)| json!({ "path": path, "error": error })).collect();
        outln!(
            "{}",
            json!({
                "file": text_of(&args.file), "root": text_of_bytes(image.root_path()),
                "format_version": image.format_version(), "generation": image.generation().to_string(),
                "entries": image.entries(), "directories": image.directories(), "nodes": image.nodes(),
                "longest_path_bytes": image.longest_path_bytes(), "bytes": image.file_bytes(),
                "sections": sections, "holds": flags(image), "options": options, "problems": problems,
            })
        );
        return;
    }
    outln!("index       {} (format {})", shown(&args.file), image.format_version());
    outln!("tree        {}", shown_bytes(image.root_path()));
    outln!("generation  {}", image.generation());
    outln!(
        "entries     {} ({}, {})",
        image.entries(),
        counted(image.directories().into(), "directory", "directories"),
        counted(image.nodes(), "node", "nodes")
    );
    let each = image.file_bytes() as f64 / f64::from(image.entries());
    outln!("size        {} bytes, {each:.1} per entry", image.file_bytes());
    for (name, bytes) in image.section_bytes() {
        outln!("  {name:<10}{bytes:>12}");
    }
    outln!("paths       at most {} bytes long", image.longest_path_bytes());
    for flag in flags(image) {
        outln!("content     {flag}");
    }
    for option in options {
        outln!("option      {option}");
    }
    for (path, error) in problems {
        outln!("not read    {path}: {error}");
    }
}

/// Returns seconds since 1970 as a decimal number, like `find -printf %T@`. Nanoseconds count
/// forward from the second, so before 1970 they reduce the absolute value.
pub(super) fn time(time: Time) -> String {
    if time.seconds < 0 && time.nanoseconds > 0 {
        return format!("-{}.{:09}", -(time.seconds + 1), 1_000_000_000 - time.nanoseconds);
    }
    format!("{}.{:09}", time.seconds, time.nanoseconds)
}

fn line(image: &Image, entry: EntryId, name: &str) -> String {
    let a = image.attributes(entry);
    let target = image.link_target(entry).map(|t| format!(" -> {}", shown_bytes(t))).unwrap_or_default();
    format!(
        "{}{:04o} {:>3} {:>6} {:>6} {:>12} {} {name}{target}",
        a.kind.letter(),
        a.permissions,
        a.nlink,
        a.uid,
        a.gid,
        a.size_bytes,
        local_time(a.modified),
    )
}

fn value(image: &Image, entry: EntryId) -> Value {
    let a = image.attributes(entry);
    let xattrs: serde_json::Map<String, Value> = image
        .xattrs(entry)
        .map(|(name, value)| (text_of_bytes(name), value.escape_ascii().to_string().into()))
        .collect();
    let mut value = json!({
        "path": text_of_bytes(&image.path(entry)), "kind": a.kind.letter().to_string(),
        "mode": format!("{:04o}", a.permissions), "uid": a.uid, "gid": a.gid, "nlink": a.nlink,
        "size": a.size_bytes, "blocks": a.blocks, "mtime": time(a.modified), "ctime": time(a.changed),
    });
    if let Some(target) = image.link_target(entry) {
        value["target"] = text_of_bytes(target).into();
    }
    if a.rdev != 0 {
        value["rdev"] = a.rdev.into();
    }
    if !xattrs.is_empty() {
        value["xattrs"] = xattrs.into();
    }
    value
}

fn one(image: &Image, entry: EntryId, as_json: bool) {
    let children = image.children(entry).unwrap_or(0..0);
    if as_json {
        let mut whole = value(image, entry);
        if image.kind(entry) == Kind::Dir {
            whole["entries"] = children.map(|child| value(image, child)).collect();
        }
        outln!("{whole}");
        return;
    }
    outln!("{}", line(image, entry, &shown_bytes(&image.path(entry))));
    for (name, value) in image.xattrs(entry) {
        outln!("  {} = {}", shown_bytes(name), value.escape_ascii());
    }
    for child in children {
        outln!("  {}", line(image, child, &shown_bytes(image.name(child))));
    }
}

fn tree(image: &Image, top: EntryId, as_json: bool) {
    let mut waiting = vec![top];
    while let Some(entry) = waiting.pop() {
        if output::has_failed() {
            return;
        }
        if as_json {
            outln!("{}", value(image, entry));
        } else {
            outln!("{}", line(image, entry, &shown_bytes(&image.path(entry))));
        }
        waiting.extend(image.children(entry).unwrap_or(0..0).rev());
    }
}
