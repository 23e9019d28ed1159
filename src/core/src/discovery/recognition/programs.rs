//! The programs that the commands of a container start.

use super::{images::ImageKind, shell};

/// Flags that configure a member of a cluster and no client.
const MEMBER_FLAGS: [&str; 4] =
    ["initial-advertise-peer-urls", "listen-peer-urls", "initial-cluster-state", "initial-cluster-token"];

/// Flags of etcd that show that the word before them is the program.
const SERVER_FLAGS: [&str; 8] = [
    "data-dir",
    "wal-dir",
    "config-file",
    "listen-client-urls",
    "listen-metrics-urls",
    "advertise-client-urls",
    "quota-backend-bytes",
    "snapshot-count",
];

/// Programs that read or change the data of members and run no member.
const TOOLS: [&str; 5] = ["etcdctl", "etcdutl", "etcdbrctl", "etcd-dump-db", "etcd-dump-logs"];

/// Commands of the etcd program that forward requests to members and run none. etcd compares only its first argument with
/// them (`server/etcdmain/main.go`).
const PROXY_COMMANDS: [&str; 2] = ["grpc-proxy", "gateway"];

/// Flags with which etcd prints a text and ends.
const PRINTING_FLAGS: [&str; 5] = ["--version", "-version", "--help", "-help", "-h"];

/// Shells with an option `-c` that precedes a script.
const SHELLS: [&str; 7] = ["sh", "bash", "ash", "dash", "ksh", "zsh", "su"];

/// Words of a shell's grammar that precede a command.
const KEYWORDS: [&str; 16] = [
    "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "!", "{", "}", "time", "esac", "in",
    "coproc",
];

/// Words of a shell's grammar that no command follows before the next separator.
const HEADERS: [&str; 4] = ["for", "case", "select", "function"];

/// Programs that start the program in their arguments: name, short options with a separate value, and number of arguments
/// before the program.
const WRAPPERS: [(&str, &str, usize); 27] = [
    ("exec", "a", 0),
    ("command", "", 0),
    ("builtin", "", 0),
    ("env", "uCS", 0),
    ("nohup", "", 0),
    ("nice", "n", 0),
    ("ionice", "cn", 0),
    ("timeout", "ks", 1),
    ("tini", "p", 0),
    ("tini-static", "p", 0),
    ("dumb-init", "r", 0),
    ("catatonit", "", 0),
    ("gosu", "", 1),
    ("su-exec", "", 1),
    ("sudo", "ugChprtT", 0),
    ("setpriv", "", 0),
    ("setsid", "", 0),
    ("stdbuf", "ioe", 0),
    ("chroot", "", 1),
    ("chpst", "uUbenmodpfcrt", 0),
    ("s6-setuidgid", "", 1),
    ("taskset", "", 1),
    ("numactl", "NCmpi", 0),
    ("prlimit", "", 0),
    ("xargs", "nIPLsEda", 0),
    ("busybox", "", 0),
    ("vault-env", "", 0),
];

/// Programs that wait and do nothing.
const SLEEPERS: [&str; 3] = ["sleep", "pause", "wait"];

/// Programs that neither are etcd nor start a program that they do not name.
const OTHER_PROGRAMS: [&str; 84] = [
    ":",
    "[",
    "[[",
    "aws",
    "awk",
    "az",
    "base64",
    "basename",
    "break",
    "cat",
    "cd",
    "chmod",
    "chown",
    "confd",
    "continue",
    "cp",
    "curl",
    "cut",
    "date",
    "dd",
    "df",
    "dig",
    "dirname",
    "du",
    "echo",
    "exit",
    "export",
    "false",
    "gcloud",
    "getent",
    "grep",
    "gsutil",
    "gunzip",
    "gzip",
    "head",
    "host",
    "hostname",
    "id",
    "jq",
    "kill",
    "kubectl",
    "ln",
    "local",
    "ls",
    "mc",
    "mkdir",
    "mktemp",
    "mv",
    "nc",
    "ncat",
    "netcat",
    "nslookup",
    "openssl",
    "ping",
    "printf",
    "ps",
    "pwd",
    "rclone",
    "read",
    "readonly",
    "restic",
    "return",
    "rm",
    "rsync",
    "s3cmd",
    "sed",
    "seq",
    "set",
    "sha256sum",
    "shift",
    "sort",
    "sync",
    "tar",
    "tee",
    "test",
    "touch",
    "tr",
    "trap",
    "true",
    "ulimit",
    "umask",
    "unset",
    "wc",
    "wget",
];

/// Maximum nesting of scripts in the arguments of shells. A deeper script counts as an unknown program.
const MAX_DEPTH: usize = 4;

