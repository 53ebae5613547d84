//! The result of a profile in one sentence, in one unit: metadata operations of one cold node that
//! reach the shared file systems.

use crate::analysis::trees::CHECK_OPERATIONS_MAX;
use crate::format::{count, percentage, plural};
use crate::report::{Report, Verdict, VerdictKind};

pub fn verdict(report: &Report) -> Verdict {
    let direct = report.remaining.direct.metadata;
    let (outcome, text) = if report.totals.calls == 0 {
        (VerdictKind::NoCalls, "The traces contain no file-system calls.".to_owned())
    } else if direct == 0 {
        let text = "No metadata operation reaches a shared file system: Quell would not change this \
                    program. --shared DIR treats a directory as shared.";
        (VerdictKind::NothingShared, text.to_owned())
    } else if report.trees.is_empty() {
        (VerdictKind::NothingProposed, nothing_proposed(report))
    } else {
        (VerdictKind::Proposed, proposed(report))
    };
    Verdict { outcome, text }
}

fn nothing_proposed(report: &Report) -> String {
    let direct = report.remaining.direct.metadata;
    let operations = plural(direct, "metadata operation", "metadata operations");
    let reason = match report.not_proposed.first() {
        Some(first) if first.only_bytecode => format!(
            "Python wrote bytecode in {} during this run. Profile the program once more: the second \
             run finds the bytecode.",
            first.path
        ),
        Some(first) => format!("{}: {}.", first.path, first.why),
        None => "no unchanged directory of software has enough of them.".to_owned(),
    };
    format!("{operations} of one node reach shared file systems, and no tree is proposed: {reason}")
}

fn proposed(report: &Report) -> String {
    let remaining = &report.remaining;
    let [direct, index, boot] =
        [remaining.direct, remaining.index, remaining.boot].map(|scenario| scenario.metadata);
    let covered = match report.trees.as_slice() {
        [tree] => format!("An index of {}", tree.path),
        trees => format!("Indexes of {} trees", count(trees.len() as u64)),
    };
    let verb = if report.trees.len() == 1 { "leaves" } else { "leave" };
    let operations = format!(
        "{covered} {verb} {} of {} metadata operations of one node ({}), a boot image {} ({})",
        count(index),
        count(direct),
        percentage(index, direct),
        count(boot),
        percentage(boot, direct),
    );
    let nodes = report.nodes.as_ref().map(|nodes| {
        let number = |nodes: Option<u64>| {
            nodes.map_or("no number of nodes".to_owned(), |n| plural(n, "node", "nodes"))
        };
        format!(
            " The file system saturates at {} without Quell, at {} with an index.",
            number(nodes.direct),
            number(nodes.index)
        )
    });
    format!("{operations}.{}{}", check(report), nodes.unwrap_or_default())
}

/// Returns a sentence about the comparison of trees that the user may write to.
fn check(report: &Report) -> String {
    let operations = report.check_operations();
    if operations == 0 {
        return String::new();
    }
    let is_counted = report.trees.iter().all(|tree| tree.check != Some(CHECK_OPERATIONS_MAX));
    let (at_least, number) = (if is_counted { "" } else { "at least " }, count(operations));
    format!(
        " At each start, {at_least}{number} more compare the trees that you may write to with their \
         indexes, unless --check sample is given."
    )
}
