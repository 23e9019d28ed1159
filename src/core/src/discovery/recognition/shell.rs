//! Splits shell scripts into simple commands, as far as the position of a program requires.
//!
//! The parser knows quotes, comments, continued lines, separators, redirections and command substitutions. It expands
//! nothing. It reads each byte once, so that a script of any form costs linear time.

use std::{iter::Peekable, str::Chars};

/// Stands for the output of a command substitution in a word.
const OUTPUT: &str = "$()";

/// The simple commands of a script.
pub(super) struct Script {
    /// The words of each command, without redirections. Quotes are removed.
    pub(super) commands: Vec<Vec<String>>,
    /// Whether the parser can have mistaken a part of the script for a quoted text.
    is_ambiguous: bool,
}

/// The bracket or quote that ends a part of a script.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closer {
    Parenthesis,
    Substitution,
    Backtick,
}

/// The command that the parser reads at one level of nesting.
#[derive(Default)]
struct Level {
    words: Vec<String>,
    word: Option<String>,
    is_in_double_quotes: bool,
    /// Whether the next word is the target of a redirection.
    is_target: bool,
}

/// State of the parser.
#[derive(Default)]
struct Parser {
    commands: Vec<Vec<String>>,
    level: Level,
    outer: Vec<(Level, Closer)>,
    is_ambiguous: bool,
}

/// Returns the words of all simple commands of a script. Commands of substitutions precede the command that contains
/// them. A script with a here-document or with an open quote is also parsed line by line: a command is then found
/// wherever the quote was meant to end.
pub(crate) fn commands(script: &str) -> Vec<Vec<String>> {
    let Script { mut commands, is_ambiguous } = Script::parse(script);
    if is_ambiguous {
        let joined = script.replace("\\\r\n", " ").replace("\\\n", " ");
        commands.extend(joined.lines().flat_map(|line| Script::parse(line).commands));
    }
    commands
}

// === impl Script ===

impl Script {
    fn parse(text: &str) -> Self {
        let mut parser = Parser::default();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if parser.level.is_in_double_quotes {
                parser.read_quoted(c, &mut chars);
            } else {
                parser.read(c, &mut chars);
            }
        }
        parser.is_ambiguous |= parser.level.is_in_double_quotes || !parser.outer.is_empty();
        parser.end_command();
        while let Some((level, _)) = parser.outer.pop() {
            parser.level = level;
            parser.end_command();
        }
        Self { commands: parser.commands, is_ambiguous: parser.is_ambiguous }
    }
}

// === impl Parser ===

impl Parser {
    /// Reads a character outside of quotes.
    fn read(&mut self, c: char, chars: &mut Peekable<Chars<'_>>) {
        match c {
            ' ' | '\t' | '\r' => self.end_word(),
            '&' if chars.next_if_eq(&'>').is_some() => self.begin_redirection(chars),
            '\n' | ';' | '&' | '|' => self.end_command(),
            '<' | '>' => {
                self.is_ambiguous |= c == '<' && chars.peek() == Some(&'<');
                self.begin_redirection(chars);
            }
            '#' if self.level.word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            '\'' => self.read_single_quotes(chars),
            '"' => {
                self.level.is_in_double_quotes = true;
                self.word();
            }
            '(' => {
                if chars.peek() == Some(&')') {
                    // `name()` is `function name`.
                    self.end_word();
                    let name = self.level.words.len().saturating_sub(1);
                    self.level.words.insert(name, String::from("function"));
                }
                self.end_command();
                self.open(Closer::Parenthesis);
            }
            ')' => self.close_parenthesis(),
            _ => self.read_anywhere(c, chars),
        }
    }

    /// Reads a character inside of double quotes.
    fn read_quoted(&mut self, c: char, chars: &mut Peekable<Chars<'_>>) {
        match c {
            '"' => self.level.is_in_double_quotes = false,
            _ => self.read_anywhere(c, chars),
        }
    }

