//! The programs that start a daemon on another node: the command line of each. Such a program
//! passes its standard input to the daemon, and the daemon's output to its standard output. The key
//! of a pool is therefore never in a command line or in an environment.

use std::path::Path;

use crate::failure::Failure;
use crate::pools::node::Node;

/// The longest template, in bytes.
const TEMPLATE_BYTES_MAX: usize = 4096;
/// The part of a template that stands for the name of a node.
const HOST: &str = "{host}";

/// A program that starts a command on another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launcher {
    /// OpenSSH, without prompts.
    Ssh,
    /// A step of a Slurm job for each node, which shares its resources with other steps.
    Srun,
    /// The brokers of a Flux instance.
    Flux,
    /// `mpirun` of Open MPI or MPICH.
    Mpirun,
    /// Any other program: the words of its command line, with `{host}` in at least one. The path of
    /// the daemon is added at the end.
    Template(Vec<String>),
}

impl Launcher {
    /// Parses the name of a launcher, or a template: words that are separated by spaces.
    ///
    /// # Errors
    ///
    /// `Failure::wrong_input` for a template that has no `{host}`, is longer than 4,096 bytes, or
    /// has control characters.
    pub fn parse(text: &str) -> Result<Launcher, Failure> {
        match text {
            "ssh" => return Ok(Launcher::Ssh),
            "srun" => return Ok(Launcher::Srun),
            "flux" => return Ok(Launcher::Flux),
            "mpirun" => return Ok(Launcher::Mpirun),
            _ => {}
        }
        let refused = |reason: &str| Failure::wrong_input(format!("--launcher: {reason}"));
        if text.len() > TEMPLATE_BYTES_MAX || text.chars().any(char::is_control) {
            return Err(refused("the command is longer than 4,096 bytes or has control characters"));
        }
        let words: Vec<String> = text.split_ascii_whitespace().map(str::to_owned).collect();
        let names_host = words.iter().skip(1).any(|word| word.contains(HOST));
        match names_host {
            true => Ok(Launcher::Template(words)),
            false => Err(refused(
                "use ssh, srun, flux, mpirun, or a command with an argument that contains {host}",
            )),
        }
    }

    /// Returns the command line that starts `daemon`, an absolute path, on a node.
    ///
    /// # Errors
    ///
    /// `Failure::cannot` for Flux without the rank of the node.
    pub fn command(&self, node: &Node, daemon: &Path) -> Result<Vec<String>, Failure> {
        let path = daemon.to_str();
        let path = path.ok_or_else(|| Failure::cannot("the path of quelld is not valid UTF-8"))?;
        let host = node.name.as_str();
        let words: Vec<&str> = match self {
            Launcher::Ssh => {
                let seconds = "ConnectTimeout=20";
                // The connection to a failed node ends after a minute.
                let alive = ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"];
                let quoted = quoted(path);
                let mut words: Vec<String> =
                    ["ssh", "-T", "-o", "BatchMode=yes", "-o", seconds].map(str::to_owned).into();
                words.extend(alive.map(str::to_owned));
                words.extend(["--".to_owned(), host.to_owned(), quoted]);
                return Ok(words);
            }
            Launcher::Srun => vec![
                "srun",
                "--nodes=1",
                "--ntasks=1",
                "--overlap",
                "--cpu-bind=none",
                "--mpi=none",
                "--unbuffered",
                "--quiet",
                "--nodelist",
                host,
                path,
            ],
            Launcher::Flux => {
                let rank = node.rank.ok_or_else(|| {
                    Failure::cannot(format!(
                        "Flux has no broker on {host}; `flux hostlist instance` names its nodes"
                    ))
                })?;
                let words = ["flux", "exec", "--rank", &rank.to_string(), path];
                return Ok(words.map(str::to_owned).into());
            }
            Launcher::Mpirun => vec!["mpirun", "-n", "1", "--host", host, path],
            Launcher::Template(words) => {
                let words = words.iter().map(|word| word.replace(HOST, host));
                return Ok(words.chain([path.to_owned()]).collect());
            }
        };
        Ok(words.into_iter().map(str::to_owned).collect())
    }
}

/// Returns a word that a POSIX shell reads as `text`.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(launcher: &str, daemon: &str) -> String {
        let node = Node { name: "n1".into(), rank: Some(3) };
        Launcher::parse(launcher).unwrap().command(&node, Path::new(daemon)).unwrap().join(" ")
    }

    #[test]
    fn each_launcher_starts_one_daemon_on_one_node() {
        let path = "/opt/quell/bin/quelld";
        assert_eq!(
            command("ssh", path),
            "ssh -T -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=4 -- n1 /opt/quell/bin/quelld"
        );
        assert_eq!(
            command("srun", path),
            "srun --nodes=1 --ntasks=1 --overlap --cpu-bind=none --mpi=none --unbuffered --quiet --nodelist n1 /opt/quell/bin/quelld"
        );
        assert_eq!(command("flux", path), "flux exec --rank 3 /opt/quell/bin/quelld");
        assert_eq!(command("mpirun", path), "mpirun -n 1 --host n1 /opt/quell/bin/quelld");
        assert_eq!(command("rsh  -l me {host}", path), "rsh -l me n1 /opt/quell/bin/quelld");
        let without_broker = Node { name: "n1".into(), rank: None };
        assert!(Launcher::Flux.command(&without_broker, Path::new(path)).is_err());
    }

    #[test]
    fn the_remote_shell_reads_the_path_as_one_word() {
        assert!(command("ssh", "/opt/it's here/quelld").ends_with(r"-- n1 '/opt/it'\''s here/quelld'"));
    }

    #[test]
    fn a_template_without_a_host_is_refused() {
        for bad in
            ["", "rsh", "{host}", "rsh host", "rsh {host}\n", &format!("x {{host}}{}", "y".repeat(4096))]
        {
            assert!(Launcher::parse(bad).is_err(), "{bad}");
        }
    }
}
