//! The nodes on which the daemons of a pool are started: the nodes in a file, or the nodes of the
//! job to which this process belongs.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::display::shown;
use crate::failure::Failure;
use crate::pools::launcher::Launcher;
use crate::pools::node::{Node, host_of};

/// The largest number of nodes of a pool. The starting node runs one launcher for each of them.
pub const NODES_MAX: usize = 1024;
/// The longest name of a node, in bytes: a domain name with a user name before it.
const NAME_BYTES_MAX: usize = 320;
/// The largest list of nodes that is read, in bytes.
const LIST_BYTES_MAX: u64 = 4 << 20;

/// The nodes of a job, and the launcher of its system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobNodes {
    /// The nodes, without repetitions.
    pub nodes: Vec<Node>,
    /// The launcher of the job system.
    pub launcher: Launcher,
}

/// Returns the nodes of the job to which this process belongs, or `None` if it belongs to no job.
/// The job system is the first of Flux, Slurm and PBS whose environment variables are set.
///
/// # Errors
/// `Failure::cannot` if the program of the job system that lists the nodes fails, and
/// `Failure::wrong_input` for more than [`NODES_MAX`] nodes.
pub fn nodes_of_job() -> Result<Option<JobNodes>, Failure> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if variable("FLUX_URI").is_some() || variable("FLUX_JOB_ID").is_some() {
        let hosts = output_of("flux", &["hostlist", "--expand", "local"])?;
        let brokers = output_of("flux", &["hostlist", "--expand", "instance"])?;
        let nodes = nodes_of_flux(&hosts, &brokers)?;
        return Ok(Some(JobNodes { nodes, launcher: Launcher::Flux }));
    }
    if let Some(list) = variable("SLURM_JOB_NODELIST") {
        let names = output_of("scontrol", &["show", "hostnames", &list])?;
        return Ok(Some(JobNodes { nodes: parse_nodes(&names)?, launcher: Launcher::Srun }));
    }
    if let Some(file) = variable("PBS_NODEFILE") {
        // pbsdsh passes no standard input to the programs that it starts.
        return Ok(Some(JobNodes { nodes: nodes_of_file(Path::new(&file))?, launcher: Launcher::Ssh }));
    }
    Ok(None)
}

/// Reads the nodes of a file: one in each line, without repetitions. The rest of a line after `#`
/// is a comment.
///
/// # Errors
///
/// `Failure::wrong_input` for a name that no node can have, and for more than [`NODES_MAX`] nodes.
pub fn nodes_of_file(path: &Path) -> Result<Vec<Node>, Failure> {
    let failed = |e: std::io::Error| Failure::wrong_input(format!("{}: {e}", shown(path)));
    let mut text = Vec::new();
    File::open(path).map_err(failed)?.take(LIST_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    let text = String::from_utf8(text).ok().filter(|text| text.len() as u64 <= LIST_BYTES_MAX);
    let Some(text) = text else {
        return Err(Failure::wrong_input(format!("{} is not a text file of at most 4 MiB", shown(path))));
    };
    parse_nodes(&text).map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))
}

/// Parses names of nodes, one in each line.
fn parse_nodes(text: &str) -> Result<Vec<Node>, Failure> {
    let names = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    distinct(names.filter(|name| !name.is_empty()).map(|name| (name, None)))
}

/// Returns the nodes of a job with the ranks of their brokers. Both lists are separated by white
/// space; the position of a name in the second one is a rank.
fn nodes_of_flux(hosts: &str, brokers: &str) -> Result<Vec<Node>, Failure> {
    let brokers: Vec<&str> = brokers.split_ascii_whitespace().collect();
    let rank = |name: &str| brokers.iter().position(|broker| *broker == name);
    distinct(hosts.split_ascii_whitespace().map(|name| (name, rank(name))))
}

/// Checks names, and omits repetitions.
fn distinct<'a>(names: impl Iterator<Item = (&'a str, Option<usize>)>) -> Result<Vec<Node>, Failure> {
    let (mut nodes, mut known) = (Vec::new(), HashSet::new());
    for (name, rank) in names {
        check_name(name)?;
        if known.insert(name) {
            nodes.push(Node { name: name.to_owned(), rank });
        }
        if nodes.len() > NODES_MAX {
            return Err(Failure::wrong_input(format!("there are more than {NODES_MAX} nodes")));
        }
    }
    Ok(nodes)
}

/// Refuses a name that a launcher could read as an option, or a shell as more than one word.
fn check_name(name: &str) -> Result<(), Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@');
    let is_refused = name.len() > NAME_BYTES_MAX
        || name.starts_with('-')
        || name.contains("@-")
        || !name.chars().all(is_plain)
        || host_of(name).is_empty();
    match is_refused {
        false => Ok(()),
        true => {
            let start: String = name.chars().take(64).collect();
            Err(Failure::wrong_input(format!("{} is not the name of a node", shown(start))))
        }
    }
}

/// Runs a program of a job system and returns its output.
fn output_of(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let command = format!("{program} {}", arguments.join(" "));
    let failed =
        |reason: &str| Failure::cannot(format!("cannot list the nodes of the job: {command}: {reason}"));
    // A list that begins with '-' would be read as an option.
    if arguments.last().is_some_and(|argument| argument.starts_with('-')) {
        return Err(failed("the list of nodes is damaged"));
    }
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(&e.to_string()))?;
    let mut text = String::new();
    let output = child.stdout.take().expect("it is piped");
    let read = output.take(LIST_BYTES_MAX).read_to_string(&mut text);
    let status = child.wait().map_err(|e| failed(&e.to_string()))?;
    read.map_err(|e| failed(&e.to_string()))?;
    match status.success() {
        true => Ok(text),
        false => Err(failed(&status.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        parse_nodes(text).unwrap().into_iter().map(|node| node.name).collect()
    }

    #[test]
    fn a_list_has_one_name_in_each_line_and_repetitions_count_once() {
        let text = "# the nodes\nn1\n  n2.example.org  # fast\n\nn1\r\nme@n3\nfe80::1\nn2.example.org";
        assert_eq!(names(text), ["n1", "n2.example.org", "me@n3", "fe80::1"]);
        assert_eq!(names(""), Vec::<String>::new());
        assert_eq!((host_of("me@n3"), host_of("n3")), ("n3", "n3"));
    }

    #[test]
    fn a_name_that_is_an_option_or_more_than_a_word_is_refused() {
        let long = "n".repeat(NAME_BYTES_MAX + 1);
        for bad in
            ["-oProxyCommand=x", "a b", "a;b", "$(x)", "a\u{1b}[2J", "\u{e4}", "me@", "me@-x", "a/b", &long]
        {
            assert!(parse_nodes(bad).is_err(), "{bad}");
        }
        let many: String = (0..=NODES_MAX).map(|number| format!("n{number}\n")).collect();
        assert!(parse_nodes(&many).is_err());
    }

    #[test]
    fn the_rank_of_a_node_is_its_position_among_the_brokers() {
        let nodes = nodes_of_flux("n3 n1", "n0 n1\nn2 n3").unwrap();
        let ranks: Vec<Option<usize>> = nodes.iter().map(|node| node.rank).collect();
        assert_eq!(ranks, [Some(3), Some(1)]);
        assert_eq!(nodes_of_flux("n9", "n0").unwrap()[0].rank, None);
    }
}