/// What the commands of a container do.
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a list of commands")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Commands {
    /// Whether one of them starts a member.
    pub(super) starts_etcd: bool,
    /// A flag of a member, at a program that is neither one of etcd's tools nor a proxy.
    pub(super) member_flag: Option<&'static str>,
    /// The proxy command of etcd that one of them runs.
    pub(super) proxy: Option<&'static str>,
    /// The tool of etcd that one of them runs.
    pub(super) tool: Option<&'static str>,
    /// Whether one of them makes etcd print its version or its flags.
    pub(super) prints: bool,
    /// Whether one of them waits.
    pub(super) sleeps: bool,
    /// Whether one of them can start any program.
    pub(super) has_unknown: bool,
    /// Whether the name of an unknown program contains the word etcd.
    pub(super) has_unknown_named_etcd: bool,
}

// === impl Commands ===

impl Commands {
    /// Reads the words with which a container is started. `is_argument` means that the words can also be arguments of an
    /// unknown entrypoint of the image.
    pub(super) fn new(words: &[&str], is_argument: bool) -> Self {
        let mut commands = Self::default();
        // etcd accepts no arguments without a dash: `etcd 2379` is the host and the port that another program expects.
        let is_host = is_argument
            && matches!(words, ["etcd", next, ..] if !next.starts_with(['-', '$']) && !PROXY_COMMANDS.contains(next));
        if is_host {
            commands.has_unknown = true;
            commands.add_flags(words);
        } else {
            commands.add(words, 0);
        }
        commands
    }

    /// Reads arguments of an unknown program.
    pub(super) fn of_arguments(words: &[&str]) -> Self {
        let mut commands = Self { has_unknown: true, ..Self::default() };
        commands.add_flags(words);
        commands
    }

    fn add(&mut self, words: &[&str], depth: usize) {
        let words = without_prefix(words);
        let [program, arguments @ ..] = words else { return };
        let name = basename(program);
        let first = arguments.first().copied().unwrap_or_default();
        if let Some(tool) = TOOLS.iter().find(|tool| **tool == name) {
            self.tool = Some(tool);
            return;
        }
        if is_etcd(name) {
            match PROXY_COMMANDS.iter().find(|command| **command == first) {
                Some(command) => self.proxy = Some(command),
                None if PRINTING_FLAGS.contains(&first) => self.prints = true,
                None => self.starts_etcd = true,
            }
            return;
        }
        self.add_flags(words);
        if SHELLS.contains(&name) {
            self.add_shell(name, arguments, depth);
        } else if name == "eval" {
            self.has_unknown |= arguments.iter().any(|word| word.contains('$'));
            self.add_script(&arguments.join(" "), depth);
        } else if SLEEPERS.contains(&name) || is_endless_tail(name, arguments) {
            self.sleeps = true;
        } else if !OTHER_PROGRAMS.contains(&name) {
            self.has_unknown = true;
            self.has_unknown_named_etcd |= is_named_etcd(name);
            self.starts_etcd |= names_etcd_as_program(words);
            // The program can be a shell. Other programs have long options with one dash, such as `-backend etcd`.
            for (option, script) in words.iter().zip(arguments) {
                if matches!(*option, "-c" | "-ec" | "-lc") && script.contains([' ', '\n']) {
                    self.add_script(script, depth);
                }
            }
            // Entrypoints of images execute their arguments.
            if name.contains("entrypoint") && arguments.first().is_some_and(|word| is_etcd(basename(word))) {
                self.add(arguments, depth);
            }
        }
    }

    fn add_flags(&mut self, words: &[&str]) {
        let mut parts = words.iter().flat_map(|word| word.split([' ', '\t', '\n', '=', '"', '\'', ',']));
        let flag = parts.find_map(|part| {
            let name = part.strip_prefix("--").or_else(|| part.strip_prefix('-'))?;
            MEMBER_FLAGS.iter().find(|flag| **flag == name)
        });
        self.member_flag = self.member_flag.or(flag.copied());
    }

    /// Reads the options of a shell, its script and the arguments of the script.
    fn add_shell(&mut self, name: &str, arguments: &[&str], depth: usize) {
        let (mut has_script, mut rest) = (false, arguments);
        while let [word, next @ ..] = rest {
            let is_option = word.starts_with(['-', '+']) && word.len() > 1 && !word.contains([' ', '\n']);
            let has_value = is_option && !word.starts_with("--") && word.ends_with('o');
            let is_script = is_option && is_script_option(word);
            // `su` has the name of a user before its options, and after them.
            if !is_option && (name != "su" || has_script) {
                break;
            }
            has_script |= is_script;
            rest = if has_value { next.get(1..).unwrap_or_default() } else { next };
        }
        match rest {
            [script, positional @ ..] if has_script => {
                if script.contains('$') && name != "su" {
                    // `$0` is the first argument after the script.
                    for words in [Some(positional), positional.get(1..)].into_iter().flatten() {
                        self.starts_etcd |= words.first().is_some_and(|word| is_etcd(basename(word)));
                        self.add_flags(words);
                    }
                }
                self.add_script(script, depth);
            }
            // A shell without a script waits for commands of its terminal. In a script, it can read the output of a pipe.
            [] if depth == 0 => self.sleeps = true,
            _ => {
                self.has_unknown = true;
                self.has_unknown_named_etcd |= rest.iter().any(|word| is_named_etcd(basename(word)));
            }
        }
    }

