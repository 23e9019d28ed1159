//! Inputs made of other inputs: a part taken out, doubled, moved or replaced. Bytes changed at random are seldom JSON,
//! and what is no JSON is never looked at closely.

use serde_json::{Map, Value, json};

/// Words that the program knows, and some that make trouble: for texts, keys, flags and variables.
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
];

/// A source of numbers that gives the same ones for the same seed.
#[derive(Debug)]
pub struct Random(u64);

// === impl Random ===

impl Random {
    /// One that begins with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below this limit; 0 if that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^= it >> 31;
        usize::try_from(it >> 1).unwrap_or_default().checked_rem(limit).unwrap_or_default()
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }

    fn word(&mut self) -> &'static str {
        self.pick(WORDS).copied().unwrap_or_default()
    }
}

/// Another JSON text, with one to four parts of this one changed; `None` if it is none.
#[must_use]
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

/// Another text, with one to four of this one's lines changed.
#[must_use]
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
            how => {
                if let Some(line) = lines.get_mut(at) {
                    *line = if how == 5 { indented(line, random) } else { reworded(line, random) };
                }
            }
        }
    }
    lines.join("\n")
}

/// Another text, with one to four of this one's bytes changed.
#[must_use]
pub fn bytes(text: &[u8], random: &mut Random) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..=random.below(4) {
        let (at, byte) = (random.below(text.len()), u8::try_from(random.below(256)).unwrap_or_default());
        match random.below(4) {
            0 => text.insert(at, byte),
            1 => text.truncate(at.max(1)),
            2 if !text.is_empty() => drop(text.remove(at)),
            _ => text.iter_mut().skip(at).take(1).for_each(|it| *it ^= byte),
        }
    }
    text
}

fn indented(line: &str, random: &mut Random) -> String {
    let (bare, blanks) = (line.trim_start(), line.len() - line.trim_start().len());
    " ".repeat((blanks + random.below(5)).saturating_sub(2)) + bare
}

/// With a word in the place of one of its own.
fn reworded(line: &str, random: &mut Random) -> String {
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
            if let Some(key) = key_of(members, random) {
                members.remove(&key);
            }
        }
        (2, Value::Object(members)) => drop(members.insert(random.word().to_owned(), donor)),
        (3, Value::Object(members)) => {
            let value = key_of(members, random).and_then(|key| members.remove(&key));
            members.extend(value.map(|value| (random.word().to_owned(), value)));
        }
        (4, _) => *part = donor,
        (5, Value::String(text)) => *text = reworded(text, random),
        _ => *part = simple(random),
    }
}

fn key_of(members: &Map<String, Value>, random: &mut Random) -> Option<String> {
    members.keys().nth(random.below(members.len())).cloned()
}

fn simple(random: &mut Random) -> Value {
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

/// How many parts a value has, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

fn nth(value: &Value, at: usize) -> Option<&Value> {
    let children: Vec<&Value> = match value {
        _ if at == 0 => return Some(value),
        Value::Array(items) => items.iter().collect(),
        Value::Object(members) => members.values().collect(),
        _ => return None,
    };
    let mut rest = at - 1;
    for child in children {
        let here = count(child);
        if rest < here {
            return nth(child, rest);
        }
        rest -= here;
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
        let here = count(child);
        if rest < here {
            return nth_mut(child, rest);
        }
        rest -= here;
    }
    None
}