    /// Reads a character that has the same meaning in double quotes and outside of quotes.
    fn read_anywhere(&mut self, c: char, chars: &mut Peekable<Chars<'_>>) {
        match c {
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some('\r') if chars.next_if_eq(&'\n').is_some() => {}
                Some(escaped) => self.word().push(escaped),
            },
            '$' if chars.next_if_eq(&'(').is_some() => {
                self.word().push_str(OUTPUT);
                self.open(Closer::Substitution);
            }
            '$' if chars.peek() == Some(&'{') => self.read_braces(chars),
            '`' if self.outer.last().is_some_and(|(_, closer)| *closer == Closer::Backtick) => self.close(),
            '`' => {
                self.word().push_str(OUTPUT);
                self.open(Closer::Backtick);
            }
            _ => self.word().push(c),
        }
    }

    fn read_single_quotes(&mut self, chars: &mut Peekable<Chars<'_>>) {
        self.word();
        loop {
            match chars.next() {
                Some('\'') => return,
                Some(c) => self.word().push(c),
                None => {
                    self.is_ambiguous = true;
                    return;
                }
            }
        }
    }

    /// Reads `{NAME}` after a dollar sign, also with a default value that contains blanks.
    fn read_braces(&mut self, chars: &mut Peekable<Chars<'_>>) {
        self.word().push('$');
        let mut depth = 0_usize;
        for c in chars.by_ref() {
            self.word().push(c);
            match c {
                '{' => depth = depth.saturating_add(1),
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return;
            }
        }
        self.is_ambiguous = true;
    }

    /// Skips the operator of a redirection after its first character.
    fn begin_redirection(&mut self, chars: &mut Peekable<Chars<'_>>) {
        // A number before the operator is a file descriptor.
        if self.level.word.as_ref().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
            self.level.word = None;
        }
        self.end_word();
        while chars.next_if(|c| matches!(c, '<' | '>' | '&' | '|' | '-')).is_some() {}
        // `<(` and `>(` begin a list of commands.
        self.level.is_target = chars.peek() != Some(&'(');
    }

    /// Begins a word, or continues the current one.
    fn word(&mut self) -> &mut String {
        self.level.word.get_or_insert_default()
    }

    fn end_word(&mut self) {
        if let Some(word) = self.level.word.take()
            && !std::mem::take(&mut self.level.is_target)
        {
            self.level.words.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.level.is_target = false;
        let words = std::mem::take(&mut self.level.words);
        if !words.is_empty() {
            self.commands.push(words);
        }
    }

    fn open(&mut self, closer: Closer) {
        self.outer.push((std::mem::take(&mut self.level), closer));
    }

    fn close(&mut self) {
        // Kubernetes expands `$(NAME)` in commands and arguments before a shell reads them.
        self.end_word();
        if let [name] = self.level.words.as_slice()
            && is_variable_name(name)
        {
            self.level.words.clear();
        }
        self.end_command();
        if let Some((level, _)) = self.outer.pop() {
            self.level = level;
        }
    }

    fn close_parenthesis(&mut self) {
        match self.outer.last() {
            Some((_, Closer::Parenthesis | Closer::Substitution)) => self.close(),
            // The pattern of a `case`.
            Some((_, Closer::Backtick)) | None => {
                self.level.word = None;
                self.level.words.clear();
            }
        }
    }
}

/// Whether a word has the form of an environment variable's name: capitals, digits and underscores.
fn is_variable_name(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(script: &str) -> Vec<String> {
        commands(script).iter().map(|words| words.join(" ")).collect()
    }

    #[test]
    fn splits_scripts_into_commands() {
        for (script, expected) in [
            ("a b; c && d || e | f & g\nh", &["a b", "c", "d", "e", "f", "g", "h"][..]),
            ("a \\\n  --b \\\r\n c", &["a --b c"]),
            ("# a comment; with 'quote\na # b\nc#d", &["a", "c#d"]),
            ("a 'b; c' \"d & e\" f\\ g", &["a b; c d & e f g"]),
            ("a $(b c) \"x$(d)y\" `e f`", &["b c", "d", "e f", "a $() x$()y $()"]),
            ("\"$(BIN)/etcd\" --name=$(POD_NAME)", &["$()/etcd --name=$()"]),
            ("a > out 2>&1 < in >> log &> both b", &["a b"]),
            ("x=(a b)", &["x=", "a b"]),
            ("case $1 in\nstart) a;;\n*) b;;\nesac", &["case $1 in", "a", "b", "esac"]),
            ("run() { a; }; run", &["function run", "{ a", "}", "run"]),
            ("a ${B:-c d} e", &["a ${B:-c d} e"]),
            ("diff <(a) <(b)", &["diff", "a", "b"]),
        ] {
            assert_eq!(joined(script), expected, "{script}");
        }
    }

    /// A quote in a here-document must not hide the commands after it.
    #[test]
    fn finds_commands_after_open_quotes() {
        for script in [
            "cat <<EOF > x\ndon't\nEOF\nexec a 'b'",
            "echo \"open\nexec a b",
            "echo 'open\nexec a b",
            "echo ${open\nexec a b",
            "echo $(open\nexec a b",
        ] {
            assert!(joined(script).iter().any(|command| command.starts_with("exec a")), "{script}");
        }
    }

    #[test]
    fn parses_deep_nesting_in_linear_time() {
        for part in ["$(", "(", "`", "\"", "'", "${", "<<", "\\", "$(\"`"] {
            assert!(commands(&part.repeat(20_000)).len() <= 80_000, "{part}");
        }
    }
}
