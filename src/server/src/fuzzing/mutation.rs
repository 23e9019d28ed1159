//! Mutations of inputs: parts are removed, duplicated, moved or replaced. Random changes of bytes rarely result in
//! valid JSON, and parsers reject invalid JSON before they reach the interesting code.

use serde_json::{Map, Value, json};

/// Strings, keys, flags and variables that the program handles specially, and some that are difficult to parse.
const WORDS: &[&str] = &[
    "",
    "-",
    "0",
    "~1",
    "a/b~c",
    "\u{e9}\n\"",
    "true",
    "false",
    "name",
    "etcd",
    "agent",
    "lxcfs",
    "agent,lxcfs",
    "native, strict",
    "data",
    "Always",
    "StatefulSet",
    "metadata.name",
    "status.podIP",
    "etcd-guard.io/inject",
    "etcd-guard.io/injected",
    "etcd-guard.io/member",
    "etcd-guard.io/endpoints",
    "https://$(POD_NAME).etcd:2379",
    "sidecar-injector.lxcfs/inject",
    "acme.com/lifespan-requested",
    "agent.inject.etcd-guard.io/image",
    "/proc/meminfo",
    "/x/../data/",
    "1.5Gi",
    "2026-11-22T00:00:00Z",
    "--name=$(POD_NAME)",
    "--advertise-client-urls",
    "https://etcd-0.etcd:2379,http://127.0.0.1:2379",
    "ETCD_NAME=$(A)$(A)",
    "A=$(A)${B}$C$(A)",
    "etcdctl member remove",
    "Job",
    "sh -c",
    "exec etcd --name=a",
    "/usr/local/bin/etcd",
    "etcd grpc-proxy start",
    "etcd --version",
    "etcdctl snapshot restore --initial-cluster-state new",
    "--listen-peer-urls=http://0.0.0.0:2380",
    "ETCD_NAME ETCD_DATA_DIR",
    "ETCD_LISTEN_PEER_URLS",
    "x/etcd-wrapper:1",
    "x/etcd-backup",
    "sleep 1d",
    "nc -z etcd 2379",
    "serve -s etcd",
    "if true; then",
    "case $1 in etcd) ",
    "eval \"",
    "$(",
    ")",
    "`",
    "'",
    "# etcd",
    "cat <<EOF",
    "EOF",
    "\\",
    "&&",
    "A=b ",
];

/// A deterministic random number generator.
#[derive(Debug)]
pub struct Random(u64);

// === impl Random ===

impl Random {
    /// Creates a generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below this limit, or 0 if the limit is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed >> 1).unwrap_or_default().checked_rem(limit).unwrap_or_default()
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }

    fn word(&mut self) -> &'static str {
        self.pick(WORDS).copied().unwrap_or_default()
    }
}

/// Changes one to four parts of a JSON text. Returns `None` if the text is not valid JSON.
pub fn json(text: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    for _ in 0..=random.below(4) {
        let donor = nth(&value, random.below(count(&value))).cloned().unwrap_or_default();
        let place = random.below(count(&value));
        if let Some(part) = nth_mut(&mut value, place) {
            change(part, donor, random);
        }
    }
    serde_json::to_vec(&value).ok()
}

/// Changes one to four lines of a text.
pub fn lines(text: &str, random: &mut Random) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..=random.below(4) {
        let (at, other) = (random.below(lines.len()), random.below(lines.len()));
        let donor = lines.get(other).cloned().unwrap_or_default();
        match random.below(7) {
            0 if !lines.is_empty() => drop(lines.remove(at)),
            1 => lines.insert(at, donor),
            2 if !lines.is_empty() => lines.swap(at, other),
            3 => lines.insert(at, random.word().to_owned()),
            4 => lines.insert(at, String::new()),
            change => {
                if let Some(line) = lines.get_mut(at) {
                    *line = if change == 5 { reindent(line, random) } else { replace_word(line, random) };
                }
            }
        }
    }
    lines.join("\n")
}

/// Changes one to four bytes of a text.
pub fn bytes(text: &[u8], random: &mut Random) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..=random.below(4) {
        let (at, byte) = (random.below(text.len()), u8::try_from(random.below(256)).unwrap_or_default());
        match random.below(4) {
            0 => text.insert(at, byte),
            1 => text.truncate(at.max(1)),
            2 if !text.is_empty() => drop(text.remove(at)),
            _ => text.iter_mut().skip(at).take(1).for_each(|changed| *changed ^= byte),
        }
    }
    text
}

fn reindent(line: &str, random: &mut Random) -> String {
    let (bare, blanks) = (line.trim_start(), line.len() - line.trim_start().len());
    " ".repeat((blanks + random.below(5)).saturating_sub(2)) + bare
}

/// Replaces one word of a line by one of [`WORDS`].
fn replace_word(line: &str, random: &mut Random) -> String {
    let words: Vec<&str> = line.split_inclusive([' ', ':', '=', ',', '/']).collect();
    let at = random.below(words.len());
    let new = random.word();
    words.iter().enumerate().map(|(index, word)| if index == at { new } else { word }).collect()
}

fn change(part: &mut Value, donor: Value, random: &mut Random) {
    match (random.below(8), &mut *part) {
        (0 | 1, Value::Array(items)) if !items.is_empty() => drop(items.remove(random.below(items.len()))),
        (2, Value::Array(items)) => items.insert(random.below(items.len() + 1), donor),
        (3, Value::Array(items)) => items.extend(items.get(random.below(items.len())).cloned()),
        (0 | 1, Value::Object(members)) => {
            if let Some(key) = random_key(members, random) {
                members.remove(&key);
            }
        }
        (2, Value::Object(members)) => drop(members.insert(random.word().to_owned(), donor)),
        (3, Value::Object(members)) => {
            let value = random_key(members, random).and_then(|key| members.remove(&key));
            members.extend(value.map(|value| (random.word().to_owned(), value)));
        }
        (4, _) => *part = donor,
        (5, Value::String(text)) => *text = replace_word(text, random),
        _ => *part = random_scalar(random),
    }
}

fn random_key(members: &Map<String, Value>, random: &mut Random) -> Option<String> {
    members.keys().nth(random.below(members.len())).cloned()
}

fn random_scalar(random: &mut Random) -> Value {
    match random.below(10) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(0),
        3 => json!(-1.5),
        4 => json!(u64::MAX),
        5 => json!([]),
        6 => json!({}),
        _ => json!(random.word()),
    }
}

/// Returns the number of values in a JSON value, including itself.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

/// Returns the value at this position in depth-first order.
fn nth(value: &Value, at: usize) -> Option<&Value> {
    let children: Vec<&Value> = match value {
        _ if at == 0 => return Some(value),
        Value::Array(items) => items.iter().collect(),
        Value::Object(members) => members.values().collect(),
        _ => return None,
    };
    let mut rest = at - 1;
    for child in children {
        let size = count(child);
        if rest < size {
            return nth(child, rest);
        }
        rest -= size;
    }
    None
}

fn nth_mut(value: &mut Value, at: usize) -> Option<&mut Value> {
    if at == 0 {
        return Some(value);
    }
    let children: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(members) => members.values_mut().collect(),
        _ => return None,
    };
    let mut rest = at - 1;
    for child in children {
        let size = count(child);
        if rest < size {
            return nth_mut(child, rest);
        }
        rest -= size;
    }
    None
}