    fn add_script(&mut self, script: &str, depth: usize) {
        if depth >= MAX_DEPTH {
            self.has_unknown = true;
            return;
        }
        for words in shell::commands(script) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.add(&words, depth + 1);
        }
    }
}

/// Whether this option of a shell is followed by a script: `-c`, or `-ec` with further options.
fn is_script_option(option: &str) -> bool {
    option.starts_with('-') && !option.starts_with("--") && option.contains('c')
}

/// Whether a text can contain a flag of a member.
pub(super) fn may_have_member_flag(text: &str) -> bool {
    text.contains("-peer-urls") || text.contains("-cluster-")
}

/// Whether the name of an unknown program contains the word etcd, and no word of another program.
fn is_named_etcd(name: &str) -> bool {
    matches!(ImageKind::from_name(name), ImageKind::Etcd | ImageKind::Unknown)
}

/// Whether this is the name of the etcd program, also with a version: `etcd-v3.5.1`.
fn is_etcd(name: &str) -> bool {
    let is_version = |version: &str| {
        let version = version.strip_prefix('v').unwrap_or(version);
        version.contains('.') && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    name == "etcd" || name.strip_prefix("etcd-").is_some_and(is_version)
}

/// Returns a command without the keywords, the assignments and the programs that start the next word.
pub(crate) fn without_prefix<'a, 'w>(mut words: &'w [&'a str]) -> &'w [&'a str] {
    while let [first, rest @ ..] = words {
        let name = basename(first);
        if HEADERS.contains(first) {
            return &[];
        } else if KEYWORDS.contains(first) || is_assignment(first) {
            words = rest;
        } else if let Some((_, with_value, count)) = WRAPPERS.iter().find(|(wrapper, ..)| *wrapper == name) {
            let program = skip_options(rest, with_value);
            // A wrapper without a program changes nothing that matters here, as `exec > log` does.
            words = program.get(*count..).unwrap_or_default();
        } else {
            break;
        }
    }
    words
}

/// Returns the words after the options of a wrapper.
fn skip_options<'a, 'w>(mut words: &'w [&'a str], with_value: &str) -> &'w [&'a str] {
    while let [option, rest @ ..] = words {
        let Some(name) = option.strip_prefix('-') else { break };
        if name == "-" {
            return rest;
        }
        let mut letters = name.chars();
        let is_separate =
            letters.next().is_some_and(|letter| with_value.contains(letter)) && letters.next().is_none();
        words = if is_separate { rest.get(1..).unwrap_or_default() } else { rest };
    }
    words
}

/// Whether a program neither is etcd nor starts a program that its command does not name.
pub(crate) fn is_tool(name: &str) -> bool {
    TOOLS.contains(&name) || SLEEPERS.contains(&name) || OTHER_PROGRAMS.contains(&name)
}

/// Whether a word assigns a variable: `NAME=value` or `NAME+=value`.
fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Whether an argument of an unknown program is etcd's own path or name, followed by a flag of etcd, and not the value of
/// an option.
fn names_etcd_as_program(words: &[&str]) -> bool {
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    (1..words.len()).any(|at| {
        let (previous, this, next) = (word(at - 1), word(at), word(at + 1));
        if !is_etcd(basename(this)) || this.starts_with('-') {
            return false;
        }
        let is_path = this.ends_with("bin/etcd");
        let is_value =
            previous.len() > 1 && previous.starts_with('-') && previous != "--" && !previous.contains('=');
        let flag = next.trim_start_matches('-').split('=').next().unwrap_or_default();
        let is_server_flag =
            next.starts_with('-') && (SERVER_FLAGS.contains(&flag) || MEMBER_FLAGS.contains(&flag));
        (is_server_flag && (is_path || !is_value))
            || (is_path && !is_value && (next.is_empty() || next.starts_with('-')))
    })
}

/// Whether this command follows a file that does not change, or its own input.
fn is_endless_tail(name: &str, arguments: &[&str]) -> bool {
    (name == "tail" && arguments.last().is_some_and(|file| *file == "/dev/null"))
        || (name == "cat" && arguments.is_empty())
}

fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
